"""A row of the edge cases: an unusual model, and the expected result of each method."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto
from ways import WAYS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

from build import FIXTURES
from build.draft import Draft

Numbers: TypeAlias = npt.NDArray[Any]
Build: TypeAlias = Callable[["Beast"], "ModelProto | bytes | None"]


class Beast(Draft):
    """A graph under construction whose weights are normally distributed.

    The fixtures have channels that are ten times larger, which cost 20 dB with one scale for the
    whole tensor. Here each model has one unusual property, so the accuracy that 8 and 4 bits reach
    is known beforehand.
    """

    def normal(self, shape: Any, axis: int = 0) -> Numbers:
        """Normal numbers, scaled so that a layer keeps the magnitude of its input."""
        fan_in = max(1, int(np.prod(shape)) // max(1, shape[axis]))
        return self.rng.normal(0, 1 / np.sqrt(fan_in), shape).astype(np.float32)

    def inner(self, name: str) -> Beast:
        """The draft of a graph inside a node; its names begin with its own."""
        return Beast(name, prefix=f"{name}_")

    def integers(self, name: str, *values: int) -> str:
        """A constant list of integers."""
        return self.const(name, np.array(values, np.int64))


@dataclass(frozen=True)
class Quantized:
    """Weights are quantized: their number, and the minimum SQNR of the outputs in decibels."""

    weights: int | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Refused:
    """A typed error with this text is raised, and nothing is written."""

    error: str
    says: str


@dataclass(frozen=True)
class Untouched:
    """The model comes out byte for byte as it was, and a warning says so."""


Outcome: TypeAlias = Quantized | Refused | Untouched


@dataclass(frozen=True)
class Row:
    """One model.

    outcomes  the results of the ways whose result is not `weights` and the floor of the way;
              None where a way does not apply
    ranges    the smallest and the largest valid number of integer inputs
    sizes     the lengths of named dimensions
    checked   whether onnx.checker accepts the model itself
    workaround
              changes the model and the result alike, so that ONNX Runtime can open them
    exact     outputs that have to be what they were, bit for bit
    copies    a float copy of a quantized weight has to stay, for consumers that need floats
    read_only the model lies in a folder that may not be written to
    varies    the lengths of a named dimension, which differ from sample to sample
    fixture   the model is one of `tests/fixtures`, whose weights have large channels
    """

    name: str
    family: str
    odd: str
    build: Build
    weights: int
    opset: int = 21
    ir: int | None = None
    outcomes: Mapping[str, Outcome | None] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    checked: bool = True
    workaround: Callable[[ModelProto], None] | None = None
    exact: tuple[str, ...] = ()
    copies: bool = False
    read_only: bool = False
    varies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fixture: bool = False

    def expected(self, way: str) -> Outcome | None:
        """The expected result, None where the way does not apply."""
        if way in self.outcomes or WAYS[way].holds is None:
            return self.outcomes.get(way, Quantized())
        held = WAYS[way].holds(onnx.load_from_string(self.files()[0]))
        return Quantized(held) if held else Untouched()

    def files(self) -> tuple[bytes, dict[str, bytes]]:
        """The model, and the files beside it."""
        draft = (Draft if self.fixture else Beast)(self.name, self.opset, self.ir)
        content = self.build(draft)  # type: ignore[arg-type]
        if content is None:
            content = draft.model()
        if isinstance(content, ModelProto):
            content = content.SerializeToString(deterministic=True)
        return content, draft.side_files


ROWS: dict[str, Row] = {}


def row(weights: int, **said: Any) -> Callable[[Build], Build]:
    """Register a model: its name is the function's, what is odd its docstring.

    `weights` is how many are quantized. Keywords are those of `Row`, or ways.
    """

    def register(build: Build) -> Build:
        odd = " ".join((build.__doc__ or "").split()).rstrip(".")
        add(build.__name__, build.__module__.rpartition(".")[2], odd, build, weights, said)
        return build

    return register


def fixture(family: str, name: str, weights: int, **said: Any) -> None:
    """Register a model of `tests/fixtures`, whose weights have large channels."""
    made = FIXTURES[name]
    draft = {"opset": made.draft["opset"], "ir": made.draft["ir"], "fixture": True}
    eight = {"int8": Quantized(floor=20), "static": Quantized(floor=20)}
    said = {"ranges": made.ranges, "checked": made.checked} | eight | said
    add(name, family, made.note.rstrip("."), made.build, weights, draft | said)


def add(
    name: str, family: str, odd: str, build: Any, weights: int, said: Mapping[str, Any]
) -> None:
    """Add a row to the table."""
    if name in ROWS:
        raise ValueError(f"two rows are called {name}")

    outcomes = {key: value for key, value in said.items() if key in WAYS}
    rest = {key: value for key, value in said.items() if key not in WAYS}
    ROWS[name] = Row(name, family, odd, build, weights, outcomes=outcomes, **rest)
