"""Accuracy control: the criteria of a result, and the data it is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy.typing as npt

from .. import _core
from .._inputs.run import Run, warn
from .._inputs.samples import CalibrationData, overlap, sample_source
from .._options import check
from .._options.option_dict import AccuracyControlDict, OptionDict
from .._results.ranges import Ranges
from ..errors import OptionError
from .model import Model
from .plan import Quantized

_RANDOM_WARNING = "evaluating on random values, which say little about real inputs"


@dataclass(frozen=True, slots=True)
class AccuracyCheck:
    """Accuracy criteria and evaluation data; without `source`, the calibration samples."""

    options: AccuracyControlDict
    source: _core.Source | None

    def quantized(
        self,
        model: Model,
        options: OptionDict,
        ranges: Ranges | None,
        run: Run,
        calibrated: _core.Source | None = None,
    ) -> Quantized:
        """Quantize the model and evaluate it; `calibrated` are the samples of a calibration."""
        source = calibrated if self.source is None else self.source
        if source is None:
            raise _no_data("the accuracy criteria")
        # An engine object is for calibration only: it runs one model, and here there are several.
        engine = run.engine if isinstance(run.engine, str) else "auto"
        limit = run.limit if self.source is None else None
        found = None if ranges is None else ranges._ranges
        with replace(run, engine=engine, limit=limit).session("verifying") as begun:
            done = _core.guarded(model._model, options, found, source, self.options, begun)
        quantized = Quantized(done)
        logged = [] if found is None else found.warnings
        # Those of the calibration come first, and were logged then.
        warn(quantized.report.warnings[len(logged) :])
        return quantized


def accuracy_check(
    verify: CalibrationData | None,
    *,
    min_sqnr: float | None,
    max_accuracy_drop: float | None,
    require_faster: bool,
    fall_back: bool,
    labels: npt.ArrayLike | None,
    scores: str | None,
    calibrated: CalibrationData | None,
) -> AccuracyCheck | None:
    """Return the accuracy criteria, or None if none are given.

    `calibrated` are the calibration samples, which are used if `verify` is None.
    """
    given = {
        "min_sqnr": min_sqnr is not None,
        "max_accuracy_drop": max_accuracy_drop is not None,
        "require_faster": require_faster,
        "labels": labels is not None,
    }
    first = next((option for option, is_given in given.items() if is_given), None)
    if verify is None and first is None:
        check.reject_unused("without evaluation data: verify is None", scores=scores is not None)
        return None
    if verify is None and calibrated is None:
        raise _no_data(str(first))
    options = AccuracyControlDict(
        min_sqnr=min_sqnr,
        max_accuracy_drop=max_accuracy_drop,
        require_faster=require_faster,
        fall_back=fall_back,
        labels=check.labels(labels),
        scores=scores,
        held_out=verify is not None and not overlap(verify, calibrated),
    )
    _core.check_guard(options)
    if verify is None:
        return AccuracyCheck(options, None)
    source = sample_source(
        verify, "verify", num_samples=100, sample_shape=None, seed=0, noise=_RANDOM_WARNING
    )
    return AccuracyCheck(options, source)


def _no_data(option: str) -> OptionError:
    what = f"verify is None, but {option} needs data to evaluate the result on"
    return OptionError(what, option="verify")
