"""Observers: they collect the ranges of batches during training, for scale and zero point.

They compute the same as PyTorch's observers with the same names, in Rust, on numpy arrays or
anything that converts to one. PyTorch's names of types work too: ``"quint8"``, or ``torch.quint8``
itself.

>>> from quantize_rs import observers
>>> observer = observers.MinMaxObserver(dtype="uint8")
>>> observer.observe([-1.0, 2.0])
>>> observer.observe([0.0, 4.0])
>>> scale, zero_point = observer.calculate_qparams()
>>> round(scale, 6), zero_point  # (4 - -1) / 255
(0.019608, 51)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._inputs.arrays import as_numpy
from ._options import check
from .errors import CalibrationError, OptionError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "EntropyObserver",
    "HistogramObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAverageObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "MseObserver",
    "Observer",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
    "observer",
]

QParams: TypeAlias = tuple[float, int] | tuple[NDArray[np.float32], NDArray[np.int32]]

_TYPES = {"quint8": "uint8", "qint8": "int8", "quint4x2": "uint4", "qint32": "int32"}
_SCHEMES = {
    "affine": (False, None),
    "symmetric": (True, None),
    "per_tensor_affine": (False, False),
    "per_tensor_symmetric": (True, False),
    "per_channel_affine": (False, True),
    "per_channel_symmetric": (True, True),
}


class Options(TypedDict, total=False):
    """The options of every observer; see `Observer`."""

    dtype: Any
    qscheme: Any
    reduce_range: bool
    quant_min: int | None
    quant_max: int | None
    eps: float


class Observer:
    """The base class of observers.

    Parameters
    ----------
    dtype : str
        The type of the integers: ``"uint8"``, ``"int8"``, ``"int4"``, ..., or ``"quint8"``,
        ``"qint8"``.
    qscheme : str
        ``"affine"``, or ``"symmetric"``: the zero point is 0, or the middle of an unsigned type.
        PyTorch's names, such as ``"per_tensor_affine"``, work if they match the observer.
    reduce_range : bool
        Whether to use one bit less.
    quant_min, quant_max : int, optional
        The smallest and the largest integer, instead of those of `dtype`.
    eps : float
        The smallest scale.

    Raises
    ------
    OptionError
        An option is invalid; the message has its name and value.

    Examples
    --------
    >>> from quantize_rs import observers
    >>> observer = observers.MinMaxObserver("int4", "symmetric")
    >>> observer.quant_min, observer.quant_max
    (-8, 7)
    """

    _name = "minmax"
    ch_axis: int | None = None
    averaging_constant = 0.01
    bins = 2048

    def __init__(
        self,
        dtype: Any = "uint8",
        qscheme: Any = "affine",
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = float(np.finfo(np.float32).eps),
    ) -> None:
        said = str(dtype).removeprefix("torch.")
        self.dtype = _TYPES.get(said, said)
        self.qscheme = str(qscheme).removeprefix("torch.")
        if (scheme := _SCHEMES.get(self.qscheme)) is None:
            what = f"qscheme is {self.qscheme!r}, expected one of {', '.join(_SCHEMES)}"
            raise OptionError(what, option="qscheme")
        symmetric, per_channel = scheme
        channels = self.ch_axis is not None
        if per_channel is not None and per_channel != channels:
            has = "a range for each channel" if channels else "one range for the whole array"
            what = f"qscheme is {self.qscheme!r}, but {type(self).__name__} has {has}"
            raise OptionError(what, option="qscheme")
        if (quant_min is None) != (quant_max is None):
            option = "quant_min" if quant_min is None else "quant_max"
            raise OptionError(
                f"{option} is None, expected a number beside the other", option=option
            )
        grid = None if quant_min is None or quant_max is None else (quant_min, quant_max)
        self._observer = _core.Observer(
            self._name,
            self.dtype,
            symmetric,
            reduce_range,
            grid,
            eps,
            self.averaging_constant,
            check.count("bins", self.bins),
        )
        self.quant_min, self.quant_max = self._observer.grid
        self.eps = eps

    def observe(self, x: ArrayLike) -> None:
        """Update the ranges with a batch.

        Parameters
        ----------
        x : array of float32
            The batch, of any shape. An empty batch is ignored.

        Raises
        ------
        OptionError
            The batch holds NaN or infinity, or the number of channels changed.
        """
        array = np.asarray(as_numpy(x), dtype=np.float32, order="C")
        axis = self.ch_axis
        if not array.size:
            return
        if axis is not None:
            if not -array.ndim <= axis < array.ndim:
                what = f"ch_axis is {axis}, expected one of {array.ndim} axes"
                raise OptionError(what, option="ch_axis")
            axis %= array.ndim
        self._observer.observe(array.reshape(-1), array.shape, axis)

    def __call__(self, x: ArrayLike) -> Any:
        """Update the ranges with a batch, and return the batch."""
        self.observe(x)
        return x

    @property
    def min_val(self) -> float | NDArray[np.float32]:
        """The smallest value, or one per channel; infinity before the first batch."""
        return self._end(0, np.inf)

    @property
    def max_val(self) -> float | NDArray[np.float32]:
        """The largest value, or one per channel; -infinity before the first batch."""
        return self._end(1, -np.inf)

    def _end(self, end: int, nothing: float) -> float | NDArray[np.float32]:
        ends = [found[end] for found in self._observer.ranges()]
        if self.ch_axis is not None:
            return np.array(ends, np.float32)
        return ends[0] if ends else nothing

    def calculate_qparams(self) -> QParams:
        """Return scale and zero point.

        Returns
        -------
        scale : float, or array of float32 [n]
            One for the whole array, or one for each channel.
        zero_point : int, or array of int32 [n]
            The integer that represents 0.

        Raises
        ------
        CalibrationError
            No batch was observed.
        """
        scale, zero_point = self._observer.qparams()
        if not len(scale):
            raise CalibrationError(f"{type(self).__name__} has observed nothing")
        if self.ch_axis is not None:
            return scale, zero_point
        return float(scale[0]), int(zero_point[0])

    def reset_min_max_vals(self) -> None:
        """Reset the observer."""
        self._observer.reset()

    def __repr__(self) -> str:
        """Show the observed range."""
        seen = f"min_val={self.min_val}, max_val={self.max_val}"
        return f"{type(self).__name__}(dtype={self.dtype!r}, qscheme={self.qscheme!r}, {seen})"


class MinMaxObserver(Observer):
    """Observes the smallest and the largest value of all batches."""


class MovingAverageMinMaxObserver(Observer):
    """Averages the extremes of batches: ``all + averaging_constant * (batch - all)``.

    The average starts from the first batch.

    Parameters
    ----------
    averaging_constant : float
        The weight of a new batch, above 0 and up to 1.
    **options
        As in `Observer`.

    Examples
    --------
    >>> from quantize_rs import observers
    >>> observer = observers.MovingAverageMinMaxObserver(averaging_constant=0.5)
    >>> observer.observe([0.0, 2.0])
    >>> observer.observe([0.0, 4.0])
    >>> observer.max_val
    3.0
    """

    _name = "moving_average_minmax"

    def __init__(self, averaging_constant: float = 0.01, **options: Unpack[Options]) -> None:
        self.averaging_constant = averaging_constant
        super().__init__(**options)


class PerChannelMinMaxObserver(Observer):
    """Observes the smallest and the largest value of each index along an axis.

    Parameters
    ----------
    ch_axis : int
        The axis; a negative axis counts from the end.
    **options
        As in `Observer`.

    Examples
    --------
    >>> from quantize_rs import observers
    >>> observer = observers.PerChannelMinMaxObserver(0, dtype="int8", qscheme="symmetric")
    >>> observer.observe([[1.0, -2.0], [0.5, 4.0]])
    >>> observer.max_val
    array([1., 4.], dtype=float32)
    """

    def __init__(self, ch_axis: int = 0, **options: Unpack[Options]) -> None:
        self.ch_axis = ch_axis
        super().__init__(**options)


class MovingAveragePerChannelMinMaxObserver(Observer):
    """Averages the extremes of each index along an axis.

    Parameters
    ----------
    averaging_constant, ch_axis
        As in `MovingAverageMinMaxObserver` and `PerChannelMinMaxObserver`.
    **options
        As in `Observer`.
    """

    _name = "moving_average_minmax"

    def __init__(
        self, averaging_constant: float = 0.01, ch_axis: int = 0, **options: Unpack[Options]
    ) -> None:
        self.averaging_constant, self.ch_axis = averaging_constant, ch_axis
        super().__init__(**options)


class HistogramObserver(Observer):
    """Chooses the range with the least expected squared error, from a growing histogram.

    Bins are removed at either end, those with fewer values first, as long as the expected squared
    error falls.

    Parameters
    ----------
    bins : int
        The number of bins.
    **options
        As in `Observer`.
    """

    _name = "histogram"

    def __init__(self, bins: int = 2048, **options: Unpack[Options]) -> None:
        self.bins = bins
        super().__init__(**options)


class PercentileObserver(Observer):
    """Chooses the range by percentile, as the calibration method ``"percentile"``.

    Parameters
    ----------
    percentile : float
        The percentage of values that the range keeps at each end: above 50 and up to 100.
    **options
        As in `Observer`.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import observers
    >>> observer = observers.PercentileObserver(99.0)
    >>> observer.observe(np.append(np.linspace(0, 1, 10_000), 1000.0))
    >>> observer.max_val < 1
    True
    """

    _name = "percentile"

    def __init__(self, percentile: float = 99.999, **options: Unpack[Options]) -> None:
        self.percentile = check.number("percentile", percentile)
        self._name = f"percentile:{self.percentile}"
        super().__init__(**options)


class EntropyObserver(Observer):
    """Chooses the range that preserves the distribution best, as the method ``"entropy"``."""

    _name = "entropy"


class MseObserver(Observer):
    """Chooses the range with the least mean squared error, as the method ``"mse"``.

    Each call counts as one sample; the method uses how samples differ.

    Parameters
    ----------
    weight : float
        How often the errors of clipped values count, from 1 to 1000: 2 stands for the
        method ``"mse:2"``.
    **options
        As in `Observer`.

    Examples
    --------
    >>> import numpy as np
    >>> from quantize_rs import observers
    >>> values = np.random.default_rng(0).normal(size=10_000)
    >>> ends = []
    >>> for weight in (1, 100):
    ...     observer = observers.MseObserver(weight, dtype="int4", qscheme="symmetric")
    ...     observer.observe(values)
    ...     ends.append(observer.max_val)
    >>> ends[0] < ends[1]
    True
    """

    _name = "mse"

    def __init__(self, weight: float = 1.0, **options: Unpack[Options]) -> None:
        self.weight = check.number("weight", weight)
        self._name = f"mse:{self.weight}"
        super().__init__(**options)


class MovingAverageObserver(Observer):
    """Averages the extremes of all batches alike, as the method ``"moving_average"``.

    The order of batches makes no difference, unlike in `MovingAverageMinMaxObserver`.
    """

    _name = "moving_average"


_ALL: dict[str, type[Observer]] = {
    "minmax": MinMaxObserver,
    "moving_average": MovingAverageObserver,
    "moving_average_minmax": MovingAverageMinMaxObserver,
    "per_channel_minmax": PerChannelMinMaxObserver,
    "moving_average_per_channel_minmax": MovingAveragePerChannelMinMaxObserver,
    "histogram": HistogramObserver,
    "percentile": PercentileObserver,
    "entropy": EntropyObserver,
    "mse": MseObserver,
}

# The option that a number after the colon of a name stands for.
_NUMBERS = {"percentile": "percentile", "mse": "weight"}


def observer(name: str, **options: Any) -> Observer:
    """Create an observer by name.

    Parameters
    ----------
    name : str
        ``"minmax"``, ``"moving_average"``, ``"moving_average_minmax"``, ``"per_channel_minmax"``,
        ``"moving_average_per_channel_minmax"``, ``"histogram"``, ``"percentile"``, ``"entropy"`` or
        ``"mse"``. A number may follow ``percentile`` and ``mse``, as in calibration methods:
        ``"percentile:99.9"``, ``"mse:2"``.
    **options
        The options of its class.

    Returns
    -------
    Observer
        The new observer.

    Raises
    ------
    OptionError
        The name is unknown, or what follows it is no number, out of range, or given twice.

    Examples
    --------
    >>> from quantize_rs import observers
    >>> observers.observer("histogram", bins=512).bins
    512
    >>> observers.observer("percentile:99.9").percentile
    99.9
    """
    plain, colon, number = str(name).partition(":")
    kind, option = _ALL.get(plain), _NUMBERS.get(plain)
    if kind is None or (colon and option is None):
        what = f"observer is {name!r}, expected one of {', '.join(_ALL)}"
        raise OptionError(what, option="observer")
    if colon and option is not None:
        if option in options:
            what = f"{option} is {options[option]!r}, and observer is {name!r}: give one of them"
            raise OptionError(what, option=option)
        options = {**options, option: _number(name, number)}
    return kind(**options)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        what = f"observer is {name!r}, expected a number after the colon"
        raise OptionError(what, option="observer") from None
