"""Is a quantized file what its original became? Stored integers against the original's weights."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _core
from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._options import check
from .._results.validation import Validation, parse_validation
from ..errors import ExternalDataError, ModelFormatError

__all__ = ["validate"]


def validate(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    *,
    optimize: bool | Iterable[str] = True,
    target: str | None = None,
) -> Validation:
    """Compare a quantized model with its original, number by number; nothing is run.

    The integers of the file are read back, brought back to floats by its own scales, and held
    against the weights of the original: none may be further away than its scale forces it to be.
    Both graphs are walked side by side, so that a node that reads another value is found. Inputs,
    outputs, scales, biases and all that was not quantized are looked at, too. Nothing has to be
    known of how the file was made; other tools' files with ``DequantizeLinear`` are understood as
    well.

    Parameters
    ----------
    original : Model, path, bytes or onnx.ModelProto
        The float model.
    quantized : Model, path, bytes or onnx.ModelProto
        What was made of it. Bytes that are no model are a problem of the result, and no error.
    optimize : bool or iterable of str
        The passes that ran before it was quantized, as they were given to `quantize`. True also
        finds out that none ran.
    target : str, optional
        Also hold the file against what this runtime takes, node by node: what it refuses, or
        computes otherwise, is a problem, what merely runs slower a note.

    Returns
    -------
    Validation
        What was found; true when nothing is wrong.

    Raises
    ------
    OptionError
        A pass or target that there is none of.
    ModelError
        The original cannot be read, or a model cannot be looked at, such as one with a node of too
        few inputs.
    FileNotFoundError, PermissionError, OSError
        A file cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = "examples/digits/digits_cnn.onnx"
    >>> report = quantize_rs.quantize(digits, "digits.int8.onnx", per_channel=True)
    >>> found = quantize_rs.validate(digits, "digits.int8.onnx", target="x86")
    >>> found.passed, max(weight.max_steps for weight in found.weights) < 0.76
    (True, True)
    """
    passes = check.passes(optimize)
    float_model = core_model(original)
    try:
        made = core_model(quantized)
    except (ModelFormatError, ExternalDataError) as error:
        return parse_validation(*_core.unreadable(error.path, str(error)))
    return parse_validation(*_core.validate(float_model, made, passes, target))
