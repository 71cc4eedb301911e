"""The command ``python -m quantize_rs.compat.onnxruntime.static_quantize_runner``.

The samples are those of the folders ``test_data_set_*`` beside the model, as the tests of ONNX have
them: one file for each input, ``input_0.pb`` and so on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._flow.model import open as open_model
from ...errors import CalibrationError, OptionError
from ._command import reported_errors
from ._packages import onnx_package
from .calibrate import CalibrationDataReader, CalibrationMethod
from .quant_utils import QuantFormat, QuantType
from .quantize import quantize_static

__all__ = ["OnnxModelCalibrationDataReader"]

_TYPES = {kind.name.lower(): kind for kind in QuantType}
_METHODS = {method.name.lower(): method for method in CalibrationMethod}
_FORMATS = {form.name.lower(): form for form in QuantFormat}

# The extra option that each flag switches on.
_FLAGS = {
    "enable_subgraph": "EnableSubgraph",
    "force_quantize_no_input_check": "ForceQuantizeNoInputCheck",
    "matmul_const_b_only": "MatMulConstBOnly",
    "add_qdq_pair_to_weight": "AddQDQPairToWeight",
    "dedicated_qdq_pair": "DedicatedQDQPair",
    "calib_tensor_range_symmetric": "CalibTensorRangeSymmetric",
    "calib_moving_average": "CalibMovingAverage",
    "use_qdq_contrib_ops": "UseQDQContribOps",
    "qdq_keep_removable_activations": "QDQKeepRemovableActivations",
    "qdq_disable_weight_adjust_for_int32_bias": "QDQDisableWeightAdjustForInt32Bias",
}

_AXIS = "op_per_channel_axis"
_WHERE = "--tensor_quant_overrides"


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """The samples in the folders ``test_data_set_*`` beside a model, in the order of their numbers.

    It needs the package onnx.

    Raises
    ------
    CalibrationError
        There is no such folder, one lacks the file of an input, or a file is damaged.
    MissingPackageError
        The package onnx is not installed.
    """

    def __init__(self, model_path: str | os.PathLike[str]) -> None:
        """Find the files, which are read one sample at a time."""
        self._onnx = onnx_package("OnnxModelCalibrationDataReader")
        self._inputs = open_model(model_path).info.inputs
        beside = Path(model_path).parent
        found = [path for path in beside.glob("test_data_set_*") if path.is_dir()]
        if not found:
            what = f"there are no samples: expected folders test_data_set_* in {beside.absolute()}"
            raise CalibrationError(what, category="no_samples")
        folders = sorted(found, key=lambda path: (len(path.name), path.name))
        names = [f"input_{index}.pb" for index in range(len(self._inputs))]
        for path in (folder / name for folder in folders for name in names):
            if not path.is_file():
                what = f"there is no {path}: expected a file for each input of the model"
                raise CalibrationError(what, value=str(path), category="data")
        self._left = iter([[folder / name for name in names] for folder in folders])

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample, or None at the end."""
        files = next(self._left, None)
        if files is None:
            return None
        return dict(zip(self._inputs, map(self._array, files), strict=True))

    def _array(self, path: Path) -> Any:
        # What onnx itself is built on.
        decode_error = importlib.import_module("google.protobuf.message").DecodeError
        try:
            return self._onnx.numpy_helper.to_array(self._onnx.load_tensor(path))
        except (decode_error, TypeError, ValueError) as error:
            what = f"{path} is not a tensor of ONNX: {error}"
            raise CalibrationError(what, value=str(path), category="data") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize a model with the samples beside it; the options are those of onnxruntime."""
    given = _parser().parse_args(arguments)
    with reported_errors():
        quantize_static(
            given.input_model_path,
            given.output_quantized_model_path,
            OnnxModelCalibrationDataReader(given.input_model_path),
            quant_format=_FORMATS[given.quant_format],
            per_channel=given.per_channel,
            activation_type=_TYPES[given.activation_type],
            weight_type=_TYPES[given.weight_type],
            nodes_to_quantize=given.nodes_to_quantize,
            nodes_to_exclude=given.nodes_to_exclude,
            calibrate_method=_METHODS[given.calibration_method],
            extra_options=_extra_options(given),
        )


def _parser() -> argparse.ArgumentParser:
    text = "Quantize a model with the samples in the folders test_data_set_* beside it."
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("-i", "--input_model_path", required=True, help="the model")
    parser.add_argument(
        "-o", "--output_quantized_model_path", required=True, help="the file to write"
    )
    parser.add_argument("--activation_type", choices=_TYPES, default="quint8")
    parser.add_argument("--weight_type", choices=_TYPES, default="qint8")
    parser.add_argument("--calibration_method", choices=_METHODS, default="minmax")
    parser.add_argument("--quant_format", choices=_FORMATS, default="qdq")
    parser.add_argument(
        "--per_channel", action="store_true", help="a scale for each output channel"
    )
    parser.add_argument("--nodes_to_quantize", nargs="+", help="quantize these nodes alone")
    parser.add_argument("--nodes_to_exclude", nargs="+", help="nodes to leave out")
    for flag, option in _FLAGS.items():
        parser.add_argument(f"--{flag}", action="store_true", help=f"set {option}")
    parser.add_argument(
        "--disable_quantize_bias", action="store_true", help="leave biases float: QuantizeBias"
    )
    parser.add_argument(
        "--op_types_to_exclude_output_quantization",
        nargs="+",
        default=[],
        help="operator types whose outputs stay float",
    )
    parser.add_argument(
        "--minimum_real_range", type=float, default=0.0001, help="no range is narrower"
    )
    parser.add_argument(
        f"--{_AXIS}",
        nargs=2,
        action="append",
        default=[],
        metavar=("OP_TYPE", "PER_CHANNEL_AXIS"),
        help="the axis of the scales of an operator type",
    )
    parser.add_argument(_WHERE, help="a file of JSON: TensorQuantOverrides")
    return parser


def _extra_options(given: argparse.Namespace) -> dict[str, Any]:
    flags = vars(given)
    return {option: flags[flag] for flag, option in _FLAGS.items()} | {
        "OpTypesToExcludeOutputQuantization": given.op_types_to_exclude_output_quantization,
        "QDQOpTypePerChannelSupportToAxis": _axes(flags[_AXIS]),
        "QuantizeBias": not given.disable_quantize_bias,
        "MinimumRealRange": given.minimum_real_range,
        "TensorQuantOverrides": _overrides(given.tensor_quant_overrides),
    }


def _axes(pairs: Sequence[Sequence[str]]) -> dict[str, int]:
    try:
        return {op_type: int(axis) for op_type, axis in pairs}
    except ValueError as error:
        raise OptionError(f"--{_AXIS}: {error}", option=_AXIS) from None


def _overrides(path: str | None) -> dict[str, Any]:
    """Read a file of overrides, in which types have names and scales may be in lists."""
    if path is None:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: [_override(entry) for entry in entries] for name, entries in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        what = f"{path} is not a map from names to lists of maps: {error}"
        raise OptionError(f"{_WHERE}: {what}", option="tensor_quant_overrides") from None


def _override(entry: dict[str, Any]) -> dict[str, Any]:
    read = dict(entry)
    if (name := entry.get("quant_type")) is not None:
        kind = _TYPES.get(str(name).lower())
        if kind is None:
            raise ValueError(f"quant_type is {name!r}, expected one of {', '.join(_TYPES)}")
        read["quant_type"] = kind
    # Of one element: activations have one scale, and scales of weights are refused.
    numbers = {key: np.ravel(entry[key]) for key in ("scale", "zero_point") if key in entry}
    return read | {key: found.item() for key, found in numbers.items() if found.size == 1}


if __name__ == "__main__":
    main()
