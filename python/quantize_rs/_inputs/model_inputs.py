"""The inputs of the model that samples are for."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from .. import _core
from ..errors import CalibrationError

_log = logging.getLogger("quantize_rs")


@dataclass(frozen=True, slots=True)
class Input:
    """Name, element type and shape of an input; None for what the model does not declare."""

    name: str
    dtype: str | None
    shape: tuple[int | None, ...] | None


class ModelInputs:
    """The inputs of a model, found when they are needed, and which names of samples belong to them.

    Names that belong to none are reported once.
    """

    def __init__(self, model: _core.Model) -> None:
        self.model = model
        self._ignored: set[str] = set()

    @cached_property
    def all(self) -> tuple[Input, ...]:
        """The inputs, in the order of the model."""
        found = self.model.info().to_dict()["inputs"]
        return tuple(
            Input(one["name"], one["dtype"], None if one["shape"] is None else tuple(one["shape"]))
            for one in found
        )

    @cached_property
    def batch(self) -> int:
        """How many rows the model takes at a time: 1, unless its inputs all fix another number."""
        firsts = {one.shape[0] if one.shape else None for one in self.all}
        first = firsts.pop() if len(firsts) == 1 else None
        return first or 1

    def select(self, names: Collection[str], place: str) -> list[str]:
        """Return the names that belong to inputs; ignore the others if no input is without one.

        `place` says in errors where the names are.
        """
        wanted = [one.name for one in self.all]
        missing = [name for name in wanted if name not in names]
        if missing and (odd := [name for name in names if not isinstance(name, str)]):
            what = (
                f"an array has the key {odd[0]!r} where the name of an input is expected: "
                f"{_listed(missing)}{', ' if place else ''}{place}"
            )
            raise CalibrationError(what, value=missing[0], category="input_mismatch")
        if missing and len(self.all) == 1 and "" in names:  # the array of the only input
            wanted = [""]
        elif missing and not self._are_left_to_the_core(names, missing):
            raise self._missing(missing, [name for name in names if name not in wanted], place)
        elif missing:
            return list(names)
        extra = [name for name in names if name not in wanted and name not in self._ignored]
        if extra:
            self._ignored.update(extra)
            _log.warning("ignoring %s, which match no input of the model", _listed(extra))
        return wanted

    def _are_left_to_the_core(self, names: Collection[str], missing: list[str]) -> bool:
        """Whether numpy's name stands for the only input, or an input is not a tensor."""
        unnamed = len(self.all) == 1 and list(names) == ["arr_0"]
        no_tensor = any(
            one.dtype is None and one.shape is None for one in self.all if one.name in missing
        )
        return unnamed or no_tensor or not names

    def _missing(self, missing: list[str], others: list[str], place: str) -> CalibrationError:
        what = (
            f"no array for input {_listed(missing)}; arrays that match no input: "
            f"{_listed(others) or 'none'} (`{missing[0]}`{', ' if place else ''}{place})"
        )
        pairs = [(name, close) for name in missing if (close := _closest(name, others))]
        if pairs:
            name, close = pairs[0]
            what += f"; did you mean `{name}` where `{close}` stands? Rename it"
        return CalibrationError(what, value=missing[0], category="input_mismatch")


def _closest(name: str, others: Iterable[str]) -> str | None:
    folded = {other.casefold().replace("-", "_"): other for other in others}
    found = difflib.get_close_matches(name.casefold().replace("-", "_"), folded, n=1)
    return folded[found[0]] if found else None


def _listed(names: Collection[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in list(names)[:8])
    return listed + (f" and {len(names) - 8} more" if len(names) > 8 else "")
