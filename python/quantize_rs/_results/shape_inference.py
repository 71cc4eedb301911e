"""The result of `infer_shapes`: how many types and shapes are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .base import Result


@dataclass(frozen=True, slots=True, repr=False)
class ShapeInference(Result):
    """The types and shapes that were inferred for the values of a model.

    Attributes
    ----------
    values : int
        The number of values that nodes of the main graph produce.
    typed, ranked, shaped : int
        For how many of them the type, the rank, and every dimension (as a number or a name) are
        known.
    written : int
        For how many values the model holds more information than before, including subgraphs.
    warnings : tuple of str
        Where the file contradicts its operators. These values were not changed.
    output : pathlib.Path or None
        The path of the written model; None for a model in memory.
    model : bytes or None
        The model, if no `output` was given.
    """

    values: int
    typed: int
    ranked: int
    shaped: int
    written: int
    warnings: tuple[str, ...]
    output: Path | None
    model: bytes | None
