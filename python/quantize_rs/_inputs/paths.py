"""Paths of samples: several files by a list, a folder, a pattern, or numbers in braces."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

from ..errors import CalibrationError
from .encoded import IMAGE_SUFFIXES

PARQUET = (".parquet",)
ARROW = (".arrow", ".feather")
JSON_LINES = (".jsonl", ".ndjson")
TAR = (".tar", ".tar.gz", ".tgz")
TEXT = (".txt",)  # read for `TextSamples` alone
# Formats that the extension module reads.
_ARRAYS = (".npy", ".npz", ".safetensors")
# Formats that are read in Python; the extension module reads the others.
FORMATS = (PARQUET, ARROW, JSON_LINES, TAR)
_KNOWN = tuple(itertools.chain(TEXT, _ARRAYS, *FORMATS, IMAGE_SUFFIXES))

_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")


def ending(path: str | os.PathLike[str], endings: Sequence[str]) -> bool:
    """Return whether a path has one of these endings."""
    return os.fspath(path).lower().endswith(tuple(endings))


def are_files(data: object) -> TypeGuard[Sequence[str | os.PathLike[str]]]:
    """Return whether a list, which may also be one of texts, is one of files.

    Each of its items is a path object, has the ending of a format, or is a file.
    """
    return isinstance(data, list | tuple) and len(data) > 0 and all(map(_is_file, data))


def _is_file(one: object) -> bool:
    if not isinstance(one, str):
        return isinstance(one, os.PathLike)
    # `Path.is_file` raises an error for a text that is too long for a path.
    return ending(one, _KNOWN) or os.path.isfile(one)  # noqa: PTH113


def is_list_of_paths(data: object) -> bool:
    """Return whether this is a list of paths of files that are read in Python."""
    return (
        isinstance(data, list | tuple)
        and len(data) > 0
        and all(isinstance(one, str | os.PathLike) for one in data)
        and any(ending(one, kind) for one in data for kind in FORMATS)
    )


def is_list_of(data: object, endings: Sequence[str]) -> TypeGuard[Sequence[str]]:
    """Return whether this is a list of paths that all have one of these endings."""
    return (
        isinstance(data, list | tuple)
        and len(data) > 0
        and all(isinstance(one, str | os.PathLike) and ending(one, endings) for one in data)
    )


def refuse_unknown(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose ending is that of no format."""
    formats = [one for kind in (_ARRAYS, *FORMATS) for one in kind]
    if Path(path).is_file() and not ending(path, [*formats, *IMAGE_SUFFIXES]):
        suffix = Path(path).suffix
        what = (
            f"samples are read from {', '.join(formats)}, and images from "
            f"{', '.join(IMAGE_SUFFIXES)}; this path has "
            f"{f'extension {suffix}' if suffix else 'no extension'}"
        )
        raise CalibrationError(what, value=os.fspath(path), category="data")


def listed(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[tuple[str, ...], list[Path]] | None:
    """Return the endings of a format that is read in Python, and its files; None for others.

    The files of a folder or a pattern are in the order of their names.
    """
    if not isinstance(data, str | os.PathLike):
        return _of_one_format([path for one in data for path in expanded(one)])
    if Path(data).is_dir():
        files = _in_folder(Path(data))
        return _of_one_format(files) if files else None
    if not any(ending(data, kind) for kind in FORMATS):
        return None
    return _of_one_format(expanded(data))


def _of_one_format(files: list[Path]) -> tuple[tuple[str, ...], list[Path]]:
    kinds = {kind for path in files for kind in FORMATS if ending(path, kind)}
    odd = [path for path in files if not any(ending(path, kind) for kind in FORMATS)]
    if len(kinds) > 1 or odd:
        shown = ", ".join(sorted({path.suffix or path.name for path in files}))
        what = f"the samples are files of several formats ({shown}): give those of one"
        raise CalibrationError(what, value=str((odd or files)[0]), category="data")
    for path in files:
        path.open("rb").close()  # a missing file is reported before the work starts
    return kinds.pop(), files


def _in_folder(folder: Path) -> list[Path]:
    """Return the files of the formats above in a folder; none if it is one of images.

    Parquet files may be in subfolders, as partitions are.
    """
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and _is_visible(path, folder)
    )
    if any(ending(path, IMAGE_SUFFIXES) for path in files):
        return []
    found = [path for path in files if any(ending(path, kind) for kind in FORMATS)]
    inner = (path for path in folder.rglob("*.parquet") if path.parent != folder)
    nested = sorted(path for path in inner if path.is_file() and _is_visible(path, folder))
    if found and nested and any(ending(path, (".parquet",)) for path in found):
        what = f"{folder} has Parquet files, and so has {nested[0].parent}: give one of both"
        raise CalibrationError(what, value=str(folder), category="data")
    return found or nested


def _is_visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def expanded(path: str | os.PathLike[str]) -> list[Path]:
    """Return the paths that a pattern stands for."""
    text = os.fspath(path)
    if Path(text).exists():
        return [Path(text)]
    found: list[Path] = []
    for one in _braces(text):
        if glob.has_magic(one):
            matches = matching(one)
            if not matches:
                what = f"no calibration samples: no file matches {one!r}; correct the pattern"
                raise CalibrationError(what, value=one, category="no_samples")
            found += matches
        else:
            found.append(Path(one))
    return found


def matching(pattern: str) -> list[Path]:
    """Return the paths that match a pattern, in the order of their names."""
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the pattern may be absolute
    return [Path(path) for path in sorted(found)]


def images(path: str) -> list[Path]:
    """Return the images at a path, in the order of their names: those of the extension module.

    Folders that exist under exactly the name of a part of a pattern are taken for it. Numbers in
    braces are no range, ``**`` follows no links to folders, and hidden files are left out.
    """
    root, rest = Path(), list(Path(path).parts)
    while rest and ((root / rest[0]).exists() or set(rest[0]).isdisjoint("*?[{")):
        root /= rest.pop(0)
    if rest:
        pattern = "/".join(rest)
        texts = {
            text
            for one in _braces(pattern, ranges=False)
            for text in glob.glob(one, root_dir=root, recursive=True)  # noqa: PTH207
        }
        found = [Path(text) for text in texts if "**" not in pattern or not _is_linked(root, text)]
    elif root.is_dir():
        found = [Path(one.name) for one in root.iterdir()]
    else:
        return [root] if root.exists() and ending(root, IMAGE_SUFFIXES) else []
    return sorted(
        root / one
        for one in found
        if ending(one, IMAGE_SUFFIXES)
        and not any(part.startswith(".") for part in one.parts)
        and not (root / one).is_dir()
    )


def _is_linked(root: Path, text: str) -> bool:
    """Return whether a folder between a root and a file is a link."""
    return any((root / folder).is_symlink() for folder in Path(text).parents)


def _braces(text: str, *, ranges: bool = True) -> Iterator[str]:
    """Expand ``{000..009}``, unless no ranges are asked for, and ``{a,b}`` as a shell does."""
    parts = _BRACES.split(text)
    choices = [
        [part] if index % 2 == 0 else _choices(part, ranges) for index, part in enumerate(parts)
    ]
    return map("".join, itertools.product(*choices))


def _choices(inside: str, ranges: bool) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if not numbers or not ranges:
        return inside.split(",")
    first, last = numbers.groups()
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    step = 1 if int(first) <= int(last) else -1
    return [f"{number:0{width}}" for number in range(int(first), int(last) + step, step)]
