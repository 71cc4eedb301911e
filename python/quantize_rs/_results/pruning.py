"""What `prune` did to a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import notebook
from .base import Result


@dataclass(frozen=True, slots=True)
class PrunedWeight:
    """What pruning did to one weight.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str
        The type of its elements.
    shape : tuple of int
        Its shape.
    axis : int or None
        The axis of its output channels, where each was looked at by itself.
    elements, zeros_before, zeros : int
        How many elements it has, how many were 0, and how many are.
    kept : str or None
        Why it was left alone; None where it was not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None
    elements: int
    zeros_before: int
    zeros: int
    kept: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Pruning(Result):
    """What pruning did to a model.

    Attributes
    ----------
    elements, zeros_before, zeros : int
        Elements of all weights, how many were 0, and how many are.
    weights : tuple of PrunedWeight
        Every weight.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    elements: int
    zeros_before: int
    zeros: int
    weights: tuple[PrunedWeight, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    @property
    def sparsity(self) -> float:
        """The part of all elements that is 0."""
        return self.zeros / max(self.elements, 1)

    def _summary(self) -> str:
        return f"{self.zeros} of {self.elements} weights are 0, {self.zeros_before} before"

    def _repr_html_(self) -> str:
        header = ["weight", "type", "shape", "elements", "zeros", "left alone"]
        rows = (
            [w.name, w.dtype, notebook.shape(w.shape), w.elements, w.zeros, w.kept]
            for w in self.weights
        )
        return notebook.table(self._summary(), header, rows)
