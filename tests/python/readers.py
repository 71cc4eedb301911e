"""Samples of the digits network as onnxruntime's tool reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize_rs.compat.onnxruntime import CalibrationDataReader

Array = npt.NDArray[Any]


class Reader(CalibrationDataReader):
    """Image after image, of all or of a range of them."""

    def __init__(self, images: Path, count: int = 40) -> None:
        self.images = np.load(images)[:count]
        self.set_range(0, count)

    def get_next(self) -> Mapping[str, Array] | None:
        image = next(self.left, None)
        return None if image is None else {"image": image[None]}

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self.images[start_index:end_index])


class Strided(Reader):
    """A reader that has a length, and returns no sample before `set_range` is called."""

    def __init__(self, images: Path, count: int = 40) -> None:
        super().__init__(images, count)
        self.set_range(0, 0)

    def __len__(self) -> int:
        return len(self.images)
