"""How a result was judged, and which layers stayed float so that it holds the bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .metrics import Accuracy, OutputRow, Speed, parse_output_row, parse_speed, worst_sqnr

__all__ = ["AccuracyCriteria", "Candidate", "Evaluation", "RevertedLayer"]


@dataclass(frozen=True, slots=True)
class AccuracyCriteria:
    """What a result has to reach.

    Attributes
    ----------
    min_sqnr : float or None
        The least SQNR of its worst output, in decibels.
    max_accuracy_drop : float or None
        The most accuracy that may be lost, from 0 to 1.
    require_faster : bool
        Whether it has to be faster than the float model.
    """

    min_sqnr: float | None
    max_accuracy_drop: float | None
    require_faster: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that was made and measured.

    Attributes
    ----------
    float_layers : tuple of str
        The weights that were left float for it, the most sensitive first.
    bytes : int
        Bytes of the model, with the data beside it.
    outputs : tuple of OutputRow
        How far each output is from that of the float model.
    accuracy : Accuracy or None
        Where labels were given.
    holds : bool
        Whether it holds the bars of accuracy.
    """

    float_layers: tuple[str, ...]
    bytes: int
    outputs: tuple[OutputRow, ...]
    accuracy: Accuracy | None
    holds: bool

    @property
    def sqnr_db(self) -> float | None:
        """That of the worst output; None without outputs of floats."""
        return worst_sqnr(self.outputs)


@dataclass(frozen=True, slots=True)
class RevertedLayer:
    """A layer that stayed float for the bar.

    Attributes
    ----------
    name : str
        The weight.
    outputs : tuple of OutputRow
        How far each output is off when this layer alone is quantized.
    """

    name: str
    outputs: tuple[OutputRow, ...]

    @property
    def sqnr_db(self) -> float | None:
        """That of the worst output when this layer alone is quantized."""
        return worst_sqnr(self.outputs)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a result was judged, and what was tried for it.

    Attributes
    ----------
    bar : AccuracyCriteria
        What it has to reach.
    samples : int
        Samples it was judged on.
    held_out : bool
        Whether these are others than those that it was calibrated with.
    engine : str
        Who ran them.
    attempts : tuple of Candidate
        What was tried, each with more layers left float than the one before; the last is the
        result.
    float_layers : tuple of RevertedLayer
        The layers that stayed float for the bar, the most sensitive first.
    speed : Speed or None
        How long both models take, where the result has to be faster.
    """

    bar: AccuracyCriteria
    samples: int
    held_out: bool
    engine: str
    attempts: tuple[Candidate, ...]
    float_layers: tuple[RevertedLayer, ...]
    speed: Speed | None

    @property
    def sqnr_db(self) -> float | None:
        """That of the worst output of the result; None without outputs of floats."""
        return self.attempts[-1].sqnr_db

    @property
    def accuracy(self) -> Accuracy | None:
        """That of the result, where labels were given."""
        return self.attempts[-1].accuracy


def parse_evaluation(found: dict[str, Any] | None) -> Evaluation | None:
    """Read what the extension module wrote."""
    if found is None:
        return None
    return Evaluation(
        bar=AccuracyCriteria(**found["bar"]),
        samples=found["samples"],
        held_out=found["held_out"],
        engine=found["engine"],
        attempts=tuple(_attempt(attempt) for attempt in found["attempts"]),
        float_layers=tuple(
            RevertedLayer(
                layer["name"], tuple(parse_output_row(output) for output in layer["outputs"])
            )
            for layer in found["float_layers"]
        ),
        speed=None if found["speed"] is None else parse_speed(found["speed"]),
    )


def _attempt(found: dict[str, Any]) -> Candidate:
    accuracy = found["accuracy"]
    return Candidate(
        float_layers=tuple(found["float_layers"]),
        bytes=found["bytes"],
        outputs=tuple(parse_output_row(output) for output in found["outputs"]),
        accuracy=None if accuracy is None else Accuracy(**accuracy),
        holds=found["holds"],
    )
