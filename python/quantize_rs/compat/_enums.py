"""The choices that onnxruntime's tool names, and what they are called here."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..errors import OptionError

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "QuantFormat",
    "QuantType",
    "name_of",
    "type_of",
]


class QuantType(enum.Enum):
    """Types of weights and activations."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6
    QINT4 = QInt4
    QFLOAT8 = QFLOAT8E4M3FN

    def __str__(self) -> str:
        """Give the name."""
        return self.name


class QuantFormat(enum.Enum):
    """How what is quantized is written; here as QDQ."""

    QOperator = 0
    QDQ = 1

    def __str__(self) -> str:
        """Give the name."""
        return self.name


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

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Give the samples that are left."""
        while sample := self.get_next():
            yield sample


_TYPES = {
    "QInt8": "int8",
    "QUInt8": "uint8",
    "QFLOAT8E4M3FN": "float8e4m3fn",
    "QInt16": "int16",
    "QUInt16": "uint16",
    "QInt4": "int4",
    "QUInt4": "uint4",
}


def name_of(option: str, value: Any, known: Collection[str]) -> str:
    """Give the name of a member of an enum, ours or onnxruntime's own."""
    name = getattr(value, "name", None)
    if name not in known:
        expected = ", ".join(known)
        raise OptionError(f"{option} is {value!r}, expected one of {expected}", option=option)
    return str(name)


def type_of(option: str, value: Any) -> str:
    return _TYPES[name_of(option, value, _TYPES)]
