"""Archives in the layout of WebDataset as samples: the files with one name before the first dot."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import CalibrationError
from .encoded import IMAGE_SUFFIXES, Encoded, pixels
from .images import ImageFolder
from .rows import Row

# Two blocks of zeros end an archive.
_END = bytes(1024)


def rows(path: Path, *, options: ImageFolder | None) -> Iterator[Row]:
    """Read an archive from its first file to its last.

    A file ``0001.input_ids.npy`` holds the array of an input for the sample ``0001``; ``0001.npy``
    and images belong to the only input; the keys of an object in ``0001.json`` are names of inputs.
    Pickled objects are never read. Images become numbers as `options` says; pixels without it.
    """
    _check_end(path)
    try:
        with tarfile.open(path, "r|*") as archive:
            for key, members in itertools.groupby(_files(archive), lambda file: file[0]):
                place = f"{path}, sample {key}"
                values: dict[str, Any] = {}
                for _, ending, data in members:
                    _add(values, _decoded(ending, data, f"{path}, {key}.{ending}", options), place)
                yield Row(place, values)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(path, error) from error


def _files(archive: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    """Return for each file the name of its sample, the rest of its name, and its bytes."""
    for member in archive:
        name = PurePosixPath(member.name)
        if not member.isfile() or name.name.startswith("."):
            continue
        stem, _, ending = name.name.partition(".")
        file = archive.extractfile(member)
        yield str(name.with_name(stem)), ending, b"" if file is None else file.read()


def _decoded(ending: str, data: bytes, place: str, options: ImageFolder | None) -> dict[str, Any]:
    """Return the values that a file holds by name; ``""`` is the name of the only input."""
    name, _, kind = ending.rpartition(".")
    suffix = f".{kind.lower()}"
    if suffix in IMAGE_SUFFIXES:
        if options is None:
            return {name: pixels(data, place)}
        return {name: Encoded(data, suffix, place, options)}
    try:
        match suffix:
            case ".npy":
                return {name: np.load(io.BytesIO(data), allow_pickle=False)}
            case ".json":
                found = json.loads(data)
                return found if isinstance(found, dict) else {name or kind: found}
            case ".txt" | ".cls":
                return {ending: data.decode()}
    except (ValueError, EOFError, RecursionError) as error:
        what = f"cannot be read as {suffix}: {error}; remove its sample or write it again"
        raise CalibrationError(f"{place} {what}", value=place, category="data") from error
    return {ending: data}


def _add(values: dict[str, Any], more: dict[str, Any], place: str) -> None:
    for name, value in more.items():
        if name in values:
            which = f"`{name}`" if name else "the only input"
            what = f"two files hold {which}: name them by input, 0001.input.npy ({place})"
            raise CalibrationError(what, value=name or None, category="data")
        values[name] = value


def _check_end(path: Path) -> None:
    """Refuse an archive that was cut off between two files, which reads well until its end."""
    if path.suffix.lower() != ".tar":
        return  # what is compressed and cut off does not decode
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(_END)))
        if file.read() != _END:
            raise _damaged(path, "it has no end of an archive")


def _damaged(path: Path, error: object) -> CalibrationError:
    what = f"{path} is no complete archive: {error}; copy or write it again"
    return CalibrationError(what, value=str(path), category="data")
