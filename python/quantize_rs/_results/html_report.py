"""Results as one page of HTML."""

from __future__ import annotations

import os
from typing import ClassVar

from .. import _core
from .._inputs import files
from .base import Result

__all__ = ["HtmlResult"]


class HtmlResult(Result):
    """A result that has a page of its own, or a part of a report's."""

    __slots__ = ()

    _part: ClassVar[str]

    def html(self) -> str:
        """Give the result as one page of HTML.

        The page needs no other file and no network, and follows the reader's light or dark theme.
        `Report.html` takes the result into the page of a report.

        Examples
        --------
        >>> import quantize_rs
        >>> found = quantize_rs.sensitivity("examples/digits/digits_cnn.onnx")
        >>> found.html().startswith("<!DOCTYPE html>")
        True
        """
        return html_page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write what `html` gives to a file, completely or not at all.

        Raises
        ------
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> found = quantize_rs.sensitivity("examples/digits/digits_cnn.onnx")
        >>> found.save_html("sensitivity.html")
        """
        files.write(path, self.html())


def html_page(*results: HtmlResult | None, report: str | None = None) -> str:
    """Give one page of all that there is; a report is given as its JSON."""
    parts = {result._part: result._json for result in results if result is not None}
    return _core.page(report=report, **parts)
