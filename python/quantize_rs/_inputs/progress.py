"""Progress of work on samples: a callback, a tqdm bar or a line of text."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

# Called with the samples done, and the total or None.
Callback: TypeAlias = Callable[[int, int | None], object]
# The same, with the percentage of rounding that is done while weights are rounded.
Listener: TypeAlias = Callable[[int, int | None, int | None], object]


class _ProgressBar(Protocol):
    total: float | None
    n: float

    def reset(self, total: float | None) -> object: ...
    def update(self, n: float) -> object: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def shown(
    progress: bool | Callback | None, work: str, unit: str = "samples"
) -> Iterator[Listener | None]:
    """Return the function to call: None, the caller's own, or one that draws a progress bar."""
    if callable(progress):
        yield _of_samples(progress)
    elif not progress:
        yield None
    else:
        try:
            with warnings.catch_warnings():
                # tqdm warns when ipywidgets is missing, and falls back to a text bar.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            with _counter(work, unit) as call:
                yield call
        else:
            bars = _Bars(tqdm, work, unit)
            try:
                yield bars
            finally:
                bars.close()


def _of_samples(progress: Callback) -> Listener:
    known: tuple[int, int | None] | None = None

    def call(done: int, total: int | None, rounding: int | None) -> None:
        nonlocal known
        if rounding is None and (done, total) != known:
            known = done, total
            progress(done, total)

    return call


class _Bars:
    """A progress bar for samples or parts, and one for rounding weights once that begins."""

    def __init__(self, make: Callable[..., _ProgressBar], work: str, unit: str) -> None:
        self.make = make
        self.counted = make(desc=work, unit=f" {unit}")
        self.rounding: _ProgressBar | None = None

    def __call__(self, done: int, total: int | None, rounding: int | None) -> None:
        if rounding is None:
            _advance(self.counted, done, total)
            return
        if self.rounding is None:
            self.rounding = self.make(desc="rounding weights", unit=" %", total=100)
        _advance(self.rounding, rounding, 100)

    def close(self) -> None:
        for bar in filter(None, (self.counted, self.rounding)):
            bar.close()


def _advance(bar: _ProgressBar, done: int, total: int | None) -> None:
    if bar.total != total or done < bar.n:
        bar.reset(total)  # the notebook bar does not read `total` again
    bar.update(done - bar.n)  # tqdm draws at most ten times a second


@contextlib.contextmanager
def _counter(work: str, unit: str) -> Iterator[Listener]:
    begun, text, drawn = time.monotonic(), "", 0.0
    rounding_since: float | None = None

    def call(done: int, total: int | None, rounding: int | None) -> None:
        nonlocal text, drawn, rounding_since
        now = time.monotonic()
        if rounding is None:
            state = f"{work}: {_progress_text(done, total, now - begun, unit)}"
        else:
            rounding_since = now if rounding_since is None else rounding_since
            left = _time_left(rounding, 100, now - rounding_since)
            state = f"rounding weights: {rounding} %{left}"
        text = f"{state:<70}"  # padded to overwrite a longer earlier text
        if now - drawn > 0.1:
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()
            drawn = now

    try:
        yield call
    finally:
        sys.stderr.write(f"\r{text}\n")


def _progress_text(done: int, total: int | None, seconds: float, unit: str) -> str:
    if total is None:
        return f"{done} {unit}"
    return f"{done} of {total} {unit}{_time_left(done, total, seconds)}"


def _time_left(done: int, total: int, seconds: float) -> str:
    return f", {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
