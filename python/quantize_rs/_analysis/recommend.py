"""Recommendation of how to quantize a model."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._inputs.samples import CalibrationData
from .._results.build import result
from .._results.recommendation import Recommendation

__all__ = ["recommend"]


def recommend(
    model: ModelSource | Model,
    data: CalibrationData | None = None,
    target: str | None = None,
) -> Recommendation:
    """Recommend how to quantize a model: static, dynamic or weights only, with the call for it.

    It reads the file and does not run the model. It looks at where the weights are, which operators
    do the work, which dimensions are dynamic, and what is quantized already. The first rule that
    applies decides; ``quantize-rs recommend --help`` lists the rules. Use `compare` to measure
    accuracy and latency of the result.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    data : path, ImageFolder, array, dict of arrays, iterable or reader, optional
        Real inputs, as `calibration_data` of `quantize_with_calibration`. They are not read; it
        only matters whether you have any. The call contains a path as it is, and ``data`` for
        anything else, and the command ``SAMPLES``; a reason says what to put there.
    target : str, optional
        The target runtime, as in `quantize`.

    Returns
    -------
    Recommendation
        The method, its options and the reasons.

    Raises
    ------
    OptionError
        The target is unknown.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model cannot be read, or there is no file or folder of this path.

    Examples
    --------
    >>> import shutil
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> model = shutil.copy(digits.model, ".")  # the recommended call writes beside the model
    >>> found = quantize_rs.recommend(model, digits.calibration)
    >>> found.way, found.bits, found.rule
    ('static', 8, 'convolutions')
    >>> report = eval(found.python)
    >>> report.output.endswith("digits_cnn.int8.onnx")
    True
    """
    path = os.fsdecode(data) if isinstance(data, str | os.PathLike) else None
    path = None if path == "random" else path  # random values are not samples
    is_pattern = path is not None and any(char in path for char in "*?[")
    if path is not None and not is_pattern and not Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    in_memory = data is not None and not isinstance(data, str | os.PathLike)
    return result(Recommendation, core_model(model).recommended(target, path, in_memory))
