"""The arithmetic of ONNX quantization on numpy arrays, bit for bit.

``q = saturate(round_half_even(x / scale) + zero_point)`` and ``x = (q - zero_point) * scale``, as
``QuantizeLinear`` and ``DequantizeLinear`` are defined, for every integer type and for 8-bit
floats. For 8-bit floats, ``q`` is the float nearest to ``x / scale`` and the zero point is 0.

Types have their ONNX names: int2, uint2, int4, uint4, int8, uint8, float8e4m3fn (or float8),
float8e5m2, int16, uint16, int32. numpy has no integers below 8 bits: their values are int8 or
uint8, one per byte; `pack` and `unpack` convert from and to the packed form of ONNX. numpy has no
8-bit floats either: their codes are uint8, which ``ml_dtypes`` can view as floats.
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
    """Quantize floats to integers or 8-bit floats.

    Parameters
    ----------
    x : array of float32
        The numbers; not copied if they are float32 and in C order.
    scale : float, or array of float32
        One number for the whole tensor; with `axis`, an array [n] with one number for each index;
        with `block_size`, an array of the shape of `x` with the axis divided by the block size,
        rounded up.
    zero_point : int, or array of int
        The integer that represents 0, or an array of the shape of `scale`.
    dtype : str
        The ONNX type of the result.
    axis : int, optional
        The axis of the scales; a negative axis counts from the end.
    block_size : int, optional
        The number of elements along the axis that share a scale.

    Returns
    -------
    array
        Integers of `dtype` in the shape of `x`, in one byte each if `dtype` has fewer than 8 bits.
        For 8-bit floats the codes, as uint8.

    Raises
    ------
    OptionError
        The shapes do not match, a zero point is not in the range of `dtype`, or `dtype` is unknown.

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
    """Dequantize integers, or codes of 8- or 4-bit floats.

    Parameters
    ----------
    q : array of integers
        The integers, or the codes of 8- or 4-bit floats.
    scale, zero_point, axis, block_size
        As in `quantize_linear`.
    dtype : str, optional
        The ONNX type of `q`; by default its numpy type. Required below 8 bits and for floats.

    Returns
    -------
    array of float32
        The numbers, in the shape of `q`.

    Raises
    ------
    OptionError
        As in `quantize_linear`, or `q` holds integers outside the range of `dtype`.

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
    """Pack 2- or 4-bit integers as ONNX stores them, the first in the lowest bits.

    Parameters
    ----------
    values : array of integers
        The values in C order; the last byte is padded with zeros.
    dtype : str
        ``"int2"``, ``"uint2"``, ``"int4"``, ``"uint4"``, or ``"float4e2m1"`` for its codes.

    Returns
    -------
    array of uint8, one-dimensional
        The packed bytes.

    Raises
    ------
    OptionError
        `dtype` has 8 bits or more, or `values` holds integers outside its range.

    Examples
    --------
    >>> from quantize_rs import kernels
    >>> kernels.pack([1, 2, -1], "int4").tobytes().hex()
    '210f'
    """
    return _core.pack(_as(np.asarray(values), dtype).reshape(-1).view(np.int8), dtype)


def unpack(packed: ArrayLike, dtype: str, shape: int | tuple[int, ...]) -> NDArray[Any]:
    """Unpack 2- or 4-bit integers to one byte each.

    Parameters
    ----------
    packed : array of uint8, or bytes
        The bytes that `pack` returned.
    dtype : str
        ``"int2"``, ``"uint2"``, ``"int4"``, ``"uint4"``, or ``"float4e2m1"`` for its codes.
    shape : int or tuple of int
        The shape of the values.

    Returns
    -------
    array of int8 or uint8
        The values.

    Raises
    ------
    OptionError
        `dtype` has 8 bits or more, or the length of `packed` does not match `shape`.

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
    min: float,  # noqa: A002 - the usual name
    max: float,  # noqa: A002 - the usual name
    dtype: str,
    symmetric: bool = False,
) -> tuple[float, int]:
    """Return the scale and the zero point that map a range to the integers of a type.

    The range is widened to include 0, which is always represented exactly. Symmetric 8- and 16-bit
    types do not use the most negative integer; smaller types use all.

    Parameters
    ----------
    min, max : float
        The ends of the range.
    dtype : str
        The ONNX type of the integers.
    symmetric : bool
        Whether the zero point is 0, or the middle of an unsigned type.

    Returns
    -------
    scale : float
        Positive and finite, a float32.
    zero_point : int
        The integer that represents 0.

    Raises
    ------
    OptionError
        `dtype` is unknown, or the ends are not finite or not in order.

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
    """Return the numpy type that holds a value of an ONNX type."""
    signed, bits = _core.dtype_of(dtype)
    return np.dtype(f"{'int' if signed else 'uint'}{max(bits, 8)}")


def _as(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert values to C order and the numpy type for `dtype`; all must be in its range."""
    signed, bits = _core.dtype_of(dtype)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if values.dtype.kind not in "iu":
        raise OptionError(f"x has elements of {values.dtype}, expected integers", option="x")
    if values.size and not (low <= int(values.min()) and int(values.max()) <= high):
        what = f"x holds {values.min()} to {values.max()}, {dtype} has {low} to {high}"
        raise OptionError(what, option="x")
    return np.ascontiguousarray(values, dtype=_container(dtype))


def _values(packed: NDArray[np.uint8], dtype: str, elements: int) -> NDArray[Any]:
    """Return the integers, one value per element."""
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
