"""Is a quantized file what its original became? Stored integers against the original's weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _compare, _core, _html, _measures, _options
from ._layer_errors import ErrorMetrics
from ._model import Model
from ._report import Step, steps
from ._source import ModelSource
from ._told import Told
from .errors import ExternalDataError, ModelFormatError

__all__ = ["Problem", "StoredWeight", "Uncompared", "Validation", "validate"]


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
class Validation(Told):
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
        wrong = _html.table(
            f"{len(self.problems)} problems",
            ["check", "name", "what is wrong"],
            ([problem.check, problem.name, problem.what] for problem in self.problems),
        )
        header = ["weight", "stored as", "shape", "scales", "SQNR dB", "largest error", "in steps"]
        rows = (
            (w.name, w.dtype, _html.shape(w.shape), w.scales, *_errors(w)) for w in self.weights
        )
        said = f"{'passed' if self.passed else 'failed'}, {len(self.weights)} stored weights"
        return _html.table(said, header, rows) + ("" if self.passed else wrong)


def validate(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    *,
    optimize: bool | Iterable[str] = True,
    target: str | None = None,
) -> Validation:
    """Compare a quantized model with its original, number by number; nothing is run.

    The integers of the file are read back, brought back to floats by its own scales, and held
    against the weights of the original: none may be further away than its scale forces it to be.
    Both graphs are walked side by side, so that a node that reads another value is found. Inputs,
    outputs, scales, biases and all that was not quantized are looked at, too. Nothing has to be
    known of how the file was made; other tools' files with ``DequantizeLinear`` are understood as
    well.

    Parameters
    ----------
    original : Model, path, bytes or onnx.ModelProto
        The float model.
    quantized : Model, path, bytes or onnx.ModelProto
        What was made of it. Bytes that are no model are a problem of the result, and no error.
    optimize : bool or iterable of str
        The passes that ran before it was quantized, as they were given to `quantize`. True also
        finds out that none ran.
    target : str, optional
        Also hold the file against what this runtime takes, node by node: what it refuses, or
        computes otherwise, is a problem, what merely runs slower a note.

    Returns
    -------
    Validation
        What was found; true when nothing is wrong.

    Raises
    ------
    OptionError
        A pass or target that there is none of.
    ModelError
        The original cannot be read, or a model cannot be looked at, such as one with a node of too
        few inputs.
    FileNotFoundError, PermissionError, OSError
        A file cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = "examples/digits/digits_cnn.onnx"
    >>> report = quantize_rs.quantize(digits, "digits.int8.onnx", per_channel=True)
    >>> found = quantize_rs.validate(digits, "digits.int8.onnx", target="x86")
    >>> found.passed, max(weight.max_steps for weight in found.weights) < 0.76
    (True, True)
    """
    passes = _options.passes(optimize)
    float_model = _compare.model(original)
    try:
        made = _compare.model(quantized)
    except (ModelFormatError, ExternalDataError) as error:
        return _of(*_core.unreadable(error.path, str(error)))
    return _of(*_core.validate(float_model, made, passes, target))


def _errors(weight: StoredWeight) -> tuple[float, float, float]:
    return weight.error.sqnr_db, weight.error.max_abs, weight.max_steps


def _of(said: str, text: str) -> Validation:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(said)
    return Validation(
        passed=found["passed"],
        problems=tuple(Problem(**problem) for problem in found["problems"]),
        weights=tuple(_weight(weight) for weight in found["weights"]),
        not_compared=tuple(Uncompared(**row) for row in found["not_compared"]),
        notes=tuple(found["notes"]),
        prepared=steps(found["prepared"]),
        target=found["target"],
        original=_path(found["original"]),
        quantized=_path(found["quantized"]),
        _json=said,
        _text=text,
    )


def _weight(found: dict[str, Any]) -> StoredWeight:
    steps = found["max_steps"]
    own = {
        "shape": tuple(found["shape"]),
        "error": ErrorMetrics(**_measures.finite(found["error"])),
        "max_steps": float("inf") if steps is None else steps,
    }
    return StoredWeight(**found | own)


def _path(found: str | None) -> Path | None:
    return None if found is None else Path(found)
