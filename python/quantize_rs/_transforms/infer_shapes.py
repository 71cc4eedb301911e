"""Types and shapes of the values of a model."""

from __future__ import annotations

import json
import os

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._results.shape_inference import ShapeInference

__all__ = ["infer_shapes"]


def infer_shapes(
    source: ModelSource, output: str | os.PathLike[str] | None = None
) -> ShapeInference:
    """Write into a model of what type and shape each value is, as far as it follows.

    Lengths that vary are expressions of the names that the file gives to those of the inputs:
    ``batch``, ``2*height + 1``. Shapes that the model computes itself, with ``Shape``, ``Gather``
    and ``Concat``, are followed. What an operator makes that is not known here is unknown, and
    never an error; models may be of any size. What the file says already stays.

    The passes and the plan infer for themselves: nobody has to do it before `quantize`.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        Where to write the model; it may be `source`. None gives it as ``inference.model``, in
        bytes.

    Returns
    -------
    ShapeInference
        How much is known.

    Raises
    ------
    ModelError, FileNotFoundError, PermissionError, IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> inference = quantize_rs.infer_shapes("examples/digits/digits_cnn.onnx", "inferred.onnx")
    >>> inference.shaped == inference.values
    True
    """
    target = writable(output)
    model, said, text = read_model(source).inferred()
    found = json.loads(said)
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return ShapeInference(
        found["values"],
        found["typed"],
        found["ranked"],
        found["shaped"],
        found["written"],
        tuple(found["warnings"]),
        target,
        data,
        said,
        text,
    )
