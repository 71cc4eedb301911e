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
    """A graph under construction, whose weights are plainly normal.

    The fixtures have channels that are ten times larger, which cost a scale for the whole tensor
    20 dB. Here one oddity is tried at a time, so that what 8 and 4 bits give is known beforehand.
    """

    def normal(self, shape: Any, axis: int = 0) -> Numbers:
        """Normal numbers that keep the size of a signal."""
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
    """Weights are quantized: how many, and how near the outputs are, in decibels."""

    weights: int | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Refused:
    """A typed error that says so, and nothing is written."""

    error: str
    says: str


@dataclass(frozen=True)
class Untouched:
    """The model comes out byte for byte as it was, and a warning says so."""


Outcome: TypeAlias = Quantized | Refused | Untouched


@dataclass(frozen=True)
class Row:
    """One model.

    outcomes  what comes of it, for the ways where it is not `weights` and the floor of the way;
              None where a way makes no sense
    ranges    for integer inputs, the least and the greatest number that make sense
    sizes     of the dimensions that have only a name
    checked   whether onnx.checker accepts the model itself
    mend      what makes ONNX Runtime open the model, done to it and to what comes of it alike
    exact     outputs that have to be what they were, bit for bit
    copies    a float copy of a quantized weight has to stay, for those who read it otherwise
    read_only the model lies in a folder that may not be written to
    varies    how long a dimension that has only a name is, from sample to sample
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
    mend: Callable[[ModelProto], None] | None = None
    exact: tuple[str, ...] = ()
    copies: bool = False
    read_only: bool = False
    varies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fixture: bool = False

    def expected(self, way: str) -> Outcome | None:
        """What has to come of it, None where the way makes no sense for it."""
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
    """Put a row into the table."""
    if name in ROWS:
        raise ValueError(f"two rows are called {name}")

    outcomes = {key: value for key, value in said.items() if key in WAYS}
    rest = {key: value for key, value in said.items() if key not in WAYS}
    ROWS[name] = Row(name, family, odd, build, weights, outcomes=outcomes, **rest)
