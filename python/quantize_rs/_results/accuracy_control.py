"""How a result was evaluated, and which layers were reverted to float."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import Accuracy, IntegerOutputRow, OutputRow, Speed, worst_sqnr

__all__ = ["AccuracyCriteria", "Candidate", "Evaluation", "OutputCheck", "RevertedLayer"]


@dataclass(frozen=True, slots=True)
class AccuracyCriteria:
    """The accuracy criteria that a result must meet.

    Attributes
    ----------
    min_sqnr : float or None
        The minimum SQNR of the worst output, in dB.
    max_accuracy_drop : float or None
        The maximum loss of accuracy, as a fraction from 0 to 1.
    require_faster : bool
        Whether the result must be faster than the float model.
    """

    min_sqnr: float | None
    max_accuracy_drop: float | None
    require_faster: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A quantized model that was produced and measured.

    Attributes
    ----------
    float_layers : tuple of str
        The layers that stay float in it, those with the most noise for their cost first.
    wide_layers : tuple of str
        The layers whose activations have 16 bits in it.
    bytes : int
        Size of the model in bytes, with its external data.
    outputs : tuple of OutputRow
        The error of each output against the float model.
    accuracy : Accuracy or None
        The accuracy, if labels were given.
    holds : bool
        Whether it meets the criteria for SQNR and accuracy.
    integer_outputs : tuple of IntegerOutputRow
        How far each output of integers or booleans is that of the float model.
    """

    float_layers: tuple[str, ...]
    wide_layers: tuple[str, ...]
    bytes: int
    outputs: tuple[OutputRow, ...]
    accuracy: Accuracy | None
    holds: bool
    integer_outputs: tuple[IntegerOutputRow, ...] = ()

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB; None without float outputs."""
        return worst_sqnr(self.outputs)


@dataclass(frozen=True, slots=True)
class RevertedLayer:
    """A layer that was reverted to float, or given activations of 16 bits, for the criteria.

    Attributes
    ----------
    name : str
        The name of the weight.
    outputs : tuple of OutputRow
        The error of each output when only this layer is quantized.
    """

    name: str
    outputs: tuple[OutputRow, ...]

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB when only this layer is quantized."""
        return worst_sqnr(self.outputs)


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The error of each output of a result against the float model, on a few samples.

    Attributes
    ----------
    inputs : str
        Where the samples come from: ``"calibration"``, or ``"synthetic"`` for samples that are made
        from the declared inputs of the model.
    samples : int
        The number of samples.
    engine : str
        The engine that ran the samples; empty if nothing was measured.
    outputs : tuple of OutputRow
        The error of each float output.
    speed : Speed or None
        The latency of both models on one calibration sample; None if it was not measured.
    failure : str or None
        Why nothing was measured, if nothing was.
    integer_outputs : tuple of IntegerOutputRow
        How far each output of integers or booleans is that of the float model.
    refused : bool
        Whether ONNX Runtime refuses the result, and runs the float model on the same sample.
    """

    inputs: str
    samples: int
    engine: str
    outputs: tuple[OutputRow, ...]
    speed: Speed | None
    failure: str | None
    integer_outputs: tuple[IntegerOutputRow, ...] = ()
    refused: bool = False

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB; None without float outputs."""
        return worst_sqnr(self.outputs)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a result was evaluated against the criteria, and which candidates were tried.

    Attributes
    ----------
    criteria : AccuracyCriteria
        The criteria.
    samples : int
        The number of samples it was evaluated on.
    held_out : bool
        Whether these samples differ from those of the calibration.
    engine : str
        The engine that ran the samples.
    attempts : tuple of Candidate
        The candidates that missed the criteria, in the order they were tried; the last is the
        result.
    float_layers : tuple of RevertedLayer
        The layers that were reverted to float: weights, and operators without weight.
    wide_layers : tuple of RevertedLayer
        The layers whose activations were given 16 bits.
    speed : Speed or None
        The latency of both models, if `require_faster` was given.
    """

    criteria: AccuracyCriteria
    samples: int
    held_out: bool
    engine: str
    attempts: tuple[Candidate, ...]
    float_layers: tuple[RevertedLayer, ...]
    wide_layers: tuple[RevertedLayer, ...]
    speed: Speed | None

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output of the result in dB; None without float outputs."""
        return self.attempts[-1].sqnr_db

    @property
    def accuracy(self) -> Accuracy | None:
        """Accuracy of the result, if labels were given."""
        return self.attempts[-1].accuracy
