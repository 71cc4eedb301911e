"""The calibration methods side by side."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from . import notebook
from .build import records
from .ranges import Ranges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MethodComparison", "MethodRow"]


@dataclass(frozen=True, slots=True)
class MethodRow:
    """The result of one calibration method.

    Attributes
    ----------
    method : str
        The name of the method.
    sqnr_db : float or None
        Mean SQNR in dB of the outputs of the quantized model on the held-back samples; None for a
        model without float32 outputs.
    best_for : int
        For how many values it is the best choice. The row ``auto`` combines these choices, as
        ``method="auto"`` does from 512 samples on.
    same_as : str or None
        An earlier method that finds the same ranges.
    """

    method: str
    sqnr_db: float | None
    best_for: int
    same_as: str | None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class MethodComparison:
    """Each calibration method on the same samples. `Plan.compare_methods` returns it.

    ``print(comparison)`` shows a table.
    """

    _comparison: _core.MethodComparison

    @property
    def rows(self) -> tuple[MethodRow, ...]:
        """One row for each method."""
        return records(MethodRow, self.to_dict()["methods"])

    @property
    def best(self) -> str:
        """The most accurate method; minmax or mse unless another is significantly better."""
        return str(self.to_dict()["best"])

    @property
    def ranges(self) -> dict[str, Ranges]:
        """The ranges of each method over all samples, by method; no need to calibrate again.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> comparison = plan.compare_methods(digits.calibration)
        >>> quantized = plan.apply(comparison.ranges[comparison.best])
        """
        return {name: Ranges(found) for name, found in self._comparison.ranges().items()}

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.to_dict()["samples"])

    @property
    def held_back(self) -> int:
        """The number of held-back samples, which no method calibrates with."""
        return int(self.to_dict()["held_back"])

    @property
    def evaluated(self) -> int:
        """The number of evaluation samples: those held back, and others if they are few."""
        return int(self.to_dict()["evaluated"])

    @property
    def engine(self) -> str:
        """The engine that ran the model."""
        return str(self.to_dict()["engine"])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain dicts, lists, strings and numbers, without ranges."""
        return self._comparison.to_dict()

    def to_json(self) -> str:
        """Return the comparison as JSON, without the ranges."""
        return self._comparison.to_json()

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot one bar for each method: the SQNR of the outputs.

        Parameters
        ----------
        path : path, optional
            As in `Report.plot`, like the return value and the errors.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
        >>> figure = plan.compare_methods(digits.calibration).plot()
        """
        from . import plots

        return plots.of_methods(self, path)

    def __str__(self) -> str:
        return str(self._comparison).rstrip("\n")

    def __repr__(self) -> str:
        return f"<MethodComparison of {len(self.rows)} methods: {self._summary()}>"

    def _summary(self) -> str:
        return f"{self.best} is best, {self.samples} samples, evaluated on {self.evaluated}"

    def _repr_html_(self) -> str:
        rows = ([row.method, row.sqnr_db, row.best_for, row.same_as] for row in self.rows)
        header = ["method", "SQNR (dB)", "best for", "same as"]
        return notebook.table(self._summary(), header, rows)
