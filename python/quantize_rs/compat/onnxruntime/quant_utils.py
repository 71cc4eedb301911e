"""Types and formats, as ``onnxruntime.quantization.quant_utils`` names them."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..._inputs.files import write
from ..._options import check
from ..._transforms.infer_shapes import infer_shapes
from ._elsewhere import hints
from ._packages import onnx_package
from ._tensors_data import save_tensors_data

__all__ = [
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizedValueType",
    "load_model_with_shape_infer",
    "write_calibration_table",
]

__getattr__ = hints(__name__)

_log = logging.getLogger("quantize_rs")

StrPath: TypeAlias = str | os.PathLike[str]

_Kind = TypeVar("_Kind", bound="_Named")


class _Named(enum.Enum):
    """An enum whose members are written and read by name, as for ``argparse``."""

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    @classmethod
    def from_string(cls: type[_Kind], name: str) -> _Kind:
        """Return the member of a name.

        Raises
        ------
        ValueError
            There is no such member.
        """
        try:
            return cls[name]
        except KeyError:
            known = ", ".join(cls.__members__)
            what = f"{cls.__name__} has no {name!r}, expected one of {known}"
            raise ValueError(what) from None


class QuantType(_Named):
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

    @property
    def tensor_type(self) -> int:
        """The number of the type in ``onnx.TensorProto``."""
        return _TENSOR_TYPES[self.name]


# Members of `onnx.TensorProto.DataType`; onnx need not be installed.
_TENSOR_TYPES = {
    "QInt8": 3,
    "QUInt8": 2,
    "QFLOAT8E4M3FN": 17,
    "QInt16": 5,
    "QUInt16": 4,
    "QInt4": 22,
    "QUInt4": 21,
}


class QuantFormat(_Named):
    """Output formats."""

    QOperator = 0
    QDQ = 1


class QuantizationMode(_Named):
    """How integer operators are written; see `QuantFormat`."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_Named):
    """Whether a value is computed or constant."""

    Input = 0
    Initializer = 1


def load_model_with_shape_infer(model_path: StrPath) -> Any:
    """Return a model as an ``onnx.ModelProto`` with the shapes of all values.

    No file is written beside the model, which may have any size that a ``ModelProto`` can have.

    Raises
    ------
    MissingPackageError
        The package onnx is not installed.
    ModelError
        The model cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime.quant_utils import load_model_with_shape_infer
    >>> proto = load_model_with_shape_infer(quantize_rs.examples.digits().model)
    >>> len(proto.graph.value_info) > 5
    True
    """
    onnx = onnx_package("load_model_with_shape_infer")
    return onnx.load_from_string(infer_shapes(model_path).model)


def write_calibration_table(calibration_cache: Any, dir: StrPath = ".") -> None:  # noqa: A002
    """Write ranges for TensorRT: ``calibration.json``, ``.flatbuffers`` and ``.cache``.

    The number of a value is the largest magnitude of its range: onnxruntime writes the upper end,
    which is too small where the lower end is further from 0. ``calibration.flatbuffers`` is only
    written if the package flatbuffers is installed.

    Parameters
    ----------
    calibration_cache
        A `TensorsData`, or `TensorData` by name.
    dir
        The folder.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    folder = Path(check.path("dir", dir))
    largest = {name: _largest(calibration_cache[name]) for name in sorted(calibration_cache.keys())}
    save_tensors_data(calibration_cache, folder / "calibration.json")
    lines = "".join(f"{name} {value}\n" for name, value in largest.items())
    write(folder / "calibration.cache", lines)
    try:
        import flatbuffers
    except ImportError:
        _log.warning("calibration.flatbuffers is not written: pip install flatbuffers")
        return
    write(folder / "calibration.flatbuffers", _table(flatbuffers.Builder(1024), largest))


def _largest(data: Any) -> float:
    low, high = data.range_value
    return max(abs(float(low.item())), abs(float(high.item())))


def _table(builder: Any, largest: Mapping[str, float]) -> bytes:
    """Return a table of one vector of tables, each of which has a name and a number as text."""
    rows = []
    for name, value in largest.items():
        texts = builder.CreateString(name), builder.CreateString(str(value))
        builder.StartObject(2)
        for slot, text in enumerate(texts):
            builder.PrependUOffsetTRelativeSlot(slot, text, 0)
        rows.append(builder.EndObject())
    builder.StartVector(4, len(rows), 4)
    for row in reversed(rows):
        builder.PrependUOffsetTRelative(row)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())
