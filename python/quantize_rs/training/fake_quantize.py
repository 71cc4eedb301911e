"""Fake quantization of arrays, its gradients, and scales that learn from them."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core, kernels
from .._inputs.arrays import as_numpy
from .._options import check
from ..errors import OptionError

__all__ = ["Gradients", "Learned", "fake_quantize", "fake_quantize_gradients", "learn_scale"]

Floats = NDArray[np.float32]


class Gradients(NamedTuple):
    """The gradients of a loss, propagated back through fake quantization."""

    x: Floats
    scale: NDArray[np.float64]
    zero_point: NDArray[np.float64]


class Learned(NamedTuple):
    """The learned scale and zero point, and the mean squared errors before and after."""

    scale: Any
    zero_point: Any
    mse_before: float
    mse: float


@overload
def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    axis: int | None = None,
    block_size: int | None = None,
    *,
    return_mask: Literal[False] = False,
) -> Floats: ...
@overload
def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    axis: int | None = None,
    block_size: int | None = None,
    *,
    return_mask: Literal[True],
) -> tuple[Floats, NDArray[np.bool_]]: ...
def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    axis: int | None = None,
    block_size: int | None = None,
    *,
    return_mask: bool = False,
) -> Floats | tuple[Floats, NDArray[np.bool_]]:
    """Quantize and dequantize an array, as the quantized network will.

    Bit-identical to `kernels.dequantize_linear` of `kernels.quantize_linear`.

    Parameters
    ----------
    x : array of float32
        The numbers.
    scale, zero_point, axis, block_size
        As in `kernels.quantize_linear`.
    quant_min, quant_max : int
        The smallest and the largest integer.
    return_mask : bool
        Whether to return the mask too.

    Returns
    -------
    y : array of float32
        The dequantized numbers, in the shape of `x`.
    mask : array of bool
        With `return_mask`: True for elements that were not clipped. There the gradient of `x` is
        that of `y` (straight-through estimator), elsewhere it is 0.

    Raises
    ------
    OptionError
        The shapes do not match, or a zero point is not between `quant_min` and `quant_max`.

    Examples
    --------
    >>> from quantize_rs import training
    >>> training.fake_quantize([0.3, 0.9, 4.0], 0.25, quant_min=-8, quant_max=7)
    array([0.25, 1.  , 1.75], dtype=float32)
    """
    array, numbers, grid, cut = given(
        x, scale, zero_point, (quant_min, quant_max), axis, block_size
    )
    y, mask = _core.fake_quantize(array.reshape(-1), array.shape, numbers, grid, cut)
    if return_mask:
        return y.reshape(array.shape), mask.reshape(array.shape)
    return y.reshape(array.shape)


def fake_quantize_gradients(
    x: ArrayLike,
    gradient: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    axis: int | None = None,
    block_size: int | None = None,
) -> Gradients:
    """Propagate a gradient back through `fake_quantize`.

    The straight-through estimator of LSQ (Esser et al., 2020) and LSQ+ (Bhalgat et al., 2020):

    ============== ============================== ======================
    of the result  inside the range               clipped to the end q
    ============== ============================== ======================
    by x           1                              0
    by scale       round(x / scale) - x / scale   q - zero_point
    by zero_point  0                              -scale
    ============== ============================== ======================

    Parameters
    ----------
    x : array of float32
        The input of `fake_quantize`.
    gradient : array of float32
        The gradient of the loss with respect to the result, in the shape of `x`.
    scale, zero_point, quant_min, quant_max, axis, block_size
        As in `fake_quantize`.

    Returns
    -------
    Gradients
        ``x`` in the shape of `x`, ``scale`` and ``zero_point`` in the shape of `scale`. These two
        are sums, which LSQ multiplies by ``1 / sqrt(elements * quant_max)``.

    Raises
    ------
    OptionError
        The shapes do not match, or a zero point is not between `quant_min` and `quant_max`.

    Examples
    --------
    >>> from quantize_rs import training
    >>> training.fake_quantize_gradients([0.625, 9.0], [1.0, 1.0], 0.5, quant_max=7).scale
    array(6.75)
    """
    array, numbers, grid, cut = given(
        x, scale, zero_point, (quant_min, quant_max), axis, block_size
    )
    flat = floats(gradient).reshape(-1)
    found = _core.fake_quantize_gradients(array.reshape(-1), flat, array.shape, numbers, grid, cut)
    of_x, of_scale, of_zero_point = found
    shape = numbers[1]
    return Gradients(
        of_x.reshape(array.shape), of_scale.reshape(shape), of_zero_point.reshape(shape)
    )


def learn_scale(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    steps: int = 100,
    quant_min: int = -128,
    quant_max: int = 127,
    scale_lr: float = 0.01,
    zero_point_lr: float = 0.01,
    axis: int | None = None,
    block_size: int | None = None,
) -> Learned:
    """Learn scales and zero points that reduce the error of fake quantization.

    Runs Adam on the gradients of `fake_quantize_gradients`, separately for each group, and returns
    the best step, so the error is never larger than at the start. The result does not depend on the
    unit of `x`.

    Parameters
    ----------
    x : array of float32
        The numbers, all finite.
    scale, zero_point
        The initial values. Scales are finite, and not 0.
    steps : int
        The number of steps.
    quant_min, quant_max, axis, block_size
        As in `fake_quantize`.
    scale_lr : float
        The relative change of a scale in one step, approximately.
    zero_point_lr : float
        The change of a zero point in one step, approximately; 0 keeps it, as for symmetric weights.

    Returns
    -------
    Learned
        ``scale`` and ``zero_point`` in the form they were given, ``mse_before`` and ``mse``.

    Raises
    ------
    OptionError
        As in `fake_quantize`; or `x` holds NaN or infinity, or a rate is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import training
    >>> x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    >>> found = training.learn_scale(x, abs(x).max() / 7, quant_min=-8, quant_max=7)
    >>> found.mse < found.mse_before
    True
    """
    array, numbers, grid, cut = given(
        x, scale, zero_point, (quant_min, quant_max), axis, block_size
    )
    rates = (rate("scale_lr", scale_lr), rate("zero_point_lr", zero_point_lr))
    (scales, zeros), before, after = _core.learn_scale(
        array.reshape(-1), array.shape, numbers, grid, cut, check.count("steps", steps), rates
    )
    if not numbers[1]:
        return Learned(float(scales[0]), int(zeros[0]), before, after)
    return Learned(scales.reshape(numbers[1]), zeros.reshape(numbers[1]), before, after)


def floats(x: ArrayLike) -> Floats:
    """Convert to an array of float32 in C order."""
    return np.asarray(as_numpy(x), dtype=np.float32, order="C")


def rate(option: str, value: float) -> float:
    """Return a number that is not negative."""
    if not (value >= 0 and math.isfinite(value)):
        raise OptionError(f"{option} is {value}, expected a number of at least 0", option=option)
    return float(value)


def given(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike,
    grid: tuple[int, int],
    axis: int | None,
    block_size: int | None,
) -> tuple[Floats, Any, tuple[int, int], tuple[int | None, int | None]]:
    """Convert array, scales, integer range and axis to what the extension module takes."""
    array, (low, high) = floats(x), grid
    if not -(1 << 24) <= low < high <= 1 << 24:
        what = f"quant_min is {low}, expected less than quant_max, {high}, and at most 24 bits"
        raise OptionError(what, option="quant_min")
    numbers, cut = kernels._numbers(array.ndim, scale, zero_point, axis, block_size)
    return array, numbers, grid, cut
