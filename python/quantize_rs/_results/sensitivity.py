"""The result of `sensitivity`: the cost of quantizing each layer."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from . import notebook
from .assessment import Origin
from .html_report import HtmlResult
from .metrics import Accuracy, ErrorMetrics, OutputRow, restore_non_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class LayerSensitivity:
    """The cost of quantizing one layer.

    Attributes
    ----------
    name : str
        The name of the weight; of an operator without weight, its name, or that of its output.
    nodes : tuple of str
        The nodes that use the weight, or the operator.
    op_type, kind : str
        Their operator type, and how the weight is quantized: ``int8 symmetric axis 0``.
    elements : int
        The number of elements of the weight; 0 for an operator without weight.
    score : float
        The value of the metric.
    weight_error : ErrorMetrics or None
        The error of the dequantized weight against its floats.
    outputs : tuple of OutputRow
        The error of each output of the model; empty without data.
    accuracy : Accuracy or None
        The scores of both models, if `metric` was a metric of outputs.
    """

    name: str
    nodes: tuple[str, ...]
    op_type: str
    kind: str
    elements: int
    score: float
    weight_error: ErrorMetrics | None
    outputs: tuple[OutputRow, ...]
    accuracy: Accuracy | None = None


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
        One for each quantized weight, and for each operator without weight that computes on
        integers; the most sensitive first.
    samples : int
        The number of samples; 0 without data.
    engine : str or None
        The engine that ran the model.
    notes : tuple of str
        Remarks of the engine.
    origin : Origin
        The version, the date, the models, the samples and the call.
    """

    metric: str
    all_but_one: bool
    layers: tuple[LayerSensitivity, ...]
    samples: int
    engine: str | None
    notes: tuple[str, ...]
    origin: Origin
    _part: ClassVar[str] = "sensitivity"

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot one bar for each layer, the most sensitive first.

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

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        if found["metric"] == "custom":
            scores = [score for layer in found["layers"] if (score := layer.get("accuracy"))]
            found["metric"] = scores[0]["metric"] if scores else "custom"
        for layer in found["layers"]:
            if layer["score"] is None:
                layer["score"] = _restore_score(found["metric"], layer)
        return found

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


def _restore_score(metric: str, layer: dict[str, Any]) -> float:
    """Restore a score that is not finite: infinity (no error) or NaN."""
    error = layer["weight_error"]
    if metric == "weight":
        return math.nan if error is None else float(restore_non_finite(error)["sqnr_db"])
    outputs = layer["outputs"] if metric == "sqnr" else []
    found = [restore_non_finite(output)["sqnr_db"] for output in outputs]
    return min(found) if found and not any(map(math.isnan, found)) else math.nan
