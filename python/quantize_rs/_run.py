"""How a model is run on samples, and what is said meanwhile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import _core, _engines, _options, _progress
from ._engines import Engine

__all__ = ["Run", "warn"]

_log = logging.getLogger("quantize_rs")


def warn(warnings: Iterable[str]) -> None:
    """Say them in the logger of the package."""
    for warning in warnings:
        _log.warning("%s", warning)


@dataclass(frozen=True, slots=True)
class Run:
    """How to run a model on samples."""

    engine: Engine
    limit: int | None
    threads: int | None
    progress: bool | _progress.Callback | None

    @contextlib.contextmanager
    def begun(self, work: str = "calibrating") -> Iterator[_core.Run]:
        """Give it as the extension module takes it, with progress shown meanwhile."""
        engine = _engines.engine if work == "calibrating" else _engines.deployed
        with _progress.shown(self.progress, work) as call:
            yield _core.Run(
                engine(self.engine),
                limit=_options.maybe_count("limit", self.limit, least=1),
                threads=_options.maybe_count("threads", self.threads, least=1),
                progress=call,
            )
