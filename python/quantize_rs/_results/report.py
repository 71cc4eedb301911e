"""The report: what was done to a model, and what it cost."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._inputs import files
from . import notebook
from .accuracy_control import Evaluation, parse_evaluation
from .base import Result
from .comparison import Comparison
from .html_report import html_page
from .layer_errors import LayerErrors
from .rows import ReportRow, parse_report_row
from .sensitivity import Sensitivity
from .steps import Step, parse_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["Report", "Sizes", "Timings"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds of each stage.

    Attributes
    ----------
    calibrate, apply, verify, save : float
        Running the model on samples; encoding weights and rewriting the graph; making what was
        tried and running it beside the float model; writing the file.
    """

    calibrate: float
    apply: float
    verify: float
    save: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the bytes of a model are for, before and after.

    Attributes
    ----------
    before, after : int
        The model, with the data beside it.
    floats, integers, scales : int
        Floats that became integers, these integers, their scales and zero points.
    kept : int
        Floats that stayed.
    rest_before, rest_after : int
        All else: nodes, names, integers it always had, scales of activations.
    """

    before: int
    after: int
    floats: int
    integers: int
    scales: int
    kept: int
    rest_before: int
    rest_after: int


@dataclass(frozen=True, slots=True, repr=False)
class Report(Result):
    """What was done to a model, value by value, and what it cost.

    ``print(report)`` shows it to people, ``report.to_json()`` gives it to programs.

    Attributes
    ----------
    input, output : str or None
        Where the model came from and where it went; None for a model in memory.
    bytes_before, bytes_after : int
        Bytes of the model, with the data beside it.
    ratio : float
        How many times smaller it became.
    sizes : Sizes
        What the bytes are for.
    engine, method : str or None
        Who ran the model on samples, and how ranges follow from what was seen.
    samples : int
        On how many samples; 0 when only weights were quantized.
    corrected_biases : int
        Biases that take back what quantized weights shift in the mean.
    steps : tuple of Step
        What was done to the model before planning.
    accuracy_control : Evaluation or None
        How it was judged, where it was: `verify` and the bars of `quantize`.
    seconds : Timings
        Wall-clock seconds of each stage.
    values : tuple of ReportRow
        Every value of the main graph.
    notes : tuple of str
        What calibration had to say: why this engine, which choice of range means nothing.
    warnings : tuple of str
        Things to know; they are logged to the logger ``quantize_rs``, too.
    suggestions : tuple of str
        What could be tried next, where something could.
    model : bytes or None
        The model, when no `output_path` was given.
    """

    input: str | None
    output: str | None
    bytes_before: int
    bytes_after: int
    ratio: float
    sizes: Sizes
    engine: str | None
    method: str | None
    samples: int
    corrected_biases: int
    steps: tuple[Step, ...]
    accuracy_control: Evaluation | None
    seconds: Timings
    values: tuple[ReportRow, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    suggestions: tuple[str, ...]
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    @property
    def verified(self) -> Evaluation | None:
        """The earlier name of `accuracy_control`."""
        return self.accuracy_control

    @property
    def weights(self) -> tuple[ReportRow, ...]:
        """Constants that some operator multiplies by."""
        return tuple(value for value in self.values if value.role == "weight")

    @property
    def activations(self) -> tuple[ReportRow, ...]:
        """Inputs of the model, and what its nodes make."""
        return tuple(value for value in self.values if value.role in ("input", "activation"))

    @property
    def quantized(self) -> tuple[ReportRow, ...]:
        """Values that are quantized."""
        return tuple(value for value in self.values if value.quantized)

    def html(
        self,
        *,
        comparison: Comparison | None = None,
        sensitivity: Sensitivity | None = None,
        layer_errors: LayerErrors | None = None,
    ) -> str:
        """Give the report as one page of HTML.

        Charts of sizes, errors and ranges, and a table of all values, with their reasons. The page
        needs no other file and no network, and follows the reader's light or dark theme.

        Parameters
        ----------
        comparison : Comparison, optional
            What `compare` found, to stand on the page too.
        sensitivity : Sensitivity, optional
            What `sensitivity` found.
        layer_errors : LayerErrors, optional
            What `layer_errors` found.

        Examples
        --------
        >>> import quantize_rs
        >>> report = quantize_rs.quantize("examples/digits/digits_cnn.onnx", None)
        >>> ranking = quantize_rs.sensitivity("examples/digits/digits_cnn.onnx")
        >>> report.html(sensitivity=ranking).startswith("<!DOCTYPE html>")
        True
        """
        return html_page(comparison, sensitivity, layer_errors, report=self._json)

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        comparison: Comparison | None = None,
        sensitivity: Sensitivity | None = None,
        layer_errors: LayerErrors | None = None,
    ) -> None:
        """Write what `html` gives to a file, completely or not at all.

        Parameters
        ----------
        path : path
            The file.
        comparison, sensitivity, layer_errors
            As in `html`.

        Raises
        ------
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> report = quantize_rs.quantize("examples/digits/digits_cnn.onnx", None)
        >>> report.save_html("report.html")
        """
        found = self.html(comparison=comparison, sensitivity=sensitivity, layer_errors=layer_errors)
        files.write(path, found)

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw where the bytes went, step by step, and what weights lost, the worst first.

        Parameters
        ----------
        path : path, optional
            Where the figure is written to as well: a name in ``.png``, ``.svg`` or ``.pdf``.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; pyplot knows nothing of it.

        Raises
        ------
        MissingPackageError
            matplotlib is not installed: ``pip install "quantization-rs[plot]"``.
        OptionError
            The name ends in something else.
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> report = quantize_rs.quantize("examples/digits/digits_cnn.onnx", None)
        >>> figure = report.plot(path="report.png")
        """
        from . import plots

        return plots.of_report(self, path)

    def _summary(self) -> str:
        weights = self.weights
        quantized = sum(value.quantized for value in weights)
        return (
            f"{self.bytes_before} -> {self.bytes_after} bytes, {self.ratio:.2f} times smaller, "
            f"{quantized} of {len(weights)} weights quantized"
        )

    def _repr_html_(self) -> str:
        header = ["value", "role", "shape", "type", "scale", "SQNR (dB)", "why"]
        rows = (
            [
                value.name,
                value.role,
                notebook.shape(value.shape),
                value.kind,
                None if value.scale is None else " … ".join(notebook.scales(value.scale)),
                value.sqnr_db,
                value.why,
            ]
            for value in self.values
        )
        return notebook.table(self._summary(), header, rows)


def parse_report(written: tuple[str, str], model: bytes | None = None) -> Report:
    """Read the report that the extension module wrote, as JSON and as text."""
    text, shown = written
    found = json.loads(text)
    return Report(
        input=found["input"],
        output=found["output"],
        bytes_before=found["bytes_before"],
        bytes_after=found["bytes_after"],
        ratio=found["ratio"],
        sizes=Sizes(**found["sizes"]),
        engine=found["engine"],
        method=found["method"],
        samples=found["samples"],
        corrected_biases=found["corrected_biases"],
        steps=parse_steps(found["steps"]),
        accuracy_control=parse_evaluation(found["verified"]),
        seconds=Timings(**found["seconds"]),
        values=tuple(parse_report_row(row) for row in found["values"]),
        notes=tuple(found["notes"]),
        warnings=tuple(found["warnings"]),
        suggestions=tuple(found["suggestions"]),
        model=model,
        _json=text,
        _text=shown,
    )
