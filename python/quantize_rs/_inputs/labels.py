"""Labels of samples: whole numbers, in memory or in a file."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError

__all__ = ["labels_of"]


def labels_of(value: npt.ArrayLike | os.PathLike[str] | None) -> list[int] | None:
    """Return class labels as integers, or None; a path is read as the command reads it."""
    if value is None:
        return None
    if isinstance(value, str | os.PathLike):
        value = _read(Path(value))
    return [label for part in _parts(value) for label in part]


def _parts(value: Any) -> Iterator[list[int]]:
    """Yield the labels of an array; of a list of arrays, those of each, whatever their lengths."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        if not isinstance(value, list | tuple):
            raise _error(f"are no array: {error}") from error
        array = np.empty(len(value), dtype=object)
        array[:] = value  # of different lengths
    if array.dtype.kind == "O" and array.ndim > 0:
        for item in array:
            yield from _parts(item)
    elif array.dtype.kind in "iub" or array.size == 0:
        yield array.astype(np.int64).ravel().tolist()
    else:
        raise _error(f"are of {array.dtype}, expected whole numbers, or a path of a file with them")


def _read(path: Path) -> npt.NDArray[Any]:
    if path.suffix.lower() == ".npy":
        try:
            found: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, tokenize.TokenError) as error:
            raise _error(f"in {str(path)!r} cannot be read: {error}") from error
        return found
    try:
        words = [word.strip() for word in re.split("[,\n]", path.read_text("utf-8"))]
    except UnicodeDecodeError as error:
        raise _error(f"in {str(path)!r} are no text, expected whole numbers") from error
    return np.array([_number(path, word) for word in words if word], dtype=np.int64)


def _number(path: Path, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise _error(f"in {str(path)!r}: {word[:40]!r} is no whole number") from None


def _error(what: str) -> OptionError:
    return OptionError(f"labels {what}", option="labels")
