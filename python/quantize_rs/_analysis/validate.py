"""Validation of a quantized file against its original, without running either."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _core
from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._options import check
from .._results.build import result
from .._results.validation import Validation
from ..errors import ExternalDataError, ModelFormatError

__all__ = ["validate"]


def validate(
    original: ModelSource | Model,
    quantized: ModelSource | Model,
    *,
    optimize: bool | Iterable[str] = True,
    target: str | None = None,
) -> Validation:
    """Compare a quantized model with its original, number by number, without running them.

    The integers of the file are dequantized with its scales and compared with the weights of the
    original; no error may be larger than its scale explains. Integers that were rounded with
    samples may be several steps off: of these the checksum in the file must be right. Both graphs
    are traversed in parallel, so that a node with another input is found. Inputs, outputs, scales,
    biases and everything that was not quantized are checked too. You do not need to know how the
    file was produced; files of other tools with ``DequantizeLinear`` work as well.

    Parameters
    ----------
    original : Model, path, bytes or onnx.ModelProto
        The float model.
    quantized : Model, path, bytes or onnx.ModelProto
        The quantized model. Bytes that are not a model are reported as a problem, not as an error.
    optimize : bool or iterable of str
        The passes that ran before quantization, as given to `quantize`. With True, it is also
        detected if none ran.
    target : str, optional
        Also check each node against this target runtime. A node that it rejects or computes
        differently is a problem; a node that is only slower is a note.

    Returns
    -------
    Validation
        The result; a validation without problems is true.

    Raises
    ------
    OptionError
        A pass or the target is unknown.
    ModelError
        The original cannot be read, or a model cannot be checked, for example because a node has
        too few inputs.
    FileNotFoundError, PermissionError, OSError
        A file cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.quantize(digits.model, "digits.int8.onnx", per_channel=True)
    >>> found = quantize_rs.validate(digits.model, "digits.int8.onnx", target="x86")
    >>> found.passed, max(weight.max_steps for weight in found.weights) < 0.76
    (True, True)
    """
    passes = check.passes(optimize)
    float_model = core_model(original)
    try:
        made = core_model(quantized)
    except (ModelFormatError, ExternalDataError) as error:
        return result(Validation, _core.unreadable(error.path, str(error)))
    return result(Validation, _core.validate(float_model, made, passes, target))
