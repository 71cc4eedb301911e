"""The passes that changed a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one pass.

    Attributes
    ----------
    name : str
        The name of the pass.
    did : tuple of str
        Its changes, one line each.
    """

    name: str
    did: tuple[str, ...]


def parse_steps(found: list[dict[str, Any]]) -> tuple[Step, ...]:
    """Read the JSON list of the extension module."""
    return tuple(Step(step["pass"], tuple(step["did"])) for step in found)
