"""Labels of samples: whole numbers, in memory or in a file."""

from __future__ import annotations

import os
import re
import tokenize
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
    array = _read(Path(value)) if isinstance(value, str | os.PathLike) else np.asarray(value)
    if array.dtype.kind not in "iub":
        raise _error(f"are of {array.dtype}, expected whole numbers, or a path of a file with them")
    found: list[int] = array.astype(np.int64).ravel().tolist()
    return found


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
