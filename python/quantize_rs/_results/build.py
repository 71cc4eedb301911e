"""The one place where results of the extension module become dataclasses.

The types of the fields say what to do: a dict becomes a dataclass, a list a tuple, a string a path.
A dataclass whose fields differ from the dict has a static method ``_adapt``, which gets the dict
and returns the values of the fields.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from .. import _core
    from .base import Result

__all__ = ["record", "records", "result"]

T = TypeVar("T")
R = TypeVar("R", bound="Result")

_Conversion: TypeAlias = Callable[[Any], Any]


def result(kind: type[R], outcome: _core.Outcome, **fields: object) -> R:
    """Build a result; `fields` are those that the extension module does not have."""
    return record(kind, outcome.to_dict(), _outcome=outcome, **fields)


def records(kind: type[T], found: Iterable[dict[str, Any]]) -> tuple[T, ...]:
    """Build a dataclass from each dict."""
    return tuple(record(kind, row) for row in found)


def record(kind: type[T], found: dict[str, Any], **fields: object) -> T:
    """Build a dataclass from a dict, whose other keys are ignored, and from `fields`."""
    adapt = getattr(kind, "_adapt", None)
    values = found if adapt is None else adapt(found)
    conversions: dict[str, _Conversion | None] = _conversions(cast(Any, kind))
    for name, conversion in conversions.items():
        if name in values and name not in fields:
            value = values[name]
            fields[name] = value if conversion is None else conversion(value)
    return kind(**fields)


@cache
def _conversions(kind: Any) -> dict[str, _Conversion | None]:
    """Return the conversion of each field; None for fields that are taken as they are."""
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    return {field.name: _conversion(hints[field.name]) for field in fields}


def _conversion(hint: Any) -> _Conversion | None:
    parts = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        found = [one for part in parts if (one := _conversion(part)) is not None]
        return _optional(found[0]) if found else None
    if get_origin(hint) is tuple:
        each = _conversion(parts[0])
        return tuple if each is None else lambda items: tuple(each(item) for item in items)
    if hint is Path:
        return Path
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(record, hint)
    return None


def _optional(conversion: _Conversion) -> _Conversion:
    return lambda value: None if value is None else conversion(value)
