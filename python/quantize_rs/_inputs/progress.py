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


class _ProgressBar(Protocol):
    total: float | None
    n: float

    def reset(self, total: float | None) -> object: ...
    def update(self, n: float) -> object: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def shown(progress: bool | Callback | None, work: str) -> Iterator[Callback | None]:
    """Return the function to call: None, the caller's own, or one that draws a progress bar."""
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    else:
        try:
            with warnings.catch_warnings():
                # tqdm warns when ipywidgets is missing, and falls back to a text bar.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            with _counter(work) as call:
                yield call
        else:
            bar: _ProgressBar = tqdm(desc=work, unit=" samples")
            try:
                yield lambda done, total: _advance(bar, done, total)
            finally:
                bar.close()


def _advance(bar: _ProgressBar, done: int, total: int | None) -> None:
    if bar.total != total:
        bar.reset(total)  # the notebook bar does not read `total` again
    bar.update(done - bar.n)  # tqdm draws at most ten times a second


@contextlib.contextmanager
def _counter(work: str) -> Iterator[Callback]:
    begun, text, drawn = time.monotonic(), "", 0.0

    def call(done: int, total: int | None) -> None:
        nonlocal text, drawn
        now = time.monotonic()
        # Padded to overwrite a longer earlier text.
        text = f"{work}: {_progress_text(done, total, now - begun):<60}"
        if now - drawn > 0.1:
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()
            drawn = now

    try:
        yield call
    finally:
        sys.stderr.write(f"\r{text}\n")


def _progress_text(done: int, total: int | None, seconds: float) -> str:
    if total is None:
        return f"{done} samples"
    left = f", {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
    return f"{done} of {total} samples{left}"
