"""The result of `prune`: how many elements of each weight are 0."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import notebook
from .base import Result


@dataclass(frozen=True, slots=True)
class PrunedWeight:
    """The effect of pruning on one weight.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str
        The type of its elements.
    shape : tuple of int
        Its shape.
    axis : int or None
        The axis of its output channels, if each channel was pruned separately.
    elements, zeros_before, zeros : int
        The number of elements, of zeros before, and of zeros after.
    kept : str or None
        Why it was not pruned; None if it was.
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
    """The effect of pruning on a model.

    Attributes
    ----------
    elements, zeros_before, zeros : int
        The number of elements of all weights, of zeros before, and of zeros after.
    weights : tuple of PrunedWeight
        Every weight.
    output : pathlib.Path or None
        The path of the written model; None for a model in memory.
    model : bytes or None
        The model, if no `output` was given.
    """

    elements: int
    zeros_before: int
    zeros: int
    weights: tuple[PrunedWeight, ...]
    output: Path | None
    model: bytes | None

    @property
    def sparsity(self) -> float:
        """The fraction of all elements that is 0."""
        return self.zeros / max(self.elements, 1)

    def _summary(self) -> str:
        return f"{self.zeros} of {self.elements} weights are 0, {self.zeros_before} before"

    def _repr_html_(self) -> str:
        header = ["weight", "type", "shape", "elements", "zeros", "not pruned because"]
        rows = (
            [w.name, w.dtype, notebook.shape(w.shape), w.elements, w.zeros, w.kept]
            for w in self.weights
        )
        return notebook.table(self._summary(), header, rows)
