"""The plan of a quantization, and the quantized model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from .._inputs.engines import Engine
from .._inputs.progress import Callback
from .._inputs.run import Run, warn, warn_after_run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._options.option_dict import OptionDict
from .._options.resolve import with_aliases
from .._results import notebook
from .._results.build import records, result
from .._results.method_comparison import MethodComparison
from .._results.ranges import Ranges, optional_ranges
from .._results.report import Report
from .._results.rows import PlannedValue
from .._results.steps import Step

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options.aliases import SamplesAliases

__all__ = ["Plan", "Quantized"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Plan:
    """The decision for each value of a model, with its reason. `Model.plan` returns it.

    Iterating yields a row for each value; ``print(plan)`` shows a table.
    """

    _plan: _core.Plan
    # The model before its passes, and the options: workers of a calibration plan anew.
    _origin: tuple[_core.Model, OptionDict]

    @property
    def values(self) -> tuple[PlannedValue, ...]:
        """One row for each value of the main graph."""
        return records(PlannedValue, self.to_dict()["values"])

    @property
    def steps(self) -> tuple[Step, ...]:
        """The passes that changed the model before planning."""
        return records(Step, self.to_dict()["steps"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the plan."""
        return tuple(self._plan.warnings)

    def calibrate(
        self,
        samples: CalibrationData | None = None,
        *,
        method: str = "minmax",
        engine: Engine = "auto",
        limit: int | None = None,
        num_samples: int = 100,
        sample_shape: Iterable[int] | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: bool | Callback | None = None,
        shard: str | tuple[int, int] | None = None,
        **aliases: Unpack[SamplesAliases],
    ) -> Ranges:
        """Run the model on samples and find the ranges of its activations.

        The result does not depend on the number of threads or the order of the samples. Ctrl-C
        stops it within a second.

        Parameters
        ----------
        samples : path, Samples, array, dict of arrays, iterable, reader, or "random"
            As `calibration_data` of `quantize_with_calibration`.
        method : str
            The calibration method: ``"minmax"``, ``"moving_average"``, ``"percentile"`` (or with a
            number, ``"percentile:99.9"``), ``"entropy"``, ``"mse"``, or ``"auto"``, which is what
            `quantize_with_calibration` uses. With 128 samples or more, ``"auto"`` evaluates all
            methods on held-back samples, and from 512 on also for each value; with fewer samples it
            is ``"mse"`` (``"mse:2"``, where clipping counts twice, for the inputs of convolutions),
            and with one sample ``"minmax"``. The default clips nothing, and `Ranges.using` computes
            ranges of another method from it without a run; ranges of ``"auto"`` cannot be merged.
        engine : "auto", "tract", "onnxruntime", or an object with ``run(dict) -> dict``
            The engine that runs the model. tract is built in; onnxruntime is the installed
            package. auto uses tract for small models that it runs correctly, and else onnxruntime,
            if it is installed. An object returns every value to observe for a dict of arrays. If
            it has a method ``prepare(model: bytes, outputs: list[str])``, that is called first,
            with a model that also has these values as outputs.
        limit : int, optional
            Use only the first N samples.
        num_samples, seed
            For ``"random"`` only.
        sample_shape
            The shape of a sample without its first axis: for ``"random"`` where the model leaves it
            open. Other samples of another shape are refused.
        threads : int, optional
            The number of samples that run in parallel; by default the number of cores, or 1 if
            `engine` is an object.
        progress : bool or callable, optional
            True shows a progress bar on standard error; a function is called with the number of
            samples done, and the total or None.
        shard : str or tuple of int, optional
            A part of the samples, ``"2/8"`` or ``(2, 8)``: every eighth sample, from the second on.
            The others are passed over: those of arrays, of ``.npy`` and ``.safetensors`` files and
            of folders of images without reading them, and all others without converting them.
            `Ranges.merge` joins the parts, which may come from several machines. The ranges hold
            the second moments that weights are rounded with; `apply` rounds them. With ``"1/1"``,
            all samples, the same ranges serve plans with other types of weights.
        **aliases
            Other names of `samples`, as in `quantize`.

        Returns
        -------
        Ranges
            The range of each value that the plan quantizes, and its statistics.

        Raises
        ------
        CalibrationError
            No samples, samples of the wrong shape or type, NaN, or an engine error.
        OptionError
            An option is unknown or out of range.
        FileNotFoundError, PermissionError, OSError
            The file of samples cannot be read.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> model = quantize_rs.open(digits.model)
        >>> ranges = model.plan(activations="uint8").calibrate(digits.calibration)
        >>> ranges.samples, ranges.values["image"]
        (200, (0.0, 1.0))

        An engine of your own:

        >>> import onnxruntime
        >>> class Engine:
        ...     def prepare(self, model, outputs):
        ...         self.session, self.outputs = onnxruntime.InferenceSession(model), outputs
        ...
        ...     def run(self, feed):
        ...         return dict(zip(self.outputs, self.session.run(self.outputs, feed)))
        >>> plan = model.plan(activations="uint8")
        >>> plan.calibrate(digits.calibration, engine=Engine()).engine
        'Engine'
        """
        (samples,) = with_aliases(aliases, samples=samples)
        source = sample_source(
            samples,
            "samples",
            self._plan.model,
            num_samples=num_samples,
            sample_shape=sample_shape,
            seed=seed,
        )
        run = Run(engine, limit, threads, progress)
        return self._calibrate(source, run, method, shard=check.shard(shard))

    def _calibrate(
        self,
        source: _core.Source,
        run: Run,
        method: str,
        *,
        keep: bool = False,
        shard: tuple[int, int] | None = None,
        quiet: bool = False,
    ) -> Ranges:
        """Run the model on samples; `quiet` logs no warnings, as for a part of the samples."""
        method = check.text("method", method, "the name of a method")
        part = None if shard is None else (*shard, True)
        with run.session() as begun:
            ranges = self._plan.calibrate(source, method, begun, keep, part)
        if not quiet:
            warn_after_run(ranges.warnings)
        return Ranges(ranges)

    def _rounded(self, ranges: Ranges, run: Run) -> Ranges:
        """Round weights with the second moments that ranges hold."""
        with run.session() as begun:
            return Ranges(self._plan.round(ranges._ranges, begun))

    def compare_methods(
        self,
        samples: CalibrationData | None = None,
        *,
        engine: Engine = "auto",
        limit: int | None = None,
        num_samples: int = 100,
        sample_shape: Iterable[int] | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: bool | Callback | None = None,
        **aliases: Unpack[SamplesAliases],
    ) -> MethodComparison:
        """Run the model on samples and compare the calibration methods.

        Some of the samples are held back. Each method finds ranges on the others, the model is
        quantized with them, and its outputs on the held-back samples are compared with those of the
        float model.

        Parameters
        ----------
        samples, engine, limit, num_samples, sample_shape, seed, threads, progress
            As in `calibrate`. An engine object needs ``prepare``, as several models are run.
        **aliases
            Other names of `samples`, as in `quantize`.

        Returns
        -------
        MethodComparison
            A row for each method, and its ranges.

        Raises
        ------
        CalibrationError, OptionError, FileNotFoundError, PermissionError, OSError
            As in `calibrate`.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> comparison = plan.compare_methods(digits.calibration)
        >>> [row.method for row in comparison.rows][:2]
        ['minmax', 'moving_average']
        """
        (samples,) = with_aliases(aliases, samples=samples)
        source = sample_source(
            samples,
            "samples",
            self._plan.model,
            num_samples=num_samples,
            sample_shape=sample_shape,
            seed=seed,
        )
        with Run(engine, limit, threads, progress).session() as run:
            comparison = self._plan.compare_methods(source, run)
        warn_after_run(comparison.warnings)
        return MethodComparison(comparison)

    def apply(self, ranges: Ranges | str | os.PathLike[str] | None = None) -> Quantized:
        """Quantize the model; the original model does not change.

        Parameters
        ----------
        ranges : Ranges or path, optional
            Ranges, or the file they were saved to. Required if the plan quantizes activations.

        Returns
        -------
        Quantized
            The quantized model and its report. Warnings of the report are logged.

        Raises
        ------
        UnsupportedModelError
            A weight holds NaN or infinity.
        CalibrationError
            The ranges are missing, or belong to another model; or the file does not hold any.
        OptionError
            `ranges` is something else.
        FileNotFoundError, PermissionError, OSError
            The file cannot be read.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan()
        >>> plan.apply().save("digits.int8.onnx").ratio > 3
        True
        """
        given = optional_ranges("ranges", ranges)
        quantized = self._applied(given)
        warn_of(quantized, given)
        return quantized

    def _applied(self, ranges: Ranges | None) -> Quantized:
        """Quantize the model without logging the warnings of the report."""
        return Quantized(self._plan.apply(None if ranges is None else ranges._ranges))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain dicts, lists, strings and numbers."""
        return self._plan.to_dict()

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return self._plan.to_json()

    def __iter__(self) -> Iterator[PlannedValue]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.to_dict()["values"])

    def __str__(self) -> str:
        return str(self._plan).rstrip("\n")

    def __repr__(self) -> str:
        return f"<Plan: {self._summary(self.values)}>"

    @staticmethod
    def _summary(values: tuple[PlannedValue, ...]) -> str:
        quantized = sum(value.quantized for value in values)
        return f"{quantized} of {len(values)} values are quantized"

    def _repr_html_(self) -> str:
        values = self.values
        rows = ([value.name, value.kind, value.source, value.why] for value in values)
        header = ["value", "type", "range from", "why"]
        return notebook.table(self._summary(values), header, rows)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Quantized:
    """A quantized model and its report. `Plan.apply` returns it."""

    _quantized: _core.Quantized

    @property
    def report(self) -> Report:
        """The report so far; `save` completes it."""
        return result(Report, self._quantized.report(), model=None)

    def save(self, path: str | os.PathLike[str], *, external_data: bool = False) -> Report:
        """Write the model, completely or not at all, and return the complete report.

        Symbolic links are followed, and the mode of an existing file is kept. From 2 GiB on,
        weights are written to ``<name>.data`` beside the file, or to the first such name that is
        free.

        Parameters
        ----------
        path
            The file to write.
        external_data
            Write weights to ``<name>.data`` whatever their size.

        Raises
        ------
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written; nothing is left behind.
        """
        target = check.path("path", path)
        return result(Report, self._quantized.save(target, external_data=external_data), model=None)

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of one file.

        Raises
        ------
        UnsupportedModelError
            The model has 2 GiB or more.
        """
        return self._quantized.to_bytes()

    def __repr__(self) -> str:
        return repr(self.report).replace("<Report:", "<Quantized:", 1)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def warn_of(quantized: Quantized, ranges: Ranges | None) -> None:
    """Log the warnings of a report, except those of the calibration, which were logged then."""
    logged = [] if ranges is None else ranges._ranges.warnings
    # They come first.
    warn(quantized._quantized.warnings[len(logged) :])


def delivered(quantized: Quantized, target: Path | None) -> Report:
    """Save the model and return its report; without a path the report holds the model."""
    if target is not None:
        return quantized.save(target)
    return dataclasses.replace(quantized.report, model=quantized.to_bytes())
