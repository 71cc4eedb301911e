"""The result of `optimize`: what each pass changed."""

from __future__ import annotations

from dataclasses import dataclass

from . import notebook
from .base import Result
from .steps import Step


@dataclass(frozen=True, slots=True, repr=False)
class OptimizationReport(Result):
    """The changes of the passes that `optimize` ran.

    ``print(report)`` shows it, ``report.to_json()`` is for programs.

    Attributes
    ----------
    input, output : str or None
        The paths of the model before and after; None for a model in memory.
    bytes_before, bytes_after : int
        Sizes of the model in bytes, with its external data.
    nodes_before, nodes_after : int
        The number of nodes in the main graph.
    steps : tuple of Step
        The passes that changed something, and their changes.
    seconds : float
        Wall-clock time in seconds, without writing the file.
    model : bytes or None
        The model, if no `output` was given.
    """

    input: str | None
    output: str | None
    bytes_before: int
    bytes_after: int
    nodes_before: int
    nodes_after: int
    steps: tuple[Step, ...]
    seconds: float
    model: bytes | None

    def _summary(self) -> str:
        changes = sum(len(step.did) for step in self.steps)
        return (
            f"{changes} changes, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{self.bytes_before} -> {self.bytes_after} bytes"
        )

    def _repr_html_(self) -> str:
        rows = ([step.name, did] for step in self.steps for did in step.did)
        return notebook.table(self._summary(), ["pass", "changes"], rows)
