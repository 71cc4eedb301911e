"""Types and formats, as ``onnxruntime.quantization.quant_utils`` names them."""

from __future__ import annotations

import enum

__all__ = ["QuantFormat", "QuantType"]


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
        """Return the name."""
        return self.name


class QuantFormat(enum.Enum):
    """Output formats; only QDQ is written here."""

    QOperator = 0
    QDQ = 1

    def __str__(self) -> str:
        """Return the name."""
        return self.name
