"""A small trained model with its data, to try the library on.

The files are part of the package: nothing is downloaded, and nothing is written.

>>> import quantize_rs
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_rs.quantize_with_calibration(
...     digits.model, None, digits.calibration, per_channel=True
... )
>>> report.samples
200
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Digits", "digits"]

DATA = Path(__file__).resolve().parent / "data"


class Digits(NamedTuple):
    """Paths of the digits example, as `digits` returns them."""

    #: The ONNX model: ``image``, float32 [batch, 1, 8, 8] in [0, 1], to ``logits``, float32
    #: [batch, 10]. Three convolutions and two fully connected layers, opset 17.
    model: Path
    #: Samples to calibrate with, ``.npy``: float32 [200, 1, 8, 8].
    calibration: Path
    #: Images to evaluate on, ``.npz``: ``images``, float32 [397, 1, 8, 8], and ``labels``,
    #: int64 [397].
    test: Path


def digits() -> Digits:
    """Return the paths of a small network that reads handwritten digits, and of its data.

    The three files are parts of the installed package, together about 290 kB. They are not to be
    written to: give `quantize` another output path. Training, calibration and test images do not
    overlap.

    Returns
    -------
    Digits
        `model` (ONNX), `calibration` (``.npy``) and `test` (``.npz``), each a `pathlib.Path`.

    Examples
    --------
    >>> import numpy as np
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> quantize_rs.model_info(digits.model).inputs
    ['image']
    >>> report = quantize_rs.quantize(digits.model, "digits.int8.onnx", per_channel=True)
    >>> test = np.load(digits.test)
    >>> test["images"].shape, test["labels"].shape
    ((397, 1, 8, 8), (397,))
    """
    return Digits(DATA / "digits_cnn.onnx", DATA / "calibration.npy", DATA / "test.npz")
