"""What `extra_options` of onnxruntime's tool come to here: a row for each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..errors import OptionError

__all__ = ["EXTRA", "options"]

Says: TypeAlias = Callable[[Any], dict[str, Any]]


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _refused(why: str, *, usual: Any = False) -> Says:
    """Refuse what is asked for, unless that is what is done anyway."""

    def says(value: Any) -> dict[str, Any]:
        if value is None or value == usual or value in ([], {}):
            return {}
        raise OptionError(f"extra_options asks for {value!r}: {why}", option="extra_options")

    return says


# Nothing has to be done where it is done anyway, or where what it is a cure for does not happen.
EXTRA: dict[str, Says] = {
    "ActivationSymmetric": lambda value: {"activation_symmetric": bool(value)},
    "ActivationRestrictedAsymmetric": _refused("zero points of activations are free, or all 0"),
    "WeightSymmetric": lambda value: {} if value is None else {"symmetric": bool(value)},
    "EnableSubgraph": _nothing,
    "ForceQuantizeNoInputCheck": _nothing,
    "MatMulConstBOnly": _nothing,
    "AddQDQPairToWeight": lambda value: {"output_format": "fake_quant"} if value else {},
    "OpTypesToExcludeOutputQuantization": _refused("where values are quantized, the target says"),
    "DedicatedQDQPair": _refused("those who read a value share one pair"),
    "QDQOpTypePerChannelSupportToAxis": _refused("the axis of channels follows from the operator"),
    "CalibTensorRangeSymmetric": lambda value: {"activation_symmetric": bool(value)},
    "CalibStridedMinMax": _nothing,
    "CalibMovingAverage": lambda value: {"method": "moving_average"} if value else {},
    "CalibMovingAverageConstant": _nothing,
    "CalibMaxIntermediateOutputs": _nothing,
    "CalibPercentile": lambda value: {"percentile": float(value)},
    "QuantizeBias": _refused(
        "biases are int32 where the target fuses them; targets tensorrt and openvino leave them",
        usual=True,
    ),
    "SmoothQuant": lambda value: {"smooth": bool(value)},
    "SmoothQuantAlpha": _nothing,
    "SmoothQuantFolding": _nothing,
    "UseQDQContribOps": _nothing,
    "MinimumRealRange": _refused("ranges are as wide as what was seen, and hold 0"),
    "TensorQuantOverrides": _refused("say it with layer_bits, layer_dtype and activation_types"),
    "QDQKeepRemovableActivations": _nothing,
    "QDQDisableWeightAdjustForInt32Bias": _refused("a bias that does not fit int32 is wrong"),
    "BlockSize": lambda value: {"block_size": int(value)} if value else {},
    "DefaultTensorType": _nothing,
}


def options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Give what extra options come to as options of `Model.plan`, and `method`, `percentile`.

    Raises
    ------
    OptionError
        One that nobody knows, or that cannot be met.
    """
    found: dict[str, Any] = {}
    for name, value in (given or {}).items():
        says = EXTRA.get(name)
        if says is None:
            near = difflib.get_close_matches(name, EXTRA, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise OptionError(f"extra_options has no {name!r}{hint}", option="extra_options")
        try:
            found |= says(value)
        except OptionError as error:
            what = str(error).replace("extra_options asks for", f"extra_options[{name!r}] is", 1)
            raise OptionError(what, option="extra_options") from None
    return found
