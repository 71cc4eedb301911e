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


class Row(NamedTuple):
    """The translation of an option for static and for dynamic quantization."""

    static: Translate
    dynamic: Translate


def _is(value: Any, usual: Any) -> bool:
    """Return whether a value is the default behavior."""
    return value is None or value == usual or value in ([], {}, ())


def _done(_: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """Ignore the option: it is the behavior here anyway, or its problem does not occur."""
    return {}


def _sets(**options: Any) -> Translate:
    return lambda value, _: options if value else {}


def _idle(usual: Any = False) -> Translate:
    return lambda value, _: {} if _is(value, usual) else None


def _refused(why: str, *, usual: Any = False, beside: str | None = None) -> Translate:
    """Reject all values but the usual one; with `beside`, only if that option is on."""

    def translate(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        if _is(value, usual) or (beside is not None and not given.get(beside)):
            return {}
        raise OptionError(why, option="extra_options")

    return translate


def _without_effect(name: str, why: str) -> Translate:
    """Warn that an option has no effect here, and why."""

    def translate(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
        if not _is(value, False):
            _log.warning("extra_options[%r] has no effect here: %s", name, why)
        return {}

    return translate


def _chosen(name: str, why: str, *, usual: Any, beside: str) -> Translate:
    """Warn that a value other than the usual one is not used, if `beside` is on."""

    def translate(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        if not _is(value, usual) and given.get(beside):
            _log.warning("extra_options[%r] is %r, which is not used: %s", name, value, why)
        return {}

    return translate


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


def _percentile(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"percentile": float(value)}


def _symmetric(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"symmetric": bool(value)}


def _min_range(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"min_range": float(value)}


def _smooth(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"smooth": bool(value)}


def _float_outputs(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"float_outputs": list(value)} if value else {}


def _quantize_bias(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None or value else {"quantize_bias": False}


def _overrides(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"tensor_overrides": value} if value else {}


_REAL_RANGE = _without_effect(
    "MinimumRealRange", "ranges of activations are found when the model runs"
)

EXTRA: dict[str, Row] = {
    "ActivationSymmetric": Row(_sets(activation_symmetric=True), _idle()),
    "ActivationRestrictedAsymmetric": Row(_sets(restricted_asymmetric=True), _idle()),
    "WeightSymmetric": Row(_symmetric, _symmetric),
    "EnableSubgraph": Row(_done, _done),
    "ForceQuantizeNoInputCheck": Row(
        _sets(target="qnn"),
        _without_effect(
            "ForceQuantizeNoInputCheck",
            "only what MatMul, Gemm and Conv read is quantized when the model runs",
        ),
    ),
    "MatMulConstBOnly": Row(
        _idle(), _refused("a MatMul of two activations computes in float", usual=True)
    ),
    "AddQDQPairToWeight": Row(_sets(output_format="fake_quant"), _idle()),
    "OpTypesToExcludeOutputQuantization": Row(_float_outputs, _idle()),
    "DedicatedQDQPair": Row(_sets(dedicated_qdq_pairs=True), _idle()),
    "QDQOpTypePerChannelSupportToAxis": Row(_axes, _idle()),
    "CalibTensorRangeSymmetric": Row(_sets(symmetric_ranges=True), _idle()),
    "CalibStridedMinMax": Row(_stride, _idle()),
    "CalibMovingAverage": Row(_sets(method="moving_average"), _idle()),
    "CalibMovingAverageConstant": Row(_idle(0.01), _idle(0.01)),
    "CalibMaxIntermediateOutputs": Row(_done, _idle()),
    "CalibPercentile": Row(_percentile, _idle(99.999)),
    "QuantizeBias": Row(_quantize_bias, _idle(True)),
    "SmoothQuant": Row(_smooth, _idle()),
    "SmoothQuantAlpha": Row(
        _chosen(
            "SmoothQuantAlpha",
            "the factor is computed for each layer",
            usual=0.5,
            beside="SmoothQuant",
        ),
        _idle(0.5),
    ),
    "SmoothQuantFolding": Row(
        _chosen(
            "SmoothQuantFolding",
            "factors are folded into a normalization if possible",
            usual=True,
            beside="SmoothQuant",
        ),
        _idle(True),
    ),
    "UseQDQContribOps": Row(_done, _idle()),
    "MinimumRealRange": Row(_min_range, _REAL_RANGE),
    "TensorQuantOverrides": Row(_overrides, _overrides),
    "QDQKeepRemovableActivations": Row(_done, _idle()),
    "QDQDisableWeightAdjustForInt32Bias": Row(
        _refused("without it, a bias that does not fit into int32 would be wrong"), _idle()
    ),
    "BlockSize": Row(
        _refused("only weights can have blocks: use MatMulNBitsQuantizer with QuantFormat.QDQ"),
        _idle(),
    ),
    "DefaultTensorType": Row(_done, _done),
    "extra.Sigmoid.nnapi": Row(_idle(), _idle()),
}


def options(given: Mapping[str, Any] | None, *, dynamic: bool = False) -> dict[str, Any]:
    """Translate extra options to options of `Model.plan`, and a few about ranges.

    The latter are ``method``, ``percentile``, ``symmetric_ranges``, ``restricted_asymmetric`` and
    ``stride``. The value of ``tensor_overrides`` is as it was given.

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
            options = (row.dynamic if dynamic else row.static)(value, given)
        except (TypeError, ValueError) as error:  # an OptionError is one
            what = f"extra_options[{name!r}] is {value!r}: {error}"
            raise OptionError(what, option="extra_options") from None
        if options is None:
            _log.warning("extra_options[%r] has no effect, as in onnxruntime", name)
        found |= options or {}
    return found
