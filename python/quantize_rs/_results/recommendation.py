"""What `recommend` advises, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
        The rule that says so.
    text : str
        What in the model led to it.
    """

    rule: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way, and when it is the better one.

    Attributes
    ----------
    way : str
        ``"static"``, ``"dynamic"`` or ``"weights"``.
    bits : int
        Bits of weights.
    per_channel : bool
        Whether each output channel has its scale.
    block_size : int or None
        How many elements share a scale, where channels do not.
    output_format : str
        How it is written.
    exclude : tuple of str
        Operators that stay float.
    dynamic_lstm : bool
        Whether LSTMs multiply integers too, as in `quantize`.
    when : str
        When to take it.
    python, command : str
        The call, and the same as a command.
    """

    way: str
    bits: int
    per_channel: bool
    block_size: int | None
    output_format: str
    exclude: tuple[str, ...]
    dynamic_lstm: bool
    when: str
    python: str
    command: str


@dataclass(frozen=True, slots=True, repr=False)
class Recommendation(Result):
    """How to quantize a model, and why. `recommend` makes it.

    ``print(recommendation)`` shows the reasons and the calls.

    Attributes
    ----------
    way : str
        ``"static"`` (weights and activations, whose ranges samples show), ``"dynamic"`` (weights,
        and activations when the model runs), ``"weights"`` (weights alone) or ``"nothing"``.
    bits : int
        Bits of weights.
    per_channel : bool
        Whether each output channel has its scale.
    block_size : int or None
        How many elements share a scale, where channels do not.
    output_format : str
        How it is written.
    exclude : tuple of str
        Operators that stay float.
    dynamic_lstm : bool
        Whether LSTMs multiply integers too, as in `quantize`.
    target : str or None
        The runtime that it is for.
    rule : str
        The rule that decided.
    reasons : tuple of Reason
        Why: that of the rule which decided first, then those of the options.
    samples : str or None
        Where the call reads samples: a file, or ``data`` for what was given in memory; None where
        it needs none.
    python, command : str
        The call, and the same as a command; empty where there is nothing to do.
    otherwise : tuple of Alternative
        Other ways, and when they are better.
    model : pathlib.Path or None
        The file; None for a model in memory, which `python` calls ``model``.
    """

    way: str
    bits: int
    per_channel: bool
    block_size: int | None
    output_format: str
    exclude: tuple[str, ...]
    dynamic_lstm: bool
    target: str | None
    rule: str
    reasons: tuple[Reason, ...]
    samples: str | None
    python: str
    command: str
    otherwise: tuple[Alternative, ...]
    model: Path | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    @property
    def facts(self) -> dict[str, Any]:
        """What in the model was looked at: sizes, work by kind of operator, what varies."""
        found: dict[str, Any] = self.to_dict()["facts"]
        return found

    def _repr_html_(self) -> str:
        rows = [[reason.rule, reason.text] for reason in self.reasons]
        calls = [["Python", self.python], ["command", self.command]] if self.python else []
        others = [[other.when, other.python] for other in self.otherwise]
        return notebook.table(self._summary(), ["", ""], [*rows, *calls, *others])


def parse_recommendation(json_text: str, text: str) -> Recommendation:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(json_text)
    found.pop("facts")
    model = found["model"]
    own = {
        "exclude": tuple(found["exclude"]),
        "reasons": tuple(Reason(**reason) for reason in found["reasons"]),
        "otherwise": tuple(
            Alternative(**other | {"exclude": tuple(other["exclude"])})
            for other in found["otherwise"]
        ),
        "model": None if model is None else Path(model),
    }
    return Recommendation(**found | own, _json=json_text, _text=text)
