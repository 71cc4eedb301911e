"""Sensitivity analysis: which layers cost the most accuracy when they are quantized."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import _core
from .._flow.model import Model
from .._flow.model import open as open_model
from .._flow.origin import not_defaults, stamped
from .._flow.plan import Plan
from .._inputs.engines import Engine
from .._inputs.model_source import ModelSource
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import ANALYSIS_NOISE, NUM_SAMPLES, CalibrationData, sample_source
from .._options import check
from .._options.default import default, is_default
from .._options.resolve import with_aliases
from .._results.build import result
from .._results.ranges import Ranges, optional_ranges
from .._results.sensitivity import Sensitivity
from ..errors import OptionError
from ..metrics import MetricLike, metric_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

    from .._options.aliases import DataAndExcludeAliases

__all__ = ["sensitivity"]

# Measured from the errors of outputs and weights; everything else is a metric of outputs.
_OF_OUTPUTS = ("sqnr", "cosine", "max_abs", "mse", "top1", "weight")


def sensitivity(
    model: ModelSource | Model | Plan,
    data: CalibrationData | None = None,
    metric: str | MetricLike = default("sqnr"),
    *,
    labels: npt.ArrayLike | os.PathLike[str] | None = None,
    scores: str | None = None,
    all_but_one: bool = False,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    weights: str | None = None,
    activations: str | None = default("uint8"),
    per_channel: bool | None = None,
    exclude: Iterable[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[DataAndExcludeAliases],
) -> Sensitivity:
    """Rank the layers of a model by the error of quantizing each of them alone.

    A layer is a weight, with everything that is quantized for the nodes that use it. The float
    model runs once. For each layer, only the nodes after it run again, on stored values of the
    float model; several layers run in parallel.

    Parameters
    ----------
    model : Plan, Model, path, bytes or onnx.ModelProto
        A plan, or a model with the options below.
    data : path, Samples, array, dict of arrays, iterable, reader, or "random", optional
        The samples, as `calibration_data` of `quantize_with_calibration`; all are kept in memory.
        Without data, only the errors of weights are measured.
    metric : "sqnr", "cosine", "max_abs", "mse", "top1", "weight", callable or Metric
        The metric of the worst output of the model that layers are ranked by; ``"weight"`` is the
        SQNR of the weight itself, and the default without data. With a function, one of
        `quantize_rs.metrics` or the name of another one, as in `compare`, the score of a layer is
        how much worse the model is than the float one.
    labels, scores
        What a metric of that kind needs, as in `compare`. With labels, ``"top1"`` is the share of
        correct classes; without, the share of samples whose class stays that of the float model.
    all_but_one : bool
        Quantize all layers except one, instead of one alone. The layer whose exclusion gives the
        best model comes first.
    ranges : Ranges or path, optional
        The ranges for the plan, or their file; by default those of `data`.
    weights, activations, per_channel, exclude
        As in `Model.plan`; with ``activations=None``, and without data, only weights are
        quantized.
    resume : path, optional
        A file for intermediate results, layer by layer. If it exists, the analysis resumes from it;
        a file of another model, plan or other data or ranges raises an error. A file beside it
        whose name ends with ``.lock`` keeps other processes away. Not with a metric of your own.
    engine
        As in `compare`.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`; progress counts partial runs of the model.
    **aliases
        Other names of `data` and `exclude`, as in `quantize`.

    Returns
    -------
    Sensitivity
        A row for each layer, the most sensitive first.

    Raises
    ------
    OptionError
        An option is unknown or out of range, or the file to resume does not match.
    CalibrationError
        No samples, samples of the wrong shape or type, or an engine error.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model or the data cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits, samples, _ = quantize_rs.examples.digits()
    >>> found = quantize_rs.sensitivity(digits, samples, limit=16)
    >>> found.layers[0].score <= found.layers[-1].score
    True

    Keep the most sensitive layer float:

    >>> report = quantize_rs.quantize(digits, None, excluded_layers=[found.layers[0].name])

    Without data:

    >>> quantize_rs.sensitivity(digits).metric
    'weight'
    """
    data, exclude = with_aliases(aliases, data=data, exclude=exclude)
    if data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        run |= {"threads": threads is not None, "num_samples": num_samples != NUM_SAMPLES}
        noise = {"sample_shape": sample_shape is not None, "seed": seed != 0}
        shown = {"ranges": ranges is not None}
        shown |= {"activations": activations is not None and not is_default(activations)}
        shown |= {"labels": labels is not None, "scores": scores is not None}
        check.reject_unused("without data", **run, **noise, **shown)
    asked = model
    given = not_defaults(sensitivity, locals())
    if isinstance(model, Plan):
        unused = {"weights": weights is not None, "activations": not is_default(activations)}
        unused |= {"per_channel": per_channel is not None, "exclude": exclude is not None}
        check.reject_unused("with a plan, which determines what is quantized", **unused)
    else:
        opened = model if isinstance(model, Model) else open_model(model)
        model = opened.plan(
            weights,
            # A plain text, as `plan` takes the default of a parameter as not given.
            None if data is None or activations is None else str(activations),
            per_channel=per_channel,
            exclude=exclude,
        )
    if data is None:
        of_outputs = metric != "weight" and not is_default(metric)
        if of_outputs or all_but_one or resume is not None:
            what = "metric" if of_outputs else "data"
            raise OptionError(
                f"{what}: without data only weights can be analyzed, one by one", option=what
            )
        weights_alone = result(Sensitivity, _core.weight_sensitivity(model._plan))
        return stamped(weights_alone, "sensitivity", (asked,), given, None)
    source = sample_source(
        data,
        "data",
        model._plan.model,
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=ANALYSIS_NOISE,
    )
    own = own_metric(metric, labels, scores)
    options = (str(metric), all_but_one, None if resume is None else os.fspath(resume), None)
    given_ranges = optional_ranges("ranges", ranges)
    known = None if given_ranges is None else given_ranges._ranges
    with Run(engine, limit, threads, progress).session("analyzing layers") as begun:
        found = _core.sensitivity(model._plan, known, source, options, own, begun)
    return stamped(result(Sensitivity, found), "sensitivity", (asked, data), given, data)


def own_metric(
    metric: str | MetricLike, labels: npt.ArrayLike | os.PathLike[str] | None, scores: str | None
) -> object | None:
    """Return the metric of outputs that layers are ranked by; None for one of the core."""
    # Without labels, "top1" is the agreement with the float model.
    labelled = metric == "top1" and labels is not None
    built_in = not labelled and metric in _OF_OUTPUTS
    own = None if built_in else metric_of(metric, labels, scores, others=_OF_OUTPUTS)
    if own is None:
        unused = {"labels": labels is not None, "scores": scores is not None}
        check.reject_unused(f"with metric={metric!r}", **unused)
    return own
