"""What `convert_opset` changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .base import Result


@dataclass(frozen=True, slots=True, repr=False)
class OpsetConversion(Result):
    """What a conversion changed.

    Attributes
    ----------
    from_opset, to_opset : int
        The version that the model was of, and that it is of now.
    changed : tuple of str
        The nodes that are another now; those of graphs inside nodes and of functions too.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    from_opset: int
    to_opset: int
    changed: tuple[str, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)
