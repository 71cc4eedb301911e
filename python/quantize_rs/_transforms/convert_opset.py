"""Conversion of models to a newer opset."""

from __future__ import annotations

import os

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._inputs.run import warn
from .._options import check
from .._results.build import result
from .._results.opset_conversion import OpsetConversion

__all__ = ["convert_opset"]


def convert_opset(
    source: ModelSource, output: str | os.PathLike[str] | None = None, *, opset: int
) -> OpsetConversion:
    """Convert a model to a newer opset without changing what it computes.

    Nodes whose operator changed are adapted; all other nodes keep their bytes. Subgraphs and local
    functions are converted too; operators of other domains are not. `quantize` calls this itself
    when the result needs a newer opset.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        The file to write, which may be `source`. If None, ``conversion.model`` holds the bytes.
    opset : int
        The new opset version, not older than the model's.

    Returns
    -------
    OpsetConversion
        The nodes that changed. Its warnings are logged.

    Raises
    ------
    UnsupportedModelError
        A node cannot be expressed in the newer opset; the error names it. Nothing is written.
    OptionError
        The version is older than the model's, or newer than the newest supported one.
    ModelError, FileNotFoundError, PermissionError, IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> print(quantize_rs.convert_opset(digits.model, "new.onnx", opset=21))
    opset 17 → 21: no node changed
    """
    target = writable(output, option="output")
    model, outcome = read_model(source).converted(check.count("opset", opset))
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    found = result(OpsetConversion, outcome, output=target, model=data)
    warn(found.warnings)
    return found
