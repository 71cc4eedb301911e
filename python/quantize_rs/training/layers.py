"""Quantization configs of layers, for quantization-aware training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import _core, observers
from ..errors import OptionError
from ..observers import QParams
from .fake_quantize import Floats, fake_quantize, floats

__all__ = ["QuantizationAwareTraining", "QuantizationConfig"]


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """How to quantize an array.

    Attributes
    ----------
    dtype : str
        The type of the integers.
    symmetric : bool
        Whether quantization is symmetric.
    axis : int or None
        The axis with one scale for each index.
    group_size : int or None
        The number of elements along `axis` that share a scale.
    reduce_range : bool
        Whether to use one bit less.
    averaging_constant : float or None
        The weight of a new batch in the moving average of ranges.

    Examples
    --------
    >>> from quantize_rs.training import QuantizationConfig
    >>> QuantizationConfig.int4_per_channel().dtype
    'int4'
    >>> QuantizationConfig("int8", averaging_constant=2.0)
    Traceback (most recent call last):
        ...
    quantize_rs.errors.OptionError: averaging_constant is 2.0, expected a number between 0 and 1
    """

    dtype: str = "int8"
    symmetric: bool = True
    axis: int | None = None
    group_size: int | None = None
    reduce_range: bool = False
    averaging_constant: float | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        _core.dtype_of(self.dtype)
        if self.group_size is not None and self.group_size < 1:
            what = f"group_size is {self.group_size}, expected 1 or more"
            raise OptionError(what, option="group_size")
        if self.group_size is not None and self.axis is None:
            what = f"axis is None, expected one beside group_size {self.group_size}"
            raise OptionError(what, option="axis")
        if self.averaging_constant is not None and not 0 < self.averaging_constant < 1:
            found = self.averaging_constant
            what = f"averaging_constant is {found}, expected a number between 0 and 1"
            raise OptionError(what, option="averaging_constant")

    @classmethod
    def int8(cls) -> QuantizationConfig:
        """Return the same as `int8_symmetric`."""
        return cls.int8_symmetric()

    @classmethod
    def int8_symmetric(cls) -> QuantizationConfig:
        """8 bits, zero point 0."""
        return cls("int8", True)

    @classmethod
    def int8_asymmetric(cls) -> QuantizationConfig:
        """8 bits and a zero point."""
        return cls("int8", False)

    @classmethod
    def uint8(cls) -> QuantizationConfig:
        """8 bits without a sign and a zero point, as for activations."""
        return cls("uint8", False)

    @classmethod
    def int4(cls) -> QuantizationConfig:
        """4 bits, zero point 0."""
        return cls("int4", True)

    @classmethod
    def int4_per_channel(cls, axis: int = 0) -> QuantizationConfig:
        """4 bits, zero point 0, a scale for each channel."""
        return cls("int4", True, axis)

    @classmethod
    def per_channel(cls, axis: int = 0) -> QuantizationConfig:
        """8 bits, zero point 0, a scale for each channel."""
        return cls("int8", True, axis)

    @classmethod
    def group_wise(cls, axis: int = 0, group_size: int = 32) -> QuantizationConfig:
        """4 bits, zero point 0, a scale for each group of elements."""
        return cls("int4", True, axis, group_size)

    @classmethod
    def qat(cls) -> QuantizationConfig:
        """8 bits, zero point 0, ranges that are averaged over batches."""
        return cls("int8", True, averaging_constant=0.01)

    def options(self) -> dict[str, Any]:
        """Return the equivalent options of `quantize` for the weights of a model.

        Raises
        ------
        OptionError
            `quantize` has no equivalent of `reduce_range`.
        """
        if self.reduce_range:
            what = "reduce_range is no option of quantize: target='x86-avx2' has weights of 7 bits"
            raise OptionError(what, option="reduce_range")
        return {
            "weights": self.dtype,
            "symmetric": self.symmetric,
            "per_channel": self.axis is not None,
            "block_size": self.group_size,
        }

    def fake_quantize(self, x: ArrayLike) -> Floats:
        """Quantize an array with its own ranges, and dequantize it.

        Parameters
        ----------
        x : array of float32
            The numbers, all finite.

        Returns
        -------
        array of float32
            The dequantized numbers, in the shape of `x`.

        Raises
        ------
        OptionError
            The array does not have this axis.
        """
        array = floats(x)
        if array.size == 0:
            return array
        if self.axis is not None and not -array.ndim <= self.axis < array.ndim:
            what = f"axis is {self.axis}, the array has {array.ndim} axes"
            raise OptionError(what, option="axis")
        watching = self._observer()
        scale, zero_point = self._numbers(array, watching)
        low, high = watching.quant_min, watching.quant_max
        return fake_quantize(array, scale, zero_point, low, high, self.axis, self.group_size)

    def _observer(self) -> observers.Observer:
        """Return an observer of the whole array, or of the groups along the first axis."""
        scheme: Any = {
            "dtype": self.dtype,
            "qscheme": "symmetric" if self.symmetric else "affine",
            "reduce_range": self.reduce_range,
            # Very small numbers need a positive scale too.
            "eps": float(np.finfo(np.float32).tiny),
        }
        if self.axis is None:
            return observers.observer("minmax", **scheme)
        return observers.observer("per_channel_minmax", ch_axis=0, **scheme)

    def _numbers(self, array: Floats, watching: observers.Observer) -> QParams:
        """Return scale and zero point of each group, by PyTorch's definition."""
        if self.axis is None:
            watching.observe(array)
            return watching.calculate_qparams()
        axis = self.axis % max(array.ndim, 1)
        if self.group_size is None:
            watching.observe(np.moveaxis(array, axis, 0))
            return watching.calculate_qparams()
        # One row per group. The last group is padded with its last element, which keeps its range.
        missing = -array.shape[axis] % self.group_size
        padded = np.pad(
            np.moveaxis(array, axis, -1), [(0, 0)] * (array.ndim - 1) + [(0, missing)], "edge"
        )
        groups = padded.reshape(*padded.shape[:-1], -1, self.group_size)
        watching.observe(groups.reshape(-1, self.group_size))
        scale, zero_point = (np.asarray(found) for found in watching.calculate_qparams())
        shape = groups.shape[:-1]
        back = (np.moveaxis(found.reshape(shape), -1, axis) for found in (scale, zero_point))
        return next(back), next(back)


