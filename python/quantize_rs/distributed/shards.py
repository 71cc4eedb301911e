"""Shards: picklable functions that calibrate on a part of the samples."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import pickle
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from .._flow.model import open as open_model
from .._flow.plan import Plan
from .._inputs import paths
from .._inputs.described import Samples
from .._inputs.images import ImageFolder
from .._inputs.run import MAX_THREADS, Run
from .._inputs.samples import CalibrationData, is_noise, part_source, sample_source
from .._inputs.text import TextSamples
from .._options import check
from .._options.option_dict import OptionDict
from .._results.ranges import Ranges
from ..errors import CalibrationError, OptionError

__all__ = ["Shard", "merge", "split"]


@dataclass(frozen=True, slots=True)
class _Job:
    """What all shards share."""

    model: str | bytes
    options: OptionDict
    samples: Any
    method: str
    engine: str
    limit: int | None
    threads: int | None
    moments: str | None

    def plan(self) -> Plan:
        """Return the plan, which each process makes once."""
        return _plan(self.model, _fingerprint(self.model), pickle.dumps(self.options))


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a calibration. Call it on any machine that has the model and the samples.

    It can be pickled, and returns the ranges as JSON, or with `moments` the path of their file.
    Each process opens the model once.

    Attributes
    ----------
    index : int
        The number of the part, from 1.
    count : int
        The number of parts.
    """

    index: int
    count: int
    _job: bytes = dataclasses.field(repr=False)

    def __call__(self) -> str:
        """Calibrate on this part of the samples, and return the ranges."""
        job: _Job = pickle.loads(self._job)  # noqa: S301 - made by `split`
        ranges = self._ranges(job, job.plan())
        if not ranges.has_moments or job.moments is None:
            return ranges.to_json()
        # A part that is run twice does not write what another process reads.
        name = f"{self.index}-of-{self.count}-{uuid.uuid4().hex}.safetensors"
        path = Path(job.moments, name)
        ranges.save(path)
        return str(path)

    def _ranges(self, job: _Job, plan: Plan) -> _core.Ranges:
        run = functools.partial(_run, plan, job)
        shard = (self.index, self.count)
        if callable(job.samples) and _arguments(job.samples) == 2:
            return run(job.samples(*shard), None, None).of_shard(*shard)
        samples = job.samples() if callable(job.samples) else job.samples
        if self.count > 1 and job.limit is None:  # a limit counts samples, not rows
            own = part_source(samples, plan._plan.model, shard)
            if own is not None:
                return run(own, None, None).of_shard(*shard)
        return run(samples, shard, job.limit)

    def __str__(self) -> str:
        """Return the number of the part and how many there are, ``2/8``."""
        return f"{self.index}/{self.count}"


def split(
    plan: Plan,
    samples: CalibrationData | Callable[..., CalibrationData],
    shards: int,
    *,
    method: str = "minmax",
    engine: str = "auto",
    limit: int | None = None,
    threads: int | None = 1,
    moments: str | os.PathLike[str] | None = None,
) -> list[Shard]:
    """Divide a calibration into parts, for schedulers that are no executor; see `merge`.

    Parameters
    ----------
    plan, samples, method, engine, limit, threads
        As in `calibrate`.
    moments : path, optional
        A folder that all workers and `merge` reach at this path, for the second moments that
        weights are rounded with. Delete its files when the model is quantized.
    shards : int
        The number of parts.

    Returns
    -------
    list of Shard
        Functions without arguments that can be pickled.

    Raises
    ------
    OptionError
        An option is wrong, or the samples cannot be sent to another process.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
    >>> shards = quantize_rs.distributed.split(plan, digits.calibration, 4)
    >>> quantize_rs.distributed.merge(shard() for shard in shards).samples
    200
    """
    check_plan(plan)
    if not isinstance(engine, str):
        what = "engine is an object, which stays in this process: give the name of an engine"
        raise OptionError(what, option="engine")
    if callable(samples):
        _arguments(samples)
        if limit is not None and _arguments(samples) == 2:
            what = "limit has no effect on a function that returns a part: return fewer samples"
            raise OptionError(what, option="limit")
    if moments is not None:
        moments = check.folder("moments", moments)
    method = check.text("method", method, "the name of a method")
    model, options = plan._origin
    path = model.path
    job = _Job(
        model.to_bytes() if path is None else str(Path(path).absolute()),
        options,
        _placed(samples),
        method,
        engine,
        check.optional_count("limit", limit, least=1),
        check.optional_count("threads", threads, least=1, most=MAX_THREADS),
        None if moments is None else str(Path(moments).absolute()),
    )
    sent = _pickled(job, f"samples of type {type(job.samples).__name__}")
    count = check.count("shards", shards, least=1)
    return [Shard(index, count, sent) for index in range(1, count + 1)]


