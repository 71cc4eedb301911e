"""The arithmetic of ONNX quantization on numpy arrays, bit for bit.

``q = saturate(round_half_even(x / scale) + zero_point)`` and ``x = (q - zero_point) * scale``, as
``QuantizeLinear`` and ``DequantizeLinear`` are defined, for every integer type there is and for
floats of 8 bits, where ``q`` is the float nearest to ``x / scale`` and the zero point is 0.

Types are called by their ONNX names: int2, uint2, int4, uint4, int8, uint8, float8e4m3fn (or
float8), float8e5m2, int16, uint16, int32. numpy has no integers below 8 bits: their values come as
int8 or uint8, one in a byte; `pack` and `unpack` change between that and the way ONNX stores them.
Nor has it floats of 8 bits: their codes come as uint8, which ``ml_dtypes`` can view as floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._options import check
from .errors import OptionError

__all__ = ["dequantize_linear", "pack", "quantize_linear", "scale_zero_point", "unpack"]


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    dtype: str = "uint8",
    axis: int | None = None,
    block_size: int | None = None,
) -> NDArray[Any]:
    """Turn floats into integers, or floats of 8 bits.

    Parameters
    ----------
    x : array of float32
        The numbers; not copied when float32 and in C order.
    scale : float, or array of float32
        A number for the whole tensor; with `axis`, an array [n] of one for each index along it;
        with `block_size`, an array of the shape of `x`, the axis divided by the block size
        (rounded up).
    zero_point : int, or array of int
        The integer that stands for 0, or an array of the shape of `scale`.
    dtype : str
        The ONNX type to turn them into.
    axis : int, optional
        The axis that scales lie along; negative ones count from the end.
    block_size : int, optional
        Elements along the axis that share a scale.

    Returns
    -------
    array
        Integers in the shape of `x`: of `dtype`, or in a byte each where that has fewer bits; of
        floats the codes, as uint8.

    Raises
    ------
    OptionError
        Shapes that do not fit together, a zero point that is not of `dtype`, an unknown `dtype`.

    Examples
    --------
    >>> from quantize_rs import kernels
    >>> kernels.quantize_linear([-1.0, 0.0, 0.5, 1.5, 9.0], 1.0, 2, "int4")
    array([1, 2, 2, 4, 7], dtype=int8)
    >>> kernels.quantize_linear([-1.0, 0.0, 0.5, 1.5, 9.0], 1.0, dtype="float8e4m3fn")
    array([184,   0,  48,  60,  81], dtype=uint8)
    """
    x = np.asarray(x, dtype=np.float32, order="C")
    numbers, cut = _numbers(x.ndim, scale, zero_point, axis, block_size)
    packed = _core.quantize_linear(x.reshape(-1), x.shape, numbers, dtype, cut)
    return _values(packed, dtype, x.size).reshape(x.shape)


def dequantize_linear(
    q: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    dtype: str | None = None,
    axis: int | None = None,
    block_size: int | None = None,
) -> NDArray[np.float32]:
    """Turn integers into the floats they stand for.

    Parameters
    ----------
    q : array of integers
        The integers, or the codes of floats of 8 or 4 bits.
    scale, zero_point, axis, block_size
        As in `quantize_linear`.
    dtype : str, optional
        The ONNX type of the integers; that of `q` by default. Needed below 8 bits, and for floats.

    Returns
    -------
    array of float32
        Numbers in the shape of `q`.

    Raises
    ------
    OptionError
        As in `quantize_linear`, or `q` holds integers that `dtype` does not.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import kernels
    >>> kernels.dequantize_linear(np.array([1, 2, 4], np.int8), 0.5, 2)
    array([-0.5,  0. ,  1. ], dtype=float32)
    """
    q = np.asarray(q)
    name = q.dtype.name if dtype is None else dtype
    numbers, cut = _numbers(q.ndim, scale, zero_point, axis, block_size)
    packed = pack(q, name) if _bits(name) < 8 else _as(q, name).reshape(-1).view(np.uint8)
    return _core.dequantize_linear(packed, q.shape, numbers, name, cut).reshape(q.shape)


def pack(values: ArrayLike, dtype: str) -> NDArray[np.uint8]:
    """Pack integers of 2 or 4 bits as ONNX stores them: the first in the lowest bits.

    Parameters
    ----------
    values : array of integers
        Values in C order; the last byte is filled up with zeros.
    dtype : str
        ``"int2"``, ``"uint2"``, ``"int4"``, ``"uint4"``, or ``"float4e2m1"``, whose codes they are.

    Returns
    -------
    array of uint8, with one axis
        The bytes.

    Raises
    ------
    OptionError
        `dtype` fills whole bytes, or `values` holds integers that it does not.

    Examples
    --------
    >>> from quantize_rs import kernels
    >>> kernels.pack([1, 2, -1], "int4").tobytes().hex()
    '210f'
    """
    return _core.pack(_as(np.asarray(values), dtype).reshape(-1).view(np.int8), dtype)


def unpack(packed: ArrayLike, dtype: str, shape: int | tuple[int, ...]) -> NDArray[Any]:
    """Unpack integers of 2 or 4 bits, one into a byte each.

    Parameters
    ----------
    packed : array of uint8, or bytes
        What `pack` gave.
    dtype : str
        ``"int2"``, ``"uint2"``, ``"int4"``, ``"uint4"``, or ``"float4e2m1"``, whose codes they are.
    shape : int or tuple of int
        The shape of the values.

    Returns
    -------
    array of int8 or uint8
        The values.

    Raises
    ------
    OptionError
        `dtype` fills whole bytes, or `packed` has not the length that `shape` asks for.

    Examples
    --------
    >>> from quantize_rs import kernels
    >>> kernels.unpack(bytes.fromhex("210f"), "int4", 3)
    array([ 1,  2, -1], dtype=int8)
    """
    if isinstance(packed, (bytes, bytearray, memoryview)):
        packed = np.frombuffer(packed, np.uint8)
    flat = np.ascontiguousarray(packed, dtype=np.uint8).reshape(-1)
    lengths = (shape,) if isinstance(shape, int) else shape
    elements = 1
    for length in lengths:
        elements *= check.count("shape", length)
    elements = check.count("shape", elements)
    values = _core.unpack(flat, dtype, elements).reshape(lengths)
    return values if _signed(dtype) else values.view(np.uint8)


def scale_zero_point(
    min: float,  # noqa: A002 - the word for it
    max: float,  # noqa: A002 - the word for it
    dtype: str,
    symmetric: bool = False,
) -> tuple[float, int]:
    """Give the scale and the zero point that lay the integers of a type over a range.

    The range is widened to hold 0, which every grid says exactly. Symmetric 8 and 16 bits leave
    out the most negative integer; below, all are used.

    Parameters
    ----------
    min, max : float
        The smallest and the largest number.
    dtype : str
        The ONNX type of the integers.
    symmetric : bool
        The zero point is 0, or the middle of an unsigned type.

    Returns
    -------
    scale : float
        Positive and finite, a float32.
    zero_point : int
        The integer that stands for 0.

    Raises
    ------
    OptionError
        An unknown `dtype`, or ends that are not finite or not in order.

    Examples
    --------
    >>> from quantize_rs import kernels
    >>> kernels.scale_zero_point(0.0, 255.0, "uint8")
    (1.0, 0)
    """
    return _core.scale_zero_point(min, max, dtype, symmetric)


def _bits(dtype: str) -> int:
    return _core.dtype_of(dtype)[1]


def _signed(dtype: str) -> bool:
    return _core.dtype_of(dtype)[0]


def _container(dtype: str) -> np.dtype[Any]:
    """Give the numpy type that holds a value of an ONNX type."""
    signed, bits = _core.dtype_of(dtype)
    return np.dtype(f"{'int' if signed else 'uint'}{max(bits, 8)}")


def _as(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Give the values in C order and in the numpy type for `dtype`, all of which it must hold."""
    signed, bits = _core.dtype_of(dtype)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if values.dtype.kind not in "iu":
        raise OptionError(f"x has elements of {values.dtype}, expected integers", option="x")
    if values.size and not (low <= int(values.min()) and int(values.max()) <= high):
        what = f"x holds {values.min()} to {values.max()}, {dtype} has {low} to {high}"
        raise OptionError(what, option="x")
    return np.ascontiguousarray(values, dtype=_container(dtype))


