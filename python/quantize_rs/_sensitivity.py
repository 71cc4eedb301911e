"""Which layers a model can least bear to have quantized."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import _core, _html, _options, _samples
from ._compare import NOISE
from ._engines import Engine
from ._layer_errors import ErrorMetrics
from ._measures import OutputRow, finite, row
from ._model import Model
from ._model import open as _open
from ._page import Paged
from ._plan import Plan
from ._progress import Callback
from ._ranges import Ranges
from ._run import Run
from ._samples import CalibrationData
from ._source import ModelSource
from .errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LayerSensitivity", "Sensitivity", "sensitivity"]


@dataclass(frozen=True, slots=True)
class LayerSensitivity:
    """What one layer costs.

    Attributes
    ----------
    name : str
        The weight.
    nodes : tuple of str
        The nodes that multiply by it.
    op_type, kind : str
        Their operator, and what the weight becomes: ``int8 symmetric axis 0``.
    elements : int
        How many elements the weight has.
    score : float
        What it is ranked by.
    weight_error : ErrorMetrics or None
        What the weight's integers stand for, against its floats.
    outputs : tuple of OutputRow
        How far each output of the model is off; empty without data.
    """

    name: str
    nodes: tuple[str, ...]
    op_type: str
    kind: str
    elements: int
    score: float
    weight_error: ErrorMetrics | None
    outputs: tuple[OutputRow, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Sensitivity(Paged):
    """What each layer of a model costs. `sensitivity` makes it.

    ``print(found)`` shows a table.

    Attributes
    ----------
    metric : str
        What layers are ranked by.
    all_but_one : bool
        Whether every layer but the one was quantized, instead of the one alone.
    layers : tuple of LayerSensitivity
        One for each quantized weight, the most sensitive first.
    samples : int
        Samples run; 0 without data.
    engine : str or None
        Who ran them.
    notes : tuple of str
        What the engine had to say.
    """

    metric: str
    all_but_one: bool
    layers: tuple[LayerSensitivity, ...]
    samples: int
    engine: str | None
    notes: tuple[str, ...]
    _json: str = field(compare=False)
    _text: str = field(compare=False)
    _part: ClassVar[str] = "sensitivity"

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw a bar for each layer, the most sensitive first.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, and so are the result and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> found = quantize_rs.sensitivity("examples/digits/digits_cnn.onnx")
        >>> figure = found.plot()
        """
        from . import _figures

        return _figures.of_sensitivity(self, path)

    def _summary(self) -> str:
        if not self.layers:
            return "no layer is quantized"
        first = self.layers[0]
        what = f"{first.name} with {self.metric} {first.score:.4g} the most sensitive"
        return f"{len(self.layers)} layers, {what}"

    def _repr_html_(self) -> str:
        header = ["layer", "operator", "type", "elements", "SQNR of the weight (dB)", self.metric]
        rows = (
            [
                layer.name,
                layer.op_type,
                layer.kind,
                layer.elements,
                None if layer.weight_error is None else layer.weight_error.sqnr_db,
                layer.score,
            ]
            for layer in self.layers
        )
        return _html.table(self._summary(), header, rows)


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
        _options.idle("without data", **run, **noise, **shown)
    if isinstance(model, Plan):
        wishes = {"weights": weights is not None, "activations": activations != "uint8"}
        wishes |= {"per_channel": per_channel, "exclude": exclude is not None}
        _options.idle("beside a plan, which says what is quantized", **wishes)
    else:
        opened = model if isinstance(model, Model) else _open(model)
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
        return _of(*_core.weight_sensitivity(model._plan))
    source = _samples.source(
        data,
        "data",
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=NOISE,
    )
    options = (metric, all_but_one, None if resume is None else os.fspath(resume))
    known = None if ranges is None else ranges._ranges
    with Run(engine, limit, threads, progress).begun("looking at layers") as begun:
        return _of(*_core.sensitivity(model._plan, known, source, options, begun))


def _of(said: str, text: str) -> Sensitivity:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(said)
    metric = found["metric"]
    return Sensitivity(
        metric=metric,
        all_but_one=found["all_but_one"],
        layers=tuple(_layer(layer, metric) for layer in found["layers"]),
        samples=found["samples"],
        engine=found["engine"],
        notes=tuple(found["notes"]),
        _json=said,
        _text=text,
    )


def _layer(found: dict[str, Any], metric: str) -> LayerSensitivity:
    error = found.pop("weight_error")
    weight = None if error is None else ErrorMetrics(**finite(error))
    outputs = tuple(row(output) for output in found.pop("outputs"))
    score = found.pop("score")
    if score is None:
        score = _lost(metric, outputs, weight)
    nodes = tuple(found.pop("nodes"))
    return LayerSensitivity(**found, nodes=nodes, score=score, weight_error=weight, outputs=outputs)


def _lost(metric: str, outputs: tuple[OutputRow, ...], weight: ErrorMetrics | None) -> float:
    """Give a score that JSON has no number for: no noise at all, or NaN."""
    if metric == "weight":
        return math.nan if weight is None else weight.sqnr_db
    found = [output.sqnr_db for output in outputs] if metric == "sqnr" else []
    return min(found) if found and not any(map(math.isnan, found)) else math.nan
