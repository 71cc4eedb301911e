"""Ranges: the result of a calibration, to be kept, compared and merged."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _core, _html

__all__ = ["Ranges"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Ranges:
    """Where the activations of a model live. `Plan.calibrate` makes it."""

    _ranges: _core.Ranges

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranges:
        """Read what `save` wrote.

        Raises
        ------
        CalibrationError
            It is not a file of ranges.
        FileNotFoundError, PermissionError, OSError
            The file cannot be read.
        """
        return cls(_core.Ranges.from_json(Path(path).read_text(encoding="utf-8", errors="replace")))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ranges as JSON, completely or not at all."""
        target = Path(path).resolve()
        sibling = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            sibling.write_text(self.to_json(), encoding="utf-8")
            sibling.replace(target)
        finally:
            sibling.unlink(missing_ok=True)

    def merge(self, other: Ranges) -> Ranges:
        """Give the ranges of both, as if one calibration had seen all samples.

        Raises
        ------
        CalibrationError
            They belong to different models, methods or values.

        Examples
        --------
        >>> import quantize_rs
        >>> import numpy as np
        >>> images = np.load("examples/digits/calibration.npy")
        >>> plan = quantize_rs.open("examples/digits/digits_cnn.onnx").plan(activations="uint8")
        >>> first, second = plan.calibrate(images[:50]), plan.calibrate(images[50:])
        >>> first.merge(second).values == plan.calibrate(images).values
        True
        """
        return Ranges(self._ranges.merge(other._ranges))

    @property
    def values(self) -> dict[str, tuple[float, float]]:
        """The smallest and the largest number seen, by the name of the value."""
        found = self.to_dict()["values"]
        return {name: (range_["min"], range_["max"]) for name, range_ in found.items()}

    @property
    def samples(self) -> int:
        """On how many samples."""
        return int(self.to_dict()["samples"])

    @property
    def method(self) -> str:
        """How ranges follow from what was seen."""
        return str(self.to_dict()["method"])

    @property
    def engine(self) -> str:
        """Who ran the model."""
        return str(self.to_dict()["engine"])

    def to_dict(self) -> dict[str, Any]:
        """Give the ranges as plain dicts, lists, texts and numbers."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """Give the ranges as JSON."""
        return self._ranges.to_json()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return f"<Ranges of {len(self.values)} values: {self.method}, {self.samples} samples>"

    def _repr_html_(self) -> str:
        rows = ([name, low, high] for name, (low, high) in self.values.items())
        return _html.table(f"{self.samples} samples", ["value", "smallest", "largest"], rows)
