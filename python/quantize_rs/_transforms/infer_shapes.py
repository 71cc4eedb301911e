"""Shape inference: types and shapes of the values of a model."""

from __future__ import annotations

import os

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._results.build import result
from .._results.shape_inference import ShapeInference

__all__ = ["infer_shapes"]


def infer_shapes(
    source: ModelSource, output: str | os.PathLike[str] | None = None
) -> ShapeInference:
    """Infer the types and shapes of all values of a model, and write them into it.

    Dynamic dimensions are expressions of the dimension names of the inputs, such as ``batch`` or
    ``2*height + 1``. Shapes that the model computes with ``Shape``, ``Gather`` and ``Concat`` are
    evaluated. The outputs of an unknown operator stay unknown; this is not an error. Models may
    have any size. Types and shapes that the file declares are kept.

    You do not need to call this before `quantize`: the passes and the plan infer shapes themselves.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        The file to write, which may be `source`. If None, ``inference.model`` holds the bytes.

    Returns
    -------
    ShapeInference
        How many types and shapes are known.

    Raises
    ------
    ModelError, FileNotFoundError, PermissionError, IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> inference = quantize_rs.infer_shapes(digits.model, "inferred.onnx")
    >>> inference.shaped == inference.values
    True
    """
    target = writable(output, option="output")
    model, outcome = read_model(source).inferred()
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return result(ShapeInference, outcome, output=target, model=data)
