"""What `validate` found: a quantized file against its original."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import notebook
from .base import Result
from .metrics import ErrorMetrics, restore_non_finite
from .steps import Step, parse_steps


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a quantized model.

    Attributes
    ----------
    check : str
        What was looked at: ``"structure"`` (a runtime could load it), ``"interface"`` (inputs and
        outputs are those of the original), ``"connectivity"`` (nodes read what they read in the
        original), ``"scale"`` (scales and zero points can be what they are), ``"weights"``
        (constants are those of the original, integers as near to them as their scale allows) or
        ``"target"`` (the runtime takes it).
    name : str
        The constant, value or node.
    what : str
        What was found and what would have been right.
    """

    check: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: `{self.name}`: {self.what}"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight that is stored in integers or narrow floats, against that of the original.

    Attributes
    ----------
    name : str
        The weight of the original.
    integers : str
        The constant that holds the integers.
    dtype : str
        Their type.
    shape : tuple of int
        The shape of the original.
    scales : int
        How many scales there are.
    smoothed : bool
        Whether each channel was multiplied by a number that the value before it is divided by.
    error : ErrorMetrics
        What the integers stand for, against the original.
    max_steps : float
        The largest distance from the original, in steps of the scale: up to a half, or up to three
        quarters where sums were kept.
    """

    name: str
    integers: str
    dtype: str
    shape: tuple[int, ...]
    scales: int
    smoothed: bool
    error: ErrorMetrics
    max_steps: float


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Something that two files do not tell enough of.

    Attributes
    ----------
    name : str
        The constant.
    why : str
        Why it could not be compared.
    """

    name: str
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Result):
    """What a comparison of a quantized model with its original found. `validate` makes it.

    ``print(validation)`` shows every weight and every problem; it is true when nothing is wrong.

    Attributes
    ----------
    passed : bool
        Whether nothing is wrong.
    problems : tuple of Problem
        What is wrong.
    weights : tuple of StoredWeight
        Every weight that is stored in integers or narrow floats, against the original's.
    not_compared : tuple of Uncompared
        What could not be compared, and why.
    notes : tuple of str
        What is no fault but worth a look.
    prepared : tuple of Step
        What was done to the original before it was compared, as it was before it was quantized.
    target : str or None
        The runtime that it was held against.
    original, quantized : pathlib.Path or None
        The files; None for models in memory.
    """

    passed: bool
    problems: tuple[Problem, ...]
    weights: tuple[StoredWeight, ...]
    not_compared: tuple[Uncompared, ...]
    notes: tuple[str, ...]
    prepared: tuple[Step, ...]
    target: str | None
    original: Path | None
    quantized: Path | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    def __bool__(self) -> bool:
        return self.passed

    def worst(self, count: int = 10) -> tuple[StoredWeight, ...]:
        """Give the weights that are furthest from the original, the furthest first."""
        return tuple(sorted(self.weights, key=lambda weight: weight.error.sqnr_db)[:count])

    def _summary(self) -> str:
        compared = f"{len(self.weights)} stored weights compared"
        if self.passed:
            return f"passed, {compared}"
        first, *more = self.problems
        return f"failed, {compared}, {first}" + (f", and {len(more)} more" if more else "")

    def _repr_html_(self) -> str:
        wrong = notebook.table(
            f"{len(self.problems)} problems",
            ["check", "name", "what is wrong"],
            ([problem.check, problem.name, problem.what] for problem in self.problems),
        )
        header = ["weight", "stored as", "shape", "scales", "SQNR dB", "largest error", "in steps"]
        rows = (
            (w.name, w.dtype, notebook.shape(w.shape), w.scales, *_errors(w)) for w in self.weights
        )
        said = f"{'passed' if self.passed else 'failed'}, {len(self.weights)} stored weights"
        return notebook.table(said, header, rows) + ("" if self.passed else wrong)


def _errors(weight: StoredWeight) -> tuple[float, float, float]:
    return weight.error.sqnr_db, weight.error.max_abs, weight.max_steps


def parse_validation(json_text: str, text: str) -> Validation:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(json_text)
    return Validation(
        passed=found["passed"],
        problems=tuple(Problem(**problem) for problem in found["problems"]),
        weights=tuple(_weight(weight) for weight in found["weights"]),
        not_compared=tuple(Uncompared(**row) for row in found["not_compared"]),
        notes=tuple(found["notes"]),
        prepared=parse_steps(found["prepared"]),
        target=found["target"],
        original=_path(found["original"]),
        quantized=_path(found["quantized"]),
        _json=json_text,
        _text=text,
    )


def _weight(found: dict[str, Any]) -> StoredWeight:
    steps = found["max_steps"]
    own = {
        "shape": tuple(found["shape"]),
        "error": ErrorMetrics(**restore_non_finite(found["error"])),
        "max_steps": float("inf") if steps is None else steps,
    }
    return StoredWeight(**found | own)


def _path(found: str | None) -> Path | None:
    return None if found is None else Path(found)
