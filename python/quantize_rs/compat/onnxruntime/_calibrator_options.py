"""The `extra_options` of `create_calibrator`: each has its effect, or a warning says why not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import OptionError

__all__ = ["of_method"]

_log = logging.getLogger("quantize_rs")


class _Idle(NamedTuple):
    """The usual value of an option that has no effect here, and why it has none."""

    usual: Any
    why: str


_BINS = "histograms have a fixed number of bins"

# The options of each method in onnxruntime; None if they have the same effect here.
_OPTIONS: dict[str, dict[str, _Idle | None]] = {
    "MinMax": {
        "symmetric": None,
        "moving_average": None,
        "averaging_constant": _Idle(0.01, "all samples count alike"),
        # Only counts are kept of a sample, so the effect is always there.
        "max_intermediate_outputs": None,
    },
    "Entropy": {
        "symmetric": None,
        "num_bins": _Idle(128, _BINS),
        "num_quantized_bins": _Idle(128, _BINS),
    },
    "Percentile": {
        "symmetric": None,
        "percentile": None,
        "num_bins": _Idle(2048, _BINS),
    },
}

# The arguments of our calibraters.
_TAKEN = ("symmetric", "moving_average", "percentile")


def of_method(method: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of the calibrater of a method.

    Raises
    ------
    OptionError
        No method has an option.
    """
    own, known = _OPTIONS[method], {name for found in _OPTIONS.values() for name in found}
    options = dict(given or {})
    if unknown := [name for name in options if name not in known]:
        what = f"extra_options has {min(unknown)!r}, which create_calibrator does not take"
        raise OptionError(what, option="extra_options")
    for name, value in options.items():
        if name not in own:
            # That it is off is what holds without it.
            if value is not None and value is not False:
                what = "extra_options[%r] has no effect, as calibrate_method is %s"
                _log.warning(what, name, method)
        elif (idle := own[name]) is not None and value not in (None, idle.usual):
            _log.warning("extra_options[%r] has no effect here: %s", name, idle.why)
    return {name: options[name] for name in _TAKEN if name in own and name in options}
