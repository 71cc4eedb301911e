"""Models of a newer operator set."""

from __future__ import annotations

import json
import os

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._results.opset_conversion import OpsetConversion

__all__ = ["convert_opset"]


def convert_opset(
    source: ModelSource, output: str | os.PathLike[str] | None = None, *, opset: int
) -> OpsetConversion:
    """Make a model that means the same in a newer version of ONNX's operators.

    Node by node: what the newer version says in another way is said in that way, all other nodes
    keep their bytes. Graphs inside nodes and local functions are converted too; operators of other
    domains are not. `quantize` does it by itself where the result needs it.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        Where to write the model; it may be `source`. None gives it as ``conversion.model``, in
        bytes.
    opset : int
        The version, not older than the model's.

    Returns
    -------
    OpsetConversion
        What changed.

    Raises
    ------
    UnsupportedModelError
        A node cannot be said in the newer version; the error names it. Nothing is written.
    OptionError
        The version is older than the model's, or newer than any that is known.
    ModelError, FileNotFoundError, PermissionError, IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> print(quantize_rs.convert_opset("examples/digits/digits_cnn.onnx", "new.onnx", opset=21))
    opset 17 → 21: no node changed
    """
    target = writable(output)
    model, said, text = read_model(source).converted(check.count("opset", opset))
    found = json.loads(said)
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return OpsetConversion(
        found["from"], found["to"], tuple(found["changed"]), target, data, said, text
    )
