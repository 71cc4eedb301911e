"""The quantizers that `quantize_static` and `quantize_dynamic` make in onnxruntime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ._choices import name_of
from ._packages import onnx_package
from ._tensors_data import TensorsData, save_tensors_data
from .calibrate import CalibrationMethod
from .onnx_model import ONNXModel
from .quant_utils import QuantFormat, QuantizationMode, QuantType
from .quantize import quantize_dynamic, quantize_static

__all__ = ["ONNXQuantizer", "QDQQuantizer"]


class QDQQuantizer:
    """Quantizes a model with given ranges: `quantize_static` with ``QuantFormat.QDQ``.

    Parameters
    ----------
    model
        An ``onnx.ModelProto``, which is not changed. `model` is an `ONNXModel` of a copy, and after
        `quantize_model` of the result.
    weight_qType, activation_qType
        A `QuantType`, or its ``tensor_type``.
    tensors_range
        The ranges: `TensorsData`, or `TensorData` by name.
    per_channel, reduce_range, nodes_to_quantize, nodes_to_exclude, op_types_to_quantize
        As in `quantize_static`, like `extra_options`; empty lists stand for all.

    Examples
    --------
    >>> import onnx
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import QuantType, create_calibrator
    >>> from quantize_rs.compat.onnxruntime.qdq_quantizer import QDQQuantizer
    >>> digits = quantize_rs.examples.digits()
    >>> calibrater = create_calibrator(digits.model)
    >>> calibrater.collect_data(digits.calibration)
    >>> ranges, kind = calibrater.compute_data(), QuantType.QInt8
    >>> model = onnx.load(digits.model)
    >>> quantizer = QDQQuantizer(model, False, False, kind, kind, ranges, [], [], ["Conv"])
    >>> proto = quantizer.quantize_model()
    >>> quantizer.model.save_model_to_file("digits.qdq.onnx")
    """

    _format = QuantFormat.QDQ

    def __init__(
        self,
        model: Any,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803 - onnxruntime's name, like the next
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Iterable[str] | None,
        nodes_to_exclude: Iterable[str] | None,
        op_types_to_quantize: Iterable[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take what to quantize; `quantize_model` does it."""
        copy = onnx_package(type(self).__name__).ModelProto()
        copy.CopyFrom(model)
        self.model = ONNXModel(copy)
        self.per_channel, self.reduce_range = per_channel, reduce_range
        self.weight_qType = _number("weight_qType", weight_qType)
        self.activation_qType = _number("activation_qType", activation_qType)
        self.tensors_range = tensors_range
        self.nodes_to_quantize = list(nodes_to_quantize or ())
        self.nodes_to_exclude = list(nodes_to_exclude or ())
        self.op_types_to_quantize = list(op_types_to_quantize or ())
        self.extra_options = dict(extra_options or {})

    def quantize_model(self) -> Any:
        """Quantize the model, and return the ``onnx.ModelProto``.

        Raises
        ------
        CalibrationError
            A value that is quantized has no range.
        OptionError, ModelError
            As in `quantize_static`.
        """
        with tempfile.TemporaryDirectory(prefix="quantize-rs-") as folder:
            out = Path(folder) / "model.onnx"
            self._write(out)
            self.model = ONNXModel(onnx_package("quantize_model").load(out))
        return self.model.model

    def _write(self, out: Path) -> None:
        if self.tensors_range is None:
            raise OptionError("tensors_range is None, expected ranges", option="tensors_range")
        method = getattr(self.tensors_range, "calibration_method", CalibrationMethod.MinMax)
        ranges = out.with_name("ranges.json")
        save_tensors_data(TensorsData(method, dict(self.tensors_range.items())), ranges)
        quantize_static(
            self.model.model,
            out,
            quant_format=self._format,
            activation_type=_TYPES[self.activation_qType],
            calibrate_method=method,
            calibration_cache_path=ranges,
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        return {
            "op_types_to_quantize": self.op_types_to_quantize,
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "weight_type": _TYPES[self.weight_qType],
            "nodes_to_quantize": self.nodes_to_quantize,
            "nodes_to_exclude": self.nodes_to_exclude,
            "extra_options": self.extra_options,
        }


class ONNXQuantizer(QDQQuantizer):
    """Quantizes a model to operators on integers.

    With `static` ranges it is `quantize_static` with ``QuantFormat.QOperator``, without them
    `quantize_dynamic`. `mode` must be the one that belongs to it: ``QuantizationMode.QLinearOps``
    or ``QuantizationMode.IntegerOps``. The others are as in `QDQQuantizer`.
    """

    _format = QuantFormat.QOperator

    def __init__(
        self,
        model: Any,
        per_channel: bool,
        reduce_range: bool,
        mode: Any,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Iterable[str] | None,
        nodes_to_exclude: Iterable[str] | None,
        op_types_to_quantize: Iterable[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take what to quantize; `quantize_model` does it."""
        super().__init__(
            model,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            op_types_to_quantize,
            extra_options,
        )
        self.mode, self.static = mode, static
        expected = "QLinearOps" if static else "IntegerOps"
        if name_of("mode", mode, QuantizationMode.__members__) != expected:
            what = f"mode is {mode}, expected {expected} with static={static}"
            raise OptionError(what, option="mode")
        if not static and _TYPES[self.activation_qType] is not QuantType.QUInt8:
            what = "activation_qType is not QUInt8, the type of values without ranges"
            raise OptionError(what, option="activation_qType")

    def _write(self, out: Path) -> None:
        if self.static:
            super()._write(out)
        else:
            quantize_dynamic(self.model.model, out, **self._options())


_TYPES = {kind.tensor_type: kind for kind in QuantType}


def _number(option: str, kind: Any) -> int:
    """Return the ``tensor_type`` of a type, which may be given for it."""
    number = getattr(kind, "tensor_type", kind)
    if number not in _TYPES:
        expected = ", ".join(known.name for known in QuantType)
        raise OptionError(f"{option} is {kind!r}, expected one of {expected}", option=option)
    return int(number)
