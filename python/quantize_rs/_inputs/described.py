"""Samples with a function that is applied to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from .rows import Transform

__all__ = ["Samples"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples, and a function that is applied to each before it goes into the model.

    Parameters
    ----------
    data : path, list of paths, ImageFolder, TextSamples, array, iterable, table or reader
        Whatever is accepted as samples, except ``"random"``. The function gets

        - of a table, a Parquet, Arrow or JSONL file, or a WebDataset archive: a row as a
          dictionary, with all its columns;
        - of an array, a dictionary of arrays, an ``.npy`` or ``.npz`` file: a row, without the
          first axis;
        - of images: the pixels as an array of height, width and three colours, which needs Pillow;
        - of an iterable or a reader: an item, and of a tuple or list its first element;
        - of everything else: what the model would get.
    transform : callable
        A function of a dictionary or array that returns a dictionary by the names of inputs, or an
        array for a model with one input.

    Raises
    ------
    OptionError
        `transform` is not a function, or `data` is ``"random"``.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
    >>> pixels = np.load(digits.calibration) * 255
    >>> plan.calibrate(quantize_rs.Samples(pixels, lambda image: image / 255)).values["image"]
    (0.0, 1.0)
    """

    data: Any
    transform: Transform

    def __post_init__(self) -> None:
        if not callable(self.transform):
            kind = type(self.transform).__name__
            what = f"transform is of type {kind}, expected a function"
            raise OptionError(what, option="transform")
        if isinstance(self.data, str) and self.data == "random":
            raise OptionError('data is "random", to which no function is applied', option="data")
