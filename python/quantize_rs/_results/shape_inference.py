"""What `infer_shapes` found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .base import Result


@dataclass(frozen=True, slots=True, repr=False)
class ShapeInference(Result):
    """What was inferred of the values that the nodes of a model make.

    Attributes
    ----------
    values : int
        Values that nodes of the main graph make.
    typed, ranked, shaped : int
        Of how many of them the type is known, how many axes they have, and each length: as a number
        or by name.
    written : int
        How many values the model says more of than before, those in graphs inside nodes too.
    warnings : tuple of str
        Where the file says one thing and its operators another. Nothing was changed there.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    values: int
    typed: int
    ranked: int
    shaped: int
    written: int
    warnings: tuple[str, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)
