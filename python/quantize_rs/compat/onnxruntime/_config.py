"""The config classes of onnxruntime, for `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ..._flow.model import open as open_model
from ..._inputs.model_source import ModelSource
from ...errors import OptionError
from ._choices import CONVERSIONS
from ._packages import onnx_package
from .calibrate import CalibrationMethod
from .quant_utils import QuantFormat, QuantType

__all__ = [
    "DynamicQuantConfig",
    "Providers",
    "StaticQuantConfig",
    "arguments",
    "get_qdq_config",
]

# Names, or pairs of a name and its options, as a session of onnxruntime takes them.
Providers: TypeAlias = Iterable[str | tuple[str, Mapping[str, Any]]]

Excluded: TypeAlias = Iterable[str] | Callable[[Any, Any], bool] | None

_LISTS = ("op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude")

# The names of the extra options of calibration in `get_qdq_config`.
_CALIBRATION = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


@dataclass
class StaticQuantConfig:
    """The arguments of `quantize_static`, as `quantize` takes them."""

    calibration_data_reader: Any
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Any = None
    nodes_to_quantize: Any = None
    nodes_to_exclude: Any = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Providers | None = None
    extra_options: Any = None

    def __post_init__(self) -> None:
        """Replace None by empty lists and an empty dict."""
        _fill(self)


@dataclass
class DynamicQuantConfig:
    """The arguments of `quantize_dynamic`, as `quantize` takes them."""

    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Any = None
    nodes_to_quantize: Any = None
    nodes_to_exclude: Any = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Any = None

    def __post_init__(self) -> None:
        """Replace None by empty lists and an empty dict."""
        _fill(self)


def _fill(config: StaticQuantConfig | DynamicQuantConfig) -> None:
    for name in _LISTS:
        setattr(config, name, getattr(config, name) or [])
    config.extra_options = config.extra_options or {}


def arguments(config: Any, kind: type[StaticQuantConfig | DynamicQuantConfig]) -> dict[str, Any]:
    """Return the fields of a config, of this package or of onnxruntime, by name."""
    return {field.name: getattr(config, field.name) for field in fields(kind)}


def get_qdq_config(
    model_input: ModelSource,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    calibration_providers: Providers | None = None,
    op_types_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Excluded = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """Return a config that quantizes every operator, like onnxruntime's function.

    It selects the target qnn through ``extra_options["ForceQuantizeNoInputCheck"]``.

    Parameters
    ----------
    model_input
        The model.
    op_types_to_quantize
        Operator types; by default those of all nodes of the main graph that are not excluded.
    nodes_to_exclude
        Names and patterns, or a function of an ``onnx.ModelProto`` and a node of it.
    calibrate_args
        ``symmetric``, ``moving_average``, ``averaging_constant``, ``max_intermediate_outputs``
        and ``percentile``: short names of the extra options of calibration.
    calibration_data_reader, calibrate_method, activation_type, weight_type, per_channel
        As in `quantize_static`, like the other arguments.

    Raises
    ------
    OptionError
        One of `calibrate_args` is unknown.
    MissingPackageError
        `nodes_to_exclude` is a function, and the package onnx is not installed.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import get_qdq_config, quantize
    >>> digits = quantize_rs.examples.digits()
    >>> model = digits.model
    >>> config = get_qdq_config(model, digits.calibration, per_channel=True)
    >>> quantize(model, "digits.qdq.onnx", config).ratio > 3
    True
    """
    extra: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": dict(tensor_quant_overrides or {}),
    }
    for name, value in (calibrate_args or {}).items():
        if name not in _CALIBRATION:
            what = f"calibrate_args has {name!r}, expected some of {', '.join(_CALIBRATION)}"
            raise OptionError(what, option="calibrate_args")
        extra[_CALIBRATION[name]] = value
    excluded = _excluded(model_input, nodes_to_exclude)
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method,
        QuantFormat.QDQ,
        activation_type,
        weight_type,
        list(op_types_to_quantize or ()) or _op_types(model_input, excluded),
        nodes_to_exclude=excluded,
        per_channel=per_channel,
        reduce_range=reduce_range,
        calibration_providers=calibration_providers,
        extra_options=extra | dict(extra_options or {}),
    )


def _op_types(model: ModelSource, excluded: Collection[str]) -> list[str]:
    nodes = open_model(model)._model.nodes()
    types = dict.fromkeys(op_type for name, op_type in nodes if name not in excluded)
    return [op_type for op_type in types if op_type not in CONVERSIONS]


def _excluded(model: Any, nodes: Excluded) -> list[str]:
    if not callable(nodes):
        return list(nodes or ())
    if not hasattr(model, "graph"):
        model = onnx_package("nodes_to_exclude as a function").load(model, load_external_data=False)
    return [node.name for node in model.graph.node if nodes(model, node)]
