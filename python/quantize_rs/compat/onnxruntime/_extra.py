"""What `extra_options` of onnxruntime's tool come to here: a row for each."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...errors import OptionError

__all__ = ["EXTRA", "options"]

_log = logging.getLogger("quantize_rs")

# Of its value and all that was given; None where it does nothing, in the other tool neither.
Says: TypeAlias = Callable[[Any, Mapping[str, Any]], dict[str, Any] | None]


class Row(NamedTuple):
    """What an option comes to when activations are quantized before, and when the model runs."""

    static: Says
    dynamic: Says


def _is(value: Any, usual: Any) -> bool:
    """Whether it asks for nothing but what is done anyway."""
    return value is None or value == usual or value in ([], {}, ())


def _done(_: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """Do nothing: it is done anyway, or what it is a cure for does not happen."""
    return {}


def _sets(**options: Any) -> Says:
    return lambda value, _: options if value else {}


def _idle(usual: Any = False) -> Says:
    return lambda value, _: {} if _is(value, usual) else None


def _refused(why: str, *, usual: Any = False, beside: str | None = None) -> Says:
    """Refuse all but what is usual; with `beside`, only where that option is on."""

    def says(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        if _is(value, usual) or (beside is not None and not given.get(beside)):
            return {}
        raise OptionError(why, option="extra_options")

    return says


def _stride(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if value and given.get("CalibMovingAverage"):
        what = "CalibMovingAverage takes the mean of all samples, and not of one stride"
        raise OptionError(what, option="extra_options")
    return {"stride": int(value)} if value else {}


def _percentile(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"percentile": float(value)}


def _symmetric(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"symmetric": bool(value)}


def _smooth(value: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {} if value is None else {"smooth": bool(value)}


_OVERRIDES = _refused("quantize_rs.quantize_with_calibration has layer_bits and activation_types")
_REAL_RANGE = _refused("ranges are as wide as what was seen, and hold 0")

EXTRA: dict[str, Row] = {
    "ActivationSymmetric": Row(_sets(activation_symmetric=True), _idle()),
    "ActivationRestrictedAsymmetric": Row(
        _refused("zero points of activations are free, or all in the middle"), _idle()
    ),
    "WeightSymmetric": Row(_symmetric, _symmetric),
    "EnableSubgraph": Row(_done, _done),
    "ForceQuantizeNoInputCheck": Row(
        _sets(target="qnn"), _refused("values are quantized where a product reads them")
    ),
    "MatMulConstBOnly": Row(
        _idle(), _refused("products of two activations compute in float", usual=True)
    ),
    "AddQDQPairToWeight": Row(_sets(output_format="fake_quant"), _idle()),
    "OpTypesToExcludeOutputQuantization": Row(
        _refused("where values are quantized, the target says"), _idle()
    ),
    "DedicatedQDQPair": Row(_refused("those who read a value share one pair"), _idle()),
    "QDQOpTypePerChannelSupportToAxis": Row(
        _refused("the axis of channels follows from the operator"), _idle()
    ),
    "CalibTensorRangeSymmetric": Row(_sets(symmetric_ranges=True), _idle()),
    "CalibStridedMinMax": Row(_stride, _idle()),
    "CalibMovingAverage": Row(_sets(method="moving_average"), _idle()),
    "CalibMovingAverageConstant": Row(_idle(0.01), _idle(0.01)),
    "CalibMaxIntermediateOutputs": Row(_done, _idle()),
    "CalibPercentile": Row(_percentile, _idle(99.999)),
    "QuantizeBias": Row(
        _refused(
            "biases are int32 where the runtime fuses them; targets tensorrt and openvino of "
            "quantize_rs.quantize_with_calibration leave them",
            usual=True,
        ),
        _idle(True),
    ),
    "SmoothQuant": Row(_smooth, _idle()),
    "SmoothQuantAlpha": Row(
        _refused("it is found for each layer", usual=0.5, beside="SmoothQuant"), _idle(0.5)
    ),
    "SmoothQuantFolding": Row(
        _refused(
            "a normalization takes the factors where it can", usual=True, beside="SmoothQuant"
        ),
        _idle(True),
    ),
    "UseQDQContribOps": Row(_done, _idle()),
    "MinimumRealRange": Row(_REAL_RANGE, _REAL_RANGE),
    "TensorQuantOverrides": Row(_OVERRIDES, _OVERRIDES),
    "QDQKeepRemovableActivations": Row(_done, _idle()),
    "QDQDisableWeightAdjustForInt32Bias": Row(
        _refused("a bias that does not fit int32 is wrong"), _idle()
    ),
    "BlockSize": Row(
        _refused("blocks are for weights alone: MatMulNBitsQuantizer with QuantFormat.QDQ"),
        _idle(),
    ),
    "DefaultTensorType": Row(_done, _done),
    "extra.Sigmoid.nnapi": Row(_idle(), _idle()),
}


def options(given: Mapping[str, Any] | None, *, dynamic: bool = False) -> dict[str, Any]:
    """Give what extra options come to as options of `Model.plan`, and a few about ranges.

    These are ``method``, ``percentile``, ``symmetric_ranges`` and ``stride``.

    Raises
    ------
    OptionError
        One that nobody knows, or that cannot be met.
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
            _log.warning("extra_options[%r] does nothing, in onnxruntime's tool neither", name)
        found |= options or {}
    return found
