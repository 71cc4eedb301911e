"""Where a quantized model loses accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import _core
from .._flow.model import Model
from .._flow.origin import not_defaults, stamped
from .._inputs.engines import Engine
from .._inputs.model_source import ModelSource, core_model
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import ANALYSIS_NOISE, CalibrationData, sample_source
from .._options.resolve import with_aliases
from .._results.build import result
from .._results.layer_errors import LayerErrors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options.aliases import DataAliases

__all__ = ["layer_errors"]


def layer_errors(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    data: CalibrationData | None = None,
    *,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[DataAliases],
) -> LayerErrors:
    """Find where a quantized model loses accuracy.

    Values with the same name in both models are compared. There are two errors for each. The
    accumulated error is that of a run of the whole quantized model. For the own error, each segment
    between compared values gets the inputs that the original computes, so the error comes from the
    weights and the rounding of this segment only.

    Parameters
    ----------
    original, quantized, data, engine
        As in `compare`.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`.
    **aliases
        Other names of `data`, as in `quantize`.

    Returns
    -------
    LayerErrors
        A row for each value.

    Raises
    ------
    OptionError, CalibrationError, ModelError, FileNotFoundError, PermissionError, OSError
        As in `compare`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits, samples, _ = quantize_rs.examples.digits()
    >>> report = quantize_rs.quantize_with_calibration(digits, "digits.int8.onnx", samples)
    >>> errors = quantize_rs.layer_errors(digits, "digits.int8.onnx", samples, limit=16)
    >>> worst = errors.worst(1)[0]
    >>> worst.own.sqnr_db > 20
    True
    """
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
    with Run(engine, limit, threads, progress).session("analyzing layers") as begun:
        found = result(LayerErrors, _core.layer_errors(*models, source, begun))
    given = not_defaults(layer_errors, locals())
    return stamped(found, "layer_errors", (original, quantized, data), given, data)