class QuantizationAwareTraining:
    """A registry of the quantization configs of layers, for training.

    Parameters
    ----------
    simulate : bool
        False turns fake quantization off.

    Examples
    --------
    >>> from quantize_rs.training import QuantizationAwareTraining, QuantizationConfig
    >>> training = QuantizationAwareTraining()
    >>> training.register_layer("fc1", QuantizationConfig.int8_symmetric())
    >>> training.registered_layers
    ('fc1',)
    >>> training.fake_quantize([0.5, -1.0], "fc1")
    array([ 0.5019608, -0.9960785], dtype=float32)
    """

    def __init__(self, simulate: bool = True) -> None:
        self.simulate = simulate
        self._layers: dict[str, QuantizationConfig] = {}

    def register_layer(self, layer: str, config: QuantizationConfig | None = None) -> None:
        """Set the config of a layer; `QuantizationConfig.int8_symmetric` by default."""
        if config is not None and not isinstance(config, QuantizationConfig):
            what = f"config is {config!r}, expected a QuantizationConfig"
            raise OptionError(what, option="config")
        self._layers[layer] = QuantizationConfig() if config is None else config

    def get_config(self, layer: str) -> QuantizationConfig | None:
        """Return the config of a layer, or None if it is not registered."""
        return self._layers.get(layer)

    @property
    def registered_layers(self) -> tuple[str, ...]:
        """The names of the registered layers, sorted."""
        return tuple(sorted(self._layers))

    def fake_quantize(self, x: ArrayLike, layer: str) -> Floats:
        """Fake-quantize the values of a layer; unknown layers keep theirs."""
        config = self._layers.get(layer)
        if config is None or not self.simulate:
            return floats(x)
        return config.fake_quantize(x)
