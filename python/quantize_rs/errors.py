"""Exceptions. Each message says what was found, where, and how to fix it.

::

    QuantizeError(Exception)
    ├── ModelError(QuantizeError, ValueError)
    │   ├── ModelFormatError
    │   ├── ExternalDataError
    │   └── UnsupportedModelError
    ├── OptionError(QuantizeError, ValueError)
    ├── CalibrationError(QuantizeError)
    ├── MissingPackageError(QuantizeError, ImportError)
    └── AccuracyCriteriaError(QuantizeError)

Files that cannot be read or written raise Python's own ``FileNotFoundError``, ``PermissionError``,
``IsADirectoryError`` or ``OSError``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = [
    "AccuracyCriteriaError",
    "CalibrationError",
    "ExternalDataError",
    "MissingPackageError",
    "ModelError",
    "ModelFormatError",
    "OptionError",
    "QuantizeError",
    "UnsupportedModelError",
]


class QuantizeError(Exception):
    """The base class of all errors of this package."""


class ModelError(QuantizeError, ValueError):
    """A model cannot be read or quantized.

    Attributes
    ----------
    path : pathlib.Path or None
        The file; None for a model in memory.
    """

    def __init__(self, *args: object, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(*args)
        self.path = None if path is None else Path(path)


class ModelFormatError(ModelError):
    """The bytes are not a well-formed and legal ONNX model.

    Attributes
    ----------
    path : pathlib.Path or None
        The file; None for a model in memory.
    offset : int or None
        Offset in the file, in bytes, when the encoding itself is malformed.
    message : str or None
        The message of the ONNX schema that was being read, such as ``"TensorProto"``.
    field : int or None
        The number of the field in that message; 0 when the tag itself could not be read.
    """

    def __init__(
        self,
        *args: object,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        message: str | None = None,
        field: int | None = None,
    ) -> None:
        super().__init__(*args, path=path)
        self.offset = offset
        self.message = message
        self.field = field


class ExternalDataError(ModelError):
    """External data is missing, too short, or outside the folder of the model.

    Attributes
    ----------
    path : pathlib.Path or None
        The model file; None for a model in memory, which has no folder.
    location : str or None
        The location of the data, as written in the model.
    """

    def __init__(
        self,
        *args: object,
        path: str | os.PathLike[str] | None = None,
        location: str | None = None,
    ) -> None:
        super().__init__(*args, path=path)
        self.location = location


class UnsupportedModelError(ModelError):
    """The model is well formed, but the operation is not supported for it.

    Attributes
    ----------
    path : pathlib.Path or None
        The file; None for a model in memory.
    node, op_type : str or None
        The node that is not supported, and its operator type.
    feature : str or None
        The feature that is missing or not supported, such as ``"opset 21"``.
    """

    def __init__(
        self,
        *args: object,
        path: str | os.PathLike[str] | None = None,
        node: str | None = None,
        op_type: str | None = None,
        feature: str | None = None,
    ) -> None:
        super().__init__(*args, path=path)
        self.node = node
        self.op_type = op_type
        self.feature = feature


class OptionError(QuantizeError, ValueError):
    """An option is unknown, out of range, or conflicts with another option.

    Attributes
    ----------
    option : str or None
        The name of the option.
    """

    def __init__(self, *args: object, option: str | None = None) -> None:
        super().__init__(*args)
        self.option = option


class CalibrationError(QuantizeError):
    """Calibration failed: no samples, a wrong shape or type, NaN, or an engine error.

    Attributes
    ----------
    value : str or None
        The name of the model value, input, file or array that caused the error.
    sample : int or None
        The index of the sample, starting at 0.
    category : str or None
        ``"no_samples"``, ``"data"`` (a file or array is not usable), ``"input_mismatch"`` (wrong
        name, rank, shape or type), ``"non_finite"``, ``"unsupported"`` (the engine cannot run the
        model), ``"engine"`` (it failed) or ``"cancelled"``.
    """

    def __init__(
        self,
        *args: object,
        value: str | None = None,
        sample: int | None = None,
        category: str | None = None,
    ) -> None:
        super().__init__(*args)
        self.value = value
        self.sample = sample
        self.category = category


class MissingPackageError(QuantizeError, ImportError):
    """An optional package is not installed; the message says how to install it.

    Attributes
    ----------
    name : str or None
        The name of the package, such as ``"matplotlib"``.
    """


class AccuracyCriteriaError(QuantizeError):
    """The result does not meet the accuracy criteria; no file was written.

    Attributes
    ----------
    criterion : str or None
        The option that sets the criterion: ``"min_sqnr"``, ``"max_accuracy_drop"`` or
        ``"require_faster"``.
    measured, expected : float or None
        The measured and the required value, in the unit of the option. For ``require_faster``:
        the latency of the result and of the float model, in milliseconds.
    """

    def __init__(
        self,
        *args: object,
        criterion: str | None = None,
        measured: float | None = None,
        expected: float | None = None,
    ) -> None:
        super().__init__(*args)
        self.criterion = criterion
        self.measured = measured
        self.expected = expected


if TYPE_CHECKING:
    BelowBarError = AccuracyCriteriaError
else:

    def __getattr__(name: str) -> Any:
        """Give `AccuracyCriteriaError` by its name in earlier versions."""
        if name == "BelowBarError":
            return AccuracyCriteriaError
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
