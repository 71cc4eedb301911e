"""Samples and methods, as ``onnxruntime.quantization.calibrate`` names them."""

from __future__ import annotations

import enum
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

from ..._flow.model import open as open_model
from ..._inputs.files import writable
from ..._inputs.model_source import ModelSource
from ..._inputs.row_sources import is_end
from ..._inputs.run import Run, warn_after_run
from ..._inputs.samples import sample_source
from ..._options import check
from ..._results.ranges import Ranges
from ..._transforms.infer_shapes import infer_shapes
from ...errors import CalibrationError, OptionError
from . import _calibrator_options
from ._choices import tensors_of, warn_idle, warn_providers
from ._elsewhere import hints
from ._packages import onnx_package, onnxruntime_package
from ._tensors_data import (
    CalibrationCacheEncoder,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)

__all__ = [
    "CalibraterBase",
    "CalibrationCacheEncoder",
    "CalibrationDataReader",
    "CalibrationMethod",
    "EntropyCalibrater",
    "MinMaxCalibrater",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "load_tensors_data",
    "save_tensors_data",
]

__getattr__ = hints(__name__)


StrPath: TypeAlias = str | os.PathLike[str]


class _NoPath(str):
    """The default of `augmented_model_path`: as in onnxruntime, but nothing is written there."""

    __slots__ = ()


_NO_PATH = _NoPath("augmented_model.onnx")


class CalibrationMethod(enum.Enum):
    """Calibration methods."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(ABC):
    """Samples, one at a time: a dictionary of arrays by input name, and None or ``{}`` at the end.

    You do not need to subclass it; any object with ``get_next`` works.
    """

    @abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample, or None at the end."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Select the next samples, for ``CalibStridedMinMax``; optional."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over the remaining samples."""
        return self

    def __next__(self) -> Mapping[str, Any]:
        """Return the next sample."""
        sample = self.get_next()
        if sample is None or is_end(sample):
            raise StopIteration
        return sample

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        """Treat any class with ``get_next`` as a subclass."""
        return callable(getattr(kind, "get_next", None)) or NotImplemented


class NoSamplesError(CalibrationError, ValueError):
    """There are no samples; onnxruntime raises a ValueError."""


@contextmanager
def no_samples_as_value_error() -> Iterator[None]:
    """Let the error of no samples also be a ValueError, as in onnxruntime."""
    try:
        yield
    except CalibrationError as error:
        if error.category != "no_samples":
            raise
        raise NoSamplesError(*error.args, category=error.category) from None


