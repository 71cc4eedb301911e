"""What `sensitivity` found: the cost of quantizing each layer."""

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
class Sensitivity(HtmlResult):
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
    """Read what the extension module wrote, as JSON and as text."""
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
        score = _lost(metric, outputs, weight)
    nodes = tuple(found.pop("nodes"))
    return LayerSensitivity(**found, nodes=nodes, score=score, weight_error=weight, outputs=outputs)


def _lost(metric: str, outputs: tuple[OutputRow, ...], weight: ErrorMetrics | None) -> float:
    """Give a score that JSON has no number for: no noise at all, or NaN."""
    if metric == "weight":
        return math.nan if weight is None else weight.sqnr_db
    found = [output.sqnr_db for output in outputs] if metric == "sqnr" else []
    return min(found) if found and not any(map(math.isnan, found)) else math.nan
