"""Accuracy control: the criteria of a result, and the data it is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import _core
from .._inputs.labels import labels_of
from .._inputs.run import Run
from .._inputs.samples import CalibrationData, overlap, sample_source
from .._options import check
from .._options.option_dict import AccuracyControlDict, OptionDict, names_in_errors
from .._options.resolve import Resolved
from .._results.ranges import Ranges
from ..errors import OptionError
from ..metrics import metric_of
from .model import Model
from .plan import Quantized

_RANDOM_WARNING = "evaluating on random values, which say little about real inputs"


@dataclass(frozen=True, slots=True)
class AccuracyCheck:
    """Accuracy criteria and evaluation data; without `data`, the calibration samples."""

    options: AccuracyControlDict
    data: CalibrationData | None

    def source(self, model: Model) -> _core.Source | None:
        """Return the evaluation data as samples for the model."""
        if self.data is None:
            return None
        return sample_source(
            self.data,
            "validation_data",
            model._model,
            noise=_RANDOM_WARNING,
        )

    def quantized(
        self,
        model: Model,
        options: OptionDict,
        ranges: Ranges | None,
        run: Run,
        source: _core.Source | None,
    ) -> Quantized:
        """Quantize the model and evaluate it on the samples of `source`."""
        if source is None:
            raise _no_data("the accuracy criteria")
        # An engine object is for calibration only: it runs one model, and here there are several.
        engine = run.engine if isinstance(run.engine, str) else "auto"
        limit = run.limit if self.data is None else None
        found = None if ranges is None else ranges._ranges
        with (
            replace(run, engine=engine, limit=limit).session("verifying") as begun,
            check.rename_errors(**names_in_errors(options)),
        ):
            done = _core.quantize_with_accuracy_control(
                model._model, options, found, source, self.options, begun
            )
        return Quantized(done)


def checked(model: Model, quantized: Quantized, ranges: Ranges | None, run: Run) -> Quantized:
    """Return the quantized model with its output error, measured on a few samples."""
    engine = run.engine if isinstance(run.engine, str) else "auto"
    found = None if ranges is None else ranges._ranges
    with replace(run, engine=engine, limit=None, progress=None).session("checking") as begun:
        return Quantized(_core.check_outputs(model._model, quantized._quantized, found, begun))


def accuracy_check(found: Resolved) -> AccuracyCheck | None:
    """Return the accuracy criteria, or None if none are given.

    Without validation data, the criteria are evaluated on the calibration samples.
    """
    data, calibrated = found["validation_data"], found["calibration_data"]
    check.choice("check", found["check"], ("auto", "none"))
    metric = metric_of(found["metric"], found["labels"], found["scores"])
    # With a metric of their own, they are not classes.
    labels = labels_of(found["labels"]) if metric is None else None
    criteria = ("min_sqnr", "max_accuracy_drop", "require_faster", "labels", "metric")
    first = next((option for option in criteria if option in found.given), None)
    if data is None and first is None:
        why = "without evaluation data: validation_data is None"
        check.reject_unused(why, scores=found["scores"] is not None)
        return None
    if data is None and calibrated is None:
        raise _no_data(str(first))
    options = AccuracyControlDict(
        min_sqnr=found["min_sqnr"],
        max_accuracy_drop=_drop(found["max_accuracy_drop"], metric is not None),
        require_faster=found["require_faster"],
        fall_back=found["fall_back"],
        labels=labels,
        scores=found["scores"],
        held_out=data is not None and not overlap(data, calibrated),
        metric=metric,
    )
    with check.rename_errors():
        _core.check_accuracy_criteria(options)
    return AccuracyCheck(options, data)


def _drop(value: float | str | None, has_metric: bool) -> float | None:
    """Return the most accuracy that may be lost: a fraction, or a score of a metric."""
    if has_metric and value is not None and not isinstance(value, str):
        return check.number("max_accuracy_drop", value)
    return check.fraction("max_accuracy_drop", value)


def _no_data(option: str) -> OptionError:
    what = f"validation_data is None, but {option} needs data to evaluate the result on"
    return OptionError(what, option="validation_data")
