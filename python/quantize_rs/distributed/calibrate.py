"""Calibration with an executor."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from .. import _core
from .._flow.plan import Plan
from .._inputs.progress import Callback, Listener, shown
from .._inputs.samples import CalibrationData
from .._options import check
from .._results.ranges import Ranges
from ..errors import CalibrationError, OptionError
from .processes import Processes
from .shards import Layers, Shard, Solve, check_plan, merge, outcome, solves, split

__all__ = ["calibrate"]


Task: TypeAlias = Shard | Solve | Layers


class Executor(Protocol):
    """What `concurrent.futures` calls an executor, and also a client of Dask."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function elsewhere, and return a future."""


def calibrate(
    plan: Plan,
    samples: CalibrationData | Callable[..., CalibrationData],
    executor: Executor | int | None = None,
    shards: int | None = None,
    *,
    method: str = "minmax",
    engine: str = "auto",
    limit: int | None = None,
    threads: int | None = 1,
    retries: int = 2,
    progress: bool | Callback | None = None,
    moments: str | os.PathLike[str] | None = None,
) -> Ranges:
    """Run the model on samples with many workers and find the ranges of its activations.

    Each worker opens the model once and reads the samples itself. Then each rounds some of the
    weights with the second moments of all parts. The ranges equal those of `Plan.calibrate` bit for
    bit, except that ``rounding_effort="best"`` does not round layer after layer.

    Parameters
    ----------
    plan : Plan
        Of a model that was opened from a file that all workers have at the same path. A model in
        memory is sent to each of them.
    samples : path, Samples, array, dict of arrays, function, …
        As in `Plan.calibrate`, if it can be pickled; paths must be those of the workers. Or a
        function that returns samples: one without arguments returns all of them, of which each
        worker runs every n-th; one with two arguments, the number of the part from 1 and the number
        of parts, returns a part.
    executor : executor, Dask client or int, optional
        An object with ``submit(function, *args)`` that returns futures, or the number of processes
        of this machine; one for each core by default.
    shards : int, optional
        The number of parts; one for each worker by default.
    method, engine, limit
        As in `Plan.calibrate`. The method ``"auto"`` needs all samples in one process. An engine
        object cannot be sent to workers.
    threads : int, optional
        The number of samples that each worker runs in parallel; None for one on each core.
    retries : int
        How often a part is repeated whose worker died. Other parts are not.
    progress : bool or callable, optional
        True shows a progress bar on standard error; a function is called with the number of parts
        done, and of all. Groups of weights to round count as parts.
    moments : path, optional
        A folder that all workers reach at this path, for the second moments of their parts; what is
        written there is deleted at the end. For processes and threads of this machine it is a
        temporary one by default. For other executors weights are rounded without samples by
        default, and a note says so.

    Returns
    -------
    Ranges
        As of `Plan.calibrate`.

    Raises
    ------
    CalibrationError
        As in `Plan.calibrate`; or the workers of a part died more than `retries` times.
    OptionError
        An option is wrong, or the samples cannot be sent to another process.
    FileNotFoundError, PermissionError, OSError
        A worker cannot read a file.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
    >>> quantize_rs.distributed.calibrate(plan, digits.calibration, 1).samples
    200
    """
    check_plan(plan)
    repeats = check.count("retries", retries)
    if plan._origin[1].get("resume_rounding") is not None:
        what = "resume_rounding: workers round at the same time and cannot share its file: omit it"
        raise OptionError(what, option="resume_rounding")
    # The folder is deleted when the processes have ended, which may write to it until then.
    with _folder(plan, executor, moments) as folder, opened(executor) as pool:
        workers = worker_count(pool)
        count = workers if shards is None else shards
        options: dict[str, Any] = {"method": method, "engine": engine, "limit": limit}
        options |= {"threads": threads, "moments": folder}
        parts = split(plan, samples, count, **options)
        work = len(plan._plan.rounding_work()) if folder is not None else 0
        groups = min(workers, work)
        with shown(progress, "calibrating", "parts") as call:
            progressed = Counted(call, len(parts) + groups)
            returned = Calls(pool, repeats, progressed).results(parts)
            filled = [part for part in returned if isinstance(part, str)]
            while 0 < len(filled) < len(parts):  # fewer samples than parts
                parts = split(plan, samples, len(filled), **options)
                returned = Calls(pool, repeats, None).results(parts)
                filled = [part for part in returned if isinstance(part, str)]
            for none in returned:
                if isinstance(none, Exception):
                    raise none
            ranges = merge(filled)
            if not ranges._ranges.has_moments:
                return ranges
            solved = Calls(pool, repeats, progressed).results(
                solves(plan, parts[0], filled, groups)
            )
        rounded = [_core.Ranges.from_json(text) for text in solved if isinstance(text, str)]
        found = Ranges(ranges._ranges.with_rounded(rounded))
        del ranges  # which has the files open, and so keeps a folder of some file systems
        return found


