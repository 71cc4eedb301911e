"""Fake quantization in the graph of a model, to train on elsewhere."""

from __future__ import annotations

import os
from typing import Any

from .._flow.model import open as open_model
from .._flow.plan import delivered
from .._inputs.engines import Engine
from .._inputs.files import writable
from .._inputs.model_source import ModelSource
from .._inputs.run import Run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._results.ranges import Ranges
from .._results.report import Report
from ..errors import OptionError

__all__ = ["insert_fake_quant"]


def insert_fake_quant(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    calibration_data: CalibrationData | None = None,
    *,
    weights: str = "int8",
    activations: str = "uint8",
    per_channel: bool = True,
    symmetric: bool = True,
    ranges: Ranges | None = None,
    method: str = "minmax",
    engine: Engine = "auto",
    limit: int | None = None,
    threads: int | None = None,
    **options: Any,
) -> Report:
    """Put fake quantization into a model, so that it can be trained on elsewhere.

    A weight ``W`` stays float, under the name ``W_float``, and a ``QuantizeLinear`` and a
    ``DequantizeLinear`` with constant scales make ``W`` of it; biases stay float altogether. With
    samples or ranges, activations are quantized as `quantize_with_calibration` would, too.

    After training, ``optimize(model, passes=["store_integers"])`` stores the weights as the
    integers that the model makes of them, with its own scales; what it computes stays, bit for bit.
    It does so for QDQ models that other tools exported after training, too, and so does `quantize`,
    which runs that pass first.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path or None
        Where to write it. None gives it as ``report.model``, in bytes.
    calibration_data : path, array, ..., optional
        Samples, as for `quantize_with_calibration`. Without them, and without `ranges`, weights
        alone are quantized.
    weights, activations : str
        Their types.
    per_channel, symmetric : bool
        As in `quantize`.
    ranges : Ranges, optional
        Ranges that were found before, instead of `calibration_data`.
    method, engine, limit, threads
        As in `Plan.calibrate`.
    **options
        Other options of `Model.plan`: ``exclude``, ``layer_bits``, ``op_types``, ...

    Returns
    -------
    Report
        What was done to each value.

    Raises
    ------
    CalibrationError, ModelError, OptionError, OSError
        As `quantize_with_calibration`.

    Examples
    --------
    >>> import quantize_rs
    >>> quantize_rs.insert_fake_quant(
    ...     "examples/digits/digits_cnn.onnx", "digits.qat.onnx", "examples/digits/calibration.npy"
    ... ).samples
    200
    >>> # ... training moves the weights in digits.qat.onnx ...
    >>> report = quantize_rs.optimize(
    ...     "digits.qat.onnx", "digits.int8.onnx", passes=["store_integers"]
    ... )
    >>> report.bytes_after < report.bytes_before / 3
    True
    """
    destination = writable(output)
    if ranges is not None and calibration_data is not None:
        what = "ranges come instead of calibration_data: give one of them"
        raise OptionError(what, option="ranges")
    calibrated = ranges is not None or calibration_data is not None
    if calibration_data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        run |= {"threads": threads is not None, "method": method != "minmax"}
        check.reject_unused("without calibration_data", **run)
    plan = open_model(model).plan(
        weights,
        activations if calibrated else None,
        per_channel=per_channel,
        symmetric=symmetric,
        output_format="fake_quant",
        **options,
    )
    if calibration_data is not None:
        source = sample_source(
            calibration_data, "calibration_data", num_samples=100, sample_shape=None, seed=0
        )
        ranges = plan._calibrate(source, Run(engine, limit, threads, None), method)
    return delivered(plan.apply(ranges), destination)
