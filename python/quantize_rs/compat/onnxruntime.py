"""The calls of ``onnxruntime.quantization``: change the import, keep the program.

>>> from quantize_rs.compat.onnxruntime import QuantType, quantize_dynamic
>>> report = quantize_dynamic(
...     "examples/digits/digits_cnn.onnx", "digits.dynamic.onnx", weight_type=QuantType.QInt8
... )
>>> report.ratio > 3
True

Names, order and defaults of arguments are those of onnxruntime 1.31. What is written differs: see
``docs/migrating-from-onnxruntime.md``. What cannot be met is refused by name and never passed
over; where the other tool returns None, a `Report` comes back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .. import _inference, _model, _optimize
from .._ranges import Ranges
from .._report import Report
from .._source import ModelSource
from ..errors import OptionError
from . import _extra
from ._enums import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    name_of,
    type_of,
)
from ._nbits import (
    DefaultWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DefaultWeightOnlyQuantConfig",
    "DynamicQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "QuantFormat",
    "QuantType",
    "StaticQuantConfig",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

_log = logging.getLogger("quantize_rs")

StrPath: TypeAlias = str | os.PathLike[str]


def _refuse_lists(**lists: Iterable[str] | None) -> None:
    for option, value in lists.items():
        if value:
            what = f"{option} is given: name the others in nodes_to_exclude, which takes patterns"
            raise OptionError(what, option=option)


def _static_options(
    per_channel: bool,
    reduce_range: bool,
    weight_type: Any,
    op_types: Iterable[str] | None,
    exclude: Iterable[str] | None,
    extra_options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    weights = type_of("weight_type", weight_type)
    return {
        "weights": weights,
        "per_channel": per_channel,
        "symmetric": not weights.startswith("uint"),
        "target": "x86-avx2" if reduce_range else None,
        "op_types": list(op_types) if op_types else None,
        "exclude": list(exclude or ()),
    } | _extra.options(extra_options)


def _method(calibrate_method: Any, options: dict[str, Any]) -> str:
    """Take what says how ranges are chosen out of the options, and give the method."""
    known = [method.name for method in CalibrationMethod]
    name = name_of("calibrate_method", calibrate_method, known)
    percentile, method = options.pop("percentile", 99.999), options.pop("method", None)
    match name:
        case "Percentile":
            return f"percentile:{percentile:g}"
        case "Entropy":
            return "entropy"
        case "MinMax":
            return method or "minmax"
    what = "calibrate_method is Distribution: scales of float8 are those of the largest magnitude"
    raise OptionError(f"{what}, ask for MinMax", option="calibrate_method")


def quantize_static(
    model_input: ModelSource,
    model_output: StrPath,
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Iterable[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: Iterable[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: StrPath | None = None,
    *,
    optimize_model: bool = True,
) -> Report:
    """Quantize weights and activations, as onnxruntime's function of this name.

    Parameters
    ----------
    model_input, model_output
        The model, which is not changed, and the file to write.
    calibration_data_reader
        Samples: an object with ``get_next()``, or anything that
        `quantize_rs.quantize_with_calibration` takes.
    quant_format
        ``QuantFormat.QDQ``; QOperator is not written.
    op_types_to_quantize, nodes_to_exclude
        Only operators of these types; not these nodes, which may be patterns.
    per_channel, reduce_range
        One scale for each output channel; weights of 7 bits.
    activation_type, weight_type
        Of `QuantType`, ours or onnxruntime's own.
    nodes_to_quantize
        Refused: exclude the others.
    use_external_data_format
        Not needed: data goes beside a model of 2 GiB and more by itself.
    calibrate_method
        Of `CalibrationMethod`.
    calibration_providers
        Not needed: samples are run on the CPU.
    extra_options
        What of them is known, ``docs/migrating-from-onnxruntime.md`` says.
    calibration_cache_path
        Ranges are read from this file when it is there, and written to it when it is not.
    optimize_model
        Whether passes run before planning, as older versions of onnxruntime say it.

    Returns
    -------
    Report
        What was done and what it cost.

    Raises
    ------
    OptionError
        An option that is not known, or cannot be met.
    ModelError, CalibrationError
        As `quantize_rs.quantize_with_calibration`.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs.compat.onnxruntime import CalibrationDataReader, quantize_static
    >>> class Reader(CalibrationDataReader):
    ...     def __init__(self):
    ...         images = np.load("examples/digits/calibration.npy")[:32]
    ...         self.samples = iter([{"image": image[None]} for image in images])
    ...     def get_next(self):
    ...         return next(self.samples, None)
    >>> model = "examples/digits/digits_cnn.onnx"
    >>> quantize_static(model, "digits.int8.onnx", Reader(), per_channel=True).samples
    32
    """
    del use_external_data_format
    if name_of("quant_format", quant_format, [known.name for known in QuantFormat]) != "QDQ":
        what = "quant_format is QOperator: QDQ is what runtimes fuse to the same operators"
        raise OptionError(what, option="quant_format")
    _refuse_lists(nodes_to_quantize=nodes_to_quantize)
    options = _static_options(
        per_channel,
        reduce_range,
        weight_type,
        op_types_to_quantize,
        nodes_to_exclude,
        extra_options,
    )
    method = _method(calibrate_method, options)
    others = [name for name in calibration_providers or () if name != "CPUExecutionProvider"]
    if others:
        _log.warning("samples are run on the CPU, not by %s", ", ".join(others))
    activations = type_of("activation_type", activation_type)
    plan = _model.open(model_input).plan(
        activations=activations, optimize=optimize_model, **options
    )
    cache = None if calibration_cache_path is None else Path(calibration_cache_path)
    if cache is not None and cache.exists():
        ranges = Ranges.load(cache)
        ranges = ranges if ranges.method == method else ranges.using(method)
    else:
        ranges = plan.calibrate(calibration_data_reader, method=method)
        if cache is not None:
            ranges.save(cache)
    return plan.apply(ranges).save(model_output)


def quantize_dynamic(
    model_input: ModelSource,
    model_output: StrPath,
    op_types_to_quantize: Iterable[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> Report:
    """Quantize weights, and activations when the model runs, as onnxruntime's function.

    Arguments are those of `quantize_static`. A list of types with ``"MatMul"`` means Gemm
    too, which onnxruntime's tool makes a MatMul of.

    Returns
    -------
    Report
        What was done and what it cost.

    Raises
    ------
    OptionError
        An option that is not known, or cannot be met.
    ModelError
        As `quantize_rs.quantize`.

    Examples
    --------
    >>> from quantize_rs.compat.onnxruntime import quantize_dynamic
    >>> report = quantize_dynamic("examples/digits/digits_cnn.onnx", "out.onnx", ["MatMul"])
    >>> [value.name for value in report.weights if value.quantized]
    ['fc1.weight', 'fc2.weight']
    """
    del use_external_data_format
    _refuse_lists(nodes_to_quantize=nodes_to_quantize)
    types = list(op_types_to_quantize or ())
    if "MatMul" in types and "Gemm" not in types:
        types.append("Gemm")
    options = _static_options(
        per_channel, reduce_range, weight_type, types, nodes_to_exclude, extra_options
    )
    for option in ("method", "percentile", "activation_symmetric", "smooth"):
        options.pop(option, None)
    options.setdefault("output_format", "dynamic")
    return _model.open(model_input).plan(**options).apply().save(model_output)


def quant_pre_process(
    input_model: ModelSource | None = None,
    output_model_path: StrPath | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Simplify a model and write types and shapes into it.

    It is not needed before quantizing: what serves that runs before every plan. Models may be of
    any size, and no other file is written.

    Parameters
    ----------
    input_model, output_model_path
        The model, and the file to write; ``input_model_path`` is the older name of the first.
    skip_optimization
        Leave its nodes as they are.
    skip_onnx_shape, skip_symbolic_shape
        With both, no shapes are written; one inference does what both do.
    auto_merge, int_max, guess_output_rank, verbose, save_as_external_data
        Not needed, as are the arguments after them.

    Raises
    ------
    OptionError
        There is no model or no place for it.
    ModelError
        As `quantize_rs.optimize`.

    Examples
    --------
    >>> from quantize_rs.compat.onnxruntime import quant_pre_process
    >>> quant_pre_process("examples/digits/digits_cnn.onnx", "prepared.onnx")
    """
    del auto_merge, int_max, guess_output_rank, verbose, save_as_external_data
    del all_tensors_to_one_file, external_data_location, external_data_size_threshold
    source = deprecated_kwargs.pop("input_model_path", input_model)
    if deprecated_kwargs:
        raise TypeError(f"quant_pre_process has no arguments {sorted(deprecated_kwargs)}")
    if source is None or output_model_path is None:
        option = "input_model" if source is None else "output_model_path"
        raise OptionError(f"{option} is None, expected a path", option=option)
    passes: list[str] | None = [] if skip_optimization else None
    _optimize.optimize(source, output_model_path, passes=passes)
    if not (skip_onnx_shape and skip_symbolic_shape):
        _inference.infer_shapes(output_model_path, output_model_path)


