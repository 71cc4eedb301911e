"""Stateful fake quantization: with an observer, with learned scales, with random rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core, observers
from .._options import check
from ..errors import OptionError
from ..observers import Observer, QParams
from .fake_quantize import (
    Floats,
    Learned,
    fake_quantize,
    fake_quantize_gradients,
    floats,
    given,
    learn_scale,
    rate,
)

__all__ = ["FakeQuantize", "LearnableFakeQuantize", "StochasticQuantize"]


class FakeQuantize:
    """Fake quantization whose scale and zero point come from an observer.

    Parameters
    ----------
    observer : str or Observer
        The observer, or its name as in `observers.observer`.
    quant_min, quant_max : int
        The smallest and the largest integer.
    **options
        Options of the observer, if it is given by name.

    Raises
    ------
    OptionError
        An option is invalid, or the observer has another integer range.

    Examples
    --------
    >>> from quantize_rs import training
    >>> fake = training.FakeQuantize("minmax", qscheme="symmetric")
    >>> fake([-1.0, 0.3])
    array([-0.9960785 ,  0.29803923], dtype=float32)
    >>> fake.enable_fake_quant(False)
    >>> fake([-1.0, 0.3])
    array([-1. ,  0.3], dtype=float32)
    """

    def __init__(
        self,
        observer: str | Observer = "moving_average_minmax",
        quant_min: int = -128,
        quant_max: int = 127,
        **options: Any,
    ) -> None:
        if isinstance(observer, Observer):
            grid = (observer.quant_min, observer.quant_max)
            if grid != (quant_min, quant_max) or options:
                what = f"observer has the grid {grid}, expected {(quant_min, quant_max)}"
                raise OptionError(what, option="observer")
        else:
            options.setdefault("dtype", holding(quant_min, quant_max))
            options |= {"quant_min": quant_min, "quant_max": quant_max}
            observer = observers.observer(observer, **options)
        self.observer = observer
        self.quant_min, self.quant_max = quant_min, quant_max
        self.mask: NDArray[np.bool_] | None = None
        self._observes = self._fakes = True

    @property
    def axis(self) -> int | None:
        """The axis of the scales."""
        return self.observer.ch_axis

    def calculate_qparams(self) -> QParams:
        """Return scale and zero point; a `CalibrationError` before the first batch."""
        return self.observer.calculate_qparams()

    def enable_observer(self, enabled: bool = True) -> None:
        """Turn the observer on or off."""
        self._observes = enabled

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Turn fake quantization on or off."""
        self._fakes = enabled

    def __call__(self, x: ArrayLike) -> Floats:
        """Observe an array and return it fake-quantized; the mask is in ``mask``."""
        array = floats(x)
        if self._observes:
            self.observer.observe(array)
        if not self._fakes:
            self.mask = np.ones(array.shape, bool)
            return array
        scale, zero_point = self.calculate_qparams()
        y, self.mask = fake_quantize(
            array,
            scale,
            zero_point,
            self.quant_min,
            self.quant_max,
            self.axis,
            return_mask=True,
        )
        return y


