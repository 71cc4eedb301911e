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

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        return found | {"name": found["pass"]}