def _values(packed: NDArray[np.uint8], dtype: str, elements: int) -> NDArray[Any]:
    """Give the integers in their bytes, one value an element."""
    if _bits(dtype) < 8:
        return unpack(packed, dtype, elements)
    return packed.view(_container(dtype).newbyteorder("<"))


def _numbers(
    rank: int,
    scale: ArrayLike,
    zero_point: ArrayLike,
    axis: int | None,
    block_size: int | None,
) -> tuple[
    tuple[NDArray[np.float32], tuple[int, ...], NDArray[np.int32]],
    tuple[int | None, int | None],
]:
    scales = np.asarray(scale, dtype=np.float32)
    if axis is None and scales.shape == (1,):
        scales = scales.reshape(())
    zeros = np.asarray(zero_point)
    if zeros.dtype.kind not in "iu":
        what = f"zero_point has elements of {zeros.dtype}, expected integers"
        raise OptionError(what, option="zero_point")
    zeros = np.clip(zeros, -(1 << 31), (1 << 31) - 1).astype(np.int32)
    if zeros.size == 1:
        zeros = np.broadcast_to(zeros.reshape(()), scales.shape)
    elif zeros.shape != scales.shape:
        what = f"zero_point has shape {zeros.shape}, scale has {scales.shape}"
        raise OptionError(what, option="zero_point")
    if axis is not None:
        if not -rank <= axis < rank:
            what = f"axis is {axis}, expected {-rank} to {rank - 1}"
            raise OptionError(what, option="axis")
        axis %= rank
    cut = (axis, check.optional_count("block_size", block_size, least=1))
    flat = (np.ascontiguousarray(scales).reshape(-1), np.ascontiguousarray(zeros).reshape(-1))
    return (flat[0], scales.shape, flat[1]), cut
