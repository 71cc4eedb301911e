"""Functions that worker processes of the tests import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import quantize_rs

Array = npt.NDArray[Any]


def images(count: int = 61) -> Array:
    """All samples."""
    return np.asarray(np.load(quantize_rs.examples.digits().calibration)[:count])


def part(index: int, count: int) -> Array:
    """The samples of a part that lie together."""
    return np.array_split(images(), count)[index - 1]


def doubled(image: Array) -> Array:
    """A function of a sample."""
    return image * 2


class Dying:
    """Samples of which one part kills its worker a number of times."""

    def __init__(self, folder: Path, index: int, times: int) -> None:
        self.folder, self.index, self.times = folder, index, times

    def __call__(self, index: int, count: int) -> Array:
        """Return the samples of a part, and note the call."""
        attempt = len(list(self.folder.glob(f"{index}-*")))
        (self.folder / f"{index}-{attempt}").touch()
        if index == self.index and attempt < self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return part(index, count)


def failing(index: int, _count: int) -> Array:
    """Samples of which one part cannot be read."""
    if index == 2:
        raise OSError("the disk is on fire")
    return images()


class Endless:
    """Samples of which the second part waits for a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int, count: int) -> Array:
        """Return the samples of a part; the second one notes its process first, and waits."""
        if index == 2:
            (self.folder / str(os.getpid())).touch()
            while not (self.folder / "go on").exists():
                time.sleep(0.01)
        return part(index, count)

    def interrupt(self, *_: object) -> None:
        """Do what Ctrl-C does, once the second part has begun."""
        while not any(self.folder.iterdir()):
            time.sleep(0.01)
        raise KeyboardInterrupt


class Killing:
    """An executor that kills the worker of the first task of a kind."""

    def __init__(self, executor: Any, kind: str, died: Path) -> None:
        self.executor, self.kind, self.died = executor, kind, died
        self.workers = executor.workers

    def submit(self, function: Any, task: Any, /, *args: Any) -> Any:
        """Submit a task, or what dies instead of it."""
        if type(task).__name__ == self.kind and not self.died.exists():
            self.died.touch()
            return self.executor.submit(die)
        return self.executor.submit(function, task, *args)


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def spread(outputs: Any, _samples: Any) -> float:
    """A metric of outputs."""
    return float(np.std([one["logits"] for one in outputs]))
