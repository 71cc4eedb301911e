"""What `mixed_precision` chose: the bits of each layer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .base import Result
from .metrics import OutputRow, parse_output_row, worst_sqnr


@dataclass(frozen=True, slots=True)
class LayerWidth:
    """The bits of one layer.

    Attributes
    ----------
    name : str
        The weight.
    bits : int or None
        Its bits; None for one that stays float.
    bytes : int
        Its bytes in the model, scales included.
    sqnr_db : float or None
        What it costs alone: the SQNR of the worst output, or without data its own; None for a
        layer that stays float.
    """

    name: str
    bits: int | None
    bytes: int
    sqnr_db: float | None


@dataclass(frozen=True, slots=True, repr=False)
class MixedPrecision(Result):
    """Bits for each layer of a model. `mixed_precision` makes it.

    ``print(found)`` shows a table; ``found.layer_bits`` is what `quantize` takes.

    Attributes
    ----------
    layer_bits : dict of str to (int or str)
        Bits by the name of the weight; ``"float32"`` for one that stays float.
    layers : tuple of LayerWidth
        The same with what each takes and costs.
    bytes_before, bytes_after : int
        Bytes of the float model, and of the model with these bits.
    ratio : float
        How many times smaller it becomes.
    outputs : tuple of OutputRow
        How far each output is off with these bits; empty without data.
    samples : int
        Samples run; 0 without data.
    engine : str or None
        Who ran them.
    """

    layer_bits: dict[str, int | str]
    layers: tuple[LayerWidth, ...]
    bytes_before: int
    bytes_after: int
    ratio: float
    outputs: tuple[OutputRow, ...]
    samples: int
    engine: str | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    @property
    def sqnr_db(self) -> float | None:
        """That of the worst output with these bits; None without data."""
        return worst_sqnr(self.outputs)

    def _summary(self) -> str:
        size = f"{self.bytes_before} -> {self.bytes_after} bytes, {self.ratio:.2f} times smaller"
        return size if self.sqnr_db is None else f"{size}, {self.sqnr_db:.2f} dB"


def parse_mixed_precision(json_text: str, text: str) -> MixedPrecision:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(json_text)
    return MixedPrecision(
        layer_bits=found["layer_bits"],
        layers=tuple(LayerWidth(**layer) for layer in found["layers"]),
        bytes_before=found["bytes_before"],
        bytes_after=found["bytes_after"],
        ratio=found["ratio"],
        outputs=tuple(parse_output_row(output) for output in found["outputs"]),
        samples=found["samples"],
        engine=found["engine"],
        _json=json_text,
        _text=text,
    )
