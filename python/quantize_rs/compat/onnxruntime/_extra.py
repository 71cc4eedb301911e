"""The `extra_options` of onnxruntime, and the equivalent options here: a row for each."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...errors import OptionError

__all__ = ["EXTRA", "options"]

_log = logging.getLogger("quantize_rs")

# From the value and all given options; None if the option has no effect in onnxruntime either.
Translate: TypeAlias = Callable[[Any, Mapping[str, Any]], dict[str, Any] | None]


class Effect(NamedTuple):
    """What an option does: `mark` says it in one word, `translate` gives options of this package.

    The mark is "done", "refused" (a value that is not usual raises an error) or "nothing" (it has
    no effect, and a warning says so).
    """

    mark: str
    translate: Translate


class Row(NamedTuple):
    """An option: its effect in static and in dynamic quantization, and its equivalent here.

    `note` is the cell of the documentation, in Markdown.
    """

    static: Effect
    dynamic: Effect
    note: str


def _is(value: Any, usual: Any) -> bool:
    """Return whether a value is the default behavior."""
    return value is None or value == usual or value in ([], {}, ())


def _done(translate: Translate | None = None) -> Effect:
    """Translate the option; without a translation, its effect is always there."""
    return Effect("done", translate or (lambda _, __: {}))


def _sets(**options: Any) -> Effect:
    return _done(lambda value, _: options if value else {})


def _given(name: str, kind: Callable[[Any], Any]) -> Effect:
    """Pass on a value that is given."""
    return _done(lambda value, _: {} if value is None else {name: kind(value)})


def _some(name: str, kind: Callable[[Any], Any] = lambda value: value) -> Effect:
    """Pass on a value that is neither zero nor empty."""
    return _done(lambda value, _: {name: kind(value)} if value else {})


def _idle(usual: Any = False) -> Effect:
    return Effect("nothing", lambda value, _: {} if _is(value, usual) else None)


def _refused(why: str, *, usual: Any = False) -> Effect:
    """Reject all values but the usual one."""

    def translate(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
        if _is(value, usual):
            return {}
        raise OptionError(why, option="extra_options")

    return Effect("refused", translate)


def _without_effect(name: str, why: str) -> Effect:
    """Warn that an option has no effect here, and why."""

    def translate(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
        if not _is(value, False):
            _log.warning("extra_options[%r] has no effect here: %s", name, why)
        return {}

    return Effect("nothing", translate)


def _chosen(name: str, why: str, *, usual: Any, beside: str) -> Effect:
    """Warn that a value other than the usual one is not used, if `beside` is on."""

    def translate(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        if not _is(value, usual) and given.get(beside):
            _log.warning("extra_options[%r] is %r, which is not used: %s", name, value, why)
        return {}

    return Effect("nothing", translate)


# The channel axis of the weight of each operator; of a matrix on the right, its columns.
_AXES = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1}


def _axes(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    for op_type, axis in dict(value or {}).items():
        usual = _AXES.get(op_type)
        if usual is not None and axis not in (usual, usual - 2):
            what = f"{op_type} has its channels along axis {usual}, not {axis}"
            raise OptionError(what, option="extra_options")
        if usual is None:
            _log.warning("the axis of %s is not used: it follows from the operator", op_type)
    return {}


def _stride(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if value and given.get("CalibMovingAverage"):
        what = "CalibMovingAverage averages over all samples, not over a stride"
        raise OptionError(what, option="extra_options")
    return {"stride": int(value)} if value else {}


def _quantize_bias(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None or value else {"quantize_bias": False}


def _minimum(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    if value is None or float(value) > 0:
        return {} if value is None else {"min_range": float(value)}
    _log.warning("extra_options['MinimumRealRange'] is %r: no range is narrower", value)
    return {}


def _subgraphs(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value else {"subgraphs": False}


EXTRA: dict[str, Row] = {
    "ActivationSymmetric": Row(
        _sets(activation_symmetric=True),
        _idle(),
        "`Model.plan(activation_symmetric=True)`, or a target that requires it",
    ),
    "ActivationRestrictedAsymmetric": Row(
        _sets(restricted_asymmetric=True),
        _idle(),
        "`Ranges.with_values`; activations of uint8 only, as in onnxruntime",
    ),
    "WeightSymmetric": Row(
        _given("symmetric", bool),
        _given("symmetric", bool),
        "`symmetric`; in `compat` the default follows from the type, as in onnxruntime",
    ),
    "EnableSubgraph": Row(
        _done(_subgraphs),
        _done(_subgraphs),
        "on unless it is given as `False`: weights in If, Loop and Scan, integer products in "
        "dynamic; `False` leaves them float (`exclude`)",
    ),
    "ForceQuantizeNoInputCheck": Row(
        _sets(target="qnn"),
        _without_effect(
            "ForceQuantizeNoInputCheck",
            "only what MatMul, Gemm and Conv read is quantized when the model runs",
        ),
        '`target="qnn"`: every operator with a rule; activations of int8 become uint8, with a '
        "warning. In dynamic, only what MatMul, Gemm and Conv read is quantized",
    ),
    "MatMulConstBOnly": Row(
        _without_effect(
            "MatMulConstBOnly",
            "name products of two activations in nodes_to_exclude to keep them float",
        ),
        _refused("a MatMul of two activations computes in float", usual=True),
        "on in `quantize_dynamic`, and off is refused: products of two activations compute in "
        "float. In static quantization such products run on integers if the summed axis is short, "
        "and `nodes_to_exclude` (`exclude`) keeps them float; onnxruntime takes the option with "
        "QOperator only",
    ),
    "AddQDQPairToWeight": Row(
        _sets(output_format="fake_quant"),
        _idle(),
        '`insert_fake_quant`, or `output_format="fake_quant"`',
    ),
    "OpTypesToExcludeOutputQuantization": Row(
        _some("float_outputs", lambda types: [types] if isinstance(types, str) else list(types)),
        _idle(),
        "`float_outputs`: unless an operator that computes on integers reads the output, as in "
        "onnxruntime; Gemm and MatMul output float already",
    ),
    "DedicatedQDQPair": Row(
        _sets(dedicated_qdq_pairs=True),
        _idle(),
        "`dedicated_qdq_pairs`; not with `AddQDQPairToWeight`, with a warning",
    ),
    "QDQOpTypePerChannelSupportToAxis": Row(
        _done(_axes),
        _idle(),
        "axes follow from the operator; another axis than that of its channels is an error",
    ),
    "CalibTensorRangeSymmetric": Row(
        _given("symmetric_ranges", bool),
        _idle(),
        "`activation_symmetric`, for MinMax. `False` with Percentile leaves out half as much at "
        "each end, as in onnxruntime: `percentile:99.5` instead of `percentile:99`. With Entropy "
        "it has no effect, as in onnxruntime, and `True` gives a warning",
    ),
    "CalibStridedMinMax": Row(
        _done(_stride),
        _idle(),
        "a reader with `set_range` is read range by range; refused with `CalibMovingAverage`",
    ),
    "CalibMovingAverage": Row(
        _sets(method="moving_average"),
        _idle(),
        '`method="moving_average"`: the mean of the extremes of all rows. onnxruntime takes the '
        "mean over batches, which is the same if every batch has one row or the model fixes their "
        "size. With another method there is a warning",
    ),
    "CalibMovingAverageConstant": Row(
        _idle(0.01), _idle(0.01), "it has an effect between strides only"
    ),
    "CalibMaxIntermediateOutputs": Row(_done(), _idle(), "only counts are kept of a sample"),
    "CalibPercentile": Row(
        _given("percentile", float),
        _idle(99.999),
        '`method="percentile:99.99"`; with another method there is a warning',
    ),
    "QuantizeBias": Row(
        _done(_quantize_bias),
        _idle(True),
        "`quantize_bias`; by default biases are int32 where the runtime fuses them, float for "
        "TensorRT and OpenVINO",
    ),
    "SmoothQuant": Row(
        _given("smooth", bool),
        _idle(),
        "`smooth`: on by default, used only where it clearly helps; needs no other package",
    ),
    "SmoothQuantAlpha": Row(
        _chosen(
            "SmoothQuantAlpha",
            "the factor is computed for each layer",
            usual=0.5,
            beside="SmoothQuant",
        ),
        _idle(0.5),
        "the factor is computed per layer; other than 0.5, with `SmoothQuant`, there is a warning",
    ),
    "SmoothQuantFolding": Row(
        _chosen(
            "SmoothQuantFolding",
            "factors are folded into a normalization if possible",
            usual=True,
            beside="SmoothQuant",
        ),
        _idle(True),
        "the preceding normalization absorbs the factors where it can; `False`, with "
        "`SmoothQuant`, gives a warning",
    ),
    "UseQDQContribOps": Row(
        _done(),
        _idle(),
        "the model is converted to an opset whose standard operators support the type",
    ),
    "MinimumRealRange": Row(
        _done(_minimum),
        _without_effect("MinimumRealRange", "ranges of activations are found when the model runs"),
        "`min_range`: activations only; weights have no range to widen",
    ),
    "TensorQuantOverrides": Row(
        _some("tensor_overrides"),
        _some("tensor_overrides"),
        "`overrides`, `activation_types`: types by name, pattern or operator type; "
        "`Ranges.with_values`. `quant_type`, `axis` (weights), `symmetric`, `rmin` and `rmax`, "
        "`scale` and `zero_point` (activations) work; with such ranges no channel is rescaled "
        "(`equalize`, `smooth`). An entry without `axis` gives a weight one scale. `convert`, and "
        "of weights ranges, `reduce_range`, an `axis` other than that of the output channels and "
        "another symmetry than that of the others, are refused, and in dynamic all of activations. "
        "An entry that changes nothing, as a type for what a Relu or Clip is fused into, gives a "
        "warning with the reason, and so does a type for which an operator around the value has "
        "no kernel: the value stays float, where onnxruntime writes it with that type",
    ),
    "QDQKeepRemovableActivations": Row(
        _done(), _idle(), "always: the file keeps the Relu; the runtime fuses it"
    ),
    "QDQDisableWeightAdjustForInt32Bias": Row(
        _without_effect(
            "QDQDisableWeightAdjustForInt32Bias",
            "a scale is raised only where the bias would not fit into int32",
        ),
        _idle(),
        "a scale is raised only where the bias would not fit into int32; a warning says where",
    ),
    "BlockSize": Row(
        _some("block_size", int),
        _idle(),
        "`quantize(block_size=…)`: weights of any rank. Activations stay float, with a warning: no "
        "runtime computes in integers with blocks",
    ),
    "DefaultTensorType": Row(_done(), _done(), "types are inferred"),
    "extra.Sigmoid.nnapi": Row(
        _without_effect("extra.Sigmoid.nnapi", "the scale of a Sigmoid in 8 bits is 1/255"),
        _idle(),
        "the scale of a Sigmoid in 8 bits is 1/255; onnxruntime takes 1/256 with QOperator only",
    ),
}


def options(given: Mapping[str, Any] | None, *, dynamic: bool = False) -> dict[str, Any]:
    """Translate extra options to options of `Model.plan`, and a few about ranges.

    The latter are ``method``, ``percentile``, ``symmetric_ranges``, ``restricted_asymmetric`` and
    ``stride``. ``subgraphs`` is False if nodes in subgraphs stay float. ``block_size`` excludes
    quantized activations. The value of ``tensor_overrides`` is as it was given.

    Raises
    ------
    OptionError
        An option is unknown or not supported.
    """
    given = given or {}
    found: dict[str, Any] = {}
    for name, value in given.items():
        row = EXTRA.get(name)
        if row is None:
            near = difflib.get_close_matches(name, EXTRA, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise OptionError(f"extra_options has no {name!r}{hint}", option="extra_options")
        try:
            effect = row.dynamic if dynamic else row.static
            options = effect.translate(value, given)
        except (TypeError, ValueError) as error:  # an OptionError is one
            what = f"extra_options[{name!r}] is {value!r}: {error}"
            raise OptionError(what, option="extra_options") from None
        if options is None:
            _log.warning("extra_options[%r] has no effect, as in onnxruntime", name)
        found |= options or {}
    return found
