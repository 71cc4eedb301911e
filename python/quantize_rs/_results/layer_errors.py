"""The result of `layer_errors`: where a quantized model loses accuracy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from . import notebook
from .assessment import Origin
from .html_report import HtmlResult
from .metrics import ErrorMetrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of one value.

    Attributes
    ----------
    name : str
        The name of the value.
    node, op_type : str
        The node that produces it in the original, and its operator type.
    quantized : bool
        Whether it is dequantized from integers.
    own : ErrorMetrics
        The error that is added since the closest compared values upstream, when these are those of
        the original.
    accumulated : ErrorMetrics
        The error that accumulates from the inputs of the model.
    """

    name: str
    node: str
    op_type: str
    quantized: bool
    own: ErrorMetrics
    accumulated: ErrorMetrics


@dataclass(frozen=True, slots=True, repr=False)
class LayerErrors(HtmlResult):
    """The error of each value of a quantized model against the original.

    ``print(errors)`` shows a table, largest own error first.

    Attributes
    ----------
    values : tuple of LayerError
        Every float32 value with the same name in both models, in topological order.
    samples : int
        The number of samples.
    engine : str
        The engine that ran the models.
    notes : tuple of str
        Remarks of the engine.
    origin : Origin
        The version, the date, the models, the samples and the call.
    """

    values: tuple[LayerError, ...]
    samples: int
    engine: str
    notes: tuple[str, ...]
    origin: Origin
    _part: ClassVar[str] = "layer_errors"

    def worst(self, count: int = 10) -> tuple[LayerError, ...]:
        """Return the values with the largest own errors, the largest first."""
        ranked = sorted(self.values, key=lambda value: _rank(value.own.sqnr_db))
        return tuple(ranked[:count])

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot a heat map of own and accumulated errors along the depth of the model.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, like the return value and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits, samples, _ = quantize_rs.examples.digits()
        >>> report = quantize_rs.quantize(digits, "digits.int8.onnx")
        >>> errors = quantize_rs.layer_errors(digits, "digits.int8.onnx", samples, limit=8)
        >>> figure = errors.plot()
        """
        from . import plots

        return plots.of_layer_errors(self, path)

    def _summary(self) -> str:
        if not self.values:
            return "no value in common"
        (worst,) = self.worst(1)
        return f"{len(self.values)} values, {worst.name} with {worst.own.sqnr_db:.2f} dB the worst"

    def _repr_html_(self) -> str:
        header = ["value", "operator", "dequantized", "own (dB)", "accumulated (dB)"]
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
        return notebook.table(self._summary(), header, rows)


def _rank(decibels: float) -> float:
    """Rank NaN as the worst."""
    return decibels if decibels == decibels else float("-inf")
