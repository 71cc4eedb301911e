"""Bits for each layer, so that the model meets a size or an SQNR."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import _api, _compare, _core, _options, _samples
from ._compare import NOISE
from ._measures import OutputRow, row, worst
from ._model import Model
from ._progress import Callback
from ._run import Run
from ._samples import CalibrationData
from ._source import ModelSource
from ._told import Told

__all__ = ["LayerWidth", "MixedPrecision", "mixed_precision"]


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
class MixedPrecision(Told):
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
        return worst(self.outputs)

    def _summary(self) -> str:
        size = f"{self.bytes_before} -> {self.bytes_after} bytes, {self.ratio:.2f} times smaller"
        return size if self.sqnr_db is None else f"{size}, {self.sqnr_db:.2f} dB"


def mixed_precision(
    model: ModelSource | Model,
    data: CalibrationData | None = None,
    *,
    target_size: float | None = None,
    min_sqnr: float | None = None,
    bits: Iterable[int] = (8, 4, 2),
    per_channel: bool = False,
    symmetric: bool = False,
    block_size: int | None = None,
    excluded_layers: Iterable[str] | None = None,
    output_format: str = "qdq",
    engine: str = "auto",
    limit: int | None = None,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> MixedPrecision:
    """Choose bits for every layer, so that the model meets a size or an SQNR.

    From float downwards, the step is taken that costs the least noise for the bytes that it saves:
    until the model is small enough, or as long as its outputs are near enough. What a step costs is
    what `sensitivity` finds for the layer alone or, without data, the error of its weight. Bits
    with which a layer alone misses `min_sqnr` are left out, since noise adds up. The model that
    comes of it is made and measured. Weights alone are looked at.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    data : path, ImageFolder, array, dict of arrays, iterable, reader, or "random", optional
        What to run it on, as `calibration_data` of `quantize_with_calibration`; some ten samples
        do, and all are kept in memory.
    target_size : float, optional
        The most bytes that the model may take; up to 1, the part of what it takes in float.
    min_sqnr : float, optional
        The least SQNR of the worst output on `data`, in decibels. Give this or `target_size`.
    bits : iterable of int
        The bits there are to choose from, beside float: of 16, 8, 4 and 2. 4 and 16 need opset 21,
        2 opset 25: the model is converted where some layer gets so many.
    per_channel, symmetric, block_size, excluded_layers, output_format
        As in `quantize`; give it the same.
    engine, limit, threads, progress
        As in `compare`; they need `data`. How many samples will be run in all is not known before:
        progress counts them.

    Returns
    -------
    MixedPrecision
        The bits, and what they come to.

    Raises
    ------
    OptionError
        Not exactly one of `target_size` and `min_sqnr`, an SQNR without data, a size that the
        fewest bits everywhere do not meet, bits that `output_format` does not have, an option
        without effect, or one that is unknown or out of range.
    BelowBarError
        There is no layer that, quantized alone, leaves `min_sqnr`.
    CalibrationError, ModelError, FileNotFoundError, PermissionError, OSError
        As in `compare`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = "examples/digits/digits_cnn.onnx"
    >>> found = quantize_rs.mixed_precision(
    ...     digits, "examples/digits/calibration.npy", target_size=0.2, bits=(8, 4), limit=16
    ... )
    >>> report = quantize_rs.quantize(digits, "digits.mixed.onnx", layer_bits=found.layer_bits)
    >>> report.bytes_after <= 0.2 * report.bytes_before
    True
    """
    wishes = _api.wishes_of(
        per_channel=per_channel, symmetric=symmetric, excluded_layers=excluded_layers
    )
    wishes["block_size"] = _options.maybe_count("block_size", block_size)
    wishes["output_format"] = output_format
    widths = _options.listed("bits", bits, "numbers")
    goal = (target_size, min_sqnr, [_options.bits("bits", width) for width in widths])
    opened = _compare.model(model)
    if data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        _options.idle("without data", **run, threads=threads is not None)
        return _of(*_core.mixed_precision(opened, wishes, goal, None))
    samples = _samples.source(data, "data", num_samples=100, sample_shape=None, seed=0, noise=NOISE)
    with Run(engine, limit, threads, progress).begun("looking at layers") as begun:
        return _of(*_core.mixed_precision(opened, wishes, goal, (samples, begun)))


def _of(said: str, text: str) -> MixedPrecision:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(said)
    return MixedPrecision(
        layer_bits=found["layer_bits"],
        layers=tuple(LayerWidth(**layer) for layer in found["layers"]),
        bytes_before=found["bytes_before"],
        bytes_after=found["bytes_after"],
        ratio=found["ratio"],
        outputs=tuple(row(output) for output in found["outputs"]),
        samples=found["samples"],
        engine=found["engine"],
        _json=said,
        _text=text,
    )