def check_plan(plan: object) -> None:
    """Raise an `OptionError` for anything but a plan."""
    if not isinstance(plan, Plan):
        what = (
            f"plan is of type {type(plan).__name__}, expected a Plan: "
            'quantize_rs.open(path).plan(activations="uint8")'
        )
        raise OptionError(what, option="plan")


@dataclass(frozen=True, slots=True)
class Solve:
    """Some weights to round with the second moments of all parts."""

    index: int
    count: int
    _job: bytes = dataclasses.field(repr=False)
    _files: tuple[str, ...]
    _weights: tuple[str, ...]

    def __call__(self) -> str:
        """Round the weights, and return them as JSON."""
        job: _Job = pickle.loads(self._job)  # noqa: S301 - made by `split`
        ranges = _core.Ranges.merge_all([_read(part) for part in self._files])
        with Run("auto", None, job.threads, None).session() as run:
            return job.plan()._plan.round(ranges, run, self._weights).rounded_json()

    def __str__(self) -> str:
        """Return the number of the group of weights and how many there are."""
        return f"{self.index}/{self.count} of the weights"


@dataclass(frozen=True, slots=True)
class Layers:
    """Some layers to measure on all samples."""

    index: int
    count: int
    _job: bytes = dataclasses.field(repr=False)
    _how: bytes = dataclasses.field(repr=False)

    def __call__(self) -> str:
        """Measure the layers, and return them as JSON."""
        job: _Job = pickle.loads(self._job)  # noqa: S301 - made by `split`
        name, all_but_one, metric, ranges = pickle.loads(self._how)  # noqa: S301 - made by `layers`
        plan = job.plan()
        source = _source(plan, job.samples() if callable(job.samples) else job.samples)
        known = None if ranges is None else _core.Ranges.from_json(ranges)
        options = (name, all_but_one, None, (self.index, self.count))
        with Run(job.engine, job.limit, job.threads, None).session("analyzing layers") as run:
            return _core.sensitivity(plan._plan, known, source, options, metric, run).to_json()

    def __str__(self) -> str:
        """Return the number of the group of layers and how many there are."""
        return f"{self.index}/{self.count} of the layers"


def layers(shards: list[Shard], how: tuple[str, bool, object, str | None]) -> list[Layers]:
    """Divide the layers of a plan into as many groups as there are shards."""
    if _takes_part(shards[0]):
        what = "samples is a function of a part: every worker needs all of them, give one of none"
        raise OptionError(what, option="samples")
    sent = _pickled(how, "the metric")
    return [Layers(shard.index, shard.count, shard._job, sent) for shard in shards]


def _takes_part(shard: Shard) -> bool:
    samples = pickle.loads(shard._job).samples  # noqa: S301 - made by `split`
    return callable(samples) and _arguments(samples) == 2


def solves(plan: Plan, shard: Shard, files: Iterable[str], count: int) -> list[Solve]:
    """Divide the weights that are rounded with samples into groups that take about as long."""
    work = sorted(plan._plan.rounding_work(), key=lambda weight: -weight[1])
    groups: list[list[str]] = [[] for _ in range(min(count, len(work)))]
    sums = [0.0] * len(groups)
    for name, cost in work:
        least = sums.index(min(sums))
        groups[least].append(name)
        sums[least] += cost
    given = tuple(files)
    return [
        Solve(index, len(groups), shard._job, given, tuple(names))
        for index, names in enumerate(groups, 1)
    ]


