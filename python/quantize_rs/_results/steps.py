"""What each pass did to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass did to a model.

    Attributes
    ----------
    name : str
        The pass.
    did : tuple of str
        What it changed, a line for each change.
    """

    name: str
    did: tuple[str, ...]


def parse_steps(found: list[dict[str, Any]]) -> tuple[Step, ...]:
    """Read the steps that the extension module wrote."""
    return tuple(Step(step["pass"], tuple(step["did"])) for step in found)
