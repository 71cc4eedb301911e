"""The rows of plans and reports: one for each value of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["PlannedValue", "ReportRow"]

Shape: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """The decision for one value of a model.

    Attributes
    ----------
    name : str
        Its name in the model.
    role : str
        ``"input"``, ``"weight"``, ``"constant"`` or ``"activation"``.
    dtype : str or None
        Its element type before quantization, if known.
    shape : tuple of (int or None), or None
        Its shape, if known, with None for a dynamic dimension.
    why : str
        Why it is quantized, ``"quantized: weight of node ..."``, or why it is not,
        ``"not quantized: ..."``.
    qtype : str or None
        The type it is quantized to, such as ``"int8"`` or ``"nf4"``. This and the attributes below
        are None if it is not quantized.
    stored : str or None
        The type that its integers are stored in.
    symmetric : bool or None
        Whether quantization is symmetric.
    granularity : str or None
        ``"per_tensor"``, ``"per_axis"`` or ``"blocked"``.
    axis, block_size : int or None
        The axis of the scales, and the number of elements that share one.
    scales : str or None
        The type of the scales: ``"float"``, ``"float8e8m0"`` or ``"float8e4m3fn"``.
    source : str or None
        What its range is derived from: ``"weights"``, ``"calibration"`` or another value.
    format : str or None
        The output format: ``"qdq"``, also with ``output_format="qoperator"``, ``"matmul_nbits"``,
        ``"matmul_bnb4"``, ``"dynamic"`` or ``"fake_quant"``.
    """

    name: str
    role: str
    dtype: str | None
    shape: Shape | None
    why: str
    qtype: str | None = None
    stored: str | None = None
    symmetric: bool | None = None
    granularity: str | None = None
    axis: int | None = None
    block_size: int | None = None
    scales: str | None = None
    source: str | None = None
    format: str | None = None

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        decision = found["decision"]
        if (how := decision.get("quantize")) is None:
            return found
        own = {"stored": how["stored"], "format": how["format"]}
        return found | own | _spec(how["spec"]) | {"source": _source(how["source"])}

    @property
    def quantized(self) -> bool:
        """Whether it is quantized."""
        return self.qtype is not None

    @property
    def kind(self) -> str:
        """Type, symmetry and granularity as one string."""
        if self.qtype is None:
            return self.dtype or "-"
        words = [self.qtype]
        if self.stored != self.qtype:
            words.append(f"in {self.stored}")
        if self.symmetric and self.qtype not in ("float16", "bfloat16"):
            words.append("symmetric")
        if self.block_size is not None:
            words.append(f"blocks of {self.block_size} on")
        if self.axis is not None:
            words.append(f"axis {self.axis}")
        if self.scales != "float":
            words.append(f"with scales of {self.scales}")
        if self.format != "qdq":
            words.append(f"as {self.format}")
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow(PlannedValue):
    """How one value of a model was quantized, and the resulting error.

    Attributes
    ----------
    scale : tuple of float, or None
        Its smallest and its largest scale.
    zero_point : int or None
        The zero point of an activation.
    range : tuple of float, or None
        The range of the calibration, as minimum and maximum.
    method : str or None
        The calibration method that ``"auto"`` chose for it.
    rounded_by : str or None
        The algorithm that rounded a weight with the help of samples: ``"nearest"``, ``"scales"``,
        ``"gptq"``, ``"descent"`` or ``"adaround"``. None for others.
    rounding_gain_db : float or None
        By how many decibels that lowers the error of the layer's output on samples held back. The
        report's JSON has the error of every algorithm that was tried.
    sqnr_db, cosine, mse, max_abs_error : float or None
        The error of a dequantized constant against its floats: SQNR in dB (``inf`` if equal),
        cosine similarity, mean squared and largest absolute error.
    """

    scale: tuple[float, float] | None = None
    zero_point: int | None = None
    range: tuple[float, float] | None = None
    method: str | None = None
    rounded_by: str | None = None
    rounding_gain_db: float | None = None
    sqnr_db: float | None = None
    cosine: float | None = None
    mse: float | None = None
    max_abs_error: float | None = None

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        if (how := found["quantized"]) is None:
            return found
        seen, error = how["range"], how["error"]
        row: dict[str, Any] = found | how | _spec(how) | ({} if error is None else _error(error))
        if (rounding := how.get("rounding")) is not None:
            row |= {"rounded_by": rounding["algorithm"], "rounding_gain_db": _gain_db(rounding)}
        row["range"] = None if seen is None else (seen["min"], seen["max"])
        return row


def _spec(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "qtype": spec.get("codebook") or spec["qtype"],
        "symmetric": spec["symmetric"],
        "scales": spec.get("scales", "float"),
    }
    match spec["granularity"]:
        case str(granularity):
            found["granularity"] = granularity
        case granularity:
            ((found["granularity"], cut),) = granularity.items()
            found |= cut
    return found


def _source(source: str | dict[str, Any]) -> str:
    match source:
        case {"same_as": value}:
            return f"same as `{value}`"
        case {"product": {"input": value, "weight": weight}}:
            return f"`{value}` × `{weight}`"  # noqa: RUF001 - as Rust has it
        case "observed":
            return "calibration"
        case _:
            return str(source)


def _gain_db(rounding: dict[str, Any]) -> float:
    before, after = (rounding["errors"].get(name, 0) for name in ("nearest", rounding["algorithm"]))
    return 10 * math.log10(before / after) if before > 0 and after > 0 else 0.0


def _error(error: dict[str, float | None]) -> dict[str, Any]:
    def number(key: str) -> float:  # non-finite numbers are null in JSON
        value = error[key]
        return math.inf if value is None else value

    return {
        "sqnr_db": number("sqnr_db"),
        "cosine": number("cosine"),
        "mse": number("mse"),
        "max_abs_error": number("max_abs"),
    }
