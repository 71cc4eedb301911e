"""Comparison of a quantized model with the original."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy.typing as npt

from .. import _core
from .._flow.model import Model
from .._flow.origin import not_defaults, stamped
from .._inputs.engines import Engine
from .._inputs.labels import labels_of
from .._inputs.model_source import ModelSource, core_model
from .._inputs.progress import Callback
from .._inputs.run import Run, warn
from .._inputs.samples import ANALYSIS_NOISE, CalibrationData, sample_source
from .._options import check
from .._options.option_dict import CompareDict
from .._options.resolve import with_aliases
from .._results.build import result
from .._results.comparison import Comparison
from ..metrics import MetricLike, metric_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options.aliases import DataAliases

__all__ = ["compare"]


def compare(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    data: CalibrationData | None = None,
    labels: npt.ArrayLike | os.PathLike[str] | None = None,
    *,
    scores: str | None = None,
    metric: MetricLike | None = None,
    latency: bool = True,
    runs: int = 100,
    latency_threads: int = 1,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[DataAliases],
) -> Comparison:
    """Compare a quantized model with the original: outputs, accuracy, size, latency, kernels.

    Both models run on every sample; memory does not grow with the number of samples. Latency is
    measured on the first sample, after warm-up runs. The models take turns, so that other load on
    the machine affects both equally. Positions that an input ``attention_mask`` marks as padding do
    not count in the errors.

    Parameters
    ----------
    original, quantized : Model, path, bytes or onnx.ModelProto
        The models, with the same inputs and outputs.
    data : path, Samples, array, dict of arrays, iterable, reader, or "random"
        The samples, as `calibration_data` of `quantize_with_calibration`.
    labels : array of int, or path, optional
        The correct class of every row of every sample, to measure the accuracy of both models; or
        the path of a ``.npy`` file or a text file with them, one per line.
    scores : str, optional
        The output with the class scores; by default the first output of a softmax, or of the final
        Gemm or MatMul of a classifier.
    metric : callable, quantize_rs.metrics.Metric or str, optional
        A metric that takes the place of the accuracy: ``metric(outputs, samples) -> float``, one of
        `quantize_rs.metrics`, or the name of one. A higher score of a function is better; for other
        ones see `quantize_rs.metrics.Metric`. The outputs of all samples are kept in memory.
    latency : bool
        Whether to measure latency.
    runs, latency_threads : int
        The number of measured runs of each model, and the number of threads of each run.
    engine : "auto", "tract" or "onnxruntime"
        The engine that runs the models; auto is onnxruntime if it is installed, else tract.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`.
    **aliases
        Other names of `data`, as in `quantize`.

    Returns
    -------
    Comparison
        The comparison. Its warnings are logged.

    Raises
    ------
    OptionError
        The models have different inputs or outputs, the number of labels is not that of the rows,
        or an option is unknown or out of range.
    CalibrationError
        No samples, samples of the wrong shape or type, or an engine error.
    ModelError, FileNotFoundError, PermissionError, OSError
        A model or the data cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.quantize(digits.model, "digits.int8.onnx")
    >>> found = quantize_rs.compare(digits.model, "digits.int8.onnx", digits.calibration)
    >>> found.outputs[0].top1_agreement > 0.99 and found.sqnr_db > 30
    True
    """
    if not latency:
        check.reject_unused(
            "where latency is False", runs=runs != 100, latency_threads=latency_threads != 1
        )
    (data,) = with_aliases(aliases, data=data)
    models = (core_model(original), core_model(quantized))
    source = sample_source(
        data,
        "data",
        models[0],
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=ANALYSIS_NOISE,
    )
    options = CompareDict(
        # With a metric of their own, they are not classes.
        labels=labels_of(labels) if metric is None else None,
        metric=metric_of(metric, labels, scores, decides=False),
        scores=scores,
        latency=latency,
        runs=check.count("runs", runs, least=1),
        latency_threads=check.count("latency_threads", latency_threads, least=1),
    )
    with Run(engine, limit, threads, progress).session("comparing") as begun:
        found = result(Comparison, _core.compare(*models, source, options, begun))
    warn(found.warnings)
    given = not_defaults(compare, locals())
    return stamped(found, "compare", (original, quantized, data), given, data)