class LearnableFakeQuantize(FakeQuantize):
    """Fake quantization whose scale and zero point are learned (LSQ: Esser et al., 2020).

    The first batch initializes them through the observer. After that, either train them with your
    own loss, by `backward` and `step`, or reduce the error of an array with `learn`.

    Parameters
    ----------
    observer, quant_min, quant_max, **options
        As in `FakeQuantize`.
    scale_lr, zero_point_lr : float
        The learning rates.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import training
    >>> x = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)
    >>> fake = training.LearnableFakeQuantize("minmax", -8, 7, qscheme="symmetric")
    >>> y = fake(x)
    >>> gradient = fake.backward(2 * (y - x))
    >>> fake.step()
    >>> found = fake.learn(x)
    >>> found.mse <= found.mse_before
    True
    """

    def __init__(
        self,
        observer: str | Observer = "moving_average_minmax",
        quant_min: int = -128,
        quant_max: int = 127,
        scale_lr: float = 0.01,
        zero_point_lr: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(observer, quant_min, quant_max, **options)
        self.scale_lr = rate("scale_lr", scale_lr)
        self.zero_point_lr = rate("zero_point_lr", zero_point_lr)
        if "symmetric" in self.observer.qscheme:
            self.zero_point_lr = 0.0
        self.scale: NDArray[np.float64] | None = None
        self.zero_point: NDArray[np.float64] | None = None
        self.scale_grad: NDArray[np.float64] | None = None
        self.zero_point_grad: NDArray[np.float64] | None = None
        self._x: Floats | None = None
        # Whether the last call returned its input.
        self._passed = False

    def calculate_qparams(self) -> QParams:
        """Return the scale and the rounded zero point."""
        if self.scale is None or self.zero_point is None:
            return self.observer.calculate_qparams()
        scale = self.scale.astype(np.float32)
        zero_point = np.clip(np.rint(self.zero_point), self.quant_min, self.quant_max)
        if scale.ndim == 0:
            return float(scale), int(zero_point)
        return scale, zero_point.astype(np.int32)

    def __call__(self, x: ArrayLike) -> Floats:
        """Return an array fake-quantized; the first call also observes it."""
        self._x = floats(x)
        self._passed = not self._fakes
        y = super().__call__(self._x)
        if self.scale is None:
            self._start()
        return y

    def backward(self, gradient: ArrayLike) -> Floats:
        """Return the gradient of the last input, and store those of scale and zero point.

        Parameters
        ----------
        gradient : array of float32
            The gradient of the loss with respect to the result of the last call.

        Returns
        -------
        array of float32
            The gradient with respect to the input. ``scale_grad`` and ``zero_point_grad`` hold
            those of scale and zero point, times ``1 / sqrt(elements * quant_max)`` as in LSQ. If
            fake quantization was off, the gradient is returned as it is, and those are 0.

        Raises
        ------
        OptionError
            There was no call, or the gradient has not the size of its input.
        """
        if self._x is None:
            raise OptionError("backward comes after a call", option="gradient")
        scale, zero_point = self.calculate_qparams()
        found = fake_quantize_gradients(
            self._x,
            gradient,
            scale,
            zero_point,
            self.quant_min,
            self.quant_max,
            self.axis,
        )
        if self._passed:
            self.scale_grad = np.zeros_like(found.scale)
            self.zero_point_grad = np.zeros_like(found.zero_point)
            return floats(gradient).reshape(self._x.shape)
        factor = 1 / math.sqrt(max(self._x.size * self.quant_max, 1))
        self.scale_grad, self.zero_point_grad = found.scale * factor, found.zero_point * factor
        return found.x

    def step(self) -> None:
        """Update scale and zero point by the gradients that `backward` stored."""
        if self.scale is None or self.zero_point is None or self.scale_grad is None:
            raise OptionError("step comes after backward", option="gradient")
        moved = self.scale - self.scale_lr * self.scale_grad
        self.scale = np.maximum(moved, self.observer.eps)
        moved = self.zero_point - self.zero_point_lr * np.asarray(self.zero_point_grad)
        self.zero_point = np.clip(moved, self.quant_min, self.quant_max)

    def learn(self, x: ArrayLike, steps: int = 100) -> Learned:
        """Reduce the mean squared error of an array; see `learn_scale`."""
        array = floats(x)
        if self.scale is None:
            self.observer.observe(array)
            self._start()
        scale, zero_point = self.calculate_qparams()
        found = learn_scale(
            array,
            scale,
            zero_point,
            steps,
            self.quant_min,
            self.quant_max,
            self.scale_lr,
            self.zero_point_lr,
            self.axis,
        )
        self._set(found.scale, found.zero_point)
        return found

    def _start(self) -> None:
        self._set(*self.observer.calculate_qparams())
        self.enable_observer(False)

    def _set(self, scale: Any, zero_point: Any) -> None:
        self.scale = np.asarray(scale, np.float64)
        self.zero_point = np.asarray(zero_point, np.float64)


class StochasticQuantize:
    """Fake quantization that rounds up or down at random, so that the mean error is 0.

    Parameters
    ----------
    bit_width : int
        The bit width of the integers, 2 to 16.
    temperature : float
        1 rounds up with the probability of the fraction; smaller values are more deterministic, and
        0 rounds to nearest.
    seed : int
        The seed of the random numbers. Two objects with the same seed return the same arrays, call
        by call, with any number of threads; two calls of one object differ.

    Raises
    ------
    OptionError
        An option is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import training
    >>> rounded = training.StochasticQuantize(seed=1)
    >>> y = rounded(np.full(100_000, 0.3), scale=1.0)
    >>> sorted(set(y.tolist())), round(float(y.mean()), 2)
    ([0.0, 1.0], 0.3)
    """

    def __init__(self, bit_width: int = 8, temperature: float = 1.0, *, seed: int = 0) -> None:
        if not 2 <= bit_width <= 16:
            what = f"bit_width is {bit_width}, expected 2 to 16"
            raise OptionError(what, option="bit_width")
        self.bit_width = bit_width
        self.temperature = rate("temperature", temperature)
        self.quant_min, self.quant_max = -(1 << (bit_width - 1)), (1 << (bit_width - 1)) - 1
        self.seed = check.count("seed", seed)
        self._calls = 0

    def __call__(
        self,
        x: ArrayLike,
        scale: ArrayLike | None = None,
        zero_point: ArrayLike = 0,
        axis: int | None = None,
        block_size: int | None = None,
    ) -> Floats:
        """Quantize with random rounding, and dequantize.

        Parameters
        ----------
        x : array of float32
            The numbers.
        scale : float or array of float32, optional
            By default the scale that just represents the largest magnitude of `x`.
        zero_point, axis, block_size
            As in `fake_quantize`.

        Returns
        -------
        array of float32
            The dequantized numbers, in the shape of `x`.
        """
        if scale is None:
            largest = float(np.max(np.abs(floats(x)), initial=0.0))
            scale = largest / self.quant_max or 1.0
        grid = (self.quant_min, self.quant_max)
        array, numbers, grid, cut = given(x, scale, zero_point, grid, axis, block_size)
        # A seed for each call; seeds of objects with neighbouring seeds do not overlap.
        seed = (self.seed * 0x9E3779B97F4A7C15 + self._calls) % (1 << 64)
        self._calls += 1
        y = _core.fake_quantize_stochastic(
            array.reshape(-1), array.shape, numbers, grid, cut, self.temperature, seed
        )
        return y.reshape(array.shape)


def holding(quant_min: int, quant_max: int) -> str:
    """Return the smallest type that holds these integers."""
    for bits in (2, 4, 8, 16):
        for name, low in ((f"int{bits}", -(1 << bits - 1)), (f"uint{bits}", 0)):
            if low <= quant_min <= quant_max < low + (1 << bits):
                return name
    return "int32"
