"""Overrides: settings for some layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from . import check

__all__ = ["Match", "overrides"]

_SELECTORS = ("name", "pattern", "op_type")
_SETTINGS = ("exclude", "weights", "activations", "symmetric", "per_channel", "block_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An entry of `overrides=`: settings for the weights, activations and nodes that it matches.

    For each setting, the first entry that matches and sets it applies.

    Parameters
    ----------
    name : str, optional
        The name of a weight, activation or node. Give exactly one of `name`, `pattern`, `op_type`.
    pattern : str, optional
        A pattern of names with ``*``, ``?`` and ``[...]``, or a regular expression after ``re:``.
    op_type : str, optional
        An operator type: ``"Conv"``.
    exclude : bool, optional
        True leaves the matches in float.
    weights : str or int, optional
        The type of the weights, their bits, or ``"float32"`` to leave them in float.
    activations : str, optional
        The type of the activations.
    symmetric : bool, optional
        Whether weights have the zero point 0, or the middle of the range of an unsigned type.
    per_channel : bool, optional
        One scale for each output channel of a weight, or one for the whole tensor.
    block_size : int, optional
        One scale for each block of this many elements.

    Examples
    --------
    >>> from quantize_rs import Match
    >>> Match(pattern="head/*", weights="int16").to_dict()
    {'match': {'pattern': 'head/*'}, 'weights': 'int16'}
    """

    name: str | None = None
    pattern: str | None = None
    op_type: str | None = None
    exclude: bool | None = None
    weights: str | int | None = None
    activations: str | None = None
    symmetric: bool | None = None
    per_channel: bool | None = None
    block_size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as configuration files write it."""
        given = {key: getattr(self, key) for key in (*_SELECTORS, *_SETTINGS)}
        return _entry({key: value for key, value in given.items() if value is not None})


def overrides(value: Iterable[Match | Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the entries of `overrides=` as configuration files write them."""
    if value is None:
        return []
    if isinstance(value, str | Mapping):
        raise _error(f"is {value!r}, expected a list of entries")
    entries = check.listed("overrides", value, "entries")
    return [entry.to_dict() if isinstance(entry, Match) else _entry(entry) for entry in entries]


def _entry(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry; its selector is under "match", or beside the settings."""
    if not isinstance(given, Mapping):
        raise _error(f"has {given!r}, expected a Match or a dict")
    flat = dict(given)
    nested = flat.pop("match", {})
    if not isinstance(nested, Mapping):
        raise _error(f"has match={nested!r}, expected a dict")
    selectors = dict(nested)
    selectors |= {key: flat.pop(key) for key in _SELECTORS if key in flat}
    if "bits" in flat:
        flat.setdefault("weights", flat.pop("bits"))
    unknown = [key for key in selectors if key not in _SELECTORS]
    unknown += [key for key in flat if key not in _SETTINGS]
    if unknown:
        known = ", ".join((*_SELECTORS, *_SETTINGS))
        raise _error(f"has an entry with `{unknown[0]}`, expected {known}")
    if len(selectors) != 1:
        raise _error(f"has an entry with {len(selectors)} of name, pattern and op_type, expected 1")
    if not flat:
        raise _error(f"has an entry for {selectors} that says nothing: expected {_SETTINGS}")
    return {"match": selectors, **flat}


def _error(what: str) -> OptionError:
    return OptionError(f"overrides {what}", option="overrides")
