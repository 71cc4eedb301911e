"""Fake quantization in the graph of a model, for training in a framework."""

from __future__ import annotations

import os
from typing import Any

from .. import _core
from .._flow.model import open as open_model
from .._flow.plan import delivered
from .._inputs.engines import Engine
from .._inputs.files import writable
from .._inputs.model_source import ModelSource
from .._inputs.run import Run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._options.resolve import with_aliases
from .._options.table import canonical
from .._results.ranges import Ranges
from .._results.report import Report
from ..errors import OptionError

__all__ = ["insert_fake_quant"]

# The parameters that have other names.
_ALIASED = {"calibration_data", "limit", "weights"}


def insert_fake_quant(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    calibration_data: CalibrationData | None = None,
    *,
    weights: str | None = None,
    activations: str = "uint8",
    per_channel: bool = True,
    symmetric: bool = True,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    method: str = "minmax",
    engine: Engine = "auto",
    limit: int | None = None,
    threads: int | None = None,
    **options: Any,
) -> Report:
    """Insert fake quantization into a model, so that you can train it in a framework.

    A weight ``W`` stays float under the name ``W_float``; a ``QuantizeLinear`` and a
    ``DequantizeLinear`` node with constant scales produce ``W`` from it. Biases stay float. With
    samples or ranges, activations are quantized too, as in `quantize_with_calibration`.

    After training, ``optimize(model, passes=["store_integers"])`` stores the weights as integers,
    with the scales of the model; its outputs stay bit-identical. This also works for QDQ models
    that other tools exported after training. `quantize` runs this pass first.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path or None
        The file to write. If None, ``report.model`` holds the bytes.
    calibration_data : path, array, ..., optional
        Samples, as in `quantize_with_calibration`. Without them and without `ranges`, only weights
        are quantized.
    weights : str, optional
        The type of weights. Default: the signed type of ``bits``, int8 without them.
    activations : str
        The type of activations.
    per_channel, symmetric : bool
        As in `quantize`.
    ranges : Ranges or path, optional
        Ranges of an earlier calibration, or their file, instead of `calibration_data`.
    method, engine, limit, threads
        As in `Plan.calibrate`.
    **options
        Other options of `Model.plan`: ``bits``, ``exclude``, ``layer_bits``, ``op_types``, ... and
        other names of the parameters, as in `quantize_with_calibration`.

    Returns
    -------
    Report
        How each value was quantized.

    Raises
    ------
    CalibrationError, ModelError, OptionError, OSError
        As in `quantize_with_calibration`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> quantize_rs.insert_fake_quant(
    ...     digits.model, "digits.qat.onnx", digits.calibration
    ... ).samples
    200
    >>> # ... training moves the weights in digits.qat.onnx ...
    >>> report = quantize_rs.optimize(
    ...     "digits.qat.onnx", "digits.int8.onnx", passes=["store_integers"]
    ... )
    >>> report.bytes_after < report.bytes_before / 3
    True
    """
    own = {name: options.pop(name) for name in [*options] if canonical(name) in _ALIASED}
    calibration_data, weights, limit = with_aliases(
        own, calibration_data=calibration_data, weights=weights, limit=limit
    )
    destination = writable(output, calibration_data, ranges, option="output")
    if ranges is not None and calibration_data is not None:
        what = "ranges come instead of calibration_data: give one of them"
        raise OptionError(what, option="ranges")
    calibrated = ranges is not None or calibration_data is not None
    if calibration_data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        run |= {"threads": threads is not None, "method": method != "minmax"}
        check.reject_unused("without calibration_data", **run)
    if not calibrated and activations is not None:
        # The plan does not see it.
        with check.rename_errors(dtype="activations"):
            _core.dtype_of(activations)
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
            calibration_data,
            "calibration_data",
            plan._plan.model,
        )
        ranges = plan._calibrate(source, Run(engine, limit, threads, None), method)
    return delivered(plan.apply(ranges), destination)
