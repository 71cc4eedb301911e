"""The kernels against numpy, bit for bit."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantize_rs import OptionError, kernels

TYPES = ["int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32"]
NARROW = TYPES[:4]

shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9)
numbers = st.floats(-(2.0**120), 2.0**120, width=32)  # beyond, the end of the range overflows
scales = st.floats(2.0**-60, 2.0**60, width=32)


def bounds(dtype: str) -> tuple[int, int]:
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def quantized(x: Any, scale: Any, zero_point: Any, dtype: str) -> npt.NDArray[np.int64]:
    """ONNX's definition of QuantizeLinear."""
    with np.errstate(over="ignore"):
        rounded = np.rint(np.float32(x) / np.float32(scale)).astype(np.float64)
    low, high = bounds(dtype)
    return np.asarray(np.clip(rounded + zero_point, low, high), np.int64)


def dequantized(q: Any, scale: Any, zero_point: Any) -> npt.NDArray[np.float32]:
    """ONNX's definition of DequantizeLinear."""
    with np.errstate(over="ignore", under="ignore"):
        difference = np.asarray(q, np.int64) - np.asarray(zero_point, np.int64)
        return np.asarray(difference.astype(np.float32) * np.asarray(scale, np.float32))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[npt.NDArray[np.float32], str]:
    """Numbers of which many fall inside the grid and some do not."""
    x = draw(
        hnp.arrays(np.float32, draw(shapes), elements=numbers | st.floats(-300, 300, width=32))
    )
    return x, draw(st.sampled_from(TYPES))


@given(tensors(), scales | st.sampled_from([0.5, 1.0, 0.1]), st.data())
def test_one_scale_for_the_tensor(
    tensor: tuple[npt.NDArray[np.float32], str], scale: float, data: st.DataObject
) -> None:
    x, dtype = tensor
    zero = data.draw(st.integers(*bounds(dtype)))
    q = kernels.quantize_linear(x, scale, zero, dtype)
    np.testing.assert_array_equal(q, quantized(x, scale, zero, dtype))
    assert q.shape == x.shape
    back = kernels.dequantize_linear(q, scale, zero, dtype)
    expected = dequantized(q, scale, zero)
    np.testing.assert_array_equal(back.view(np.uint32), expected.view(np.uint32))


@given(tensors(), st.data())
def test_one_scale_for_each_index_of_an_axis(
    tensor: tuple[npt.NDArray[np.float32], str], data: st.DataObject
) -> None:
    x, dtype = tensor
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    scale, zero = _numbers(data, (x.shape[axis],), dtype)
    spread = [1] * x.ndim
    spread[axis] = -1
    _agree(x, scale, zero, dtype, scale.reshape(spread), zero.reshape(spread), axis=axis)


@given(tensors(), st.data())
def test_one_scale_for_each_block(
    tensor: tuple[npt.NDArray[np.float32], str], data: st.DataObject
) -> None:
    x, dtype = tensor
    axis = data.draw(st.integers(0, x.ndim - 1))
    size = data.draw(st.integers(1, 12))
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // size)
    scale, zero = _numbers(data, tuple(shape), dtype)
    spread = [np.take(n.repeat(size, axis), range(x.shape[axis]), axis) for n in (scale, zero)]
    _agree(x, scale, zero, dtype, *spread, axis=axis, block_size=size)


def _numbers(
    data: st.DataObject, shape: tuple[int, ...], dtype: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    scale = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(2**-10, 2**10, width=32)))
    zero = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(*bounds(dtype))))
    return scale, zero


def _agree(x: Any, scale: Any, zero: Any, dtype: str, scales: Any, zeros: Any, **cut: int) -> None:
    q = kernels.quantize_linear(x, scale, zero, dtype, **cut)
    np.testing.assert_array_equal(q, quantized(x, scales, zeros, dtype))
    back = kernels.dequantize_linear(q, scale, zero, dtype, **cut)
    expected = dequantized(q, scales, zeros)
    np.testing.assert_array_equal(back.view(np.uint32), expected.view(np.uint32))