class CalibraterBase:
    """Finds the ranges of activations: `collect_data` takes samples, `compute_data` gives ranges.

    `create_calibrator` makes one. The ranges are those of the float values that the operators read
    and write, whether or not they can be quantized. The model is not changed, and memory does not
    grow with the number of samples.

    Parameters
    ----------
    model_path
        The model.
    op_types_to_calibrate
        Operator types whose values are observed; by default all.
    augmented_model_path
        A file that `augment_graph` writes, for readers that look there for the names and shapes of
        inputs. It is a copy of the model, without the outputs that onnxruntime adds; the
        calibration does not need it. None is written if no path is given.
    use_external_data_format
        Not needed: the copy is one file below 2 GiB, and has its weights beside it from there on.
    symmetric
        Whether ranges are widened to be symmetric about 0.
    per_channel
        Not supported: activations have one range.

    Raises
    ------
    OptionError
        `per_channel` is set.
    """

    _calibration_method = CalibrationMethod.MinMax
    _method = "minmax"

    def __init__(
        self,
        model_path: ModelSource,
        op_types_to_calibrate: Iterable[str] | None = None,
        augmented_model_path: StrPath | None = _NO_PATH,
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        """Open the model and plan what is observed."""
        self.op_types_to_calibrate, self.symmetric = op_types_to_calibrate, symmetric
        self.per_channel, self.use_external_data_format = per_channel, use_external_data_format
        self.execution_providers: Any = ["CPUExecutionProvider"]
        if per_channel:
            what = "per_channel is set, but activations have one range"
            raise OptionError(what, option="per_channel")
        types = check.names("op_types_to_calibrate", op_types_to_calibrate)
        # Ranges are those of the given model: nothing in it changes but 16-bit floats.
        self._model = model = open_model(model_path)
        not_given = isinstance(augmented_model_path, _NoPath)
        self.augmented_model_path = None if not_given else augmented_model_path
        self._names = tensors_of(model)[1]
        plan = model.plan(activations="uint8", passes=["widen_floats"], weight_algorithm="nearest")
        self._plan = plan._plan.observing(types)
        self._ranges: Ranges | None = None

    def set_execution_providers(self, execution_providers: Any = None) -> None:
        """Store the providers, and warn of others than the CPU, where samples run."""
        warn_providers(execution_providers)
        self.execution_providers = execution_providers or ["CPUExecutionProvider"]

    @cached_property
    def model(self) -> Any:
        """An ``onnx.ModelProto`` of the model with the shapes of all values.

        Raises
        ------
        MissingPackageError
            The package onnx is not installed.
        """
        onnx = onnx_package("model as an onnx.ModelProto")
        source = self._model.path or self._model._model.to_bytes()
        return onnx.load_from_string(infer_shapes(source).model)

    def augment_graph(self) -> None:
        """Write a copy of the model to `augmented_model_path`, if it is given.

        Raises
        ------
        OptionError
            That is the file of the model.
        OSError
            The file cannot be written; nothing is left behind.
        """
        option = "augmented_model_path"
        path = writable(self.augmented_model_path, self._model.path, option=option)
        if path is not None:
            self._model._model.save(path)

    @cached_property
    def infer_session(self) -> Any:
        """A session of onnxruntime on the model, for the names and shapes of its inputs.

        Raises
        ------
        MissingPackageError
            The package onnxruntime is not installed.
        """
        onnxruntime = onnxruntime_package("infer_session")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        source = self._model.path or self._model._model.to_bytes()
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def create_inference_session(self) -> None:
        """Do nothing: the session is made when there are samples."""

    def collect_data(self, data_reader: Any) -> None:
        """Run samples; those of several calls count together, in warnings too.

        Raises
        ------
        CalibrationError
            There are no samples, which is a ValueError too, or they do not fit the model.
        """
        source = sample_source(
            data_reader,
            "data_reader",
            self._plan.model,
        )
        with no_samples_as_value_error(), Run("auto", None, None, None).session() as begun:
            core = self._plan.calibrate(source, self._method, begun, keep=False)
        before = self._ranges
        self._ranges = Ranges(core if before is None else before._ranges.merge(core))

    def compute_data(self) -> TensorsData:
        """Return the range of each value, and log warnings about the samples.

        Raises
        ------
        OptionError
            `collect_data` was not called yet.
        """
        if self._ranges is None:
            what = "compute_data needs samples: call collect_data(reader) first"
            raise OptionError(what, option="data_reader")
        warn_after_run(self._ranges._ranges.warnings)
        found = {}
        for name, (low, high) in self._ranges.values.items():
            if self.symmetric:
                high = max(abs(low), abs(high))
                low = -high
            # The end of a 16-bit model in float32.
            wide = name.removesuffix("_float32")
            name = name if name in self._names else wide
            found[name] = TensorData.of_range(low, high)
        return TensorsData(self._calibration_method, found)


class MinMaxCalibrater(CalibraterBase):
    """Ranges from the smallest to the largest value, or with `moving_average` their means.

    The means are those over all rows; onnxruntime takes those over batches, which are the same if
    every batch has one row or the model fixes their size.

    `averaging_constant` has no effect, as all samples count alike; another value than the default
    gives a warning. `max_intermediate_outputs` is not needed: only counts are kept of a sample.

    Raises
    ------
    OptionError
        `moving_average` is set, and `averaging_constant` is not in 0 to 1.
    """

    def __init__(
        self,
        model_path: ModelSource,
        op_types_to_calibrate: Iterable[str] | None = None,
        augmented_model_path: StrPath | None = _NO_PATH,
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """Open the model and plan what is observed."""
        del max_intermediate_outputs
        if moving_average and not 0 <= averaging_constant <= 1:
            what = f"averaging_constant is {averaging_constant!r}, expected 0 to 1"
            raise OptionError(what, option="averaging_constant")
        warn_idle("averaging_constant", averaging_constant, 0.01, "all samples count alike")
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            per_channel,
        )
        self._method = "moving_average" if moving_average else "minmax"


_BINS = "histograms have a fixed number of bins"


def _check_method(method: str, own: str) -> None:
    if method != own:
        what = f"method is {method!r}, expected {own!r}: each calibrater has one method"
        raise OptionError(what, option="method")


class EntropyCalibrater(CalibraterBase):
    """Ranges with the least information lost (Kullback-Leibler divergence).

    The numbers of bins have no effect, and other values than the defaults give a warning: several
    hundred thresholds are tried, and none is taken whose squared error is larger than that of the
    full range.

    Raises
    ------
    OptionError
        `method` is not ``"entropy"``.
    """

    _calibration_method = CalibrationMethod.Entropy
    _method = "entropy:1"

    def __init__(
        self,
        model_path: ModelSource,
        op_types_to_calibrate: Iterable[str] | None = None,
        augmented_model_path: StrPath | None = _NO_PATH,
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        """Open the model and plan what is observed."""
        _check_method(method, "entropy")
        warn_idle("num_bins", num_bins, 128, _BINS)
        warn_idle("num_quantized_bins", num_quantized_bins, 128, _BINS)
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
        )


class PercentileCalibrater(CalibraterBase):
    """Ranges that leave out the outermost values.

    `num_bins` has no effect, and another value than the default gives a warning.

    Raises
    ------
    OptionError
        `method` is not ``"percentile"``.
    """

    _calibration_method = CalibrationMethod.Percentile

    def __init__(
        self,
        model_path: ModelSource,
        op_types_to_calibrate: Iterable[str] | None = None,
        augmented_model_path: StrPath | None = _NO_PATH,
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        """Open the model and plan what is observed."""
        _check_method(method, "percentile")
        warn_idle("num_bins", num_bins, 2048, _BINS)
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
        )
        self._method = f"percentile:{percentile}"


_CALIBRATERS: dict[str, Callable[..., CalibraterBase]] = {
    "MinMax": MinMaxCalibrater,
    "Entropy": EntropyCalibrater,
    "Percentile": PercentileCalibrater,
}


def create_calibrator(
    model: ModelSource,
    op_types_to_calibrate: Iterable[str] | None = None,
    augmented_model_path: StrPath | None = _NO_PATH,
    calibrate_method: Any = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Any = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrater for a method, like onnxruntime's function.

    Parameters
    ----------
    model, op_types_to_calibrate
        The model, and the operator types whose values are observed; by default all.
    augmented_model_path
        A file to write a copy of the model to, as `CalibraterBase` says, if it is given.
    use_external_data_format
        Not needed, as `CalibraterBase` says.
    providers
        Samples run on the CPU; other providers give a warning.
    calibrate_method
        A `CalibrationMethod`.
    extra_options
        ``symmetric``, ``moving_average`` for MinMax, and ``percentile`` for Percentile. An option
        that has no effect, as the numbers of bins and those of another method, gives a warning.

    Raises
    ------
    OptionError
        A method, an option or its value is not supported, or `augmented_model_path` is the file of
        the model.
    OSError
        `augmented_model_path` cannot be written.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import create_calibrator
    >>> digits = quantize_rs.examples.digits()
    >>> calibrater = create_calibrator(digits.model)
    >>> calibrater.collect_data(digits.calibration)
    >>> calibrater.compute_data()["image"].range_value
    (array([0.], dtype=float32), array([1.], dtype=float32))
    """
    del use_external_data_format
    name = getattr(calibrate_method, "name", "")
    if (kind := _CALIBRATERS.get(name)) is None:
        what = f"calibrate_method is {calibrate_method!r}, expected MinMax, Entropy or Percentile"
        raise OptionError(what, option="calibrate_method")
    options = _calibrator_options.of_method(name, extra_options)
    made = kind(model, op_types_to_calibrate, augmented_model_path, **options)
    made.augment_graph()
    warn_providers(providers)
    return made
