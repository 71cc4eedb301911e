"""The `extra_options` of `create_calibrator`, by method."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...errors import OptionError

__all__ = ["of_method"]

_log = logging.getLogger("quantize_rs")

# The options of each method in onnxruntime: arguments of its calibrater.
_OPTIONS = {
    "MinMax": ("symmetric", "moving_average", "averaging_constant", "max_intermediate_outputs"),
    "Entropy": ("symmetric", "num_bins", "num_quantized_bins"),
    "Percentile": ("symmetric", "percentile", "num_bins"),
}


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
        # That it is off is what holds without it.
        if name not in own and value is not None and value is not False:
            what = "extra_options[%r] has no effect, as calibrate_method is %s"
            _log.warning(what, name, method)
    return {name: options[name] for name in own if options.get(name) is not None}
