"""What was measured of models side by side: outputs, accuracy, latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Accuracy", "Latency", "OutputRow", "Speed"]


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How far one output of the quantized model is from that of the original, over all samples.

    Attributes
    ----------
    name : str
        The output.
    sqnr_db : float
        Signal to quantization noise in decibels; ``inf`` when there is no difference.
    cosine, max_abs, mse : float
        Cosine of the angle between both, largest and mean squared difference.
    top1_agreement : float or None
        In which part of the rows both have the highest score in the same place; None for an output
        that does not look like scores of classes.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_abs: float
    mse: float
    top1_agreement: float | None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often the highest score was that of the right class.

    Attributes
    ----------
    output : str
        The output with the scores.
    original, quantized, drop : float
        Of both models, from 0 to 1, and what was lost.
    labels : int
        Labels there were.
    """

    output: str
    original: float
    quantized: float
    drop: float
    labels: int


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a model takes for one sample, in milliseconds.

    Attributes
    ----------
    median_ms, p95_ms, mean_ms : float
        Of all runs that count.
    runs : int
        How many these were.
    """

    median_ms: float
    p95_ms: float
    mean_ms: float
    runs: int


@dataclass(frozen=True, slots=True)
class Speed:
    """How long both models take for one sample.

    Attributes
    ----------
    original, quantized : Latency
        Each model.
    speedup : float
        How many times faster the quantized model is, by the medians.
    threads : int
        Threads that each run was computed on.
    engine : str
        Who ran them.
    """

    original: Latency
    quantized: Latency
    speedup: float
    threads: int
    engine: str


def parse_speed(found: dict[str, Any]) -> Speed:
    """Read how long both models take."""
    original, quantized = (Latency(**found.pop(name)) for name in ("original", "quantized"))
    return Speed(original=original, quantized=quantized, **found)


def parse_output_row(found: dict[str, Any]) -> OutputRow:
    """Read how far one output is off."""
    return OutputRow(**restore_non_finite(found))


def restore_non_finite(found: dict[str, Any]) -> dict[str, Any]:
    """Give back what JSON has no number for: infinite decibels and errors, a cosine that is NaN."""
    if found["sqnr_db"] is None:
        found["sqnr_db"] = math.inf if found["mse"] == 0 else -math.inf
    for key, lost in (("cosine", math.nan), ("max_abs", math.inf), ("mse", math.inf)):
        found[key] = lost if found[key] is None else found[key]
    return found


def worst_sqnr(outputs: tuple[OutputRow, ...]) -> float | None:
    """Give the SQNR of the output that is the farthest off; NaN is the worst there is."""
    sqnr = [output.sqnr_db for output in outputs]
    return next((db for db in sqnr if math.isnan(db)), min(sqnr, default=None))


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """How far a tensor is from that of the float model, over all samples.

    Attributes
    ----------
    sqnr_db : float
        Signal to quantization noise in decibels; ``inf`` when there is no difference.
    cosine, max_abs, mse : float
        Cosine of the angle between both, largest and mean squared difference.
    """

    sqnr_db: float
    cosine: float
    max_abs: float
    mse: float