@given(st.sampled_from(NARROW), st.data())
def test_unpacking_undoes_packing(dtype: str, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(np.int8, shapes, elements=st.integers(*bounds(dtype))))
    packed = kernels.pack(values, dtype)
    bits = int(dtype.lstrip("uint"))
    assert packed.size == -(-values.size * bits // 8)
    np.testing.assert_array_equal(kernels.unpack(packed, dtype, values.shape), values)
    one = sum((int(v) % 2**bits) << bits * i for i, v in enumerate(values.reshape(-1)))
    assert int.from_bytes(packed.tobytes(), "little") == one, "the first value in the lowest bits"


@given(st.sampled_from(TYPES[:-1]), st.booleans(), numbers, numbers)
def test_the_range_fits_the_grid(dtype: str, symmetric: bool, a: float, b: float) -> None:
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    scale, zero = kernels.scale_zero_point(low, high, dtype, symmetric)
    assert scale > 0
    assert np.isfinite(scale)
    assert bounds(dtype)[0] <= zero <= bounds(dtype)[1]
    ends = kernels.quantize_linear([low, 0.0, high], scale, zero, dtype)
    back = kernels.dequantize_linear(ends, scale, zero, dtype)
    assert back[1] == 0
    # Half a step at either end; types of 4 and 2 bits clip up to a step at the shorter end.
    steps = 1.01 if symmetric and dtype in NARROW else 0.51
    error = np.abs(back.astype(np.float64) - [low, 0.0, high])
    assert (error <= steps * scale + 1e-6 * max(-low, high)).all()


def test_what_is_not_finite_saturates() -> None:
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert kernels.quantize_linear(x, 1.0, 0, "int8").tolist() == [127, -128, -128]


def test_types_of_results() -> None:
    for dtype in TYPES:
        q = kernels.quantize_linear(np.zeros((2, 3)), 1.0, 0, dtype)
        assert q.dtype.name == (dtype if dtype not in NARROW else dtype[:-1] + "8")
    assert kernels.dequantize_linear(np.zeros(3, np.uint16), 1.0).dtype == np.float32


def test_empty_arrays_are_arrays() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert kernels.quantize_linear(empty, 1.0).shape == (0, 4)
    assert kernels.pack(np.zeros(0, np.int8), "int4").size == 0
    assert kernels.unpack(b"", "int4", (0,)).size == 0


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: kernels.quantize_linear([1.0], 1.0, 0, "int5"), "dtype"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 300, "uint8"), "zero_point"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 2**40, "uint8"), "zero_point"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 0.5, "uint8"), "zero_point"),
        (lambda: kernels.quantize_linear([1.0, 2.0], [1.0, 1.0], 0, "uint8"), "scale"),
        (lambda: kernels.quantize_linear([1.0, 2.0], [1.0] * 3, 0, "uint8", axis=0), "scale"),
        (lambda: kernels.quantize_linear([1.0], [1.0], [0, 0], "uint8", axis=0), "zero_point"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 0, "uint8", axis=1), "axis"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 0, "uint8", block_size=2), "block_size"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 0, "int8", 0, 0), "block_size"),
        (lambda: kernels.dequantize_linear(np.array([8]), 1.0, 0, "int4"), "x"),
        (lambda: kernels.dequantize_linear(np.array([0.5]), 1.0, 0, "int4"), "x"),
        (lambda: kernels.pack([1, 2], "int8"), "dtype"),
        (lambda: kernels.pack([9], "int4"), "x"),
        (lambda: kernels.unpack(b"12", "int4", 5), "packed"),
        (lambda: kernels.unpack(b"12", "int4", -1), "shape"),
        (lambda: kernels.unpack(b"12", "int4", (2**40, 2**40)), "shape"),
        (lambda: kernels.scale_zero_point(0, 1, "float9"), "dtype"),
        (lambda: kernels.scale_zero_point(2, 1, "uint8"), "max"),
        (lambda: kernels.scale_zero_point(np.nan, 1, "uint8"), "max"),
        (lambda: kernels.scale_zero_point(0, np.inf, "int8", True), "max"),
        (lambda: kernels.quantize_linear([1.0], 1.0, 1, "float8"), "zero_point"),
        (lambda: kernels.dequantize_linear(np.array([256]), 1.0, 0, "float8"), "x"),
        (lambda: kernels.pack([1], "float8"), "dtype"),
    ],
)
def test_what_does_not_fit_is_named(call: Any, option: str) -> None:
    with pytest.raises(OptionError) as caught:
        call()
    assert caught.value.option == option
