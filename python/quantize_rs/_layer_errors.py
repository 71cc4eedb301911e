"""Where a quantized model loses accuracy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import _core, _html, _samples
from ._compare import NOISE, model
from ._engines import Engine
from ._measures import finite
from ._model import Model
from ._page import Paged
from ._progress import Callback
from ._run import Run
from ._samples import CalibrationData
from ._source import ModelSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ErrorMetrics", "LayerError", "LayerErrors", "layer_errors"]


@dataclass(frozen=True, slots=True)
class ErrorMetrics:
    """How far a tensor is from that of the float model, over all samples.

    Attributes
    ----------
    sqnr_db : float
        Signal to quantization noise in decibels; ``inf`` when there is no difference.
    cosine, max_abs, mse : float
        Cosine of the angle between both, largest and mean squared difference.
    """

    sqnr_db: float
    cosine: float
    max_abs: float
    mse: float


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far one value is off.

    Attributes
    ----------
    name : str
        The value.
    node, op_type : str
        The node that makes it in the original, and its operator.
    quantized : bool
        Whether it comes back from integers.
    own : ErrorMetrics
        What is lost on the way from the nearest values before it, when these are those of the
        original.
    accumulated : ErrorMetrics
        What is lost on the whole way from the inputs of the model.
    """

    name: str
    node: str
    op_type: str
    quantized: bool
    own: ErrorMetrics
    accumulated: ErrorMetrics


@dataclass(frozen=True, slots=True, repr=False)
class LayerErrors(Paged):
    """How far each value of a quantized model is from that of the original.

    ``print(errors)`` shows a table, those with the largest errors of their own first.

    Attributes
    ----------
    values : tuple of LayerError
        Every float32 value that both models have under the same name, in the order of computation.
    samples : int
        Samples run.
    engine : str
        Who ran them.
    notes : tuple of str
        What the engine had to say.
    """

    values: tuple[LayerError, ...]
    samples: int
    engine: str
    notes: tuple[str, ...]
    _json: str = field(compare=False)
    _text: str = field(compare=False)
    _part: ClassVar[str] = "layer_errors"

    def worst(self, count: int = 10) -> tuple[LayerError, ...]:
        """Give the values with the largest errors of their own, the largest first."""
        ranked = sorted(self.values, key=lambda value: _rank(value.own.sqnr_db))
        return tuple(ranked[:count])

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw own and accumulated errors along the depth of the model, as a map of colours.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, and so are the result and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits, samples = "examples/digits/digits_cnn.onnx", "examples/digits/calibration.npy"
        >>> report = quantize_rs.quantize(digits, "digits.int8.onnx")
        >>> errors = quantize_rs.layer_errors(digits, "digits.int8.onnx", samples, limit=8)
        >>> figure = errors.plot()
        """
        from . import _figures

        return _figures.of_layer_errors(self, path)

    def _summary(self) -> str:
        if not self.values:
            return "no value in common"
        (worst,) = self.worst(1)
        return f"{len(self.values)} values, {worst.name} with {worst.own.sqnr_db:.2f} dB the worst"

    def _repr_html_(self) -> str:
        header = ["value", "operator", "from integers", "own (dB)", "accumulated (dB)"]
        rows = (
            [
                value.name,
                value.op_type,
                "yes" if value.quantized else None,
                value.own.sqnr_db,
                value.accumulated.sqnr_db,
            ]
            for value in self.values
        )
        return _html.table(self._summary(), header, rows)


def layer_errors(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    data: CalibrationData,
    *,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> LayerErrors:
    """Find where a quantized model loses accuracy.

    Values have the same names in both models, so they are compared one by one, in two ways. The
    accumulated error is that of a run of the whole model. For the own error, each piece between two
    such values is fed with what the original computes: what is lost there is lost by its own
    weights and roundings.

    Parameters
    ----------
    original, quantized, data, engine
        As in `compare`.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`.

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
    >>> digits, samples = "examples/digits/digits_cnn.onnx", "examples/digits/calibration.npy"
    >>> report = quantize_rs.quantize_with_calibration(digits, "digits.int8.onnx", samples)
    >>> errors = quantize_rs.layer_errors(digits, "digits.int8.onnx", samples, limit=16)
    >>> worst = errors.worst(1)[0]
    >>> worst.own.sqnr_db > 20
    True
    """
    source = _samples.source(
        data,
        "data",
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=NOISE,
    )
    models = (model(original), model(quantized))
    with Run(engine, limit, threads, progress).begun("looking at layers") as begun:
        said, text = _core.layer_errors(*models, source, begun)
    found = json.loads(said)
    return LayerErrors(
        values=tuple(_value(value) for value in found["values"]),
        samples=found["samples"],
        engine=found["engine"],
        notes=tuple(found["notes"]),
        _json=said,
        _text=text,
    )


def _value(found: dict[str, Any]) -> LayerError:
    for which in ("own", "accumulated"):
        found[which] = ErrorMetrics(**finite(found[which]))
    return LayerError(**found)


def _rank(decibels: float) -> float:
    """NaN is the worst there is."""
    return decibels if decibels == decibels else float("-inf")
