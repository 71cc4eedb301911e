"""What can go wrong, as classes; the message of each says what was found, where, and the mend.

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
    """Anything that this package refuses, or failed at."""


class ModelError(QuantizeError, ValueError):
    """A model that cannot be read, or not quantized.

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
        Bytes from the start of the file, where the encoding itself is at fault.
    message : str or None
        The message of the ONNX schema that was being read: ``"TensorProto"``.
    field : int or None
        The number of the field in it; 0 when the tag itself could not be read.
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
    """Data beside the model is missing, short, or outside its folder.

    Attributes
    ----------
    path : pathlib.Path or None
        The model; None for one in memory, which has no folder.
    location : str or None
        The location of the data, as the model has it.
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
    """The model is well formed, but what is asked for cannot be done to it.

    Attributes
    ----------
    path : pathlib.Path or None
        The file; None for a model in memory.
    node, op_type : str or None
        The node and its operator, where one is at fault.
    feature : str or None
        What is missing, or in the way: ``"opset 21"``.
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
    """An option is unknown, out of range, or contradicts another.

    Attributes
    ----------
    option : str or None
        The option.
    """

    def __init__(self, *args: object, option: str | None = None) -> None:
        super().__init__(*args)
        self.option = option


class CalibrationError(QuantizeError):
    """No samples, samples of the wrong shape or type, NaN, or an engine that failed.

    Attributes
    ----------
    value : str or None
        The value of the model, its input, or the file or array that is at fault.
    sample : int or None
        The number of the sample, from 0.
    """

    def __init__(self, *args: object, value: str | None = None, sample: int | None = None) -> None:
        super().__init__(*args)
        self.value = value
        self.sample = sample


class MissingPackageError(QuantizeError, ImportError):
    """A package that is needed for this alone, and is not installed; the message says how to.

    Attributes
    ----------
    name : str or None
        The package: ``"matplotlib"``.
    """


class AccuracyCriteriaError(QuantizeError):
    """The result does not reach what was asked of it; nothing was written.

    Attributes
    ----------
    bar : str or None
        The option that set the bar: ``"min_sqnr"``, ``"max_accuracy_drop"`` or
        ``"require_faster"``.
    measured, expected : float or None
        What was measured and what was expected, in the unit of the option; of ``require_faster``
        the milliseconds of the result and of the float model.
    """

    def __init__(
        self,
        *args: object,
        bar: str | None = None,
        measured: float | None = None,
        expected: float | None = None,
    ) -> None:
        super().__init__(*args)
        self.bar = bar
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
