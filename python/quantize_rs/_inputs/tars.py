"""Archives in the layout of WebDataset as samples: the files with one name before the first dot."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ..errors import CalibrationError
from .arrays import array_in
from .encoded import IMAGE_SUFFIXES, Encoded, pixels
from .images import ImageFolder
from .rows import Row

# Two blocks of zeros end an archive.
_END = bytes(1024)

# tarfile reads blocks of 10 KiB ahead.
_KEPT = 1 << 15

# Bytes of a file that is skipped that are read at a time.
_STEP = 1 << 20


def rows(path: Path, *, options: ImageFolder | None) -> Iterator[Row]:
    """Read an archive from its first file to its last.

    A file ``0001.input_ids.npy`` holds the array of an input for the sample ``0001``; ``0001.npy``
    and images belong to the only input; the keys of an object in ``0001.json`` are names of inputs.
    Pickled objects are never read. Images become numbers as `options` says; pixels without it.
    """
    try:
        with _opened(path) as file, tarfile.open(None, "r|", cast(Any, file)) as archive:
            for key, members in itertools.groupby(_files(archive, path), lambda file: file[0]):
                place = f"{path}, sample {key}"
                values: dict[str, Any] = {}
                for _, ending, data in members:
                    _add(values, _decoded(ending, data, f"{path}, {key}.{ending}", options), place)
                yield Row(place, values)
            _check_end(archive.offset, file, path)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def _files(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Return for each file the name of its sample, the rest of its name, and its bytes."""
    for member in archive:
        archive.members = []  # type: ignore[attr-defined] # all of them would be kept
        name = PurePosixPath(member.name)
        hidden = name.name.startswith(".")
        if member.isdir() or (hidden and (member.issym() or member.islnk())):
            continue
        if not member.isfile() or member.issparse():
            what = f"is a link or a device, or has holes, expected a file: write it as one ({path})"
            raise CalibrationError(f"{member.name} {what}", value=member.name, category="data")
        stem, _, ending = name.name.partition(".")
        file = archive.extractfile(member)
        if hidden:
            # tarfile itself would step on, in an archive that claims it is longer than it is.
            while file is not None and file.read(_STEP):
                pass
            continue
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
                return {name: array_in(data)}
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


class _Tail:
    """A stream that keeps the last bytes that were read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.read_so_far = 0
        self.tail = b""

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self.read_so_far += len(data)
        self.tail = (self.tail + data)[-_KEPT:]
        return data


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Tail]:
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if compressed:
            with gzip.GzipFile(fileobj=raw) as file:
                yield _Tail(file)
        else:
            yield _Tail(raw)


def _check_end(stopped: int, file: _Tail, path: Path) -> None:
    """Refuse what follows the header at which tarfile stopped, unless that is the end.

    tarfile stops at a damaged header as well. An archive ends with two blocks of zeros, which more
    of them may follow.
    """
    rest = file.tail[stopped - file.read_so_far :] if stopped < file.read_so_far else b""
    while data := file.read(1 << 20):
        if any(data):
            raise _damaged(path, "a header is damaged, or there is more after its end")
        rest = rest if len(rest) >= len(_END) else rest + data
    if any(rest):
        raise _damaged(path, "a header is damaged, or there is more after its end")
    if len(rest) < len(_END):
        raise _damaged(path, "it has no end of an archive")


def _damaged(path: Path, error: object) -> CalibrationError:
    what = f"{path} is not a complete archive: {error}; copy or write it again"
    return CalibrationError(what, value=str(path), category="data")
