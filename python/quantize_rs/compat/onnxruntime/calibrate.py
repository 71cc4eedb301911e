"""Samples and methods, as ``onnxruntime.quantization.calibrate`` names them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["CalibrationDataReader", "CalibrationMethod"]


class CalibrationMethod(enum.Enum):
    """How ranges follow from what was seen."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(ABC):
    """Samples, one at a time: a dictionary of arrays by input name, and None at the end.

    A reader need not be derived of this; anything with ``get_next`` will do.
    """

    @abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """Give the next sample, or None."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give these samples next, for ``CalibStridedMinMax``; not every reader can."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Give the samples that are left."""
        return self

    def __next__(self) -> Mapping[str, Any]:
        """Give the next sample."""
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        """Any class with ``get_next`` is one."""
        return callable(getattr(kind, "get_next", None)) or NotImplemented
