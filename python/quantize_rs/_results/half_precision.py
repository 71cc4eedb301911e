"""The result of `convert_float16` and `convert_bfloat16`: what stays float32, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import notebook
from .base import Result
from .metrics import OutputRow

__all__ = ["HalfPrecisionReport", "KeptNode"]


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that stays float32.

    Attributes
    ----------
    node : str
        The name of the node, or of its first output if it has none.
    op_type : str
        The operator.
    code : str
        The kind of reason: ``"excluded"``, ``"before"``, ``"measured"``, ``"operator"``,
        ``"unknown_type"``, ``"quantization"``, ``"float32_scales"``, ``"carried"``,
        ``"large_constant"``, ``"small_constant"``, ``"large_value"``, ``"small_value"``,
        ``"may_overflow"``, ``"reads_large"``, ``"crashes"``, ``"whole_numbers"`` or ``"between"``.
    value : str or None
        The value or constant that is the reason.
    magnitude : float or None
        Its magnitude.
    why : str
        The reason in words.
    """

    node: str
    op_type: str
    code: str
    value: str | None
    magnitude: float | None
    why: str

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        reason = found["reason"]
        return found | {
            "code": reason["code"],
            "value": reason.get("value"),
            "magnitude": reason.get("magnitude"),
        }


@dataclass(frozen=True, slots=True, repr=False)
class HalfPrecisionReport(Result):
    """What a conversion to 16-bit floats did, and what it cost.

    ``print(report)`` shows it, ``report.to_json()`` is for programs.

    Attributes
    ----------
    input, output : str or None
        The paths of the model before and after; None for a model in memory.
    dtype : str
        ``"float16"`` or ``"bfloat16"``.
    bytes_before, bytes_after : int
        Sizes of the model in bytes, with its external data.
    converted : int
        How many nodes compute in 16 bits.
    kept : tuple of KeptNode
        The nodes that stay float32, and why.
    casts : int
        How many casts were added.
    clipped : tuple of str
        Constants of masks that were clipped to the range of the type, and how.
    samples : int
        How many samples were run; 0 without samples.
    engine : str or None
        The engine that ran them.
    outputs : tuple of OutputRow
        The error of each output on up to 128 of the samples.
    sqnr_db : float or None
        The SQNR of the worst output, in decibels.
    warnings, notes : tuple of str
        What may be wrong with the result, and what is good to know about it. Warnings are logged.
    seconds : float
        Wall-clock time in seconds, without writing the file.
    model : bytes or None
        The model, if no `output` was given.
    """

    input: str | None
    output: str | None
    dtype: str
    bytes_before: int
    bytes_after: int
    converted: int
    kept: tuple[KeptNode, ...]
    casts: int
    clipped: tuple[str, ...]
    samples: int
    engine: str | None
    outputs: tuple[OutputRow, ...]
    sqnr_db: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    model: bytes | None

    @property
    def ratio(self) -> float:
        """How many times smaller the model is."""
        return self.bytes_before / self.bytes_after

    def _summary(self) -> str:
        quality = "" if self.sqnr_db is None else f", SQNR {self.sqnr_db:.1f} dB"
        return (
            f"{self.dtype}, {self.bytes_before} -> {self.bytes_after} bytes, "
            f"{len(self.kept)} nodes stay float32{quality}"
        )

    def _repr_html_(self) -> str:
        rows = ([kept.node, kept.op_type, kept.why] for kept in self.kept)
        return notebook.table(self._summary(), ["node", "operator", "stays float32 because"], rows)
