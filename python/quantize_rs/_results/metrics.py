"""Metrics of two models side by side: outputs, accuracy, latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Accuracy", "IntegerOutputRow", "Latency", "OutputRow", "Speed"]


def restore_non_finite(found: dict[str, Any]) -> dict[str, Any]:
    """Restore the numbers that are None in a dict: infinite SQNR and errors, a NaN cosine."""
    if found["sqnr_db"] is None:
        found["sqnr_db"] = math.inf if found["mse"] == 0 else -math.inf
    for key, lost in (("cosine", math.nan), ("max_abs", math.inf), ("mse", math.inf)):
        found[key] = lost if found[key] is None else found[key]
    return found


def restore_scores(found: dict[str, Any]) -> dict[str, Any]:
    """Restore the scores that are None in a dict: they are not finite."""
    for key in ("original", "quantized", "drop"):
        found[key] = math.nan if found[key] is None else found[key]
    return found


@dataclass(frozen=True, slots=True)
class LostChannels:
    """Channels of an output whose error is as large as they are: an SQNR of 0 dB.

    Attributes
    ----------
    axis : int
        The axis of the channels.
    lost : int
        The number of channels that are lost.
    channels : int
        The number of channels that are not 0.
    """

    axis: int
    lost: int
    channels: int


@dataclass(frozen=True, slots=True)
class OutputRow:
    """The error of one output of the quantized model against the original, over all samples.

    Attributes
    ----------
    name : str
        The name of the output.
    sqnr_db : float
        Signal-to-quantization-noise ratio in dB; ``inf`` if both are equal.
    cosine, max_abs, mse : float
        Cosine similarity, largest absolute and mean squared error.
    top1_agreement : float or None
        The fraction of rows in which both models have the same top-1 class; None for an output that
        does not look like class scores.
    top1_rows : int
        The number of these rows; 0 for other outputs.
    lost_channels : LostChannels or None
        The channels that are lost, if these are more than a seventh. The error of the whole output
        may hide them: scores beside boxes in pixels.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_abs: float
    mse: float
    top1_agreement: float | None
    top1_rows: int = 0
    lost_channels: LostChannels | None = None
    _adapt = staticmethod(restore_non_finite)


@dataclass(frozen=True, slots=True)
class IntegerOutputRow:
    """How far an output of integers or booleans is that of the original, over all samples.

    Attributes
    ----------
    name : str
        The name of the output.
    equal : float
        The fraction of elements that are equal in both models. Elements that only one of them has,
        because the shape depends on the data, are not.
    elements : int
        The number of elements.
    """

    name: str
    equal: float
    elements: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The top-1 accuracy of both models, or their scores in another metric.

    Attributes
    ----------
    output : str
        The output with the class scores.
    original, quantized, drop : float
        The accuracy of each model, from 0 to 1, and the difference. With another metric, its scores
        and how much worse the quantized model is; NaN where a score is not finite.
    labels : int
        The number of labels; 0 with another metric.
    metric : str or None
        The name of the metric, if it is not the accuracy.
    """

    output: str
    original: float
    quantized: float
    drop: float
    labels: int
    metric: str | None = None
    _adapt = staticmethod(restore_scores)


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of a model for one sample, in milliseconds.

    Attributes
    ----------
    median_ms, p95_ms, mean_ms : float
        Median, 95th percentile and mean over all measured runs.
    runs : int
        The number of measured runs.
    """

    median_ms: float
    p95_ms: float
    mean_ms: float
    runs: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The latency of both models for one sample.

    Attributes
    ----------
    original, quantized : Latency
        The latency of each model.
    speedup : float
        The ratio of the median latencies: above 1 the quantized model is faster.
    threads : int
        The number of threads of each run.
    engine : str
        The engine that ran the models.
    """

    original: Latency
    quantized: Latency
    speedup: float
    threads: int
    engine: str


def worst_sqnr(outputs: tuple[OutputRow, ...]) -> float | None:
    """Return the lowest SQNR of all outputs; NaN counts as the lowest."""
    sqnr = [output.sqnr_db for output in outputs]
    return next((db for db in sqnr if math.isnan(db)), min(sqnr, default=None))


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """The error of a tensor against the float model, over all samples.

    Attributes
    ----------
    sqnr_db : float
        Signal-to-quantization-noise ratio in dB; ``inf`` if both are equal.
    cosine, max_abs, mse : float
        Cosine similarity, largest absolute and mean squared error.
    """

    sqnr_db: float
    cosine: float
    max_abs: float
    mse: float
    _adapt = staticmethod(restore_non_finite)
