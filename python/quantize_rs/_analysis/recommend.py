"""How to quantize a model, and why."""

from __future__ import annotations

import os

from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._inputs.samples import CalibrationData
from .._results.recommendation import Recommendation, parse_recommendation

__all__ = ["recommend"]


def recommend(
    model: ModelSource | Model,
    data: CalibrationData | None = None,
    target: str | None = None,
) -> Recommendation:
    """Say how to quantize a model, and why: static, dynamic or weights alone, and the call for it.

    It looks at the file and runs nothing: where its weights are, where its work is done, what
    varies, what is quantized already. Rules are asked in their order, and the first that holds
    decides (``quantize-rs recommend --help`` lists them). How near the result is and how fast,
    `compare` tells.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    data : path, ImageFolder, array, dict of arrays, iterable or reader, optional
        Real inputs, as `calibration_data` of `quantize_with_calibration`. They are not read: what
        counts is that there are some. A path is named in the call; anything else is ``data`` in it.
        Without any, and with ``"random"``, a file stands for them, and a reason says so.
    target : str, optional
        The runtime that the model is made for, as in `quantize`.

    Returns
    -------
    Recommendation
        What to do, and why.

    Raises
    ------
    OptionError
        A target that there is none of.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> found = quantize_rs.recommend(
    ...     "examples/digits/digits_cnn.onnx", "examples/digits/calibration.npy"
    ... )
    >>> found.way, found.bits, found.rule
    ('static', 8, 'convolutions')
    >>> report = eval(found.python)
    >>> report.output.endswith("digits_cnn.int8.onnx")
    True
    """
    path = os.fsdecode(data) if isinstance(data, str | os.PathLike) else None
    path = None if path == "random" else path  # noise is no sample
    in_memory = data is not None and not isinstance(data, str | os.PathLike)
    return parse_recommendation(*core_model(model).recommended(target, path, in_memory))
