"""The result of `mixed_precision`: the bit width of each layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from .base import Result
from .metrics import Accuracy, OutputRow, worst_sqnr


@dataclass(frozen=True, slots=True)
class LayerWidth:
    """The bit width of one layer.

    Attributes
    ----------
    name : str
        The name of the weight.
    bits : int or None
        Its bit width; None if it stays float.
    bytes : int
        Its size in the model in bytes, with its scales.
    sqnr_db : float or None
        The SQNR in dB of the worst output when only this layer is quantized; without data that of
        the weight itself; None if it stays float.
    why : str
        Why it has this width, or why it stays float.
    """

    name: str
    bits: int | None
    bytes: int
    sqnr_db: float | None
    why: str


@dataclass(frozen=True, slots=True)
class ActivationWidth:
    """The type of one activation.

    Attributes
    ----------
    name : str
        The name of the value.
    qtype : str
        Its type, as ``"uint8"`` or ``"uint16"``.
    sqnr_db : float or None
        The SQNR in dB of the worst output of the quantized model when only this activation has 16
        bits; None if no activation needs them.
    why : str
        Why it has this type.
    """

    name: str
    qtype: str
    sqnr_db: float | None
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class MixedPrecision(Result):
    """The bit width of each layer of a model. `mixed_precision` returns it.

    ``print(found)`` shows a table; ``found.layer_bits`` is the option of `quantize`.

    Attributes
    ----------
    layer_bits : dict of str to (int or str)
        Bit widths by the name of the weight; ``"float32"`` for a weight that stays float.
    layers : tuple of LayerWidth
        The same with the size and the cost of each layer.
    activation_types : dict of str to str
        The activations that get 16 bits, by name, if `activations` was given: the option of
        `quantize_with_calibration`.
    activations : tuple of ActivationWidth
        All activations with their types, those first that gain most from 16 bits.
    bytes_before, bytes_after : int
        Sizes in bytes of the float model, and of the model with these bit widths.
    ratio : float
        ``bytes_before / bytes_after``.
    outputs : tuple of OutputRow
        The error of each output with these bit widths; empty without data.
    samples : int
        The number of samples; 0 without data.
    engine : str or None
        The engine that ran the model.
    accuracy : Accuracy or None
        The scores of both models in `metric`, if one was given.
    notes : tuple of str
        The bit widths that no layer gets, because the engine does not run a model with them.
    """

    layer_bits: dict[str, int | str]
    layers: tuple[LayerWidth, ...]
    bytes_before: int
    bytes_after: int
    ratio: float
    outputs: tuple[OutputRow, ...]
    samples: int
    engine: str | None
    accuracy: Accuracy | None = None
    activation_types: dict[str, str] = field(default_factory=dict)
    activations: tuple[ActivationWidth, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB with these bit widths; None without data."""
        return worst_sqnr(self.outputs)

    def _summary(self) -> str:
        if self.activations:
            wide = f"{len(self.activation_types)} of {len(self.activations)} activations in 16 bits"
            return wide if self.sqnr_db is None else f"{wide}, {self.sqnr_db:.2f} dB"
        size = f"{self.bytes_before} -> {self.bytes_after} bytes, {self.ratio:.2f} times smaller"
        return size if self.sqnr_db is None else f"{size}, {self.sqnr_db:.2f} dB"
