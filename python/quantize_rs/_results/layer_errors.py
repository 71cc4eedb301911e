"""What `layer_errors` found: where a quantized model loses accuracy."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from . import notebook
from .html_report import HtmlResult
from .metrics import ErrorMetrics, restore_non_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
class LayerErrors(HtmlResult):
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
        from . import plots

        return plots.of_layer_errors(self, path)

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
        return notebook.table(self._summary(), header, rows)


def parse_layer_errors(json_text: str, text: str) -> LayerErrors:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(json_text)
    return LayerErrors(
        values=tuple(_value(value) for value in found["values"]),
        samples=found["samples"],
        engine=found["engine"],
        notes=tuple(found["notes"]),
        _json=json_text,
        _text=text,
    )


def _value(found: dict[str, Any]) -> LayerError:
    for which in ("own", "accumulated"):
        found[which] = ErrorMetrics(**restore_non_finite(found[which]))
    return LayerError(**found)


def _rank(decibels: float) -> float:
    """NaN is the worst there is."""
    return decibels if decibels == decibels else float("-inf")
