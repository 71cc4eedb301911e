"""Sensitivity of layers with an executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _core
from .._analysis.sensitivity import own_metric
from .._flow.plan import Plan
from .._inputs.progress import Callback, shown
from .._inputs.run import Run
from .._inputs.samples import CalibrationData
from .._options import check
from .._results.build import result
from .._results.ranges import Ranges, optional_ranges
from .._results.sensitivity import Sensitivity
from .calibrate import Calls, Counted, Executor, opened, worker_count
from .shards import check_plan, layers, split

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["sensitivity"]


def sensitivity(
    plan: Plan,
    samples: CalibrationData | Callable[[], CalibrationData],
    executor: Executor | int | None = None,
    metric: Any = "sqnr",
    *,
    labels: npt.ArrayLike | os.PathLike[str] | None = None,
    scores: str | None = None,
    all_but_one: bool = False,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    engine: str = "auto",
    limit: int | None = None,
    threads: int | None = 1,
    retries: int = 2,
    progress: bool | Callback | None = None,
) -> Sensitivity:
    """Rank the layers of a model with many workers, each of which measures some of the layers.

    Every worker reads all samples, and finds the ranges of activations itself if they are not
    given, as `quantize_rs.sensitivity` does. The result is the same.

    Parameters
    ----------
    plan : Plan
        As in `calibrate`.
    samples : path, Samples, array, dict of arrays, function, …
        As in `calibrate`; a function has no arguments, and returns all of them.
    executor, limit, threads, retries
        As in `calibrate`.
    metric, labels, scores, all_but_one, ranges
        As in `quantize_rs.sensitivity`; a metric must be one that can be pickled.
    engine : str
        The name of an engine.
    progress : bool or callable, optional
        Counts the groups of layers, one for each worker.

    Returns
    -------
    Sensitivity
        As of `quantize_rs.sensitivity`, except for the call in its `origin`.

    Raises
    ------
    CalibrationError
        As in `quantize_rs.sensitivity`; or the workers of a group died more than `retries` times.
    OptionError
        An option is wrong, or the samples or the metric cannot be sent to another process.
    FileNotFoundError, PermissionError, OSError
        A worker cannot read a file.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
    >>> found = quantize_rs.distributed.sensitivity(plan, digits.calibration, 1, limit=8)
    >>> len(found.layers)
    5
    """
    check_plan(plan)
    repeats = check.count("retries", retries)
    own = own_metric(metric, labels, scores)
    given = optional_ranges("ranges", ranges)
    if given is not None and given._ranges.has_moments:  # once, and not by every worker
        with Run("auto", None, threads, None).session() as run:
            given = Ranges(plan._plan.round(given._ranges, run))
    known = None if given is None else given.to_json()
    with opened(executor) as pool, shown(progress, "analyzing layers", "groups") as call:
        count = worker_count(pool)
        shards = split(plan, samples, count, engine=engine, limit=limit, threads=threads)
        groups = layers(shards, (str(metric), all_but_one, own, known))
        parts = Calls(pool, repeats, Counted(call, count)).results(groups)
    for part in parts:
        if isinstance(part, Exception):
            raise part
    outcome = _core.merged_sensitivity([part for part in parts if isinstance(part, str)])
    return result(Sensitivity, outcome)
