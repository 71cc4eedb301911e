"""The table of options by name and alias, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .row import Row
from .rows import ROWS

__all__ = ["ALIASES", "OPTIONS", "canonical", "unknown"]

OPTIONS: dict[str, Row] = {row.name: row for row in ROWS}
ALIASES: dict[str, str] = {alias: row.name for row in ROWS for alias in row.aliases}


def canonical(name: str) -> str:
    """Return the name of the option that `name` is an alias of, or `name` itself."""
    return ALIASES.get(name, name)


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is no option, with the nearest of those known."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"unknown option `{name}`" + "".join(f"; did you mean `{found}`?" for found in near)
