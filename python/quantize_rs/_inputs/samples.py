"""Samples: paths, arrays, iterables, readers and random values, as a source of feeds."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from .._options import check
from ..errors import CalibrationError, OptionError
from . import paths, row_sources
from .arrays import Array, array_of
from .described import Samples
from .images import ImageFolder, image_source
from .model_inputs import ModelInputs
from .row_sources import ArrayLike, DataReader, Indexed
from .rows import feeds
from .text import TextSamples

_log = logging.getLogger("quantize_rs")


CalibrationData: TypeAlias = (
    str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | ImageFolder
    | TextSamples
    | Samples
    | ArrayLike
    | Mapping[str, Any]
    | DataReader
    | Iterable[Any]
    | Indexed
)

_EXPECTED = (
    "expected a path (.npy, .npz, .safetensors, .parquet, .arrow, .jsonl, .tar, a folder or "
    "pattern of images), an ImageFolder, TextSamples, Samples, an array, a dict of arrays, a "
    "pyarrow Table, an iterable, a data set with __len__ and __getitem__, or an object with "
    'get_next(); "random" calibrates with noise'
)

NUM_SAMPLES = 100  # of "random", and the default of each function that takes it

ANALYSIS_NOISE = "analyzing with random values, which say little about real inputs"


def sample_source(
    data: CalibrationData | None,
    option: str,
    model: _core.Model,
    *,
    num_samples: int = NUM_SAMPLES,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    noise: str = _core.RANDOM_SAMPLES,
) -> _core.Source:
    """Return the samples in `data` for a model; `option` is the name that errors use for it.

    `noise` is the warning that is logged for random values.
    """
    count = check.count("num_samples", num_samples, least=1)
    shape = check.shape("sample_shape", sample_shape)
    seed = check.count("seed", seed)
    if not is_noise(data):
        why = 'on samples that are given: it is for "random"'
        check.reject_unused(f"{why}; see limit", num_samples=count != NUM_SAMPLES)
        check.reject_unused(why, seed=seed != 0)
        source = _given(data, option, model)
        return source if shape is None else _core.Source.expecting(source, shape)
    _log.warning("%s; give real samples as %s", noise, option)
    return _core.Source.random(count, shape, seed)


def _given(data: CalibrationData | None, option: str, model: _core.Model) -> _core.Source:
    """Return the samples in `data`, which asks for no random values."""
    match data:
        case None:
            raise OptionError(f"{option} is None, {_EXPECTED}", option=option)
        case ImageFolder() if not paths.ending(data.path, paths.TAR):
            return image_source(data)
    model.refuse_string_inputs()
    inputs = ModelInputs(model)
    if (rows := row_sources.opened(data, inputs)) is not None:
        # With a batch of several samples, a row may hold one or a whole batch.
        length = rows.count if inputs.batch == 1 else None
        return _core.Source.iterator(feeds(rows, inputs, rows.where), length)
    match data:
        case str() | os.PathLike():
            paths.refuse_unknown(data)
            return _core.Source.file(data)
        case Mapping():
            row_sources.refuse_splits(data, option)
            return _core.Source.arrays(
                [array_of(name, data[name]) for name in inputs.select(data, "")]
            )
        case ArrayLike() | memoryview():
            return _core.Source.arrays([array_of("", data)])
        case Samples() | DataReader() | Iterable() | Indexed():
            items = enumerate(row_sources.items(data))
            return _core.Source.iterator(
                (_item(inputs, number, item) for number, item in items), _length(data)
            )
        case _:
            what = f"{option} is of type {type(data).__name__}, {_EXPECTED}"
            raise OptionError(what, option=option)


def part_source(
    data: CalibrationData, model: _core.Model, shard: tuple[int, int]
) -> _core.Source | None:
    """Return the samples of a part of what is read in Python; None for everything else.

    The extension module itself passes over the samples of other parts.
    """
    model.refuse_string_inputs()
    inputs = ModelInputs(model)
    if is_noise(data) or (rows := row_sources.opened(data, inputs)) is None:
        return None
    own = row_sources.part(rows, inputs, shard)
    named = f"part {shard[0]}/{shard[1]} of "
    return _core.Source.iterator(feeds(own, inputs, own.where, named), None)


def is_noise(data: CalibrationData | None) -> bool:
    """Return whether `data` asks for random values."""
    return isinstance(data, str) and data == "random"


def overlap(one: CalibrationData | None, other: CalibrationData | None) -> bool:
    """Return whether both are, or share, the same object, path or memory."""
    if one is None or other is None:
        return False
    if one is other or (is_noise(one) and is_noise(other)):
        return True
    real = [_real_path(data) for data in (one, other)]
    if None not in real:
        return real[0] == real[1]
    arrays = [_arrays_of(data) for data in (one, other)]
    return any(np.may_share_memory(a, b) for a, b in itertools.product(*arrays))


def path_of(data: CalibrationData) -> str | os.PathLike[str] | None:
    """Return the path that samples come from, if it is one."""
    match data:
        case ImageFolder():
            return data.path
        case TextSamples():
            return path_of(data.texts)
        case Samples():
            return path_of(data.data)
        case str() | os.PathLike() if not is_noise(data):
            return data
    return None


def _real_path(data: CalibrationData) -> str | None:
    path = path_of(data)
    return None if path is None else os.path.realpath(path)


def _arrays_of(data: CalibrationData) -> list[npt.NDArray[Any]]:
    values = list(data.values()) if isinstance(data, Mapping) else [data]
    return [value for value in values if isinstance(value, np.ndarray)]


def _length(data: Any) -> int | None:
    """Return the number of items, or None if it is not known."""
    if isinstance(data, Samples):
        return _length(data.data)
    if isinstance(data, DataReader):  # its length, if it has one, is not that of all its feeds
        return None
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):  # a data loader over a dataset without a length
        return None


def _item(inputs: ModelInputs, number: int, item: Any) -> list[Array]:
    """Convert one item of an iterable: a dict, an array, or a sequence that starts with either.

    A list of arrays of one shape and type is returned whole and without names, and refused later:
    it cannot be distinguished here from the arrays of several inputs.
    """
    place = f" (item {number})"
    if isinstance(item, list) and row_sources.are_alike(item):
        return [array_of("", one, place) for one in item]
    if isinstance(item, (tuple, list)) and item:
        item = item[0]
    if isinstance(item, Mapping):
        names = inputs.select(item, f"item {number}")
        return [array_of(name, item[name], place) for name in names]
    if isinstance(item, (str, os.PathLike)):
        what = f"{os.fspath(item)!r} is a path, and paths stand alone; a pattern names several"
        raise CalibrationError(what + place)
    return [array_of("", item, place)]
