"""The base class of results, which the extension module returns as one object each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import _core
from . import notebook

__all__ = ["Result"]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """A result; each subclass has attributes and a one-line summary."""

    _outcome: _core.Outcome = field(compare=False, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists, strings and numbers, without the model."""
        return self._outcome.to_dict()

    def to_json(self) -> str:
        """Return the result as JSON, without the model; non-finite numbers are null."""
        return self._outcome.to_json()

    def __str__(self) -> str:
        return str(self._outcome).rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def _repr_html_(self) -> str:
        """Show the result in a notebook, as text unless the class has a table."""
        return notebook.plain(str(self))

    def _summary(self) -> str:
        """Return a one-line summary: the first line of the text."""
        return str(self._outcome).partition("\n")[0]
