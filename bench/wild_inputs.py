"""Inputs for a model of which only the file is known: from an `.npz` beside it, or made.

Made inputs follow from the graph. Open dimensions get sizes with which the float model runs,
integers that reach the indices of a Gather stay within its table, inputs that look like images are
smooth and lie between 0 and 1, and all other floats are normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feed = dict[str, np.ndarray]

CALIBRATION, HELD_OUT = 32, 8
"""The numbers of samples that are made; a file of samples is divided in the same proportion."""

SIZES = (64, 224, 16, 512, 16000, 1)
"""Sizes for open dimensions, in the order in which they are tried."""

LARGEST_ID = 8
"""Below this are made integers that reach no table."""

PASSES_ON = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten")
"""Operators behind which an id is still an id."""


@dataclass(frozen=True)
class Input:
    """An input of a model: its name, its numpy type, and its dimensions, None where open."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Samples:
    """What a model is calibrated on and what it is compared on, and how they came about."""

    calibration: list[Feed]
    held_out: list[Feed]
    source: str


class NoInputs(Exception):
    """With none of the sizes does the float model run."""


def samples_of(model: Path) -> Samples:
    """The samples in `model.npz` beside `model.onnx`, or made ones."""
    stored = model.with_suffix(".npz")
    return read(stored) if stored.exists() else made(model)


def read(path: Path) -> Samples:
    """The samples of a file with one array per input; the first axis counts the samples."""
    with np.load(path) as arrays:
        every = {name: arrays[name] for name in arrays}
    count = min(len(array) for array in every.values())
    feeds = [{name: np.asarray(array[i]) for name, array in every.items()} for i in range(count)]
    kept = max(1, count * CALIBRATION // (CALIBRATION + HELD_OUT))
    return Samples(feeds[:kept], feeds[kept:] or feeds, path.name)


def made(model: Path) -> Samples:
    """Made samples of the first sizes with which the model runs; each part has its own seed."""
    inputs, rows, size = described(model)
    parts = [list(feeds(inputs, rows, size, n, seed)) for seed, n in enumerate(PARTS)]
    return Samples(parts[0], parts[1], f"made, open dimensions {size}")


def described(model: Path) -> tuple[list[Input], dict[str, int], int]:
    """The inputs, the rows of the tables that they index, and the size with which it runs."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model), options)
    inputs = [Input(end.name, dtype_of(end.type), tuple(end.shape)) for end in session.get_inputs()]
    rows = table_rows(onnx.load(model, load_external_data=False).graph)

    def runs(feed: Feed) -> None:
        session.run(None, feed)

    return inputs, rows, first_size(inputs, rows, runs)


PARTS = (CALIBRATION, HELD_OUT)


def first_size(inputs: list[Input], rows: dict[str, int], runs: Callable[[Feed], None]) -> int:
    """The first of the sizes with which the model runs on a made sample."""
    reasons = []
    for size in SIZES:
        reason = failure(lambda size=size: runs(next(feeds(inputs, rows, size, 1, 0))))
        if reason is None:
            return size
        reasons.append(reason)
    raise NoInputs(f"the float model runs with no made input: {reasons[0]}")


def failure(call: Callable[[], object]) -> str | None:
    """The error of a call in one line; None if there is none."""
    try:
        call()
    except Exception as error:
        return " ".join(str(error).split())
    return None


def feeds(
    inputs: list[Input], rows: dict[str, int], size: int, count: int, seed: int
) -> Iterator[Feed]:
    """Seeded samples."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {one.name: values(one, rows.get(one.name), size, rng) for one in inputs}


def values(one: Input, rows: int | None, size: int, rng: np.random.Generator) -> np.ndarray:
    """One sample of one input; `rows` is the size of the smallest table that it indexes."""
    shape = closed(one.shape, size)
    dtype = np.dtype(one.dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, rows or LARGEST_ID, shape).astype(dtype)
    axis = channels(shape)
    found = rng.standard_normal(shape) if axis is None else image(shape, axis, rng)
    return np.asarray(found, dtype)


def closed(shape: tuple[int | str | None, ...], size: int) -> tuple[int, ...]:
    """The shape with every dimension known: an open first one is the batch, which is 1."""

    def known(axis: int, dim: int | str | None) -> int:
        if isinstance(dim, int) and dim > 0:
            return dim
        batch = axis == 0 or (isinstance(dim, str) and "batch" in dim.lower())
        return 1 if batch else size

    return tuple(known(axis, dim) for axis, dim in enumerate(shape))


def channels(shape: tuple[int, ...]) -> int | None:
    """The axis of the channels of a batch of images; None if the shape is not one of images."""
    if len(shape) != 4:
        return None
    return next((axis for axis in (1, 3) if shape[axis] in (1, 3)), None)


def image(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth images from 0 to 1: noise in ever finer grids, the coarser the stronger."""
    first = tuple(np.delete(shape, axis)[1:].tolist())
    planes = [plane(first, rng) for _ in range(shape[0] * shape[axis])]
    found = np.stack(planes).reshape(shape[0], shape[axis], *first)
    return found if axis == 1 else np.moveaxis(found, 1, axis)


def plane(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """One channel of a smooth image."""
    found = np.full(size, rng.uniform(0.3, 0.7))
    contrast = rng.uniform(0.1, 0.3)
    for knots in (3, 6, 12, 24, 48):
        rows, columns = (ramp(length, knots) for length in size)
        found += contrast * 3 / knots * (rows @ rng.standard_normal((knots, knots)) @ columns.T)
    return np.clip(found, 0, 1)


def ramp(length: int, knots: int) -> np.ndarray:
    """The matrix that interpolates `knots` values linearly to a length."""
    distances = np.abs(np.linspace(0, knots - 1, length)[:, None] - np.arange(knots))
    return np.clip(1 - distances, 0, 1)


def table_rows(graph: Any) -> dict[str, int]:
    """For each input that reaches the indices of a Gather: the rows of the smallest table."""
    tables = {one.name: one.dims[0] for one in graph.initializer if one.dims}
    origin = {one.name: one.name for one in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        source = origin.get(node.input[0]) if node.input else None
        if source is not None and node.op_type in PASSES_ON:
            origin[node.output[0]] = source
        if node.op_type == "Gather" and node.input[0] in tables and node.input[1] in origin:
            name = origin[node.input[1]]
            found[name] = min(tables[node.input[0]], found.get(name, tables[node.input[0]]))
    return found


DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(bool)": "bool",
}


def dtype_of(kind: str) -> str:
    """The numpy type of an input, by ONNX Runtime's name for it."""
    if kind not in DTYPES:
        raise NoInputs(f"no values are made for an input of type {kind}")
    return DTYPES[kind]
