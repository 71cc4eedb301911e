"""Conversion of arrays to and from the extension module."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CalibrationError

# Name, element type, shape, and the elements as bytes, little-endian and in C order.
Array: TypeAlias = tuple[str, str, Sequence[int], npt.NDArray[np.uint8]]

# On some platforms these are float64 and complex128.
_TOO_WIDE = {np.dtype(np.longdouble), np.dtype(np.clongdouble)} - {
    np.dtype(np.float64),
    np.dtype(np.complex128),
}


def array_of(name: str, value: Any, place: str = "") -> Array:
    """Convert a value to what the extension module takes.

    Elements that are little-endian and in C order are not copied.
    """
    which = f"`{name}`: " if name else ""
    if value is None:
        raise CalibrationError(f"{which}None is no array of numbers{place}", value=name or None)
    array = named_numpy(name, value, place)
    if array.dtype.kind in "OSUVMm" and array.dtype.name != "bfloat16":
        hint = f" but {objects_in(array)}" if array.dtype.hasobject else ""
        what = f"{which}an array of {array.dtype} holds no plain numbers{hint}{place}"
        raise CalibrationError(what, value=name or None)
    if array.dtype.newbyteorder("=") in _TOO_WIDE:
        what = f"{which}an array of {array.dtype} is beyond 64 bits: cast it to float32{place}"
        raise CalibrationError(what, value=name or None)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
    return name, array.dtype.name, array.shape, array.reshape(-1).view(np.uint8)


def named_numpy(name: str, value: Any, place: str) -> npt.NDArray[Any]:
    """Convert to a numpy array, or raise an error that names the value and its place."""
    try:
        return as_numpy(value)
    except (ValueError, TypeError, RuntimeError) as error:
        which = f"`{name}`: " if name else ""
        what = f"{which}a {type(value).__name__} does not become an array: {error}{place}"
        raise CalibrationError(what, value=name or None) from error


def objects_in(array: npt.NDArray[Any]) -> str:
    """Say what an array of objects holds in place of numbers."""
    for one in array.flat:
        if one is None:
            return "a null"
        if isinstance(one, Decimal):
            return "decimals: cast them to float"
        if not isinstance(one, Real):
            return f"objects of type {type(one).__name__}"
        if isinstance(one, Integral) and not -(2**63) <= int(one) < 2**64:
            return "an integer beyond 64 bits"
    return "numbers as objects: cast them to float"


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """Convert to a numpy array; torch tensors are detached and moved to the CPU first."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if not hasattr(value, "__array__") and callable(convert := getattr(value, "numpy", None)):
        value = convert()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("elements are masked: replace them with .filled(number)")
    return np.asarray(value)


def as_feed(arrays: Iterable[Array]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by input name, without a copy."""
    return dict(map(_given, arrays))


def _given(array: Array) -> tuple[str, npt.NDArray[Any]]:
    name, dtype, shape, elements = array
    try:
        return name, elements.view(np.dtype(dtype)).reshape(shape)
    except TypeError as error:  # bfloat16: numpy has it only once ml_dtypes is imported
        what = f"numpy has no {dtype}: import ml_dtypes, or use another engine"
        raise CalibrationError(what, value=name) from error


def array_in(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file.

    Raises ValueError if it is none, before anything is allocated for what it claims to hold.
    """
    file = io.BytesIO(data)
    try:
        # Version 3 differs from 2 only in the encoding of names, which plain numbers have not.
        first = np.lib.format.read_magic(file) == (1, 0)
        header = (
            np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = header(file)
    except (tokenize.TokenError, SyntaxError, TypeError, MemoryError) as error:
        raise ValueError(f"its header is damaged: {error}") from error
    count = math.prod(shape)
    if dtype.hasobject or any(length < 0 for length in shape):
        raise ValueError(f"{shape} of {dtype} holds no plain numbers")
    if count * dtype.itemsize > len(data) - file.tell():
        raise ValueError(f"it ends before {shape} of {dtype}")
    if not count or not dtype.itemsize:
        return np.zeros(shape, dtype)
    found = np.frombuffer(data, dtype, count, file.tell())
    return found.reshape(shape, order="F" if fortran else "C")
