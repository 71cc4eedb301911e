"""Sources of rows and items: files, tables, text, and samples with a function."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import CalibrationError, OptionError
from . import arrow, json_lines, paths, tars, text
from .arrays import as_feed, named_numpy
from .described import Samples
from .encoded import pixels
from .images import ImageFolder, image_source
from .model_inputs import ModelInputs
from .rows import Row, transformed
from .text import TextSamples


@runtime_checkable
class DataReader(Protocol):
    """ONNX Runtime's ``CalibrationDataReader``: feeds by input name, then None or ``{}``."""

    def get_next(self) -> Mapping[str, npt.ArrayLike] | None:
        """Return the next feed, or None at the end."""


@runtime_checkable
class ArrayLike(Protocol):
    """A numpy array, a torch tensor, or any other object with ``__array__``."""

    def __array__(self) -> npt.NDArray[Any]:
        """Return the array."""


@runtime_checkable
class Indexed(Protocol):
    """A data set of numbered items, as torch's ``Dataset``, which may have no ``__iter__``."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Return an item."""


Stage: TypeAlias = Callable[[Iterable[Row]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a source, its name in errors, and their number if it is known.

    `stages` are applied in order, each of which makes one row of one: rows of other parts are
    passed over before them.
    """

    rows: Iterable[Row]
    where: str
    count: int | None = None
    stages: tuple[Stage, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        rows = iter(self.rows)
        for stage in self.stages:
            rows = stage(rows)
        return rows


def opened(data: Any, inputs: ModelInputs, *, whole: bool = False) -> Rows | None:
    """Return the rows of what is read in Python; None for everything else.

    With `whole`, a row has all columns, and images are pixels: a function is to get it. A list may
    then be one of texts.
    """
    match data:
        case Samples():
            found = _with_transform(data, inputs)
            if found is None:
                return None
            apply = functools.partial(transformed, transform=data.transform)
            return dataclasses.replace(found, stages=(*found.stages, apply))
        case TextSamples():
            return _texts(data, inputs)
        case ImageFolder() if paths.ending(data.path, paths.TAR):
            files = paths.expanded(data.path)
            read = itertools.islice(_chained(files, _archive(data)), data.limit)
            return Rows(read, os.fspath(data.path))
    if arrow.is_tabular(data):
        rows = arrow.rows(data, None if whole else inputs)
        return Rows(rows, f"the {type(data).__name__}", arrow.length(data))
    several = paths.is_list_of_paths(data) and (not whole or paths.are_files(data))
    if not several and not isinstance(data, str | os.PathLike):
        return None
    if (listed := paths.listed(data)) is None:
        return None
    kind, files = listed
    where = os.fspath(data) if isinstance(data, str | os.PathLike) else f"{len(files)} files"
    if kind == paths.JSON_LINES:
        return Rows(_chained(files, json_lines.lines), where, stages=(json_lines.parsed,))
    if kind == paths.TAR:
        return Rows(_chained(files, _archive(None if whole else ImageFolder("."))), where)
    lengths = [arrow.length(path) for path in files]
    count = None if None in lengths else sum(length or 0 for length in lengths)
    return Rows(
        _chained(files, lambda path: arrow.rows(path, None if whole else inputs)), where, count
    )


def part(rows: Rows, inputs: ModelInputs, shard: tuple[int, int]) -> Rows:
    """Return the rows of a part: of a model that takes N rows at a time, every n-th group of N."""
    index, count = shard
    own = (row for at, row in enumerate(rows.rows) if at // inputs.batch % count == index - 1)
    return Rows(own, rows.where, stages=rows.stages)


def items(data: Any) -> Iterator[Any]:
    """Iterate over an iterable, a reader or a data set; a function is applied to the items."""
    match data:
        case Samples():
            given = enumerate(items(data.data))
            rows = (Row(f"item {number}", _first(item)) for number, item in given)
            return (row.values for row in transformed(rows, data.transform))
        case DataReader():
            return read(data)
        case Iterable():
            return iter(data)
        case _:
            return (data[index] for index in range(len(data)))


def read(reader: DataReader) -> Iterator[Mapping[str, npt.ArrayLike]]:
    """Iterate over the feeds of a reader, which ends with None, an empty feed or StopIteration."""
    while True:
        try:
            feed = reader.get_next()
        except StopIteration:
            return
        if feed is None or is_end(feed):
            return
        yield feed


def is_end(feed: Any) -> bool:
    """Return whether a reader has no more feeds; an array, whatever its values, is a feed."""
    return not isinstance(feed, ArrayLike) and not feed


def refuse_splits(data: Mapping[str, Any], option: str) -> None:
    """Refuse a dictionary of data sets, as `datasets.load_dataset` returns."""
    splits = [name for name, value in data.items() if hasattr(value, "column_names")]
    if splits:
        names = ", ".join(map(repr, splits))
        what = f"{option} has several data sets, {names}: pass one of them"
        raise OptionError(what, option=option)


def are_alike(items: list[Any]) -> bool:
    """Return whether these are several arrays of one shape and type."""
    kinds = {(str(getattr(one, "dtype", None)), str(getattr(one, "shape", None))) for one in items}
    return len(items) > 1 and len(kinds) == 1 and all(isinstance(one, ArrayLike) for one in items)


def _with_transform(samples: Samples, inputs: ModelInputs) -> Rows | None:
    """Return the rows that the function gets; None for an iterable, whose items it gets."""
    data = samples.data
    if (rows := opened(data, inputs, whole=True)) is not None:
        return rows
    match data:
        case ImageFolder():
            return _as_fed(image_source(data), inputs, os.fspath(data.path))
        case str() | os.PathLike():
            return _stored(os.fspath(data), inputs)
        case Mapping():
            refuse_splits(data, "data")
            return _along_first_axis(data, "the dictionary")
        case ArrayLike() | memoryview():
            return _along_first_axis({"": data}, "the array")
    if isinstance(data, DataReader | Samples | Iterable | Indexed):
        return None
    what = f"data is of type {type(data).__name__}, which holds no samples"
    raise OptionError(what, option="data")


def _stored(path: str, inputs: ModelInputs) -> Rows:
    """Return the rows of a file that the extension module would read without a function."""
    if images := paths.images(path):
        rows = (Row(str(one), pixels(one, str(one))) for one in images)
        return Rows(rows, path, len(images))
    if paths.ending(path, (".npy", ".npz")):
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            arrays = found if isinstance(found, np.lib.npyio.NpzFile) else {"": found}
            return _along_first_axis(arrays, path)
        except (ValueError, EOFError, tokenize.TokenError) as error:
            what = f"{path} cannot be read: {error}; write it again with numpy"
            raise CalibrationError(what, value=path, category="data") from error
    paths.refuse_unknown(path)
    return _as_fed(_core.Source.file(path), inputs, path)


def _along_first_axis(arrays: Mapping[str, Any], where: str) -> Rows:
    found = {name: named_numpy(name, value, f" ({where})") for name, value in arrays.items()}
    lengths = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len(set(lengths.values())) != 1:
        each = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
        what = f"the arrays of {where} have different numbers of samples: {each or 'none'}"
        raise CalibrationError(what, value=where, category="input_mismatch")
    [count] = set(lengths.values())
    rows = (
        Row(
            f"{where}, row {number}",
            found[""][number]
            if list(found) == [""]
            else {name: array[number] for name, array in found.items()},
        )
        for number in range(count)
    )
    return Rows(rows, where, count)


def _as_fed(source: _core.Source, inputs: ModelInputs, where: str) -> Rows:
    fed = enumerate(map(as_feed, source.feeds(inputs.model, None)))
    return Rows((Row(f"{where}, sample {number}", feed, True) for number, feed in fed), where)


def _texts(data: TextSamples, inputs: ModelInputs) -> Rows:
    given = data.texts
    if isinstance(given, str | os.PathLike) and paths.ending(given, paths.TEXT):
        rows = Rows(_chained(paths.expanded(given), text.lines), os.fspath(given))
    elif paths.is_list_of(given, paths.TEXT):
        files = [path for one in given for path in paths.expanded(one)]
        rows = Rows(_chained(files, text.lines), f"{len(files)} files")
    elif (opened_rows := opened(given, inputs, whole=True)) is not None:
        rows = opened_rows
    elif isinstance(given, str | os.PathLike):
        what = f"texts is {os.fspath(given)!r}, expected a .txt, .jsonl, .parquet or .arrow file"
        raise OptionError(what, option="texts")
    elif paths.are_files(given):
        names = ", ".join(repr(os.fspath(one)) for one in given[:3])
        what = f"texts is a list of files, {names}, expected .txt, .jsonl, .parquet or .arrow files"
        raise OptionError(what, option="texts")
    elif isinstance(given, Mapping):
        refuse_splits(given, "texts")
        names = ", ".join(map(repr, given))
        what = f"texts is a dictionary of {names or 'nothing'}: pass one of its values"
        raise OptionError(what, option="texts")
    else:
        found = (Row(f"text {number}", one) for number, one in enumerate(items(given)))
        rows = Rows(found, "the texts")
    encode = functools.partial(text.tokenized, texts=data, inputs=inputs)
    return Rows(text.not_empty(rows, data.field), rows.where, stages=(encode,))


def _archive(options: ImageFolder | None) -> Callable[[Path], Iterator[Row]]:
    return lambda path: tars.rows(path, options=options)


def _chained(files: list[Path], read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    return itertools.chain.from_iterable(map(read, files))


def _first(item: Any) -> Any:
    """Return what a model takes of an item: of a tuple of inputs and labels, the inputs."""
    return item[0] if isinstance(item, tuple | list) and item else item
