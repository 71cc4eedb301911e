"""Options as the extension module takes them, refused by name where they cannot be."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import OptionError

_T = TypeVar("_T")

_LARGEST = 2**63 - 1  # what a size may be on every machine that runs this


@contextmanager
def rename_errors(**names: str) -> Iterator[None]:
    """Give an error about an option the name that the option has for the caller."""
    try:
        yield
    except OptionError as error:
        name = names.get(error.option or "")
        if name is None:
            raise
        what = str(error).replace(error.option or "", name, 1)
        raise OptionError(what, option=name) from None


def reject_unused(why: str, **given: bool) -> None:
    """Refuse the first option that is given although it has no effect; `why` says what it lacks."""
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


def count(option: str, value: SupportsIndex, *, least: int = 0) -> int:
    """Give a whole number of at least `least`."""
    number = _whole(option, value)
    if not least <= number <= _LARGEST:
        raise OptionError(f"{option} is {number}, expected {least} or more", option=option)
    return number


def optional_count(option: str, value: SupportsIndex | None, *, least: int = 0) -> int | None:
    """Give a whole number of at least `least`, or None."""
    return None if value is None else count(option, value, least=least)


def number(option: str, value: Any) -> float:
    """Give a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{option} is {value!r}, expected a number", option=option) from None


def bits(option: str, value: SupportsIndex) -> int:
    """Give a number of bits that fits a byte; which of them there are, Rust knows."""
    number = _whole(option, value)
    if not 0 <= number < 256:
        raise OptionError(f"{option} is {number}, expected 2, 4, 8 or 16", option=option)
    return number


def names(option: str, value: Iterable[str] | None) -> list[str]:
    """Give a list of names; one text alone is a mistake, not a list of its letters."""
    if isinstance(value, str):
        raise OptionError(
            f"{option} is the text {value!r}, expected a list of names", option=option
        )
    return [] if value is None else listed(option, value, "names")


def listed(option: str, value: Iterable[_T], what: str) -> list[_T]:
    """Give what is in an iterable; `what` says of what."""
    try:
        return list(value)
    except TypeError:
        raise OptionError(
            f"{option} is {value!r}, expected a list of {what}", option=option
        ) from None


def text(option: str, value: str, expected: str) -> str:
    """Give a text; `expected` says of what."""
    if not isinstance(value, str):
        raise OptionError(f"{option} is {value!r}, expected {expected}", option=option)
    return value


def optional_names(option: str, value: Iterable[str] | None) -> list[str] | None:
    """Give a list of names, or None."""
    return None if value is None else names(option, value)


def passes(value: bool | Iterable[str]) -> list[str] | None:
    """Give the names of passes; None for those that serve quantization."""
    if isinstance(value, bool):
        return None if value else []
    return names("optimize", value)


def _by_name(option: str, value: Mapping[str, _T] | None) -> dict[str, _T]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError(f"{option} is {value!r}, expected a dict by name", option=option)
    return dict(value)


def widths_by_name(
    option: str, value: Mapping[str, SupportsIndex | str] | None
) -> tuple[dict[str, int], dict[str, str]]:
    """Give bits, and types, by name or pattern."""
    widths = _by_name(option, value)
    types = {name: width for name, width in widths.items() if isinstance(width, str)}
    others = ((name, width) for name, width in widths.items() if not isinstance(width, str))
    return {name: bits(option, width) for name, width in others}, types


def layers(
    layer_bits: Mapping[str, SupportsIndex | str] | None, layer_dtype: Mapping[str, str] | None
) -> tuple[dict[str, int], dict[str, str]]:
    """Give bits, and types, by name or pattern; `layer_dtype` gives types alone."""
    widths, types = widths_by_name("layer_bits", layer_bits)
    named = types_by_name("layer_dtype", layer_dtype)
    for name, found in named.items():
        other = widths.get(name, types.get(name, found))
        if other != found:
            what = f"layer_dtype gives {name!r} {found!r}, layer_bits {other!r}"
            raise OptionError(what, option="layer_dtype")
    return widths, types | named


def types_by_name(option: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Give types by name or pattern."""
    types = _by_name(option, value)
    for name, found in types.items():
        if not isinstance(found, str):
            what = f"{option} gives {name!r} {found!r}, expected the name of a type"
            raise OptionError(what, option=option)
    return types


def shape(option: str, value: Iterable[SupportsIndex] | None) -> list[int] | None:
    """Give a shape, or None."""
    if value is None:
        return None
    return [count(option, length) for length in listed(option, value, "lengths")]


def labels(value: npt.ArrayLike | None) -> list[int] | None:
    """Give classes as whole numbers, or None."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        raise OptionError(f"labels are of {array.dtype}, expected whole numbers", option="labels")
    found: list[int] = array.astype(np.int64).ravel().tolist()
    return found


def pruning(
    threshold: SupportsFloat | None, sparsity: SupportsFloat | None
) -> tuple[str, float] | None:
    """How small weights are that become 0 before they are quantized; None where none are to."""
    if threshold is not None and sparsity is not None:
        raise OptionError("sparsity: give it or prune, not both", option="sparsity")
    if sparsity is not None:
        return "sparsity", number("sparsity", sparsity)
    return None if threshold is None else ("absolute", number("prune", threshold))
