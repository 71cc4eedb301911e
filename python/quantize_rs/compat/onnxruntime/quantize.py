"""The functions of ``onnxruntime.quantization.quantize``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..._flow.model import Model
from ..._flow.model import open as open_model
from ..._flow.plan import Plan
from ..._inputs.files import writable
from ..._inputs.model_source import ModelSource
from ..._options import check
from ..._results.report import Report
from ...errors import OptionError
from . import _extra, _overrides
from ._applied import applied
from ._choices import (
    name_of,
    names_of,
    nodes_of,
    op_types_of,
    rename_plan_errors,
    tensors_of,
    type_of,
    warn_providers,
    without_subgraphs,
)
from ._config import DynamicQuantConfig, Providers, StaticQuantConfig, arguments, get_qdq_config
from ._elsewhere import hints
from ._matmul_nbits import MatMulNBitsQuantizer
from ._ranges import Wanted
from .calibrate import CalibrationMethod
from .quant_utils import QuantFormat, QuantType

__all__ = [
    "DynamicQuantConfig",
    "StaticQuantConfig",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

__getattr__ = hints(__name__)

_log = logging.getLogger("quantize_rs")

StrPath: TypeAlias = str | os.PathLike[str]


# What sets these options, for messages.
_NAMES = {
    "dedicated_qdq_pairs": "DedicatedQDQPair",
    "float_outputs": "OpTypesToExcludeOutputQuantization",
    "output_format": "AddQDQPairToWeight",
    "quantize_bias": "QuantizeBias",
    "target": "ForceQuantizeNoInputCheck",
}

# onnxruntime passes over them with QOperator, too; what is not between operators on integers stays
# float in any case.
_QDQ_ONLY = list(_NAMES)


def _leave_out(extra: dict[str, Any], where: str, names: Iterable[str]) -> None:
    """Remove options that have no effect somewhere, with a warning for each."""
    for name in names:
        if extra.pop(name, None) is not None:
            _log.warning("extra_options[%r] has no effect %s", _NAMES[name], where)


def _plan_options(
    model: Model,
    per_channel: bool,
    reduce_range: bool,
    weight_type: Any,
    op_types: Iterable[str] | None,
    nodes: tuple[Iterable[str] | None, Iterable[str] | None],
    extra: dict[str, Any],
) -> dict[str, Any]:
    """Return the options of `Model.plan`; those in `extra` take precedence."""
    weights = type_of("weight_type", weight_type)
    known = names_of(model)
    include = nodes[0]
    exclude = nodes_of("nodes_to_exclude", nodes[1], known)
    included = nodes_of("nodes_to_quantize", include, known)
    if include and not included:
        what = "none of nodes_to_quantize is in the model: nothing would be quantized"
        raise OptionError(what, option="nodes_to_quantize")
    if "target" in extra:
        where = "has no effect with ForceQuantizeNoInputCheck"
        if reduce_range:
            _log.warning("reduce_range %s, which is for NPUs", where)
            reduce_range = False
    if reduce_range and weights != "int8":
        what = (
            "reduce_range has no effect on weights of %s, which keep all bits: those of QInt8 get 7"
        )
        _log.warning(what, weights)
    subgraphs = extra.pop("subgraphs", True)
    qnn = extra.get("target") == "qnn"
    return {
        "weights": weights,
        "per_channel": per_channel,
        # None where it follows from the type, or from the target qnn: it takes no zero points.
        "symmetric": None if qnn or weights.startswith("uint") else True,
        "target": "x86-avx2" if reduce_range else None,
        # The target qnn quantizes the values around all operators.
        "op_types": op_types_of(op_types, model, exclude, warn=not qnn),
        "exclude": exclude,
        "include": included or None,
        "overrides": [] if subgraphs else without_subgraphs(model),
        # onnxruntime writes a result of any size.
        "allow_larger": True,
        "onnxruntime_names": True,
    } | extra


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
    calibration_providers: Providers | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: StrPath | None = None,
    *,
    optimize_model: bool = True,
) -> Report:
    """Quantize weights and activations, like onnxruntime's function.

    Parameters
    ----------
    model_input, model_output
        The model, which is not changed, and the file to write.
    calibration_data_reader
        Samples: an object with ``get_next()``, or anything that
        `quantize_rs.quantize_with_calibration` takes.
    quant_format
        ``QuantFormat.QDQ``, or ``QuantFormat.QOperator`` for QLinearConv and similar operators.
    op_types_to_quantize, nodes_to_quantize, nodes_to_exclude
        Operator types to quantize, nodes to quantize, nodes to exclude. Nodes may also be named
        by patterns and operator types.
        Types that are never quantized, such as Shape, are passed over with a warning.
    per_channel, reduce_range
        One scale for each output channel; 7 bits for weights of int8. Those of other types keep
        all bits, with a warning.
    activation_type, weight_type
        A `QuantType`, of this package or of onnxruntime.
    use_external_data_format
        Write weights to a file beside the model, ``<name>.data``. From 2 GiB on they are anyway.
    calibrate_method
        A `CalibrationMethod`.
    calibration_providers
        Not needed: samples are run on the CPU.
    extra_options
        See ``docs/migrating-from-onnxruntime.md`` for the supported ones.
    calibration_cache_path
        A file to read ranges from if it exists, or else to write them to. Its folder is made. It
        may also be a file of `save_tensors_data`, of this package or of onnxruntime.
    optimize_model
        Whether passes run before planning, as in older versions of onnxruntime.

    Returns
    -------
    Report
        How each value was quantized, sizes and errors.

    Raises
    ------
    OptionError
        An option is unknown or not supported.
    ModelError, CalibrationError
        As in `quantize_rs.quantize_with_calibration`.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import CalibrationDataReader, quantize_static
    >>> digits = quantize_rs.examples.digits()
    >>> class Reader(CalibrationDataReader):
    ...     def __init__(self):
    ...         images = np.load(digits.calibration)[:32]
    ...         self.samples = iter([{"image": image[None]} for image in images])
    ...     def get_next(self):
    ...         return next(self.samples, None)
    >>> model = digits.model
    >>> quantize_static(model, "digits.int8.onnx", Reader(), per_channel=True).samples
    32
    """
    extra = _extra.options(extra_options)
    if name_of("quant_format", quant_format, [known.name for known in QuantFormat]) != "QDQ":
        _leave_out(extra, "with QOperator", _QDQ_ONLY)
        extra["output_format"] = "qoperator"
    elif "output_format" in extra:
        _leave_out(extra, "beside AddQDQPairToWeight", ["dedicated_qdq_pairs"])
    activations = type_of("activation_type", activation_type)
    if reduce_range and activations not in ("int8", "uint8"):
        what = "reduce_range has no effect with activation_type %s: it is for products of 8 bits"
        _log.warning(what, activations)
        reduce_range = False
    wanted = Wanted.of(calibrate_method, extra, activations)
    given = extra.pop("tensor_overrides", None)
    nodes = (nodes_to_quantize, nodes_to_exclude)
    model = open_model(model_input)
    options = _plan_options(
        model, per_channel, reduce_range, weight_type, op_types_to_quantize, nodes, extra
    )
    writable(model_output, option="model_output")
    warn_providers(calibration_providers)
    if activations.startswith("float") and options["target"] is None:
        options["target"] = "generic"  # the targets for CPUs do not support float8
    if options["target"] == "qnn" and activations in ("int8", "int16"):
        _log.warning(
            "activations are u%s, which has the same steps: NPUs do not take %s", *[activations] * 2
        )
        activations = f"u{activations}"
    overrides = _overrides.read(given, *tensors_of(model), activations, options)
    # As in onnxruntime, weights are rounded without the help of samples.
    options |= {"weight_algorithm": "nearest"}
    overrides.add_to(options)
    cache = None
    if calibration_cache_path is not None:
        cache = Path(check.path("calibration_cache_path", calibration_cache_path))
        # Ranges are those of the given model: calls with other options rescale other channels.
        options["equalize"] = False
    symmetric = bool(options.get("activation_symmetric"))
    tables = activations
    if options["target"] == "qnn" and tables == "uint16":
        tables, symmetric = "int16", True  # the target does not take weights of uint16
    options["overrides"] += _tables(model, tables, per_channel=per_channel, symmetric=symmetric)
    with rename_plan_errors():
        if "block_size" in options:
            plan = _in_blocks(model, options, optimize_model)
            overrides.check(plan)
            return applied(plan).save(model_output, external_data=use_external_data_format)
        options |= {"activations": activations, "optimize": optimize_model}
        plan = overrides.plan(model, options)
    ranges = wanted.ranges(plan, calibration_data_reader, cache, overrides)
    return applied(plan, ranges).save(model_output, external_data=use_external_data_format)


def _tables(
    model: Model, activations: str, *, per_channel: bool, symmetric: bool = False
) -> list[dict[str, Any]]:
    """Give tables the type and the zero point of activations, as onnxruntime does."""
    if not model._model.has_tables():
        return []
    # Rows of 8 bits with a scale each have a zero point of 0.
    symmetric |= per_channel and activations in ("int8", "uint8")
    return [{"match": {"op_type": "Gather"}, "weights": activations, "symmetric": symmetric}]


def _in_blocks(model: Model, options: dict[str, Any], optimize_model: bool) -> Plan:
    """Plan weights in blocks, beside which activations stay float."""
    if options.get("output_format", "qdq") != "qdq":
        what = "extra_options['BlockSize'] is for QDQ, and not for AddQDQPairToWeight"
        raise OptionError(what, option="extra_options")
    _log.warning(
        "activations stay float beside BlockSize: no runtime computes in integers with blocks"
    )
    of_activations = ("activation_symmetric", "float_outputs", "min_range")
    others = ("dedicated_qdq_pairs", "quantize_bias", "target")
    kept = {name: it for name, it in options.items() if name not in of_activations + others}
    return model.plan(optimize=optimize_model, **kept)


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
    """Quantize weights, and activations at run time, like onnxruntime's function.

    The arguments are as in `quantize_static`. ``"MatMul"`` in a list of types includes Gemm, as
    onnxruntime converts Gemm to MatMul.

    Returns
    -------
    Report
        How each value was quantized, sizes and errors.

    Raises
    ------
    OptionError
        An option is unknown or not supported.
    ModelError
        As in `quantize_rs.quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import quantize_dynamic
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_dynamic(digits.model, "out.onnx", ["MatMul"])
    >>> [value.name for value in report.weights if value.quantized]
    ['fc1.weight', 'fc2.weight']
    """
    types = check.names("op_types_to_quantize", op_types_to_quantize)
    if "MatMul" in types and "Gemm" not in types:
        types.append("Gemm")
    extra = {"output_format": "dynamic"} | _extra.options(extra_options, dynamic=True)
    given = extra.pop("tensor_overrides", None)
    nodes = (nodes_to_quantize, nodes_to_exclude)
    model = open_model(model_input)
    options = _plan_options(model, per_channel, reduce_range, weight_type, types, nodes, extra)
    overrides = _overrides.read(given, *tensors_of(model), None, options)
    overrides.add_to(options)
    options["overrides"] += _tables(model, "uint8", per_channel=per_channel)
    # Named, so that none is left in float because it is small or the last.
    options["include"] = options["include"] or ["*"]
    writable(model_output, option="model_output")
    with rename_plan_errors():
        plan = overrides.plan(model, options)
    return applied(plan).save(model_output, external_data=use_external_data_format)


def quantize(model_input: ModelSource, model_output: StrPath, quant_config: Any) -> Report:
    """Quantize with a config object.

    Parameters
    ----------
    model_input, model_output
        The model, which is not changed, and the file to write. With an ``algo_config`` the weights
        are written to ``<name>.data`` beside it, or to ``<name>.1.data`` if an earlier model has
        its weights there.
    quant_config
        A `StaticQuantConfig`, a `DynamicQuantConfig`, or an ``algo_config`` of
        `MatMulNBitsQuantizer`, of this package or of onnxruntime.

    Raises
    ------
    TypeError
        The config has another type.
    OptionError, ModelError, CalibrationError
        As in the function for this config.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import DynamicQuantConfig, quantize
    >>> digits = quantize_rs.examples.digits()
    >>> config = DynamicQuantConfig(per_channel=True)
    >>> quantize(digits.model, "out.onnx", config).ratio > 3
    True
    """
    if hasattr(quant_config, "algorithm"):
        quantizer = MatMulNBitsQuantizer(model_input, algo_config=quant_config)
        quantizer.process()
        report: Report = quantizer.model.save_model_to_file(model_output, True)
        return report
    if hasattr(quant_config, "calibration_data_reader"):
        given = arguments(quant_config, StaticQuantConfig)
        return quantize_static(model_input, model_output, **given)
    if hasattr(quant_config, "extra_options"):
        given = arguments(quant_config, DynamicQuantConfig)
        return quantize_dynamic(model_input, model_output, **given)
    kind = type(quant_config).__name__
    what = "a StaticQuantConfig, a DynamicQuantConfig or an algo_config of MatMulNBitsQuantizer"
    raise TypeError(f"expected {what}, got {kind}")
