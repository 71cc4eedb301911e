"""Types and shapes of the values of a model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from . import _source
from ._files import writable
from ._source import ModelSource
from ._told import Told

__all__ = ["Inference", "infer_shapes"]


@dataclass(frozen=True, slots=True, repr=False)
class Inference(Told):
    """What was inferred of the values that the nodes of a model make.

    Attributes
    ----------
    values : int
        Values that nodes of the main graph make.
    typed, ranked, shaped : int
        Of how many of them the type is known, how many axes they have, and each length: as a number
        or by name.
    written : int
        How many values the model says more of than before, those in graphs inside nodes too.
    warnings : tuple of str
        Where the file says one thing and its operators another. Nothing was changed there.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    values: int
    typed: int
    ranked: int
    shaped: int
    written: int
    warnings: tuple[str, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)


def infer_shapes(source: ModelSource, output: str | os.PathLike[str] | None = None) -> Inference:
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
    Inference
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
    model, said, text = _source.read(source).inferred()
    found = json.loads(said)
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return Inference(
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
