"""Models of a newer operator set."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from . import _options, _source
from ._files import writable
from ._source import ModelSource
from ._told import Told

__all__ = ["Conversion", "convert_opset"]


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Told):
    """What a conversion changed.

    Attributes
    ----------
    from_opset, to_opset : int
        The version that the model was of, and that it is of now.
    changed : tuple of str
        The nodes that are another now; those of graphs inside nodes and of functions too.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    from_opset: int
    to_opset: int
    changed: tuple[str, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)


def convert_opset(
    source: ModelSource, output: str | os.PathLike[str] | None = None, *, opset: int
) -> Conversion:
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
    Conversion
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
    model, said, text = _source.read(source).converted(_options.count("opset", opset))
    found = json.loads(said)
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return Conversion(found["from"], found["to"], tuple(found["changed"]), target, data, said, text)
