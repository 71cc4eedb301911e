"""The result of `convert_opset`: which nodes changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .base import Result


@dataclass(frozen=True, slots=True, repr=False)
class OpsetConversion(Result):
    """The changes of a conversion to a newer opset.

    Attributes
    ----------
    from_opset, to_opset : int
        The opset version before and after.
    changed : tuple of str
        The nodes that changed, including those in subgraphs and functions.
    warnings : tuple of str
        Operators that ONNX Runtime has no CPU kernels for in the newer opset, though it has some in
        the older one.
    output : pathlib.Path or None
        The path of the written model; None for a model in memory.
    model : bytes or None
        The model, if no `output` was given.
    """

    from_opset: int
    to_opset: int
    changed: tuple[str, ...]
    warnings: tuple[str, ...]
    output: Path | None
    model: bytes | None

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        return found | {"from_opset": found["from"], "to_opset": found["to"]}
