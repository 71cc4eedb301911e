"""Checks and conversions of option values; errors name the option."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

from ..errors import OptionError
from .table import canonical

_T = TypeVar("_T")

_MAX_COUNT = 2**63 - 1  # the largest `usize` that every supported platform has


@contextmanager
def rename_errors(**names: str) -> Iterator[None]:
    """Rename the option in an `OptionError`: an alias to its option, that to what `names` says."""
    try:
        yield
    except OptionError as error:
        option = error.option or ""
        name = names.get(canonical(option), canonical(option))
        if name == option:
            raise
        what = str(error).replace(option, name, 1)
        raise OptionError(what, option=name) from None


def reject_unused(why: str, **given: bool) -> None:
    """Raise an `OptionError` for the first given option; `why` says why it has no effect."""
    for option, is_given in given.items():
        if is_given:
            raise OptionError(f"{option} has no effect {why}", option=option)


def _whole(option: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(
            f"{option} is {value!r}, expected a whole number", option=option
        ) from None


def count(option: str, value: SupportsIndex, *, least: int = 0, most: int = _MAX_COUNT) -> int:
    """Return a whole number from `least` to `most`."""
    number = _whole(option, value)
    if not least <= number <= most:
        expected = f"{least} or more" if most == _MAX_COUNT else f"{least} to {most}"
        raise OptionError(f"{option} is {number}, expected {expected}", option=option)
    return number


def optional_count(
    option: str, value: SupportsIndex | None, *, least: int = 0, most: int = _MAX_COUNT
) -> int | None:
    """Return a whole number from `least` to `most`, or None."""
    return None if value is None else count(option, value, least=least, most=most)


def number(option: str, value: Any) -> float:
    """Return a float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{option} is {value!r}, expected a number", option=option) from None


def optional_number(option: str, value: Any) -> float | None:
    """Return a float, or None."""
    return None if value is None else number(option, value)


def bits(option: str, value: SupportsIndex) -> int:
    """Return a bit width that fits into a byte; Rust checks that it is supported."""
    number = _whole(option, value)
    if not 0 <= number < 256:
        raise OptionError(f"{option} is {number}, expected 2, 3, 4, 5, 6, 8 or 16", option=option)
    return number


def names(option: str, value: Iterable[str] | None) -> list[str]:
    """Return a list of names; a single string raises, as its letters are not meant."""
    if isinstance(value, str):
        raise OptionError(
            f"{option} is the text {value!r}, expected a list of names", option=option
        )
    found = [] if value is None else listed(option, value, "names")
    for item in found:
        if not isinstance(item, str):
            what = f"{option} is a list with {item!r}, expected names as text"
            raise OptionError(what, option=option)
    return found


def listed(option: str, value: Iterable[_T], what: str) -> list[_T]:
    """Return the items of an iterable as a list; `what` names them in the error."""
    try:
        return list(value)
    except TypeError:
        raise OptionError(
            f"{option} is {value!r}, expected a list of {what}", option=option
        ) from None


def text(option: str, value: str, expected: str) -> str:
    """Return a string; `expected` describes it in the error."""
    if not isinstance(value, str):
        raise OptionError(f"{option} is {value!r}, expected {expected}", option=option)
    return value


