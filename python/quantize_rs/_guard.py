"""What a result has to reach, and the data it is judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy.typing as npt

from . import _core, _options, _samples
from ._model import Model, Wishes
from ._plan import Quantized
from ._ranges import Ranges
from ._run import Run, warn
from ._samples import CalibrationData
from .errors import OptionError

_NOISE = "judging on random values, which say little of real inputs"


class Guarded(TypedDict):
    """What a result has to reach, as the extension module takes it."""

    min_sqnr: float | None
    max_accuracy_drop: float | None
    require_faster: bool
    fall_back: bool
    labels: list[int] | None
    scores: str | None
    held_out: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """What a result has to reach; `source` is None where the samples of a calibration serve."""

    options: Guarded
    source: _core.Source | None

    def quantized(
        self,
        model: Model,
        wishes: Wishes,
        ranges: Ranges | None,
        run: Run,
        calibrated: _core.Source | None = None,
    ) -> Quantized:
        """Make the model, and hold it against the bar; `calibrated` are a calibration's samples."""
        source = calibrated if self.source is None else self.source
        if source is None:
            raise _nothing("the bar")
        # An object serves a calibration; what is deployed runs elsewhere.
        engine = run.engine if isinstance(run.engine, str) else "auto"
        limit = run.limit if self.source is None else None
        found = None if ranges is None else ranges._ranges
        with replace(run, engine=engine, limit=limit).begun("verifying") as begun:
            made = _core.guarded(model._model, wishes, found, source, self.options, begun)
        quantized = Quantized(made)
        told = [] if found is None else found.warnings
        warn(quantized.report.warnings[len(told) :])  # those of the samples come first
        return quantized


def guard(
    verify: CalibrationData | None,
    *,
    min_sqnr: float | None,
    max_accuracy_drop: float | None,
    require_faster: bool,
    fall_back: bool,
    labels: npt.ArrayLike | None,
    scores: str | None,
    calibrated: CalibrationData | None,
) -> Guard | None:
    """Give what a result has to reach; None where nothing is asked.

    `calibrated` are the samples of a calibration, which can serve instead of `verify`.
    """
    asked = {
        "min_sqnr": min_sqnr is not None,
        "max_accuracy_drop": max_accuracy_drop is not None,
        "require_faster": require_faster,
        "labels": labels is not None,
    }
    first = next((option for option, is_asked in asked.items() if is_asked), None)
    if verify is None and first is None:
        _options.idle("where nothing is judged: verify is None", scores=scores is not None)
        return None
    if verify is None and calibrated is None:
        raise _nothing(str(first))
    options = Guarded(
        min_sqnr=min_sqnr,
        max_accuracy_drop=max_accuracy_drop,
        require_faster=require_faster,
        fall_back=fall_back,
        labels=_options.labels(labels),
        scores=scores,
        held_out=verify is not None and not _samples.overlap(verify, calibrated),
    )
    _core.check_guard(options)
    if verify is None:
        return Guard(options, None)
    source = _samples.source(
        verify, "verify", num_samples=100, sample_shape=None, seed=0, noise=_NOISE
    )
    return Guard(options, source)


def _nothing(asked: str) -> OptionError:
    what = f"verify is None, but {asked} needs data that the result is judged on"
    return OptionError(what, option="verify")
