"""The result of `variants`: the files that were written, with their sizes, errors and times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import notebook
from .base import Result

__all__ = ["VariantRow", "Variants"]


@dataclass(frozen=True, slots=True)
class VariantRow:
    """A variant that was made, or could not be.

    Attributes
    ----------
    name, about : str
        Its name, and one line about it.
    file : pathlib.Path or None
        The file; None if it was not written.
    bytes : int or None
        Its size, with external data.
    sqnr_db : float or None
        The SQNR of the worst output on the samples, in decibels.
    median_ms : float or None
        The median time of a run, in milliseconds.
    problem : str or None
        Why it was not written, or could not be run.
    warnings : tuple of str
        The warnings of its report.
    """

    name: str
    about: str
    file: Path | None
    bytes: int | None
    sqnr_db: float | None
    median_ms: float | None
    problem: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Variants(Result):
    """The variants of a model.

    ``print(variants)`` shows a table, ``variants.to_json()`` is for programs. Iterating yields the
    rows, ``variants["q4"]`` is the row of a name, and ``"q4" in variants`` whether there is one.

    Attributes
    ----------
    input : str or None
        The path of the model; None for a model in memory.
    output : str
        The folder with the files.
    platform : str
        The platform whose file names they have.
    bytes_before : int
        The size of the model, with external data.
    samples : int
        How many samples were used; 0 without samples.
    engine : str or None
        The engine that ran them.
    variants : tuple of VariantRow
        The variants.
    """

    input: str | None
    output: str
    platform: str
    bytes_before: int
    samples: int
    engine: str | None
    variants: tuple[VariantRow, ...]

    def __iter__(self) -> Iterator[VariantRow]:
        return iter(self.variants)

    def __len__(self) -> int:
        return len(self.variants)

    def __contains__(self, name: object) -> bool:
        return any(name in (row.name, row) for row in self.variants)

    def __getitem__(self, name: str) -> VariantRow:
        for row in self.variants:
            if row.name == name:
                return row
        raise KeyError(name)

    def _summary(self) -> str:
        written = sum(row.file is not None for row in self.variants)
        return f"{written} of {len(self.variants)} variants for {self.platform} in {self.output}"

    def _repr_html_(self) -> str:
        rows = (
            [
                row.name,
                "" if row.bytes is None else str(row.bytes),
                "" if row.sqnr_db is None else f"{row.sqnr_db:.1f}",
                "" if row.median_ms is None else f"{row.median_ms:.2f}",
                row.problem or row.about,
            ]
            for row in self.variants
        )
        return notebook.table(self._summary(), ["variant", "bytes", "SQNR (dB)", "ms", ""], rows)
