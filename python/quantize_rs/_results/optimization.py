"""What `optimize` did to a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from . import notebook
from .base import Result
from .steps import Step, parse_steps


@dataclass(frozen=True, slots=True, repr=False)
class OptimizationReport(Result):
    """What passes did to a model.

    ``print(report)`` shows it to people, ``report.to_json()`` gives it to programs.

    Attributes
    ----------
    input, output : str or None
        Where the model came from and where it went; None for a model in memory.
    bytes_before, bytes_after : int
        Bytes of the model, with the data beside it.
    nodes_before, nodes_after : int
        Nodes of the main graph.
    steps : tuple of Step
        What each pass that found something to do did.
    seconds : float
        Wall-clock seconds, without those of writing.
    model : bytes or None
        The model, when no `output` was given.
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
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    def _summary(self) -> str:
        changes = sum(len(step.did) for step in self.steps)
        return (
            f"{changes} changes, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{self.bytes_before} -> {self.bytes_after} bytes"
        )

    def _repr_html_(self) -> str:
        rows = ([step.name, did] for step in self.steps for did in step.did)
        return notebook.table(self._summary(), ["pass", "what it did"], rows)


def parse_optimization(written: tuple[str, str], model: bytes | None = None) -> OptimizationReport:
    """Read the report that the extension module wrote, as JSON and as text."""
    text, shown = written
    found = json.loads(text)
    steps = parse_steps(found.pop("steps"))
    return OptimizationReport(**found, steps=steps, model=model, _json=text, _text=shown)
