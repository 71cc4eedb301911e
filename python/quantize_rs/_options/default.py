"""Defaults of parameters that are not the same as an equal value from a caller."""

from __future__ import annotations

from typing import TypeVar, cast

__all__ = ["default", "is_default"]

_T = TypeVar("_T", int, str)


class _Int(int):
    """A whole number that was not given."""


class _Str(str):
    """A text that was not given."""

    __slots__ = ()


def default(value: _T) -> _T:
    """Return the value as the default of a parameter; signatures and help show it as it is."""
    kind = _Str if isinstance(value, str) else _Int
    return cast(_T, kind(value))


def is_default(value: object) -> bool:
    """Return whether a value is the default of a parameter, and not one that a caller gave."""
    return isinstance(value, _Int | _Str)
