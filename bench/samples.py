"""Where calibration and held-out samples come from, and the metric that goes with them.

A source is named by a JSON value, so that a child process can open it:
`{"kind": "folder", "path": …, "cache": …}`; what is made for the bench lies in the cache folder.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
import synthetic

Feed = synthetic.Feed
Source = dict[str, Any]


class Samples(Protocol):
    """Data of one model."""

    def calibration(self) -> Feed | Iterable[Feed]:
        """Calibration data as our API takes it: an array per input, or a feed per sample."""

    def feeds(self) -> Iterator[Feed]:
        """The same data as feeds of a session."""

    def held_out(self, limit: int) -> Iterator[Feed]:
        """At most `limit` samples that calibration never saw, as feeds of a session."""

    def metric(self, model: str, limit: int | None) -> dict[str, Any]:
        """The metric of a model file on held-out data; empty when the data has none."""


def of(source: Source) -> Samples:
    """Open the source."""
    return KINDS[source["kind"]](source)


class Folder:
    """A folder with `calib.npz`, `eval.npz` and `meta.json`; `evaluate.py` lies beside it.

    With a `count`, calibration takes exactly that number of samples. Where the folder has fewer, it
    begins again with the first one.
    """

    def __init__(self, source: Source) -> None:
        self.path = Path(source["path"])
        self.meta = json.loads((self.path / "meta.json").read_text())
        self.evaluate = load_module(self.path.parent / "evaluate.py")
        self.count: int | None = source.get("count")

    def calibration(self) -> Feed | Iterable[Feed]:
        if self.count is not None:
            feeds = list(self.evaluate.calib_feeds(str(self.path), self.meta, batch=1))
            return list(itertools.islice(itertools.cycle(feeds), self.count))
        if self.meta.get("calib_shared") or self.meta.get("calib_layout"):
            return list(self.feeds())
        with np.load(self.path / self.meta.get("calib", "calib.npz")) as arrays:
            return {name: arrays[name] for name in self.inputs() if name in arrays}

    def feeds(self) -> Iterator[Feed]:
        feeds: Iterator[Feed] = self.evaluate.calib_feeds(str(self.path), self.meta)
        return feeds

    def held_out(self, limit: int) -> Iterator[Feed]:
        arrays = self.evaluation_arrays(limit)
        return batches(arrays, self.meta.get("eval_batch", 64))

    def metric(self, model: str, limit: int | None) -> dict[str, Any]:
        if limit is not None and limit >= self.answers():
            limit = None
        found: dict[str, Any] = self.evaluate.public(
            self.evaluate.evaluate(model, str(self.path), limit)
        )
        found.pop("eval_seconds", None)
        return found

    def answers(self) -> int:
        """How many held-out samples have an answer beside them."""
        with np.load(self.path / self.meta.get("eval", "eval.npz")) as arrays:
            return max(
                (len(arrays[name]) for name in ("labels", "targets") if name in arrays), default=0
            )

    def inputs(self) -> list[str]:
        """Names of the model's inputs."""
        return list(self.meta["model"]["inputs"])

    def evaluation_arrays(self, limit: int) -> Feed:
        """The first `limit` held-out samples; images stored as bytes are normalized."""
        with np.load(self.path / self.meta.get("eval", "eval.npz")) as arrays:
            if "x_u8" in arrays:
                pixels = arrays["x_u8"][:limit].astype(np.float32)
                return {self.inputs()[0]: pixels / np.float32(127.5) - np.float32(1)}
            return {name: arrays[name][:limit] for name in self.inputs() if name in arrays}


class Digits:
    """The example of this repository: `calibration.npy` and `test.npz` of handwritten digits."""

    BATCH = 64

    def __init__(self, source: Source) -> None:
        self.path = Path(source["path"])

    def calibration(self) -> Feed | Iterable[Feed]:
        return {"image": np.load(self.path / "calibration.npy")}

    def feeds(self) -> Iterator[Feed]:
        return batches({"image": np.load(self.path / "calibration.npy")}, self.BATCH)

    def held_out(self, limit: int) -> Iterator[Feed]:
        with np.load(self.path / "test.npz") as arrays:
            return batches({"image": arrays["images"][:limit]}, self.BATCH)

    def metric(self, model: str, limit: int | None) -> dict[str, Any]:
        import onnxruntime

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        with np.load(self.path / "test.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        right = int((session.run(None, {"image": images})[0].argmax(1) == labels).sum())
        return {"top1": right / len(labels), "right": right, "n": len(labels)}


class Random:
    """Seeded values for a model without data; calibration and held-out seeds differ.

    They are normal, or whole numbers `below` one.
    """

    def __init__(self, source: Source) -> None:
        self.input: str = source["input"]
        self.shape: list[int] = source["shape"]
        self.count: int = source["count"]
        self.below: int | None = source.get("below")

    def values(self, seed: int, count: int) -> np.ndarray:
        """`count` samples of the seed."""
        if self.below is not None:
            return np.random.default_rng(seed).integers(self.below, size=(count, *self.shape))
        return np.random.default_rng(seed).standard_normal((count, *self.shape), dtype=np.float32)

    def calibration(self) -> Feed | Iterable[Feed]:
        return {self.input: self.values(1, self.count)}

    def feeds(self) -> Iterator[Feed]:
        return batches({self.input: self.values(1, self.count)}, 1)

    def held_out(self, limit: int) -> Iterator[Feed]:
        return batches({self.input: self.values(2, min(limit, self.count))}, 1)

    def metric(self, model: str, limit: int | None) -> dict[str, Any]:
        return {}


class Stored:
    """Made samples in .npy files that are mapped: what is not read takes no memory.

    They are given one by one, so that memory does not grow with their number for the bench's sake.
    """

    MADE: ClassVar[dict[str, Callable[[int, int], Feed]]] = {
        "images": synthetic.images,
        "tokens": synthetic.tokens,
    }
    COUNTS: ClassVar[dict[str, int]] = {"calibration": 256, "held_out": 32}

    def __init__(self, source: Source) -> None:
        self.kind: str = source["kind"]
        self.count: int = source["count"]
        self.folder = Path(source["cache"]) / "samples" / self.kind

    def arrays(self, part: str) -> Feed:
        """The arrays of a part by input, made when they are not there yet."""
        folder = self.folder / part
        if not folder.exists():
            self.make(part, folder)
        return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}

    def make(self, part: str, folder: Path) -> None:
        """Write the arrays of a part; each part has its own seed."""
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        seed = list(self.COUNTS).index(part) + 1
        for name, array in self.MADE[self.kind](self.COUNTS[part], seed).items():
            np.save(partial / f"{name}.npy", array)
        partial.rename(folder)

    def calibration(self) -> Feed | Iterable[Feed]:
        return self.feeds()

    def feeds(self) -> Iterator[Feed]:
        return itertools.islice(batches(self.arrays("calibration"), 1), self.count)

    def held_out(self, limit: int) -> Iterator[Feed]:
        return itertools.islice(batches(self.arrays("held_out"), 1), limit)

    def metric(self, model: str, limit: int | None) -> dict[str, Any]:
        return {}


KINDS: dict[str, Callable[[Source], Samples]] = {
    "folder": Folder,
    "digits": Digits,
    "random": Random,
    "images": Stored,
    "tokens": Stored,
}


def batches(arrays: Feed, size: int) -> Iterator[Feed]:
    """The arrays cut along their first axis."""
    count = min(len(array) for array in arrays.values())
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


def load_module(path: Path) -> ModuleType:
    """A Python file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load `{path}`")
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True  # the folder of models is not ours to write into
    spec.loader.exec_module(module)
    return module
