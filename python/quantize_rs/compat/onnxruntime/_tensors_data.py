"""Ranges of values, as ``onnxruntime.quantization.calibrate`` names and stores them."""

from __future__ import annotations

import json
import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any

import numpy as np

from ..._inputs.files import make_folder, write
from ..._results.ranges import Ranges
from ...errors import CalibrationError, OptionError

__all__ = [
    "CalibrationCacheEncoder",
    "TensorData",
    "TensorsData",
    "load_tensors_data",
    "save_tensors_data",
]

# The names of `CalibrationMethod`, by those of methods here.
METHODS = {
    "minmax": "MinMax",
    "moving_average": "MinMax",
    "entropy": "Entropy",
    "percentile": "Percentile",
}

_FLOATS = ("avg", "std", "lowest", "highest", "hist_edges")
_FIELDS = (*_FLOATS, "hist", "bins")


class TensorData:
    """What is known of a value: ``lowest`` and ``highest``, and what else was given."""

    def __init__(self, **fields: Any) -> None:
        """Take some of ``avg``, ``std``, ``lowest``, ``highest``, ``hist``, ``hist_edges``."""
        for name, value in fields.items():
            if name not in _FIELDS:
                raise ValueError(f"TensorData has no {name!r}, expected some of {list(_FIELDS)}")
            kind = getattr(value, "dtype", None)
            if name in _FLOATS and kind not in (np.float16, np.float32):
                raise ValueError(f"{name} is {value!r}, expected an array of float16 or float32")
            setattr(self, name, value)
        self._names = tuple(fields)

    @classmethod
    def of_range(cls, lowest: float, highest: float) -> TensorData:
        """Return the data of a range alone."""
        low, high = np.array([lowest], np.float32), np.array([highest], np.float32)
        return cls(lowest=low, highest=high)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """``lowest`` and ``highest``."""
        return self._both("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """``avg`` and ``std``."""
        return self._both("avg", "std")

    def _both(self, first: str, second: str) -> tuple[Any, Any]:
        missing = [name for name in (first, second) if name not in self._names]
        if missing:
            raise AttributeError(f"TensorData has no {missing[0]}, it has {list(self._names)}")
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, with the name of the class as ``CLS``."""
        return {name: getattr(self, name) for name in self._names} | {"CLS": type(self).__name__}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> TensorData:
        """Return what `to_dict` gave, also after JSON."""
        fields = {}
        for name, value in found.items():
            if name == "CLS":
                continue
            if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
                fields[name] = np.array(value["data"], np.dtype(value["dtype"]))
            elif name in _FLOATS and isinstance(value, int | float):
                fields[name] = np.array(value, np.float32)
            else:
                fields[name] = value
        return cls(**fields)

    def __repr__(self) -> str:
        """Return the fields."""
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
        return f"TensorData({shown})"


class TensorsData:
    """The data of values, by name; only values that are there can be replaced."""

    def __init__(self, calibration_method: Any, data: Mapping[str, Any]) -> None:
        """Take `TensorData` by name, or ``(lowest, highest)``."""
        self.calibration_method = calibration_method
        # Whether a file said that the ranges are those of a model that SmoothQuant changed.
        self.smooth_quant = False
        self.data: dict[str, TensorData] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"expected names, got {type(name).__name__}")
            self.data[name] = _data(name, value)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.data)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.data)

    def __contains__(self, name: object) -> bool:
        """Return whether a value is known."""
        return name in self.data

    def __getitem__(self, name: str) -> TensorData:
        """Return the data of a value."""
        return self.data[name]

    def __setitem__(self, name: str, value: TensorData) -> None:
        """Replace the data of a value."""
        if name not in self.data:
            raise RuntimeError(f"{name!r} is not among the values, which alone can be replaced")
        self.data[name] = value

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """Return the data."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """Return names and data."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the content, with the name of the class as ``CLS``."""
        return {
            "CLS": type(self).__name__,
            "data": self.data,
            "calibration_method": self.calibration_method,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> TensorsData:
        """Return what `to_dict` gave, also after JSON."""
        from .calibrate import CalibrationMethod

        method = found["calibration_method"]
        if isinstance(method, Mapping):
            method = CalibrationMethod[str(method["value"]).rsplit(".", 1)[-1]]
        data = found["data"].items()
        made = cls(method, {name: TensorData.from_dict(_dict(value)) for name, value in data})
        made.smooth_quant = bool(found.get("smooth_quant"))
        return made


def _dict(value: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = value.to_dict() if hasattr(value, "to_dict") else value
    return found


def _data(name: str, value: Any) -> TensorData:
    if isinstance(value, tuple) and len(value) == 2:
        return TensorData(lowest=value[0], highest=value[1])
    if isinstance(value, tuple) and len(value) == 4:
        return TensorData(lowest=value[0], highest=value[1], hist=value[2], bins=value[3])
    if not hasattr(value, "to_dict"):
        raise TypeError(f"{name!r} has {type(value).__name__}, expected TensorData")
    return value if isinstance(value, TensorData) else TensorData.from_dict(value.to_dict())


def plain(value: Any) -> Any:
    """Return a value as JSON has it, with a tag for what JSON does not have."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return {"CLS": "numpy.array", "data": array.tolist(), "dtype": str(array.dtype)}
    if hasattr(value, "name"):
        return {"CLS": type(value).__name__, "value": str(value)}
    raise TypeError(f"JSON has no {type(value).__name__}")


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes arrays, numbers of numpy, data of values and enums as JSON, with ``json.dump``."""

    def default(self, o: Any) -> Any:
        """Return what stands for an object that JSON does not have."""
        return plain(o)


def save_tensors_data(
    tensors_data: Any, path: str | os.PathLike[str], *, smooth_quant: bool = False
) -> None:
    """Write the data of values as JSON, as onnxruntime stores it, and make the folder.

    `smooth_quant` is stored with it: whether the ranges are those of a model that SmoothQuant
    changed. `quantize_static` does not take such ranges.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left behind.
    """
    make_folder(path)
    content = tensors_data
    if isinstance(tensors_data, TensorsData):
        content = tensors_data.to_dict() | {"smooth_quant": smooth_quant}
    write(path, json.dumps(content, cls=CalibrationCacheEncoder))


def load_tensors_data(path: str | os.PathLike[str]) -> TensorsData:
    """Read the data of values, of this package or of onnxruntime.

    The file may also hold `Ranges`, as ``calibration_cache_path`` and `Ranges.save` write them.

    Raises
    ------
    OptionError
        The file holds something else.
    OSError
        The file cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return TensorsData.from_dict(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        try:
            return _of_ranges(Ranges.load(path))
        except CalibrationError:
            what = f"{os.fspath(path)} holds no data of values: {error}"
            raise OptionError(what, option="path") from error


def _of_ranges(ranges: Ranges) -> TensorsData:
    from .calibrate import CalibrationMethod

    method = METHODS.get(ranges.method.partition(":")[0], "MinMax")
    data = {name: TensorData.of_range(*ends) for name, ends in ranges.values.items()}
    return TensorsData(CalibrationMethod[method], data)
