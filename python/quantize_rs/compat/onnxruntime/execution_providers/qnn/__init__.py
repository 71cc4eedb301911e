"""The configuration for Qualcomm NPUs, as onnxruntime names it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ....._inputs.files import write
from ....._inputs.model_source import ModelSource
from ....._transforms.optimize import optimize
from .....errors import OptionError
from ..._choices import warn_idle
from ..._config import Providers, StaticQuantConfig, get_qdq_config
from ...calibrate import CalibrationMethod
from ...quant_utils import QuantType

__all__ = ["get_qnn_qdq_config", "qnn_preprocess_model"]

StrPath: TypeAlias = str | os.PathLike[str]

# Ranges of activations are at least this wide.
_MIN_RANGE = 1e-4


def get_qnn_qdq_config(
    model_input: ModelSource,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: Mapping[str, Any] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: Providers | None = None,
    op_types_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Any = None,
) -> StaticQuantConfig:
    """Return a config that quantizes every operator, for `quantize`.

    Parameters
    ----------
    model_input, calibration_data_reader, calibrate_method, activation_type, weight_type
        As in `quantize_static`, like the arguments that are not named below.
    init_overrides
        ``TensorQuantOverrides``.
    add_qtype_converts
        Not needed: where types of activations differ, values are converted anyway.
    stride
        The number of samples in a range of the reader (``CalibStridedMinMax``).

    Raises
    ------
    OptionError
        An option is not supported.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import quantize
    >>> from quantize_rs.compat.onnxruntime.execution_providers.qnn import get_qnn_qdq_config
    >>> digits = quantize_rs.examples.digits()
    >>> config = get_qnn_qdq_config(digits.model, digits.calibration)
    >>> quantize(digits.model, "digits.qnn.onnx", config).ratio > 3
    True
    """
    del add_qtype_converts
    return get_qdq_config(
        model_input,
        calibration_data_reader,
        calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        activation_symmetric=activation_symmetric,
        weight_symmetric=weight_symmetric,
        per_channel=per_channel,
        keep_removable_activations=keep_removable_activations,
        min_real_range=_MIN_RANGE,
        tensor_quant_overrides=init_overrides,
        calibration_providers=calibration_providers,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        extra_options={} if stride is None else {"CalibStridedMinMax": stride},
    )


def qnn_preprocess_model(
    model_input: ModelSource,
    model_output: StrPath,
    exclude_initializer_from_input: bool = False,
    fuse_layernorm: bool = False,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    external_data_convert_attribute: bool = False,
    inputs_to_make_channel_last: Iterable[str] | None = None,
    outputs_to_make_channel_last: Iterable[str] | None = None,
    dynamic_input_shapes: Iterable[tuple[str, str]] | None = None,
) -> bool:
    """Simplify a model, and return whether that changed it.

    You do not need it before quantizing: the passes run before every plan. Nothing is written if
    nothing changes, as in onnxruntime.

    Parameters
    ----------
    model_input, model_output
        The model and the file to write.
    exclude_initializer_from_input, fuse_layernorm
        They have no effect, and a warning says so: operators are not fused, and initializers that
        are inputs stay as they are.
    save_as_external_data, all_tensors_to_one_file, external_data_location,
    external_data_size_threshold, external_data_convert_attribute
        Not supported: from 2 GiB on, weights are external data anyway.
    inputs_to_make_channel_last, outputs_to_make_channel_last, dynamic_input_shapes
        Not supported.

    Raises
    ------
    OptionError
        An option is not supported.
    """
    kept = "initializers that are inputs stay as they are"
    warn_idle("exclude_initializer_from_input", exclude_initializer_from_input, False, kept)
    warn_idle("fuse_layernorm", fuse_layernorm, False, "operators are not fused")
    del all_tensors_to_one_file, external_data_location, external_data_size_threshold
    del external_data_convert_attribute
    for name, value in {
        "save_as_external_data": save_as_external_data,
        "inputs_to_make_channel_last": inputs_to_make_channel_last,
        "outputs_to_make_channel_last": outputs_to_make_channel_last,
        "dynamic_input_shapes": dynamic_input_shapes,
    }.items():
        if value:
            raise OptionError(f"{name} is given, but is not supported", option=name)
    report = optimize(model_input)
    if not any(step.did for step in report.steps):
        return False
    if report.model is not None:
        write(model_output, report.model, "model_output")
    return True
