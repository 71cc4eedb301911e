"""Mixed precision: a bit width for each layer, to meet a size or an SQNR."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import _core
from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import ANALYSIS_NOISE, CalibrationData, sample_source
from .._options import check
from .._options.option_dict import option_dict
from .._options.resolve import resolve, with_aliases
from .._results.build import result
from .._results.mixed_precision import MixedPrecision
from ..metrics import MetricLike, metric_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

    from .._options.aliases import DataAndExcludeAliases

__all__ = ["mixed_precision"]

_BITS = (8, 4, 2)


def mixed_precision(
    model: ModelSource | Model,
    data: CalibrationData | None = None,
    *,
    target_size: float | str | None = None,
    min_sqnr: float | None = None,
    max_accuracy_drop: float | str | None = None,
    metric: MetricLike | None = None,
    labels: npt.ArrayLike | os.PathLike[str] | None = None,
    scores: str | None = None,
    bits: Iterable[int] = _BITS,
    activations: str | None = None,
    per_channel: bool | None = None,
    symmetric: bool | None = None,
    block_size: int | None = None,
    exclude: Iterable[str] | None = None,
    output_format: str = "qdq",
    engine: str = "auto",
    limit: int | None = None,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[DataAndExcludeAliases],
) -> MixedPrecision:
    """Choose a bit width for every layer or activation, to meet a size or an SQNR.

    The noise of a layer is that of `sensitivity`, or without data the error of its weight, and the
    noise of all layers is assumed to add up. Of all choices of bits, those with the least noise
    for their size are candidates. For `target_size` it is the largest of them that fits in, or
    with data the most accurate of six of them, each a little smaller than the last. For
    `min_sqnr` and `max_accuracy_drop` it is the smallest whose outputs meet them. Bit widths with
    which a layer alone misses `min_sqnr`, or with which the engine does not run the model, are
    skipped. The resulting model is produced and measured. Only weights are quantized, unless
    `activations` is given.

    With `activations`, all weights have 8 bits, and it chooses which activations get 16 bits
    instead of 8, as few as `min_sqnr` or `max_accuracy_drop` needs: first those with which, alone
    in 16 bits, the outputs of the quantized model are the most accurate. Each of them is measured,
    on at most 32 samples. With 8 samples or more, ranges come from one half of them, and the other
    half evaluates.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    data : path, Samples, array, dict of arrays, iterable, reader, or "random", optional
        The samples, as `calibration_data` of `quantize_with_calibration`; about ten are enough, and
        all are kept in memory.
    target_size : float or str, optional
        The maximum size of the model in bytes; up to 1, as a fraction of the float size, or as a
        percentage of it: ``"20%"``.
    min_sqnr : float, optional
        The minimum SQNR of the worst output on `data`, in dB. Give this or `target_size`.
    max_accuracy_drop : float or str, optional
        How much worse than the float model the result may be in `metric`; a goal of its own.
    metric, labels, scores
        A metric of the outputs, as in `compare`. With `target_size`, it chooses among the models
        that meet the size.
    bits : iterable of int
        The bit widths to choose from besides float: 16, 8, 4 and 2. 4 and 16 need opset 21, and 2
        needs opset 25; the model is converted if a layer uses them.
    activations : "uint8" or "int8", optional
        Quantize activations, too, and choose which of them get 16 bits; weights have 8.
    per_channel, symmetric, block_size, exclude, output_format
        As in `quantize`; pass the same values there.
    engine, limit, threads, progress
        As in `compare`; they need `data`. The total number of runs is not known in advance, so
        progress only counts them.
    **aliases
        Other names of `data` and `exclude`, as in `quantize`.

    Returns
    -------
    MixedPrecision
        The bit widths, with the resulting size and errors.

    Raises
    ------
    OptionError
        Not exactly one goal is given, `min_sqnr` or `metric` has no data, the lowest
        bit widths do not meet `target_size`, `output_format` does not support a bit width, or an
        option has no effect, is unknown or is out of range.
    AccuracyCriteriaError
        No layer can be quantized, even alone, without missing `min_sqnr` or `max_accuracy_drop`.
    UnsupportedModelError
        The model has nothing to quantize, and misses the goal; the message gives the reasons.
    CalibrationError, ModelError, FileNotFoundError, PermissionError, OSError
        As in `compare`.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> found = quantize_rs.mixed_precision(
    ...     digits.model, digits.calibration, target_size=0.2, bits=(8, 4), limit=16
    ... )
    >>> report = quantize_rs.quantize(digits.model, "mixed.onnx", layer_bits=found.layer_bits)
    >>> report.bytes_after <= 0.2 * report.bytes_before
    True

    Some activations in 16 bits, which needs the package onnxruntime:

    >>> samples = np.load(digits.calibration)[:32]
    >>> found = quantize_rs.mixed_precision(
    ...     digits.model, samples, activations="uint8", min_sqnr=40
    ... )
    >>> report = quantize_rs.quantize_with_calibration(
    ...     digits.model, "wide.onnx", samples, activation_types=found.activation_types
    ... )
    """
    data, exclude = with_aliases(aliases, data=data, exclude=exclude)
    parameters = {
        "activations": activations,
        "per_channel": per_channel,
        "symmetric": symmetric,
        "block_size": block_size,
        "exclude": exclude,
        "output_format": output_format,
    }
    found = resolve("mixed_precision", parameters, None, {})
    options = option_dict(found, bits=8, with_activations=activations is not None)
    widths = check.listed("bits", bits, "numbers")
    if activations is not None:
        check.reject_unused("with activations", bits=bits is not _BITS)
    goal = (
        check.number_or_percentage("target_size", target_size),
        check.optional_number("min_sqnr", min_sqnr),
        [check.bits("bits", width) for width in widths],
    )
    if metric is None:
        unused = {"labels": labels is not None, "scores": scores is not None}
        check.reject_unused("without a metric", **unused)
    drop = check.number_or_percentage("max_accuracy_drop", max_accuracy_drop)
    own = (metric_of(metric, labels, scores), drop)
    opened = core_model(model)
    if data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        check.reject_unused("without data", **run, threads=threads is not None)
        with check.rename_errors():
            outcome = _core.mixed_precision(opened, options, goal, own, None)
            return result(MixedPrecision, outcome)
    samples = sample_source(data, "data", opened, noise=ANALYSIS_NOISE)
    with (
        Run(engine, limit, threads, progress).session("analyzing layers") as begun,
        check.rename_errors(),
    ):
        outcome = _core.mixed_precision(opened, options, goal, own, (samples, begun))
    return result(MixedPrecision, outcome)