@contextlib.contextmanager
def _folder(
    plan: Plan, executor: Executor | int | None, given: str | os.PathLike[str] | None
) -> Iterator[str | None]:
    """Make a folder for second moments, where weights are rounded with samples."""
    local = executor is None or isinstance(
        executor, int | Processes | ProcessPoolExecutor | ThreadPoolExecutor
    )
    if (given is None and not local) or not plan._plan.rounding_work():
        yield None
        return
    if given is not None:
        given = check.folder("moments", given)
    with tempfile.TemporaryDirectory(
        prefix="quantize-rs-", dir=given, ignore_cleanup_errors=True
    ) as folder:
        if given is not None:  # workers may be other users
            Path(folder).chmod(Path(given).stat().st_mode & 0o777)
        yield folder


class Counted:
    """Counts the parts of several calls together."""

    def __init__(self, call: Listener | None, total: int) -> None:
        self._call = call
        self._total = total
        self._done = 0

    def step(self) -> None:
        """Count a part."""
        self._done += 1
        if self._call is not None:
            self._call(min(self._done, self._total), self._total, None)


class Calls:
    """The calls of tasks: which are waited for, and which are repeated."""

    def __init__(self, pool: Executor, retries: int, progress: Counted | None) -> None:
        self._pool = pool
        self._retries = retries
        self._progress = progress
        self._done: queue.SimpleQueue[tuple[Task, str]] = queue.SimpleQueue()
        # By attempt. A future that was read is dropped: Dask would compute its result again where
        # the worker that holds it dies.
        self._waiting: dict[str, Any] = {}
        self._of_ours: Processes | None = None

    def results(self, parts: Sequence[Task]) -> list[str | Exception]:
        """Return what each task does, or the error of a shard that has no samples."""
        found: dict[int, str | Exception] = {}
        failures = dict.fromkeys(range(1, len(parts) + 1), 0)
        try:
            for shard in parts:
                self._submit(shard)
            while len(found) < len(parts):
                shard, attempt = self._done.get()
                try:
                    result = self._waiting.pop(attempt).result()
                except CalibrationError:  # of `Processes`: none can be started
                    raise
                except Exception as error:
                    failures[shard.index] += 1
                    if failures[shard.index] > self._retries:
                        raise _dead(shard, failures[shard.index], error) from error
                    self._replace_broken(error)
                    self._submit(shard)
                    continue
                if isinstance(result, Exception) and not _is_empty(result):
                    if hasattr(result, "add_note"):  # since Python 3.11
                        result.add_note(f"in part {shard}")
                    raise result
                found[shard.index] = result
                if self._progress is not None:
                    self._progress.step()
        finally:
            for future in self._waiting.values():
                future.cancel()
            if ours := self._of_ours:
                end = ours.shutdown if len(found) == len(parts) else ours.terminate
                end()
        return [found[shard.index] for shard in parts]

    def _submit(self, shard: Task) -> None:
        attempt = uuid.uuid4().hex
        try:
            future = self._pool.submit(outcome, shard, attempt)
        except BrokenProcessPool as error:  # by a part that was given before
            self._replace_broken(error)
            future = self._pool.submit(outcome, shard, attempt)
        self._waiting[attempt] = future
        future.add_done_callback(lambda _: self._done.put((shard, attempt)))

    def _replace_broken(self, error: Exception) -> None:
        """Go on with processes that die alone, where a pool takes no more work."""
        if isinstance(error, BrokenProcessPool) and isinstance(self._pool, ProcessPoolExecutor):
            self._pool = self._of_ours = Processes(worker_count(self._pool))


def _is_empty(error: Exception) -> bool:
    return isinstance(error, CalibrationError) and error.category == "no_samples"


def _dead(shard: Task, times: int, error: Exception) -> CalibrationError:
    what = (
        f"the worker of part {shard} died {times} times ({type(error).__name__}: {error}): "
        "give workers more memory, or divide the samples into more shards"
    )
    return CalibrationError(what, category="engine")


@contextlib.contextmanager
def opened(executor: Executor | int | None) -> Iterator[Executor]:
    if executor is None or isinstance(executor, int):
        with Processes(executor) as processes:
            yield processes
    elif callable(getattr(executor, "submit", None)):
        yield executor
    else:
        what = (
            f"executor is of type {type(executor).__name__}, expected an object with submit(), as "
            "those of concurrent.futures, or a number of processes"
        )
        raise OptionError(what, option="executor")


def worker_count(pool: Any) -> int:
    """Return the number of workers of an executor, or of cores where it does not say."""
    client = getattr(pool, "_client", pool)  # Dask's executor has its client
    if callable(threads := getattr(client, "nthreads", None)):
        return max(1, len(threads()))
    for name in ("workers", "_max_workers"):
        if isinstance(number := getattr(pool, name, None), int):
            return max(1, number)
    return os.cpu_count() or 1
