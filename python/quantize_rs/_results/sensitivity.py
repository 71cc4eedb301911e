"""The result of `sensitivity`: the cost of quantizing each layer."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import notebook
from .html_report import HtmlResult
from .metrics import ErrorMetrics, OutputRow, parse_output_row, restore_non_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class LayerSensitivity:
    """The cost of quantizing one layer.

    Attributes
    ----------
    name : str
        The name of the weight.
    nodes : tuple of str
        The nodes that use it.
    op_type, kind : str
        Their operator type, and how the weight is quantized: ``int8 symmetric axis 0``.
    elements : int
        The number of elements of the weight.
    score : float
        The value of the metric.
    weight_error : ErrorMetrics or None
        The error of the dequantized weight against its floats.
    outputs : tuple of OutputRow
        The error of each output of the model; empty without data.
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
class Sensitivity(HtmlResult):
    """The cost of quantizing each layer of a model. `sensitivity` returns it.

    ``print(found)`` shows a table.

    Attributes
    ----------
    metric : str
        The metric that layers are ranked by.
    all_but_one : bool
        Whether all layers except one were quantized, instead of one alone.
    layers : tuple of LayerSensitivity
        One for each quantized weight, the most sensitive first.
    samples : int
        The number of samples; 0 without data.
    engine : str or None
        The engine that ran the model.
    notes : tuple of str
        Remarks of the engine.
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
        """Plot a bar for each layer, the most sensitive first.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, like the return value and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> found = quantize_rs.sensitivity(digits.model)
        >>> figure = found.plot()
        """
        from . import plots

        return plots.of_sensitivity(self, path)

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
        return notebook.table(self._summary(), header, rows)


def parse_sensitivity(json_text: str, text: str) -> Sensitivity:
    """Read the JSON and the text of the extension module."""
    found = json.loads(json_text)
    metric = found["metric"]
    return Sensitivity(
        metric=metric,
        all_but_one=found["all_but_one"],
        layers=tuple(_layer(layer, metric) for layer in found["layers"]),
        samples=found["samples"],
        engine=found["engine"],
        notes=tuple(found["notes"]),
        _json=json_text,
        _text=text,
    )


def _layer(found: dict[str, Any], metric: str) -> LayerSensitivity:
    error = found.pop("weight_error")
    weight = None if error is None else ErrorMetrics(**restore_non_finite(error))
    outputs = tuple(parse_output_row(output) for output in found.pop("outputs"))
    score = found.pop("score")
    if score is None:
        score = _restore_score(metric, outputs, weight)
    nodes = tuple(found.pop("nodes"))
    return LayerSensitivity(**found, nodes=nodes, score=score, weight_error=weight, outputs=outputs)


def _restore_score(
    metric: str, outputs: tuple[OutputRow, ...], error: ErrorMetrics | None
) -> float:
    """Restore a score that JSON cannot hold: infinity (no error) or NaN."""
    if metric == "weight":
        return math.nan if error is None else error.sqnr_db
    found = [output.sqnr_db for output in outputs] if metric == "sqnr" else []
    return min(found) if found and not any(map(math.isnan, found)) else math.nan
