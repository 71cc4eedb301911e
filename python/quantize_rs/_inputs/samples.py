"""Samples: paths, arrays, iterables, readers and random values, as a source of feeds."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import starmap
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from .. import _core
from .._options import check
from ..errors import CalibrationError, OptionError
from .arrays import Array, array_of
from .images import ImageFolder, image_source

_log = logging.getLogger("quantize_rs")


@runtime_checkable
class DataReader(Protocol):
    """ONNX Runtime's ``CalibrationDataReader``: feeds by input name, then None."""

    def get_next(self) -> Mapping[str, npt.ArrayLike] | None:
        """Return the next feed, or None at the end."""


@runtime_checkable
class ArrayLike(Protocol):
    """A numpy array, a torch tensor, or any other object with ``__array__``."""

    def __array__(self) -> npt.NDArray[Any]:
        """Return the array."""


CalibrationData: TypeAlias = (
    str
    | os.PathLike[str]
    | ImageFolder
    | ArrayLike
    | Mapping[str, Any]
    | DataReader
    | Iterable[Any]
)

_EXPECTED = (
    "expected a path (.npy, .npz, .safetensors, a folder or pattern of images), an ImageFolder, an "
    "array, a dict of arrays, an iterable of either, or an object with get_next(); "
    '"random" calibrates with noise'
)

ANALYSIS_NOISE = "analyzing with random values, which say little about real inputs"
_NOISE = (
    "calibrating with random values: the ranges of noise are not those of data, and accuracy will "
    "suffer"
)


def sample_source(
    data: CalibrationData | None,
    option: str,
    *,
    num_samples: int,
    sample_shape: Iterable[int] | None,
    seed: int,
    noise: str = _NOISE,
) -> _core.Source:
    """Return the samples in `data`; `option` is the name that errors use for it.

    `noise` is the warning that is logged for random values.
    """
    count = check.count("num_samples", num_samples, least=1)
    shape = check.shape("sample_shape", sample_shape)
    seed = check.count("seed", seed)
    if not is_noise(data):
        why = 'on samples that are given: it is for "random"'
        check.reject_unused(why, sample_shape=shape is not None, seed=seed != 0)
    match data:
        case None:
            raise OptionError(f"{option} is None, {_EXPECTED}", option=option)
        case str() if is_noise(data):
            _log.warning("%s; give real samples as %s", noise, option)
            return _core.Source.random(count, shape, seed)
        case str() | os.PathLike():
            return _core.Source.file(data)
        case ImageFolder():
            return image_source(data)
        case Mapping():
            return _core.Source.arrays([array_of(name, value) for name, value in data.items()])
        case ArrayLike():
            return _core.Source.arrays([array_of("", data)])
        case DataReader():
            return _core.Source.iterator(starmap(_item, enumerate(_feeds(data))), None)
        case Iterable():
            return _core.Source.iterator(starmap(_item, enumerate(data)), _length(data))
        case _:
            what = f"{option} is of type {type(data).__name__}, {_EXPECTED}"
            raise OptionError(what, option=option)


def is_noise(data: CalibrationData | None) -> bool:
    """Return whether `data` asks for random values."""
    return isinstance(data, str) and data == "random"


def overlap(one: CalibrationData | None, other: CalibrationData | None) -> bool:
    """Return whether both are, or share, the same object, path or memory."""
    if one is None or other is None:
        return False
    if one is other or (is_noise(one) and is_noise(other)):
        return True
    paths = [_path(data) for data in (one, other)]
    if None not in paths:
        return paths[0] == paths[1]
    arrays = [_arrays_of(data) for data in (one, other)]
    return any(np.may_share_memory(a, b) for a, b in itertools.product(*arrays))


def _path(data: CalibrationData) -> str | None:
    if is_noise(data) or not isinstance(data, str | os.PathLike | ImageFolder):
        return None
    return os.path.realpath(data.path if isinstance(data, ImageFolder) else data)


def _arrays_of(data: CalibrationData) -> list[npt.NDArray[Any]]:
    values = list(data.values()) if isinstance(data, Mapping) else [data]
    return [value for value in values if isinstance(value, np.ndarray)]


def _length(data: Iterable[Any]) -> int | None:
    """Return the number of items, or None if it is not known."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # a data loader over a dataset without a length
        return None


def _feeds(reader: DataReader) -> Iterator[Mapping[str, npt.ArrayLike]]:
    while (feed := reader.get_next()) is not None:
        yield feed


def _item(number: int, item: Any) -> list[Array]:
    """Convert one item of an iterable: a dict, an array, or a sequence that starts with either.

    A list of arrays of one shape and type is returned whole and without names, and refused later:
    it cannot be distinguished here from the arrays of several inputs.
    """
    place = f" (item {number})"
    if isinstance(item, list) and _same_shape_and_type(item):
        return [array_of("", one, place) for one in item]
    if isinstance(item, (tuple, list)) and item:
        item = item[0]
    if isinstance(item, Mapping):
        return [array_of(name, value, place) for name, value in item.items()]
    if isinstance(item, (str, os.PathLike)):
        what = f"{os.fspath(item)!r} is a path, and paths stand alone; a pattern names several"
        raise CalibrationError(what + place)
    return [array_of("", item, place)]


def _same_shape_and_type(items: list[Any]) -> bool:
    """Return whether these are several arrays of one shape and type."""
    kinds = {(str(getattr(one, "dtype", None)), str(getattr(one, "shape", None))) for one in items}
    return len(items) > 1 and len(kinds) == 1 and all(isinstance(one, ArrayLike) for one in items)
