"""Bits for each layer, so that the model meets a size or an SQNR."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _core
from .._flow.model import Model
from .._flow.quantize import weight_options
from .._inputs.model_source import ModelSource, core_model
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import ANALYSIS_NOISE, CalibrationData, sample_source
from .._options import check
from .._results.mixed_precision import MixedPrecision, parse_mixed_precision

__all__ = ["mixed_precision"]


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
    AccuracyCriteriaError
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
    options = weight_options(
        per_channel=per_channel, symmetric=symmetric, excluded_layers=excluded_layers
    )
    options["block_size"] = check.optional_count("block_size", block_size)
    options["output_format"] = output_format
    widths = check.listed("bits", bits, "numbers")
    goal = (target_size, min_sqnr, [check.bits("bits", width) for width in widths])
    opened = core_model(model)
    if data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        check.reject_unused("without data", **run, threads=threads is not None)
        return parse_mixed_precision(*_core.mixed_precision(opened, options, goal, None))
    samples = sample_source(
        data, "data", num_samples=100, sample_shape=None, seed=0, noise=ANALYSIS_NOISE
    )
    with Run(engine, limit, threads, progress).session("looking at layers") as begun:
        return parse_mixed_precision(
            *_core.mixed_precision(opened, options, goal, (samples, begun))
        )
