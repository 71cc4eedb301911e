"""A quantized model beside the original: outputs, accuracy, size, latency, kernels."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypedDict

import numpy.typing as npt

from . import _core, _html, _options, _samples, _source
from ._engines import Engine
from ._measures import Accuracy, Latency, OutputRow, Speed, row, worst
from ._measures import speed as _speed
from ._model import Model
from ._page import Paged
from ._progress import Callback
from ._run import Run, warn
from ._samples import CalibrationData
from ._source import ModelSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Accuracy", "Comparison", "Kernels", "Latency", "OutputRow", "Speed", "compare"]

NOISE = "looking at random values, which say little of real inputs"


class Compared(TypedDict):
    """What to compare, as the extension module takes it."""

    labels: list[int] | None
    scores: str | None
    latency: bool
    runs: int
    latency_threads: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operators that the runtime ran for the quantized model, once it had optimized it.

    Attributes
    ----------
    on_integers, on_floats : int
        Products (convolutions, matrix products, recurrent layers, attention) that computed on
        integers, and on floats.
    share : float or None
        The part of them on integers.
    by_op_type : dict of str to int
        How often each operator ran, whatever it computes.
    """

    on_integers: int
    on_floats: int
    share: float | None
    by_op_type: dict[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Paged):
    """A quantized model beside the original. `compare` makes it.

    ``print(comparison)`` shows a table.

    Attributes
    ----------
    outputs : tuple of OutputRow
        One for each output that is a tensor of floats.
    not_compared : tuple of str
        Outputs that are none.
    sqnr_db : float or None
        That of the worst output; None without outputs of floats.
    accuracy : Accuracy or None
        Where labels were given.
    bytes_original, bytes_quantized : int
        Bytes of the models, with the data beside them.
    ratio : float
        How many times smaller the quantized model is.
    speed : Speed or None
        Where latency was measured.
    kernels : Kernels or None
        What ran on integers; None for an engine that does not tell, as tract.
    samples : int
        Samples run.
    engine : str
        Who ran them.
    notes : tuple of str
        What the engine had to say.
    warnings : tuple of str
        That the quantized model is slower, or not smaller; they are logged, too.
    """

    outputs: tuple[OutputRow, ...]
    not_compared: tuple[str, ...]
    sqnr_db: float | None
    accuracy: Accuracy | None
    bytes_original: int
    bytes_quantized: int
    ratio: float
    speed: Speed | None
    kernels: Kernels | None
    samples: int
    engine: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    _json: str = field(compare=False)
    _text: str = field(compare=False)
    _part: ClassVar[str] = "comparison"

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw both models side by side: size, latency, accuracy, and how far each output is off.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, and so are the result and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits, samples = "examples/digits/digits_cnn.onnx", "examples/digits/calibration.npy"
        >>> report = quantize_rs.quantize(digits, "digits.int8.onnx")
        >>> found = quantize_rs.compare(digits, "digits.int8.onnx", samples, runs=5)
        >>> figure = found.plot()
        """
        from . import _figures

        return _figures.of_comparison(self, path)

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
        return _html.table(self._summary(), header, rows)


def compare(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    data: CalibrationData,
    labels: npt.ArrayLike | None = None,
    *,
    scores: str | None = None,
    latency: bool = True,
    runs: int = 100,
    latency_threads: int = 1,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> Comparison:
    """Hold a quantized model against the original: outputs, accuracy, size, latency, kernels.

    Both run on every sample; memory does not grow with their number. Latency is that of the first
    sample: the models take turns, so that a busy machine troubles both alike, and runs to warm up
    do not count.

    Parameters
    ----------
    original, quantized : Model, path, bytes or onnx.ModelProto
        The models. They have the same inputs and outputs.
    data : path, ImageFolder, array, dict of arrays, iterable, reader, or "random"
        What to run them on, as `calibration_data` of `quantize_with_calibration`.
    labels : array of int, optional
        The right class of every row of every sample, for the accuracy of both.
    scores : str, optional
        The output with the scores of the classes; by default the first that looks like it: it comes
        from a softmax, or from the product that a classifier ends with.
    latency : bool
        Whether to measure how long both take.
    runs, latency_threads : int
        Runs of each model that count, and the threads that one run is computed on.
    engine : "auto", "tract" or "onnxruntime"
        Who runs the models; auto is onnxruntime where it is installed, and tract else.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`.

    Returns
    -------
    Comparison
        What was found. Its warnings are logged.

    Raises
    ------
    OptionError
        Models that do not have the same inputs or outputs, labels that are not as many as rows, or
        an option that is unknown or out of range.
    CalibrationError
        No samples, samples of the wrong shape or type, or an engine that failed.
    ModelError, FileNotFoundError, PermissionError, OSError
        A model or the data cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = "examples/digits/digits_cnn.onnx"
    >>> report = quantize_rs.quantize(digits, "digits.int8.onnx")
    >>> found = quantize_rs.compare(digits, "digits.int8.onnx", "examples/digits/calibration.npy")
    >>> found.outputs[0].top1_agreement > 0.99 and found.sqnr_db > 30
    True
    """
    if not latency:
        _options.idle(
            "where latency is False", runs=runs != 100, latency_threads=latency_threads != 1
        )
    source = _samples.source(
        data,
        "data",
        num_samples=num_samples,
        sample_shape=sample_shape,
        seed=seed,
        noise=NOISE,
    )
    options = Compared(
        labels=_options.labels(labels),
        scores=scores,
        latency=latency,
        runs=_options.count("runs", runs, least=1),
        latency_threads=_options.count("latency_threads", latency_threads, least=1),
    )
    models = (model(original), model(quantized))
    with Run(engine, limit, threads, progress).begun("comparing") as begun:
        found = _of(*_core.compare(*models, source, options, begun))
    warn(found.warnings)
    return found


def model(source: ModelSource | Model) -> _core.Model:
    """Give the model as the extension module has it."""
    return source._model if isinstance(source, Model) else _source.read(source)


def _of(said: str, text: str) -> Comparison:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(said)
    speed, kernels, accuracy = found["speed"], found["kernels"], found["accuracy"]
    outputs = tuple(row(output) for output in found["outputs"])
    return Comparison(
        outputs=outputs,
        not_compared=tuple(found["not_compared"]),
        # What is not finite is null in JSON.
        sqnr_db=worst(outputs),
        accuracy=None if accuracy is None else Accuracy(**accuracy),
        bytes_original=found["bytes_original"],
        bytes_quantized=found["bytes_quantized"],
        ratio=found["ratio"],
        speed=None if speed is None else _speed(speed),
        kernels=None if kernels is None else Kernels(**kernels),
        samples=found["samples"],
        engine=found["engine"],
        notes=tuple(found["notes"]),
        warnings=tuple(found["warnings"]),
        _json=said,
        _text=text,
    )
