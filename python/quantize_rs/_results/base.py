"""The base class of results, which the extension module returns as JSON and as text."""

from __future__ import annotations

import json
from typing import Any

from . import notebook

__all__ = ["Result"]


class Result:
    """A result; each subclass has attributes and a one-line summary."""

    __slots__ = ()

    _json: str
    _text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists, strings and numbers, without the model."""
        found: dict[str, Any] = json.loads(self._json)
        return found

    def to_json(self) -> str:
        """Return the result as JSON, without the model; non-finite numbers are null."""
        return self._json

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def _repr_html_(self) -> str:
        """Show the result in a notebook, as text unless the class has a table."""
        return notebook.plain(str(self))

    def _summary(self) -> str:
        """Return a one-line summary: the first line of the text."""
        return self._text.partition("\n")[0]
