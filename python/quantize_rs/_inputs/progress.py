"""How far some work on samples has come, shown to whoever asked."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

# Called with samples done, and samples in all where that is known.
Callback: TypeAlias = Callable[[int, int | None], object]


class _Bar(Protocol):
    total: float | None
    n: float

    def reset(self, total: float | None) -> object: ...
    def update(self, n: float) -> object: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def shown(progress: bool | Callback | None, work: str) -> Iterator[Callback | None]:
    """Give what to call: nothing, the caller's own function, or a bar on standard error."""
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    else:
        try:
            with warnings.catch_warnings():
                # That it has no widgets: its bar of text does as well.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            with _counter(work) as call:
                yield call
        else:
            bar: _Bar = tqdm(desc=work, unit=" samples")
            try:
                yield lambda done, total: _advance(bar, done, total)
            finally:
                bar.close()


def _advance(bar: _Bar, done: int, total: int | None) -> None:
    if bar.total != total:
        bar.reset(total)  # the bar of a notebook does not look at `total` again by itself
    bar.update(done - bar.n)  # which draws ten times a second at most


@contextlib.contextmanager
def _counter(work: str) -> Iterator[Callback]:
    begun, text, drawn = time.monotonic(), "", 0.0

    def call(done: int, total: int | None) -> None:
        nonlocal text, drawn
        now = time.monotonic()
        # Padded, so that nothing is left of a longer text before.
        text = f"{work}: {_told(done, total, now - begun):<60}"
        if now - drawn > 0.1:
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()
            drawn = now

    try:
        yield call
    finally:
        sys.stderr.write(f"\r{text}\n")


def _told(done: int, total: int | None, seconds: float) -> str:
    if total is None:
        return f"{done} samples"
    left = f", {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
    return f"{done} of {total} samples{left}"
