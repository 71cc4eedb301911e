"""Arrays on their way to the extension module and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CalibrationError

# Name, element type, shape, and the elements as bytes, little-endian and in C order.
Array: TypeAlias = tuple[str, str, Sequence[int], npt.NDArray[np.uint8]]


def array_of(name: str, value: Any, place: str = "") -> Array:
    """Give what the extension module takes.

    Nothing is copied when the elements are little-endian and in C order already.
    """
    try:
        array = as_numpy(value)
    except (ValueError, TypeError, RuntimeError) as error:
        what = f"a {type(value).__name__} does not become an array: {error}{place}"
        raise CalibrationError(what, value=name or None) from error
    if array.dtype.hasobject or (array.dtype.kind in "SUVMm" and array.dtype.name != "bfloat16"):
        what = f"an array of {array.dtype} holds no plain numbers{place}"
        raise CalibrationError(what, value=name or None)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
    return name, array.dtype.name, array.shape, array.reshape(-1).view(np.uint8)


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """Give a numpy array, of a torch tensor that gradients flow through or on a device, too."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def as_feed(arrays: Iterable[Array]) -> dict[str, npt.NDArray[Any]]:
    """Give what a model is fed with: arrays by input name, which are not copied."""
    return dict(map(_given, arrays))


def _given(array: Array) -> tuple[str, npt.NDArray[Any]]:
    name, dtype, shape, elements = array
    try:
        return name, elements.view(np.dtype(dtype)).reshape(shape)
    except TypeError as error:  # bfloat16, which numpy knows once ml_dtypes is imported
        what = f"numpy has no {dtype}: import ml_dtypes, or use another engine"
        raise CalibrationError(what, value=name) from error
