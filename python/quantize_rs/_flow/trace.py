"""A file that says when each stage, layer and sample ran."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .. import _core
from .._inputs import files
from .._options import check
from ..errors import OptionError

__all__ = ["trace"]


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write when each stage, layer and sample ran within the block.

    The file is JSON for Chrome's trace viewer (``chrome://tracing``) and for Perfetto. It has the
    spans of all threads of this process, and is written when the block ends, also by an error. The
    stages alone are logged with their times by the logger ``quantize_rs.stages``, at level DEBUG.

    Parameters
    ----------
    path : path
        The file, whose name ends in ``.json``.

    Raises
    ------
    OptionError
        The name of the file ends otherwise.
    FileNotFoundError, PermissionError, OSError
        The file cannot be written.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> with quantize_rs.trace("trace.json"):
    ...     report = quantize_rs.quantize(digits.model, "digits.int8.onnx")
    """
    name = check.path("path", path)
    if not name.endswith(".json"):
        # A model is not overwritten by mistake.
        what = f"path is {name!r}, expected a name that ends in .json"
        raise OptionError(what, option="path")
    files.writable(path, option="path")
    spans = _core.Trace()
    try:
        yield
    finally:
        files.write(path, spans.to_json())
