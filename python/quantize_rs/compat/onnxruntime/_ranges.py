"""The ranges of activations for `quantize_static`: the method, the samples, a cache, overrides."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._flow.plan import Plan
from ..._inputs.files import make_folder
from ..._inputs.row_sources import read
from ..._results.ranges import Ranges
from ...errors import CalibrationError, OptionError
from ._choices import name_of
from ._overrides import Overrides
from ._tensors_data import METHODS, TensorsData, load_tensors_data
from .calibrate import CalibrationMethod, no_samples_as_value_error

__all__ = ["Wanted"]

_log = logging.getLogger("quantize_rs")


@dataclass(frozen=True)
class Wanted:
    """What is asked of ranges."""

    method: str
    stride: int | None
    # Whether zero points of uint8 are 0 or 128.
    restricted: bool

    @classmethod
    def of(cls, calibrate_method: Any, extra: dict[str, Any], activations: str) -> Wanted:
        """Remove the options of calibration from extra options.

        Raises
        ------
        OptionError
            The method is unknown, or not for this type of activations.
        """
        restricted = extra.pop("restricted_asymmetric", False) and activations == "uint8"
        method = _method(calibrate_method, extra, activations)
        return cls(method, extra.pop("stride", None), restricted)

    def ranges(self, plan: Plan, reader: Any, cache: Path | None, overrides: Overrides) -> Ranges:
        """Return the ranges: from the cache, or from samples and then written to it.

        Raises
        ------
        OptionError
            There is neither a cache nor a reader.
        CalibrationError
            The samples or the cache do not fit the model, or the cache is a file of another kind.
        OSError
            The cache cannot be read or written; that is found before samples run.
        """
        known = self._cached(plan, cache, anew=reader is not None)
        ranges = self._calibrated(plan, reader, cache) if known is None else known
        if self.restricted:
            ranges = ranges.with_values(_restricted(ranges.values))
        ends = overrides.ends(ranges.values)
        return ranges.with_values(ends) if ends else ranges

    def _cached(self, plan: Plan, cache: Path | None, *, anew: bool) -> Ranges | None:
        """Return the ranges of a cache, or None if samples have to run `anew`."""
        if cache is None or not cache.exists():
            return None
        ranges = _loaded(cache)
        if isinstance(ranges, TensorsData):
            return self._given(plan, ranges, cache)
        missing = plan._plan.missing(ranges._ranges)
        if missing and anew:
            what = "%s has no range of %r: samples run again, and the file is written anew"
            _log.warning(what, cache, missing[0])
            return None
        return ranges if ranges.method == self.method else ranges.using(self.method)

    def _given(self, plan: Plan, data: TensorsData, cache: Path) -> Ranges:
        """Return the ranges of a file of `TensorsData`, which has no statistics."""
        found = getattr(data.calibration_method, "name", "")
        if METHODS.get(self.method.partition(":")[0]) != found and found != "Distribution":
            what = f"{cache} has ranges of {found}, which are not those of calibrate_method"
            raise CalibrationError(f"calibration_cache_path: {what}", value=str(cache))
        if data.smooth_quant:
            what = f"{cache} has the ranges of a model that SmoothQuant changed"
            raise CalibrationError(f"calibration_cache_path: {what}", value=str(cache))
        model, known, ends = plan._plan.model, {*plan._plan.model.values()}, {}
        for name, value in data.items():
            # Some values of a 16-bit model are computed in float32 here.
            for here in known.intersection((name, f"{name}_float32")):
                ends[here] = _ends(name, value)
        ranges = Ranges._of_ends(model, ends, self.method, "TensorsData")
        if missing := plan._plan.missing(ranges._ranges):
            what = f"calibration_cache_path: {cache} has no range of {missing[0]!r}"
            raise CalibrationError(what, value=missing[0])
        return ranges

    def _calibrated(self, plan: Plan, reader: Any, cache: Path | None) -> Ranges:
        if reader is None:
            what = "calibration_data_reader is None, and there is no cache of ranges"
            raise OptionError(what, option="calibration_data_reader")
        samples = _strided(reader, self.stride) if self.stride else reader
        if cache is None:
            with no_samples_as_value_error():
                return plan.calibrate(samples, method=self.method)
        make_folder(cache)
        # A cache serves calls with other options, which may quantize other values.
        all_values = dataclasses.replace(plan, _plan=plan._plan.observing_all())
        with no_samples_as_value_error():
            ranges = all_values.calibrate(samples, method=self.method)
        ranges.save(cache)
        return ranges


def _loaded(cache: Path) -> Ranges | TensorsData:
    """Read a cache of this package, or the ranges that `save_tensors_data` wrote."""
    try:
        return Ranges.load(cache)
    except CalibrationError as error:
        try:
            return load_tensors_data(cache)
        except OptionError:
            what = (
                f"calibration_cache_path: {error}: "
                "name a file that does not exist yet, or delete this one"
            )
            raise CalibrationError(what, value=str(cache), category=error.category) from error


def _ends(name: str, value: Any) -> tuple[float, float]:
    """Return the ends of a range of `TensorsData`."""
    try:
        low, high = (float(np.asarray(end).item()) for end in value.range_value)
    except (AttributeError, ValueError) as error:
        what = f"calibration_cache_path: {name!r} has no single range: {error}"
        raise CalibrationError(what, value=name) from error
    return low, high


def _method(calibrate_method: Any, extra: dict[str, Any], activations: str) -> str:
    """Remove the options of calibration from extra options, and return the method."""
    known = [method.name for method in CalibrationMethod]
    name = name_of("calibrate_method", calibrate_method, known)
    percentile, mean = extra.pop("percentile", None), extra.pop("method", "minmax")
    symmetric = extra.pop("symmetric_ranges", None)
    idle = {
        "CalibPercentile": percentile is not None and name != "Percentile",
        "CalibMovingAverage": mean != "minmax" and name != "MinMax",
        # That of onnxruntime takes magnitudes for Percentile unless it is False.
        "CalibTensorRangeSymmetric": symmetric and name not in ("MinMax", "Percentile"),
    }
    for option in (option for option, given in idle.items() if given):
        what = "extra_options[%r] has no effect, as calibrate_method is %s"
        _log.warning(what, option, name)
    match name:
        case "Percentile":
            kept = 99.999 if percentile is None else percentile
            if symmetric is False:
                # Half of the rest at each end.
                kept = round((100 + kept) / 2, 10)
            return f"percentile:{kept}"
        case "Entropy":
            # That of onnxruntime has 128 bins, and so one threshold, the full range.
            return "entropy:1"
        case "MinMax":
            if symmetric:
                extra["activation_symmetric"] = True
            return str(mean)
    if activations.startswith("float"):
        # The method of onnxruntime for float8, which takes no other.
        _log.warning("calibrate_method is Distribution: float8 is scaled by its largest magnitude")
        return "minmax"
    what = "calibrate_method is Distribution, which is for float8, expected MinMax, Entropy or"
    raise OptionError(f"{what} Percentile", option="calibrate_method")


def _restricted(
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:
    """Return ranges whose zero points in uint8 are 0, or 128 where some values are negative."""
    found = {}
    for name, (low, high) in ranges.items():
        if low >= 0:
            found[name] = (0.0, high)
        else:
            scale = max(-low / 128, high / 127)
            found[name] = (-128 * scale, 127 * scale)
    return found


def _strided(reader: Any, stride: int) -> Iterator[Any]:
    """Iterate over the samples of a reader, one range after the other."""
    try:
        starts = range(0, len(reader), stride)
        whole = len(reader) % stride == 0 and hasattr(reader, "set_range")
    except (TypeError, NotImplementedError):
        whole = False
    if not whole:
        what = "extra_options['CalibStridedMinMax'] needs a reader with set_range() and a length"
        raise OptionError(f"{what} that is a multiple of {stride}", option="extra_options")
    return _ranges_of(reader, starts, stride)


def _ranges_of(reader: Any, starts: range, stride: int) -> Iterator[Any]:
    for start in starts:
        reader.set_range(start_index=start, end_index=start + stride)
        yield from read(reader)
