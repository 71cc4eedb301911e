"""The result of `recommend`: how to quantize a model, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import notebook
from .base import Result


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a recommendation.

    Attributes
    ----------
    rule : str
        The rule that applies.
    text : str
        What in the model the rule is based on.
    """

    rule: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class MeasuredStrategy:
    """What `recommend` measured of a method on samples.

    Attributes
    ----------
    samples : int
        The number of samples of the error.
    engine : str
        The engine that ran them.
    sqnr_db : float or None
        The lowest signal-to-quantization-noise ratio of the outputs in dB; None if there is no
        float output.
    speedup : float or None
        The time of the float model divided by that of the result; None if it was not measured.
    is_slower : bool
        Whether it takes noticeably longer than the float model.
    bytes, bytes_original : int
        The sizes of the result and of the float model.
    """

    samples: int
    engine: str
    sqnr_db: float | None
    speedup: float | None
    is_slower: bool
    bytes: int
    bytes_original: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another method, and when it is the better choice.

    Attributes
    ----------
    way : str
        ``"static"``, ``"dynamic"`` or ``"weights"``.
    bits : int
        The bit width of weights.
    per_channel : bool
        Whether each output channel has its own scale.
    block_size : int or None
        The number of elements that share a scale, for blockwise scales.
    output_format : str
        The output format, as in `quantize`.
    accuracy_level : int or None
        The `accuracy_level` of `quantize`; None leaves it out.
    exclude : tuple of str
        Operator types that stay float.
    dynamic_lstm : bool
        Whether LSTMs compute with integers too, as in `quantize`.
    when : str
        When to choose it.
    python, command : str
        The call in Python, and the same as a command.
    measured : MeasuredStrategy or None
        What was measured of it; None without data, or if it cannot run.
    """

    way: str
    bits: int
    per_channel: bool
    block_size: int | None
    output_format: str
    accuracy_level: int | None
    exclude: tuple[str, ...]
    dynamic_lstm: bool
    when: str
    python: str
    command: str
    measured: MeasuredStrategy | None


@dataclass(frozen=True, slots=True, repr=False)
class Recommendation(Result):
    """How to quantize a model, and why. `recommend` returns it.

    ``print(recommendation)`` shows the reasons and the calls.

    Attributes
    ----------
    way : str
        ``"static"`` (weights, and activations with calibrated ranges), ``"dynamic"`` (weights, and
        activations at run time), ``"weights"`` (weights only) or ``"nothing"``.
    bits : int
        The bit width of weights.
    per_channel : bool
        Whether each output channel has its own scale.
    block_size : int or None
        The number of elements that share a scale, for blockwise scales.
    output_format : str
        The output format, as in `quantize`.
    accuracy_level : int or None
        The `accuracy_level` of `quantize`; None leaves it out.
    exclude : tuple of str
        Operator types that stay float.
    dynamic_lstm : bool
        Whether LSTMs compute with integers too, as in `quantize`.
    target : str or None
        The target runtime.
    rule : str
        The rule that decided.
    reasons : tuple of Reason
        The reasons: first that of the rule that decided, then those of the options.
    samples : str or None
        What the call uses as samples: a file, or ``data`` for data in memory; None if it needs
        none.
    python, command : str
        The call, and the same as a command; empty if there is nothing to do.
    measured : MeasuredStrategy or None
        What was measured of it; None without data, or if a reason says why.
    otherwise : tuple of Alternative
        Other methods, and when they are better.
    model : pathlib.Path or None
        The file; None for a model in memory, which `python` calls ``model``.
    """

    way: str
    bits: int
    per_channel: bool
    block_size: int | None
    output_format: str
    accuracy_level: int | None
    exclude: tuple[str, ...]
    dynamic_lstm: bool
    target: str | None
    rule: str
    reasons: tuple[Reason, ...]
    samples: str | None
    python: str
    command: str
    measured: MeasuredStrategy | None
    otherwise: tuple[Alternative, ...]
    model: Path | None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the rules use: sizes, work by operator type, dynamic dimensions."""
        found: dict[str, Any] = self.to_dict()["facts"]
        return found

    def _repr_html_(self) -> str:
        rows = [[reason.rule, reason.text] for reason in self.reasons]
        calls = [["Python", self.python], ["command", self.command]] if self.python else []
        others = [[other.when, other.python] for other in self.otherwise]
        return notebook.table(self._summary(), ["", ""], [*rows, *calls, *others])
