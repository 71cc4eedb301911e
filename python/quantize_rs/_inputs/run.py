"""How a model is run on samples: engine, limits, threads, progress."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .. import _core
from .._options import check
from . import engines
from .engines import Engine
from .progress import Callback, shown

__all__ = ["MAX_THREADS", "Run", "warn", "warn_after_run"]

_log = logging.getLogger("quantize_rs")


def warn(warnings: Iterable[str]) -> None:
    """Log warnings to the logger of the package."""
    for warning in warnings:
        _log.warning("%s", warning)


def warn_after_run(warnings: Iterable[str]) -> None:
    """Log the warnings of a calibration, except that of random values, which was logged before."""
    warn(warning for warning in warnings if warning != _core.RANDOM_SAMPLES)


MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class Run:
    """How to run a model on samples."""

    engine: Engine
    limit: int | None
    threads: int | None
    progress: bool | Callback | None

    def given(self) -> dict[str, bool]:
        """Return which of these the caller gave, apart from `progress`."""
        return {
            "engine": self.engine != "auto",
            "limit": self.limit is not None,
            "threads": self.threads is not None,
        }

    @contextlib.contextmanager
    def session(self, work: str = "calibrating") -> Iterator[_core.Run]:
        """Return the run for the extension module, and show its progress until the block ends."""
        engine = engines.engine if work == "calibrating" else engines.deployed
        with shown(self.progress, work) as call:
            yield _core.Run(
                engine(self.engine),
                limit=check.optional_count("limit", self.limit, least=1),
                threads=check.optional_count("threads", self.threads, least=1, most=MAX_THREADS),
                progress=call,
            )