def path(option: str, value: str | os.PathLike[str]) -> str:
    """Return a path as text."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        what = f"{option} is of type {type(value).__name__}, expected a path: a str or pathlib.Path"
        raise OptionError(what, option=option)
    return found


def folder(option: str, value: str | os.PathLike[str]) -> str:
    """Return the path of a folder that exists as text."""
    found = path(option, value)
    if not Path(found).is_dir():
        raise OptionError(f"{option} is {found!r}, expected a folder", option=option)
    return found


def choice(option: str, value: str, choices: Collection[str]) -> str:
    """Return one of some strings."""
    if value not in choices:
        known = " or ".join(map(repr, choices))
        raise OptionError(f"{option} is {value!r}, expected {known}", option=option)
    return value


def optional_names(option: str, value: Iterable[str] | None) -> list[str] | None:
    """Return a list of names, or None."""
    return None if value is None else names(option, value)


def passes(value: bool | Iterable[str] | None) -> list[str] | None:
    """Return the names of passes; None selects those that help quantization."""
    if value is None or isinstance(value, bool):
        return None if value in (None, True) else []
    return names("passes", value)


def number_or_percentage(option: str, value: float | str | None) -> float | None:
    """Return a number, or the fraction that text such as ``"1%"`` stands for."""
    if isinstance(value, str) and value.strip().endswith("%"):
        found = number(option, value.strip().removesuffix("%")) / 100
        if found > 1:
            raise OptionError(f"{option} is {value!r}, expected at most '100%'", option=option)
        return found
    return optional_number(option, value)


def fraction(option: str, value: float | str | None) -> float | None:
    """Return a fraction below 1, given as a number or as text: 0.01 or ``"1%"``."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        found = number(option, text.removesuffix("%")) / 100
        if not text.endswith("%"):
            what = f"{option} is {value!r}, expected a percentage such as '1%', or a number"
            raise OptionError(what, option=option)
    else:
        found = number(option, value)
    if found >= 1:
        what = f"{option} is {value}, expected a fraction below 1"
        hint = (
            ""
            if isinstance(value, str)
            else f": write {found / 100:g} or '{found:g}%' for {found:g}%"
        )
        raise OptionError(what + hint, option=option)
    return found


def ends_by_name(
    option: str, value: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return the ends of ranges, two numbers each, by name."""
    return {name: _ends(option, name, given) for name, given in _by_name(option, value).items()}


def _ends(option: str, name: str, value: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = value
        return float(low), float(high)
    except (TypeError, ValueError):
        what = f"{option} gives {name!r} {value!r}, expected two numbers: (smallest, largest)"
        raise OptionError(what, option=option) from None


def _by_name(option: str, value: Mapping[str, _T] | None) -> dict[str, _T]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError(f"{option} is {value!r}, expected a dict by name", option=option)
    return dict(value)


def layers(
    layer_bits: Mapping[str, SupportsIndex | str] | None, layer_types: Mapping[str, str] | None
) -> tuple[dict[str, int | str], dict[str, str]]:
    """Return bit widths or types by name or pattern; `layer_types` holds types only."""
    widths = {
        name: width if isinstance(width, str) else bits("layer_bits", width)
        for name, width in _by_name("layer_bits", layer_bits).items()
    }
    types = types_by_name("layer_types", layer_types)
    for name, found in types.items():
        other = widths.get(name, found)
        if other != found:
            what = f"layer_types gives {name!r} {found!r}, layer_bits {other!r}"
            raise OptionError(what, option="layer_types")
    return widths, types


def types_by_name(option: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Return types by name or pattern."""
    types = _by_name(option, value)
    for name, found in types.items():
        if not isinstance(found, str):
            what = f"{option} gives {name!r} {found!r}, expected the name of a type"
            raise OptionError(what, option=option)
    return types


def shape(option: str, value: Iterable[SupportsIndex] | None) -> list[int] | None:
    """Return a shape, or None."""
    if value is None:
        return None
    return [count(option, length) for length in listed(option, value, "lengths")]


def shard(value: str | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a part of the samples, given as ``"2/8"`` or ``(2, 8)``."""
    if value is None:
        return None
    try:
        parts = map(int, value.split("/")) if isinstance(value, str) else value
        index, total = map(operator.index, parts)
    except (TypeError, ValueError):
        what = f"shard is {value!r}, expected a part such as '1/4' or (1, 4)"
        raise OptionError(what, option="shard") from None
    if not 1 <= index <= total < 1 << 32:
        what = f"shard is {value!r}, expected a number from 1 to that of the parts, below 2**32"
        raise OptionError(what, option="shard")
    return index, total
