"""The result of `compare`: a quantized model beside the original."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from . import notebook
from .assessment import Assessment, Origin
from .build import records
from .html_report import HtmlResult
from .metrics import Accuracy, IntegerOutputRow, OutputRow, Speed, worst_sqnr

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """The kernels that the runtime ran for the quantized model, after its graph optimizations.

    Attributes
    ----------
    engine : str
        The runtime that ran them; empty in comparisons of earlier versions.
    on_integers, on_floats : int
        Compute operators (Conv, MatMul, Gemm, recurrent layers, attention) that ran on integers,
        and on floats.
    share : float or None
        The fraction that ran on integers.
    by_op_type : dict of str to int
        How many nodes of each operator type ran, of all operators.
    """

    engine: str
    on_integers: int
    on_floats: int
    share: float | None
    by_op_type: dict[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(HtmlResult):
    """A quantized model beside the original. `compare` returns it.

    ``print(comparison)`` shows a table.

    Attributes
    ----------
    outputs : tuple of OutputRow
        One for each output that is a float tensor.
    not_compared : tuple of str
        Outputs that are neither floats nor integers nor booleans, and those with integers from 2^24
        on.
    sqnr_db : float or None
        SQNR of the worst output in dB; None without float outputs.
    accuracy : Accuracy or None
        The accuracy, if labels were given.
    bytes_original, bytes_quantized : int
        Sizes of the models in bytes, with their external data.
    ratio : float
        Original size divided by quantized size.
    speed : Speed or None
        The latency of both models, if it was measured.
    kernels : KernelCounts or None
        What ran on integers; None for an engine that does not report it, such as tract.
    samples : int
        The number of samples.
    engine : str
        The engine that ran the models.
    notes : tuple of str
        Remarks of the engine.
    warnings : tuple of str
        Warnings, such as that the quantized model is slower or not smaller; also logged.
    assessment : Assessment
        The comparison in one sentence, with which the text and the HTML report begin.
    origin : Origin
        The version, the date, the models, the samples and the call.
    integer_outputs : tuple of IntegerOutputRow
        One for each output of integers or booleans.
    """

    outputs: tuple[OutputRow, ...]
    not_compared: tuple[str, ...]
    sqnr_db: float | None
    accuracy: Accuracy | None
    bytes_original: int
    bytes_quantized: int
    ratio: float
    speed: Speed | None
    kernels: KernelCounts | None
    samples: int
    engine: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    assessment: Assessment
    origin: Origin
    integer_outputs: tuple[IntegerOutputRow, ...] = ()
    _part: ClassVar[str] = "comparison"

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot both models side by side: size, latency, accuracy, and the error of each output.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, like the return value and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits, samples, _ = quantize_rs.examples.digits()
        >>> report = quantize_rs.quantize(digits, "digits.int8.onnx")
        >>> found = quantize_rs.compare(digits, "digits.int8.onnx", samples, runs=5)
        >>> figure = found.plot()
        """
        from . import plots

        return plots.of_comparison(self, path)

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        return found | {"sqnr_db": worst_sqnr(records(OutputRow, found["outputs"]))}

    def _summary(self) -> str:
        parts = [] if self.sqnr_db is None else [f"{self.sqnr_db:.2f} dB"]
        parts.append(f"{self.ratio:.2f} times smaller")
        if self.speed is not None:
            parts.append(f"{self.speed.speedup:.2f} times as fast")
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        header = ["output", "SQNR (dB)", "cosine", "largest error", "same top-1"]
        rows = (
            [row.name, row.sqnr_db, f"{row.cosine:.6f}", row.max_abs, row.top1_agreement]
            for row in self.outputs
        )
        return notebook.table(self._summary(), header, rows)
