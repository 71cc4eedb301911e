"""The differences between two calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import notebook
from .base import Result

__all__ = ["RangeDifference", "RangesDiff"]


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """A value whose ranges differ.

    Attributes
    ----------
    name : str
        Its name.
    first, second : tuple of float
        The two ranges, each as minimum and maximum.
    part : float
        The larger difference of the two ends, as a fraction of the wider range.
    """

    name: str
    first: tuple[float, float]
    second: tuple[float, float]
    part: float

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        ends = {key: (found[key]["min"], found[key]["max"]) for key in ("first", "second")}
        return found | ends


@dataclass(frozen=True, slots=True, repr=False)
class RangesDiff(Result):
    """The differences between the ranges of two calibrations. `Ranges.diff` returns it.

    ``print(diff)`` shows a line for each value; a diff with differences is true.

    Attributes
    ----------
    differences : tuple of RangeDifference
        Values whose ranges differ, the most different first.
    only_first, only_second : tuple of str
        Values that only one of the two has.
    """

    differences: tuple[RangeDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.differences or self.only_first or self.only_second)

    def _summary(self) -> str:
        only = len(self.only_first) + len(self.only_second)
        return f"{len(self.differences)} values differ, {only} are in one of them only"

    def _repr_html_(self) -> str:
        rows = (
            [found.name, *found.first, *found.second, f"{found.part:.1%}"]
            for found in self.differences
        )
        header = ["value", "min", "max", "min", "max", "difference"]
        return notebook.table(self._summary(), header, rows)
