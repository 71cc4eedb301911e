"""Output paths: checked before the work, written atomically after it."""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from pathlib import Path

from .._options import check
from ..errors import OptionError

__all__ = ["make_folder", "writable", "write"]


def writable(
    path: str | os.PathLike[str] | None,
    *needed: object,
    written: object = None,
    option: str = "output_path",
) -> Path | None:
    """Check that a file can be written to a path, before the work starts.

    The path must not be one of the input files in `needed`, nor that of another file that is
    `written`. Items that are not paths, and the string ``"random"``, are ignored. `option` is the
    name of the path in errors.
    """
    if path is None:
        return None
    name = check.path(option, path)
    target = Path(name)
    # A `Path` drops a separator at the end.
    _, last = os.path.split(name)
    if target.is_dir() or last in ("", os.curdir):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(target.parent))
    for other in (*needed, written):
        if not isinstance(other, str | os.PathLike) or other == "random":
            continue
        if (target.is_file() or other is written) and _same(target, other):
            what = f"{option} would overwrite {os.fspath(other)!r}: name another file"
            raise OptionError(what, option=option)
    return target


def make_folder(path: str | os.PathLike[str], option: str = "path") -> None:
    """Make the folder of a file, and check that the file can be written, before the work starts."""
    folder = Path(check.path(option, path)).parent
    folder.mkdir(parents=True, exist_ok=True)
    writable(path, option=option)
    # Only the attempt tells, whatever the permissions say.
    with tempfile.TemporaryFile(dir=folder):
        pass


def _same(one: Path, other: str | os.PathLike[str]) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def write(path: str | os.PathLike[str], text: str | bytes, option: str = "path") -> None:
    """Write a file, completely or not at all; strings as UTF-8."""
    writable(path, option=option)
    target = Path(path).resolve()
    # Threads may write to one path, and each writes a file of its own.
    sibling = target.with_name(f".quantize-rs-{uuid.uuid4().hex}.tmp")
    try:
        sibling.write_bytes(text.encode() if isinstance(text, str) else text)
        sibling.replace(target)
    except OSError as error:
        # It names the sibling, or no file.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        sibling.unlink(missing_ok=True)