@dataclass
class StaticQuantConfig:
    """The arguments of `quantize_static`, as `quantize` takes them."""

    calibration_data_reader: Any
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Iterable[str] | None = None
    nodes_to_quantize: Iterable[str] | None = None
    nodes_to_exclude: Iterable[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Iterable[str] | None = None
    extra_options: Mapping[str, Any] | None = None


@dataclass
class DynamicQuantConfig:
    """The arguments of `quantize_dynamic`, as `quantize` takes them."""

    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Iterable[str] | None = None
    nodes_to_quantize: Iterable[str] | None = None
    nodes_to_exclude: Iterable[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


def quantize(
    model_input: ModelSource,
    model_output: StrPath,
    quant_config: StaticQuantConfig | DynamicQuantConfig,
) -> Report:
    """Quantize as a configuration says.

    Raises
    ------
    TypeError
        It is neither a `StaticQuantConfig` nor a `DynamicQuantConfig`.

    Examples
    --------
    >>> from quantize_rs.compat.onnxruntime import DynamicQuantConfig, quantize
    >>> config = DynamicQuantConfig(per_channel=True)
    >>> quantize("examples/digits/digits_cnn.onnx", "out.onnx", config).ratio > 3
    True
    """
    match quant_config:
        case StaticQuantConfig():
            return quantize_static(model_input, model_output, **vars(quant_config))
        case DynamicQuantConfig():
            return quantize_dynamic(model_input, model_output, **vars(quant_config))
    kind = type(quant_config).__name__
    raise TypeError(f"expected a StaticQuantConfig or a DynamicQuantConfig, got {kind}")
