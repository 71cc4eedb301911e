"""Samples and methods, as ``onnxruntime.quantization.calibrate`` names them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["CalibrationDataReader", "CalibrationMethod"]


class CalibrationMethod(enum.Enum):
    """Calibration methods."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(ABC):
    """Samples, one at a time: a dictionary of arrays by input name, and None at the end.

    You do not need to subclass it; any object with ``get_next`` works.
    """

    @abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample, or None at the end."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Select the next samples, for ``CalibStridedMinMax``; optional."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over the remaining samples."""
        return self

    def __next__(self) -> Mapping[str, Any]:
        """Return the next sample."""
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        """Treat any class with ``get_next`` as a subclass."""
        return callable(getattr(kind, "get_next", None)) or NotImplemented
