"""Places that files are written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["writable", "write"]


def writable(path: str | os.PathLike[str] | None) -> Path | None:
    """Refuse a place that no file can be written to, before the work and not after."""
    if path is None:
        return None
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(target.parent))
    return target


def write(path: str | os.PathLike[str], text: str | bytes) -> None:
    """Write a file, completely or not at all; text as UTF-8."""
    target = Path(path).resolve()
    sibling = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        sibling.write_bytes(text.encode() if isinstance(text, str) else text)
        sibling.replace(target)
    finally:
        sibling.unlink(missing_ok=True)
