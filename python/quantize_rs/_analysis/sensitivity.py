"""Which layers a model can least bear to have quantized."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .. import _core
from .._flow.model import Model
from .._flow.model import open as open_model
from .._flow.plan import Plan
from .._inputs.engines import Engine
from .._inputs.model_source import ModelSource
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import ANALYSIS_NOISE, CalibrationData, sample_source
from .._options import check
from .._results.ranges import Ranges
from .._results.sensitivity import Sensitivity, parse_sensitivity
from ..errors import OptionError

__all__ = ["sensitivity"]


def sensitivity(
    model: ModelSource | Model | Plan,
    data: CalibrationData | None = None,
    metric: str = "sqnr",
    *,
    all_but_one: bool = False,
    ranges: Ranges | None = None,
    weights: str | None = None,
    activations: str | None = "uint8",
    per_channel: bool = False,
    exclude: Iterable[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> Sensitivity:
    """Rank the layers of a model by what it costs to quantize each of them alone.

    A layer is a weight, with all that is quantized for the nodes that multiply by it. The float
    model runs once; for each layer only what follows from it runs again, on what the float model
    computed before, several layers at once.

    Parameters
    ----------
    model : Plan, Model, path, bytes or onnx.ModelProto
        What is quantized, and how: a plan, or a model with the options below.
    data : path, ImageFolder, array, dict of arrays, iterable, reader, or "random", optional
        What to run it on, as `calibration_data` of `quantize_with_calibration`; all of it is kept
        in memory. Without data, weights alone are looked at.
    metric : "sqnr", "cosine", "max_abs", "mse", "top1" or "weight"
        What layers are ranked by: the worst output of the model; or the SQNR of the weight itself,
        which is what there is without data.
    all_but_one : bool
        Quantize every layer but one, instead of one alone: the layer without which the model is
        best comes first.
    ranges : Ranges, optional
        Those of the plan; by default those of `data`.
    weights, activations, per_channel, exclude
        As in `Model.plan`; with ``activations=None``, and without data, weights alone are
        quantized.
    resume : path, optional
        A file that keeps what is known layer by layer. When it is there already, work goes on from
        there; one of another model, plan or other data is refused.
    engine
        As in `compare`.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`; progress counts runs of parts of the model.

    Returns
    -------
    Sensitivity
        A row for each layer, the most sensitive first.

    Raises
    ------
    OptionError
        An option is unknown or out of range, or the file to resume is of something else.
    CalibrationError
        No samples, samples of the wrong shape or type, or an engine that failed.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model or the data cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits, samples = "examples/digits/digits_cnn.onnx", "examples/digits/calibration.npy"
    >>> found = quantize_rs.sensitivity(digits, samples, limit=16)
    >>> found.layers[0].score <= found.layers[-1].score
    True

    The layer that costs the most stays float:

    >>> report = quantize_rs.quantize(digits, None, excluded_layers=[found.layers[0].name])

    Without data:

    >>> quantize_rs.sensitivity(digits).metric
    'weight'
    """
    if data is None:
        run = {"engine": engine != "auto", "limit": limit is not None}
        run |= {"threads": threads is not None, "num_samples": num_samples != 100}
        noise = {"sample_shape": sample_shape is not None, "seed": seed != 0}
        shown = {"ranges": ranges is not None, "activations": activations not in ("uint8", None)}
        check.reject_unused("without data", **run, **noise, **shown)
    if isinstance(model, Plan):
        given = {"weights": weights is not None, "activations": activations != "uint8"}
        given |= {"per_channel": per_channel, "exclude": exclude is not None}
        check.reject_unused("beside a plan, which says what is quantized", **given)
    else:
        opened = model if isinstance(model, Model) else open_model(model)
        model = opened.plan(
            weights,
            None if data is None else activations,
            per_channel=per_channel,
            exclude=exclude,
        )
    if data is None:
        if metric not in ("sqnr", "weight") or all_but_one or resume is not None:
            what = "metric" if metric not in ("sqnr", "weight") else "data"
            raise OptionError(
                f"{what}: without data only weights can be looked at, one by one", option=what
            )
        return parse_sensitivity(*_core.weight_sensitivity(model._plan))
    source = sample_source(
        data,
        "data",
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=ANALYSIS_NOISE,
    )
    options = (metric, all_but_one, None if resume is None else os.fspath(resume))
    known = None if ranges is None else ranges._ranges
    with Run(engine, limit, threads, progress).session("looking at layers") as begun:
        return parse_sensitivity(*_core.sensitivity(model._plan, known, source, options, begun))
