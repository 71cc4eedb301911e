"""The report of a quantization: what was done to each value, sizes, errors and timings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._inputs import files
from . import notebook
from .accuracy_control import Evaluation, OutputCheck
from .assessment import Assessment, Origin
from .base import Result
from .comparison import Comparison
from .html_report import html_page
from .layer_errors import LayerErrors
from .rows import ReportRow
from .sensitivity import Sensitivity
from .steps import Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["Report", "Sizes", "Timings"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock time of each stage, in seconds.

    Attributes
    ----------
    calibrate, apply, verify, save : float
        Running the model on samples; encoding weights and rewriting the graph; producing candidates
        and running them beside the float model; writing the file.
    """

    calibrate: float
    apply: float
    verify: float
    save: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a model by kind of content, in bytes, before and after.

    Attributes
    ----------
    before, after : int
        The size of the model, with its external data.
    floats, integers, scales : int
        Floats that were quantized, the integers in their place, and scales and zero points.
    kept : int
        Floats that were not quantized.
    rest_before, rest_after : int
        Everything else: nodes, names, existing integers, scales of activations.
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
    """What was done to each value of a model, and the resulting sizes and errors.

    ``print(report)`` shows it, ``report.to_json()`` is for programs.

    Attributes
    ----------
    input, output : str or None
        The paths of the model before and after; None for a model in memory.
    bytes_before, bytes_after : int
        Sizes of the model in bytes, with its external data.
    ratio : float
        ``bytes_before / bytes_after``.
    sizes : Sizes
        The size by kind of content.
    opset : int
        The opset of the result, which may be newer than that of the model.
    engine, method : str or None
        The engine that ran the samples, and the calibration method.
    samples : int
        The number of calibration samples; 0 if only weights were quantized.
    corrected_biases : int
        The number of biases that bias correction changed.
    steps : tuple of Step
        The passes that changed the model before planning.
    accuracy_control : Evaluation or None
        How the result was evaluated: with `verify` or accuracy criteria, as in `quantize`.
    output_check : OutputCheck or None
        Without these, the error of the outputs on a few samples, unless `check` is "none".
    seconds : Timings
        Wall-clock time of each stage, in seconds.
    values : tuple of ReportRow
        One row for each value of the main graph.
    notes : tuple of str
        Remarks on the calibration, such as why an engine was chosen.
    warnings : tuple of str
        Warnings; also logged to the logger ``quantize_rs``.
    suggestions : tuple of str
        What you can try next.
    assessment : Assessment
        The result in one sentence, with which the text and the HTML report begin.
    origin : Origin
        The version, the date, the samples and the call.
    model : bytes or None
        The model, if no `output_path` was given.
    """

    input: str | None
    output: str | None
    bytes_before: int
    bytes_after: int
    ratio: float
    sizes: Sizes
    opset: int
    engine: str | None
    method: str | None
    samples: int
    corrected_biases: int
    steps: tuple[Step, ...]
    accuracy_control: Evaluation | None
    output_check: OutputCheck | None
    seconds: Timings
    values: tuple[ReportRow, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    suggestions: tuple[str, ...]
    assessment: Assessment
    origin: Origin
    model: bytes | None

    @property
    def verified(self) -> Evaluation | None:
        """The earlier name of `accuracy_control`."""
        return self.accuracy_control

    @property
    def weights(self) -> tuple[ReportRow, ...]:
        """The rows of weights."""
        return tuple(value for value in self.values if value.role == "weight")

    @property
    def activations(self) -> tuple[ReportRow, ...]:
        """The rows of inputs of the model and of outputs of its nodes."""
        return tuple(value for value in self.values if value.role in ("input", "activation"))

    @property
    def quantized(self) -> tuple[ReportRow, ...]:
        """The rows of values that are quantized."""
        return tuple(value for value in self.values if value.quantized)

    def html(
        self,
        *,
        comparison: Comparison | None = None,
        sensitivity: Sensitivity | None = None,
        layer_errors: LayerErrors | None = None,
    ) -> str:
        """Return the report as HTML.

        It has charts of sizes, errors and ranges, and a table of all values with their reasons. The
        HTML is self-contained, needs no network, and follows the light or dark theme of the
        browser.

        Parameters
        ----------
        comparison : Comparison, optional
            A result of `compare` to include.
        sensitivity : Sensitivity, optional
            A result of `sensitivity` to include.
        layer_errors : LayerErrors, optional
            A result of `layer_errors` to include.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> report = quantize_rs.quantize(digits.model, None)
        >>> ranking = quantize_rs.sensitivity(digits.model)
        >>> report.html(sensitivity=ranking).startswith("<!DOCTYPE html>")
        True
        """
        return html_page(comparison, sensitivity, layer_errors, report=self)

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        comparison: Comparison | None = None,
        sensitivity: Sensitivity | None = None,
        layer_errors: LayerErrors | None = None,
    ) -> None:
        """Write the HTML report to a file, completely or not at all.

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
        >>> digits = quantize_rs.examples.digits()
        >>> report = quantize_rs.quantize(digits.model, None)
        >>> report.save_html("report.html")
        """
        found = self.html(comparison=comparison, sensitivity=sensitivity, layer_errors=layer_errors)
        files.write(path, found)

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot the size by kind of content, and the weights with the largest errors.

        Parameters
        ----------
        path : path, optional
            A ``.png``, ``.svg`` or ``.pdf`` file to write the plot to.

        Returns
        -------
        matplotlib.figure.Figure
            The plot, which is not registered with pyplot.

        Raises
        ------
        MissingPackageError
            matplotlib is not installed: ``pip install "quantization-rs[plot]"``.
        OptionError
            The file name has another extension.
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> report = quantize_rs.quantize(digits.model, None)
        >>> figure = report.plot(path="report.png")
        """
        from . import plots

        return plots.of_report(self, path)

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        return found | {"accuracy_control": found["verified"]}

    def _summary(self) -> str:
        weights = self.weights
        quantized = sum(value.quantized for value in weights)
        grade = self.assessment.grade
        return (
            f"{grade}, {self.bytes_before} -> {self.bytes_after} bytes, {self.ratio:.2f} times "
            f"smaller, {quantized} of {len(weights)} weights quantized{self._measured()}"
        )

    def _measured(self) -> str:
        found = self.output_check or self.accuracy_control
        sqnr = None if found is None or found.samples == 0 else found.sqnr_db
        return "" if sqnr is None else f", output SQNR {sqnr:.1f} dB"

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
