"""Ranges: the result of a calibration, which can be saved, compared and merged."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from .. import _core
from .._inputs import files
from .._inputs.model_source import ModelSource, OpenedModel, read_model
from .._inputs.run import warn
from .._options import check
from ..errors import CalibrationError, OptionError
from . import notebook
from .build import result
from .ranges_diff import RangesDiff

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["GivenRanges", "Ranges", "given_ranges", "optional_ranges"]

GivenRanges: TypeAlias = "Ranges | str | os.PathLike[str]"

_EXPECTED = "expected Ranges, as Plan.calibrate returns them, or a path that Ranges.save wrote"
_TENSORRT = "8601"  # the TensorRT version in the first line of a cache
_NO_RANGES = f"TRT-{_TENSORRT}-MinMaxCalibration\n"  # a cache without values


@runtime_checkable
class Planned(Protocol):
    """A `quantize_rs.Plan`."""

    @property
    def _plan(self) -> _core.Plan: ...


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Ranges:
    """The ranges of the activations of a model. `Plan.calibrate` returns it."""

    _ranges: _core.Ranges

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranges:
        """Read a file that `save` wrote.

        Raises
        ------
        CalibrationError
            The file does not hold ranges.
        FileNotFoundError, PermissionError, OSError
            The file cannot be read.
        """
        return cls(_core.Ranges.load(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ranges and their statistics, completely or not at all.

        The file is JSON. If the ranges hold second moments, as those of a shard do, it has the
        safetensors format, with the JSON in it.
        """
        self._ranges.save(check.path("path", path))

    @classmethod
    def load_tensorrt_cache(
        cls, path: str | os.PathLike[str], model: OpenedModel | Planned | ModelSource
    ) -> Ranges:
        """Read a calibration cache of TensorRT.

        Its ranges are symmetric and have no statistics, so `using` and `merge` do not apply.

        Parameters
        ----------
        path : path
            The cache.
        model : Model, Plan, path, bytes or onnx.ModelProto
            The model that the cache belongs to.

        Raises
        ------
        CalibrationError
            The file is not a calibration cache; the message has the line. Or the model has none of
            its values.
        ModelError
            The model cannot be read.
        FileNotFoundError, PermissionError, OSError
            A file cannot be read.
        """
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        opened = _read(model)
        found = cls(_core.Ranges.from_tensorrt(text, opened))
        if found.values and found.values.keys().isdisjoint(opened.values()):
            name = next(iter(found.values))
            what = f"the model has none of the values of the cache, such as `{name}`"
            raise CalibrationError(what, value=name, category="input_mismatch")
        return found

    def save_tensorrt_cache(
        self, path: str | os.PathLike[str], version: str | int = _TENSORRT
    ) -> None:
        """Write a calibration cache for TensorRT, to use with the float model.

        Parameters
        ----------
        path : path
            The file, which is written completely or not at all.
        version : str or int
            The TensorRT version for the first line; TensorRT rejects other versions.

        Raises
        ------
        OptionError
            The version is empty, or has spaces or several lines.
        PermissionError, IsADirectoryError, FileNotFoundError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> ranges = plan.calibrate(digits.calibration, method="entropy")
        >>> ranges.save_tensorrt_cache("calibration.cache")
        >>> with open("calibration.cache") as cache:
        ...     print(next(cache).strip())
        TRT-8601-EntropyCalibration2
        """
        number = str(version) if isinstance(version, str | int) else ""
        if not number or not number.isprintable() or " " in number:
            what = f"version is {version!r}, expected the number of a version, as '8601'"
            raise OptionError(what, option="version")
        files.write(path, self._ranges.to_tensorrt(number))

    def using(self, method: str) -> Ranges:
        """Return the ranges of another method from the same statistics; no sample is run again.

        Parameters
        ----------
        method : str
            As in `Plan.calibrate`, except ``"auto"``, which needs samples to evaluate on.

        Raises
        ------
        OptionError
            The method is unknown.
        CalibrationError
            The method is ``"auto"``, or these ranges have no statistics.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> ranges = plan.calibrate(digits.calibration)
        >>> ranges.using("percentile:99.9").method
        'percentile:99.9'
        """
        method = check.text("method", method, "the name of a method")
        return Ranges(self._ranges.using(method))

    @classmethod
    def _of_ends(
        cls,
        model: _core.Model,
        ends: Mapping[str, tuple[float, float]],
        method: str,
        engine: str,
    ) -> Ranges:
        """Return ranges that another tool found: the ends of each value, without statistics."""
        stored = {
            "method": method,
            "engine": engine,
            "samples": 0,
            # The identity of the model.
            "model": _core.Ranges.from_tensorrt(_NO_RANGES, model).summary()["model"],
            "values": {name: {"min": 0.0, "max": 0.0} for name in ends},
        }
        return cls(_core.Ranges.from_json(json.dumps(stored))).with_values(ends)

    def with_values(self, values: Mapping[str, tuple[float, float]]) -> Ranges:
        """Return these ranges with other ends for some values.

        Parameters
        ----------
        values : dict of tuple of float
            The smallest and the largest number of each value, by its name. The range is widened to
            contain 0 where it does not. The numbers are those of the model that the plan was
            made for, in which equalization may have rescaled channels; plan with
            ``equalize=False`` to give those of your model.

        Raises
        ------
        CalibrationError
            A value has no range here, or ends are not finite or in the wrong order.
        OptionError
            `values` is not a dict, or a value is not given two numbers.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> ranges = plan.calibrate(digits.calibration)
        >>> ranges.with_values({"image": (0.0, 2.0)}).values["image"]
        (0.0, 2.0)
        """
        return Ranges(self._ranges.with_values(check.ends_by_name("values", values)))

    def diff(self, other: Ranges | str | os.PathLike[str]) -> RangesDiff:
        """Return the values whose ranges differ, the most different first.

        Parameters
        ----------
        other : Ranges or path
            The other ranges, or their file.

        Raises
        ------
        CalibrationError, FileNotFoundError, PermissionError, OSError
            As in `load`.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> ranges = plan.calibrate(digits.calibration)
        >>> print(ranges.diff(ranges))
        no difference
        """
        return result(RangesDiff, self._ranges.diff(given_ranges("other", other)._ranges))

    def merge(
        self: GivenRanges | Iterable[GivenRanges],
        other: GivenRanges | Iterable[GivenRanges] | None = None,
    ) -> Ranges:
        """Return the ranges of one calibration over the samples of both, or of all parts.

        ``first.merge(second)`` merges two, and ``Ranges.merge(parts)`` all parts of a calibration
        with `shard`; files stand for the ranges in them. The result is that of one calibration bit
        for bit. Shards hold the second moments that weights are rounded with, which `Plan.apply`
        does for the merged ranges; merged from other ranges, weights are rounded without samples.
        Ranges of ``"auto"`` cannot be merged: merge ranges of one method first. Warnings about the
        samples of all parts are logged.

        Raises
        ------
        CalibrationError
            The ranges belong to different models, methods or values; or a shard is missing, or
            given twice.
        OptionError
            There is nothing to merge with, or something that is not ranges.
        FileNotFoundError, PermissionError, OSError
            A file cannot be read.

        Examples
        --------
        >>> import quantize_rs
        >>> import numpy as np
        >>> digits = quantize_rs.examples.digits()
        >>> images = np.load(digits.calibration)
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> first, second = plan.calibrate(images[:50]), plan.calibrate(images[50:])
        >>> first.merge(second).values == plan.calibrate(images).values
        True
        """
        if isinstance(self, Ranges):
            if other is None:
                what = f"other is None, {_EXPECTED}"
                raise OptionError(what, option="other")
            merged = functools.reduce(_core.Ranges.merge, _all("other", other), self._ranges)
        else:
            parts = _all("parts", self) + ([] if other is None else _all("other", other))
            merged = _core.Ranges.merge_all(parts)
        warn(merged.warnings)
        return Ranges(merged)

    def plot(
        self, value: str | None = None, *, path: str | os.PathLike[str] | None = None
    ) -> Figure:
        """Plot a histogram of the observed numbers, and the range that was chosen.

        Parameters
        ----------
        value : str, optional
            The name of the value; by default the twelve values that are clipped most.
        path : path, optional
            As in `Report.plot`, like the return value and the errors.

        Raises
        ------
        OptionError
            There is no value with this name.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> ranges = plan.calibrate(digits.calibration, method="percentile:99.9")
        >>> figure = ranges.plot("relu4_out")
        """
        from . import plots

        return plots.of_ranges(self, value, path)

    @property
    def values(self) -> dict[str, tuple[float, float]]:
        """The range of each value, as minimum and maximum, by name."""
        found = self._summary()["values"]
        return {name: (range_["min"], range_["max"]) for name, range_ in found.items()}

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self._summary()["samples"])

    @property
    def method(self) -> str:
        """The calibration method."""
        return str(self._summary()["method"])

    @property
    def engine(self) -> str:
        """The engine that ran the model."""
        return str(self._summary()["engine"])

    @property
    def chosen(self) -> dict[str, str]:
        """The method that ``"auto"`` chose for each value; empty with other methods."""
        return dict(self._summary().get("chosen", {}))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the calibration, such as why an engine was chosen."""
        return tuple(self._summary().get("notes", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the ranges and statistics as plain dicts, lists, strings and numbers."""
        return self._ranges.to_dict()

    def to_json(self) -> str:
        """Return the ranges and statistics as JSON."""
        return self._ranges.to_json()

    def _summary(self) -> dict[str, Any]:
        """Return the ranges without the statistics, which are a hundred times as long."""
        return self._ranges.summary()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __repr__(self) -> str:
        return f"<Ranges of {len(self.values)} values: {self.method}, {self.samples} samples>"

    def _repr_html_(self) -> str:
        chosen = self.chosen
        rows = ([name, *ends, chosen.get(name)] for name, ends in self.values.items())
        header = ["value", "min", "max", "method"]
        return notebook.table(f"{self.samples} samples, {self.method}", header, rows)


def given_ranges(option: str, value: GivenRanges) -> Ranges:
    """Return ranges, which a path is read for; `option` is the name that errors use."""
    match value:
        case Ranges():
            return value
        case str() | os.PathLike():
            return Ranges.load(value)
    raise OptionError(f"{option} is of type {type(value).__name__}, {_EXPECTED}", option=option)


def optional_ranges(option: str, value: GivenRanges | None) -> Ranges | None:
    """Return ranges, or None."""
    return None if value is None else given_ranges(option, value)


def _all(option: str, value: GivenRanges | Iterable[GivenRanges]) -> list[_core.Ranges]:
    match value:
        case Ranges() | str() | os.PathLike():
            parts: list[GivenRanges] = [value]
        case _:
            parts = check.listed(option, value, "ranges, or of files with them")
    return [given_ranges(option, part)._ranges for part in parts]


def _read(model: OpenedModel | Planned | ModelSource) -> _core.Model:
    match model:
        case OpenedModel():
            return model._model
        case Planned():
            return model._plan.model
        case _:
            return read_model(model)