def merge(parts: Iterable[str]) -> Ranges:
    """Merge what all shards returned, in any order.

    Parameters
    ----------
    parts : iterable of str
        What calling each `Shard` returned.

    Returns
    -------
    Ranges
        Those of all samples.

    Raises
    ------
    CalibrationError
        A part is missing or doubled, or is of another model, plan, method or engine.
    FileNotFoundError, PermissionError, OSError
        The file of a part cannot be read.
    """
    return Ranges.merge(Ranges(_read(part)) for part in parts)


def _read(part: str) -> _core.Ranges:
    return _core.Ranges.from_json(part) if part.startswith("{") else _core.Ranges.load(part)


@functools.lru_cache(maxsize=2)
def _plan(model: str | bytes, _fingerprint: object, options: bytes) -> Plan:
    return open_model(model)._plan(pickle.loads(options))  # noqa: S301 - made by `Shard`


def _fingerprint(model: str | bytes) -> object:
    """Return what changes when the file does."""
    if isinstance(model, bytes):
        return None
    found = Path(model).stat()
    return found.st_size, found.st_mtime_ns


def _source(plan: Plan, samples: Any) -> _core.Source:
    if isinstance(samples, _core.Source):
        return samples
    return sample_source(samples, "samples", plan._plan.model)


def _run(
    plan: Plan, job: _Job, samples: Any, shard: tuple[int, int] | None, limit: int | None
) -> _core.Ranges:
    """Calibrate on samples, or on a part of them."""
    source = _source(plan, samples)
    with Run(job.engine, limit, job.threads, None).session() as run:
        part = (*(shard or (1, 1)), job.moments is not None)
        return plan._plan.calibrate(source, job.method, run, False, part)


def _arguments(function: Callable[..., Any]) -> int:
    """Return how many arguments a function of samples takes: none, or the number of the part."""
    empty = inspect.Parameter.empty
    given = inspect.signature(function).parameters.values()
    needed = [one for one in given if one.default is empty and one.kind is not one.VAR_KEYWORD]
    if len(needed) in (0, 2):
        return len(needed)
    what = (
        f"samples is a function of {len(needed)} arguments, expected one of none, or of two: the "
        "number of the part, from 1, and how many there are"
    )
    raise OptionError(what, option="samples")


def _placed(samples: Any) -> Any:
    """Return the samples with absolute paths: workers may have another working directory."""
    match samples:
        case str() | os.PathLike():
            return samples if is_noise(samples) else str(Path(samples).absolute())
        case list() | tuple() if paths.are_files(samples):
            return [str(Path(one).absolute()) for one in samples]
        case ImageFolder():
            return dataclasses.replace(samples, path=Path(samples.path).absolute())
        case TextSamples():
            return dataclasses.replace(
                samples, texts=_placed(samples.texts), tokenizer=_placed(samples.tokenizer)
            )
        case Samples():
            return dataclasses.replace(samples, data=_placed(samples.data))
    return samples


def _pickled(sent: object, what: str) -> bytes:
    """Pickle an object; with `cloudpickle`, where it is installed, functions may be local ones."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        done: bytes = pickler.dumps(sent)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise OptionError(
            f"{what} cannot be sent to workers: {error}; give a path, or a function of a module",
            option=what.split()[0] if what.startswith("samples") else "metric",
        ) from error
    return done


def outcome(task: Callable[[], str], _attempt: str) -> str | Exception:
    """Run a task; what it raises is returned, so that only a dead worker raises.

    `_attempt` distinguishes calls for executors that remember results by their arguments.
    """
    try:
        return task()
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - of any kind
            return CalibrationError(f"{type(error).__name__}: {error}", category="engine")
        return error
