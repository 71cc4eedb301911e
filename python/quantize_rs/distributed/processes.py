"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import (
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ParamSpec, TypeVar

from .._options import check
from ..errors import CalibrationError

__all__ = ["Processes"]

P = ParamSpec("P")
T = TypeVar("T")

_SECONDS_TO_END = 0.5  # for a process with a handler of SIGTERM

_GUARD = (
    "each process imports the script that started it, which must start none then: put what the "
    'script does under `if __name__ == "__main__":`'
)


class Processes:
    """An executor with processes of this machine, of which one may die alone.

    A ``ProcessPoolExecutor`` loses all work when one of its processes dies; here only the work of
    that process is lost, and another one takes its place.

    Parameters
    ----------
    workers : int, optional
        The number of processes; that of the cores by default.

    Examples
    --------
    >>> from quantize_rs.distributed import Processes
    >>> with Processes(1) as executor:
    ...     executor.submit(max, 3, 4).result()
    4
    """

    def __init__(self, workers: int | None = None) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This process is one of those and imports the script: its end is the error there.
            raise SystemExit(f"{multiprocessing.current_process().name}: {_GUARD}")
        given = check.optional_count("workers", workers, least=1)
        self.workers = given or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self.workers)
        self._of_thread = threading.local()
        self._pools: list[ProcessPoolExecutor] = []
        self._starts = threading.Lock()  # held where a process may start
        self._terminated = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in one of the processes."""
        return self._threads.submit(self._call, function, args, kwargs)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._started(function, args, kwargs).result()
        except BrokenProcessPool:
            self._of_thread.pool = None
            if self._of_thread.has_begun.is_set():
                raise
            what = f"a process ended before its work began: {_GUARD}"
            raise CalibrationError(what, category="engine") from None

    def _started(self, function: Any, args: Any, kwargs: Any) -> Future[Any]:
        with self._starts:
            if self._terminated:
                raise CancelledError
            pool = getattr(self._of_thread, "pool", None)
            if pool is None:
                # A process that is forked has the locks of threads, but not the threads.
                context = multiprocessing.get_context("spawn")
                begun = context.Event()
                pool = ProcessPoolExecutor(1, mp_context=context, initializer=begun.set)
                self._of_thread.pool, self._of_thread.has_begun = pool, begun
                self._pools.append(pool)
            return pool.submit(function, *args, **kwargs)

    def shutdown(self, wait: bool = True) -> None:
        """End the processes, after the work that has begun."""
        self._threads.shutdown(wait, cancel_futures=True)
        for pool in self._pools:
            pool.shutdown(wait, cancel_futures=True)

    def terminate(self) -> None:
        """End the processes at once; the work that has begun is lost."""
        with self._starts:
            self._terminated = True
        running = [one for pool in self._pools for one in (pool._processes or {}).values()]
        self.shutdown(wait=False)
        for process in running:
            process.terminate()
        for process in running:
            process.join(_SECONDS_TO_END)
            process.kill()
        self.shutdown()

    def __enter__(self) -> Processes:
        """Return the executor."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the processes; after an exception at once, whatever they do."""
        if kind is None:
            self.shutdown()
        else:
            self.terminate()
