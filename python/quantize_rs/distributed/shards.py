"""Shards: picklable functions that calibrate on a part of the samples."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from .._flow.model import open as open_model
from .._flow.plan import Plan
from .._inputs.described import Samples
from .._inputs.images import ImageFolder
from .._inputs.run import Run
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


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a calibration. Call it on any machine that has the model and the samples.

    It can be pickled, and returns the ranges as JSON. Each process opens the model once.

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
        """Calibrate on this part of the samples, and return the ranges as JSON."""
        job: _Job = pickle.loads(self._job)  # noqa: S301 - made by `split`
        plan = _plan(job.model, _fingerprint(job.model), pickle.dumps(job.options))
        run = functools.partial(_run, plan, job)
        shard = (self.index, self.count)
        if callable(job.samples) and _arguments(job.samples) == 2:
            return _labelled(run(job.samples(*shard), None, None), shard)
        samples = job.samples() if callable(job.samples) else job.samples
        if self.count > 1 and job.limit is None:  # a limit counts samples, not rows
            own = part_source(samples, plan._plan.model, shard)
            if own is not None:
                return _labelled(run(own, None, None), shard)
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
) -> list[Shard]:
    """Divide a calibration into parts, for schedulers that are no executor; see `merge`.

    Parameters
    ----------
    plan, samples, method, engine, limit, threads
        As in `calibrate`.
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
    if not isinstance(engine, str):
        what = "engine is an object, which stays in this process: give the name of an engine"
        raise OptionError(what, option="engine")
    if callable(samples):
        _arguments(samples)
        if limit is not None and _arguments(samples) == 2:
            what = "limit has no effect on a function that returns a part: return fewer samples"
            raise OptionError(what, option="limit")
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
        check.optional_count("threads", threads, least=1),
    )
    sent = _pickled(job)
    count = check.count("shards", shards, least=1)
    return [Shard(index, count, sent) for index in range(1, count + 1)]


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
    """
    return Ranges(_core.Ranges.merge_all([_core.Ranges.from_json(part) for part in parts]))


@functools.lru_cache(maxsize=2)
def _plan(model: str | bytes, _fingerprint: object, options: bytes) -> Plan:
    return open_model(model)._plan(pickle.loads(options))  # noqa: S301 - made by `Shard`


def _fingerprint(model: str | bytes) -> object:
    """Return what changes when the file does."""
    if isinstance(model, bytes):
        return None
    found = Path(model).stat()
    return found.st_size, found.st_mtime_ns


def _run(
    plan: Plan, job: _Job, samples: Any, shard: tuple[int, int] | None, limit: int | None
) -> str:
    """Calibrate on samples, or on a part of them, and return the ranges as JSON."""
    source = samples
    if not isinstance(samples, _core.Source):
        source = sample_source(
            samples, "samples", plan._plan.model, num_samples=100, sample_shape=None, seed=0
        )
    with Run(job.engine, limit, job.threads, None).session() as run:
        # Remarks on few samples are not those of all parts together.
        return plan._plan.calibrate(source, job.method, run, False, shard or (1, 1)).to_json()


def _labelled(ranges: str, shard: tuple[int, int]) -> str:
    """Return ranges as those of a part, whose samples were selected before."""
    index, count = shard
    if count == 1:
        return ranges
    label = [{"index": index, "count": count}]
    return json.dumps({**json.loads(ranges), "shards": label}, separators=(",", ":"))


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
        case list() | tuple() if all(isinstance(one, str | os.PathLike) for one in samples):
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


def _pickled(job: _Job) -> bytes:
    """Pickle a job; with `cloudpickle`, where it is installed, functions may be local ones."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        sent: bytes = pickler.dumps(job)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        what = (
            f"samples of type {type(job.samples).__name__} cannot be sent to workers: {error}; "
            "give a path, or a function of a module that returns the samples"
        )
        raise OptionError(what, option="samples") from error
    return sent


def outcome(shard: Shard, _attempt: str) -> str | Exception:
    """Run a shard; what it raises is returned, so that only a dead worker raises.

    `_attempt` distinguishes calls for executors that remember results by their arguments.
    """
    try:
        return shard()
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - of any kind
            return CalibrationError(f"{type(error).__name__}: {error}", category="engine")
        return error
