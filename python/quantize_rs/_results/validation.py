"""The result of `validate`: a quantized file against its original."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import notebook
from .base import Result
from .metrics import ErrorMetrics
from .steps import Step


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a quantized model.

    Attributes
    ----------
    check : str
        The check that failed: ``"structure"`` (a runtime can load the model), ``"interface"`` (the
        inputs and outputs are those of the original), ``"connectivity"`` (nodes have the same
        inputs as in the original), ``"scale"`` (scales and zero points are valid), ``"weights"``
        (constants equal those of the original; integers are as close as their scale allows) or
        ``"target"`` (the target runtime supports it).
    name : str
        The name of the constant, value or node.
    what : str
        What was found and what was expected.
    """

    check: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: `{self.name}`: {self.what}"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight that is stored as integers or narrow floats, against the original.

    Attributes
    ----------
    name : str
        The name of the weight in the original.
    integers : str
        The name of the constant that holds the integers.
    dtype : str
        The type of the integers.
    shape : tuple of int
        The shape of the original.
    scales : int
        The number of scales.
    smoothed : bool
        Whether its channels were scaled by SmoothQuant.
    error : ErrorMetrics
        The error of the dequantized weight against the original.
    max_steps : float
        The largest error in units of the scale: at most 0.5, 0.75 with sum-preserving rounding, or
        several for weights that were rounded with samples.
    """

    name: str
    integers: str
    dtype: str
    shape: tuple[int, ...]
    scales: int
    smoothed: bool
    error: ErrorMetrics
    max_steps: float

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        steps = found["max_steps"]
        return found | {"max_steps": math.inf if steps is None else steps}


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A constant that could not be compared.

    Attributes
    ----------
    name : str
        The name of the constant.
    why : str
        Why it could not be compared.
    weight : bool
        Whether it is a stored weight, of whose integers nothing is known.
    """

    name: str
    why: str
    weight: bool


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Result):
    """The comparison of a quantized model with its original. `validate` returns it.

    ``print(validation)`` shows every weight and every problem; a validation without
    problems is true.

    Attributes
    ----------
    passed : bool
        Whether there are no problems. A weight that could not be compared is none: look at
        `not_compared`.
    problems : tuple of Problem
        The problems.
    weights : tuple of StoredWeight
        Every weight that is stored as integers or narrow floats.
    not_compared : tuple of Uncompared
        The constants that could not be compared, and why.
    notes : tuple of str
        Remarks that are not problems.
    prepared : tuple of Step
        The passes that were applied to the original before the comparison.
    target : str or None
        The target runtime that was checked.
    original, quantized : pathlib.Path or None
        The files; None for a model in memory.
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

    def __bool__(self) -> bool:
        return self.passed

    def worst(self, count: int = 10) -> tuple[StoredWeight, ...]:
        """Return the weights with the lowest SQNR, the lowest first."""
        return tuple(sorted(self.weights, key=lambda weight: weight.error.sqnr_db)[:count])

    def _summary(self) -> str:
        compared = self._compared()
        if self.passed:
            return f"passed, {compared}"
        first, *more = self.problems
        return f"failed, {compared}, {first}" + (f", and {len(more)} more" if more else "")

    def _compared(self) -> str:
        compared = f"{len(self.weights)} stored weights compared"
        lost = sum(constant.weight for constant in self.not_compared)
        return f"{compared}, {lost} not" if lost else compared

    def _repr_html_(self) -> str:
        wrong = notebook.table(
            f"{len(self.problems)} problems",
            ["check", "name", "what is wrong"],
            ([problem.check, problem.name, problem.what] for problem in self.problems),
        )
        header = ["weight", "stored as", "shape", "scales", "SQNR (dB)", "max error", "in steps"]
        rows = (
            (w.name, w.dtype, notebook.shape(w.shape), w.scales, *_errors(w)) for w in self.weights
        )
        said = f"{'passed' if self.passed else 'failed'}, {self._compared()}"
        return notebook.table(said, header, rows) + ("" if self.passed else wrong)


def _errors(weight: StoredWeight) -> tuple[float, float, float]:
    return weight.error.sqnr_db, weight.error.max_abs, weight.max_steps
