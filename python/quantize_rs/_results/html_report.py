"""Results as a self-contained HTML report."""

from __future__ import annotations

import os
from typing import ClassVar

from .. import _core
from .._inputs import files
from .base import Result

__all__ = ["HtmlResult"]


class HtmlResult(Result):
    """A result that has an HTML report, or a section in the report of a quantization."""

    __slots__ = ()

    _part: ClassVar[str]

    def html(self) -> str:
        """Return the result as an HTML report.

        The HTML is self-contained, needs no network, and follows the light or dark theme of the
        browser. `Report.html` includes the result in the report of a quantization.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> found = quantize_rs.sensitivity(digits.model)
        >>> found.html().startswith("<!DOCTYPE html>")
        True
        """
        return html_page(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the HTML report to a file, completely or not at all.

        Raises
        ------
        FileNotFoundError, PermissionError, IsADirectoryError, OSError
            The file cannot be written.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> found = quantize_rs.sensitivity(digits.model)
        >>> found.save_html("sensitivity.html")
        """
        files.write(path, self.html())


def html_page(*results: HtmlResult | None, report: Result | None = None) -> str:
    """Render one HTML report with a section for each result."""
    parts = {result._part: result._outcome for result in results if result is not None}
    return _core.page(report=None if report is None else report._outcome, **parts)
