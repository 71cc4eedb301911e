"""Samples and methods, as ``onnxruntime.quantization.calibrate`` names them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..._flow.model import open as open_model
from ..._inputs.model_source import ModelSource
from ..._options import check
from ..._results.ranges import Ranges
from ...errors import OptionError
from ._tensors_data import TensorData, TensorsData, load_tensors_data, save_tensors_data

__all__ = [
    "CalibraterBase",
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


class CalibrationMethod(enum.Enum):
    """Calibration methods."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(ABC):
    """Samples, one at a time: a dictionary of arrays by input name, and None at the end.

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
        if sample is None:
            raise StopIteration
        return sample

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        """Treat any class with ``get_next`` as a subclass."""
        return callable(getattr(kind, "get_next", None)) or NotImplemented


class CalibraterBase:
    """Finds the ranges of activations: `collect_data` takes samples, `compute_data` gives ranges.

    `create_calibrator` makes one. The ranges are those of the values that the operators read and
    write, as far as they can be quantized. The model is not changed, nothing is written beside it,
    and memory does not grow with the number of samples.

    Parameters
    ----------
    model_path
        The model.
    op_types_to_calibrate
        Operator types whose values are observed; by default all that can be quantized.
    method
        How ranges are found, as `quantize_rs.quantize_with_calibration` names it.
    symmetric
        Whether ranges are widened to be symmetric about 0.
    """

    _calibration_method = CalibrationMethod.MinMax

    def __init__(
        self,
        model_path: ModelSource,
        op_types_to_calibrate: Iterable[str] | None = None,
        *,
        method: str = "minmax",
        symmetric: bool = False,
    ) -> None:
        """Open the model and plan what is observed."""
        types = check.names("op_types_to_calibrate", op_types_to_calibrate)
        self._plan = open_model(model_path).plan(
            activations="uint8", target="qnn", op_types=types or None, allow_larger=True
        )
        self._method, self._symmetric = method, symmetric
        self._ranges: Ranges | None = None

    def set_execution_providers(self, execution_providers: Any = None) -> None:
        """Do nothing: samples run on the CPU."""

    def augment_graph(self) -> None:
        """Do nothing: values are observed without changing the model."""

    def create_inference_session(self) -> None:
        """Do nothing: the session is made when there are samples."""

    def collect_data(self, data_reader: Any) -> None:
        """Run samples; those of several calls count together."""
        found = self._plan.calibrate(data_reader, method=self._method)
        self._ranges = found if self._ranges is None else self._ranges.merge(found)

    def compute_data(self) -> TensorsData:
        """Return the range of each value.

        Raises
        ------
        OptionError
            `collect_data` was not called yet.
        """
        if self._ranges is None:
            what = "compute_data needs samples: call collect_data(reader) first"
            raise OptionError(what, option="data_reader")
        found = {}
        for name, (low, high) in self._ranges.values.items():
            if self._symmetric:
                high = max(abs(low), abs(high))
                low = -high
            found[name] = TensorData.of_range(low, high)
        return TensorsData(self._calibration_method, found)


class MinMaxCalibrater(CalibraterBase):
    """Ranges from the smallest to the largest value."""


class EntropyCalibrater(CalibraterBase):
    """Ranges with the least information lost (Kullback-Leibler divergence)."""

    _calibration_method = CalibrationMethod.Entropy


class PercentileCalibrater(CalibraterBase):
    """Ranges that leave out the outermost values."""

    _calibration_method = CalibrationMethod.Percentile


_UNUSED = ("averaging_constant", "max_intermediate_outputs", "num_bins", "num_quantized_bins")


def create_calibrator(
    model: ModelSource,
    op_types_to_calibrate: Iterable[str] | None = None,
    augmented_model_path: Any = "augmented_model.onnx",
    calibrate_method: Any = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Iterable[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrater for a method, like onnxruntime's function.

    Parameters
    ----------
    model, op_types_to_calibrate
        The model, and the operator types whose values are observed; by default all.
    augmented_model_path, use_external_data_format, providers
        Not needed: no second model is written, and samples run on the CPU.
    calibrate_method
        A `CalibrationMethod`.
    extra_options
        ``symmetric``, ``moving_average`` and ``percentile``; the numbers of bins have no effect.

    Raises
    ------
    OptionError
        A method or an option is not supported.

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
    del augmented_model_path, use_external_data_format, providers
    given = dict(extra_options or {})
    symmetric = bool(given.pop("symmetric", False))
    moving, percentile = given.pop("moving_average", False), given.pop("percentile", 99.999)
    for name in _UNUSED:
        given.pop(name, None)
    if given:
        what = f"extra_options has {min(given)!r}, which create_calibrator does not take"
        raise OptionError(what, option="extra_options")
    match getattr(calibrate_method, "name", None):
        case "MinMax":
            method = "moving_average" if moving else "minmax"
            return MinMaxCalibrater(
                model, op_types_to_calibrate, method=method, symmetric=symmetric
            )
        case "Entropy":
            return EntropyCalibrater(
                model, op_types_to_calibrate, method="entropy", symmetric=symmetric
            )
        case "Percentile":
            method = f"percentile:{percentile}"
            return PercentileCalibrater(
                model, op_types_to_calibrate, method=method, symmetric=symmetric
            )
    what = f"calibrate_method is {calibrate_method!r}, expected MinMax, Entropy or Percentile"
    raise OptionError(what, option="calibrate_method")
