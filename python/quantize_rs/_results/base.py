"""Results that the extension module tells as JSON, for programs, and as text, for people."""

from __future__ import annotations

import json
from typing import Any

from . import notebook

__all__ = ["Result"]


class Result:
    """A result with both; a class of its own names what is in it, and says it in a few words."""

    __slots__ = ()

    _json: str
    _text: str

    def to_dict(self) -> dict[str, Any]:
        """Give the result as plain dicts, lists, texts and numbers, without a model."""
        found: dict[str, Any] = json.loads(self._json)
        return found

    def to_json(self) -> str:
        """Give the result as JSON, without a model; what is not finite is null."""
        return self._json

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook, the text where a class has no table of its own."""
        return notebook.plain(str(self))

    def _summary(self) -> str:
        """Say it in a few words: the first line of the text."""
        return self._text.partition("\n")[0]
