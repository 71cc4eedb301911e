"""Weights of small magnitude become 0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, SupportsFloat

from . import _html, _options, _source
from ._files import writable
from ._source import ModelSource
from ._told import Told
from .errors import OptionError

__all__ = ["PrunedWeight", "Pruning", "prune"]


@dataclass(frozen=True, slots=True)
class PrunedWeight:
    """What pruning did to one weight.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str
        The type of its elements.
    shape : tuple of int
        Its shape.
    axis : int or None
        The axis of its output channels, where each was looked at by itself.
    elements, zeros_before, zeros : int
        How many elements it has, how many were 0, and how many are.
    kept : str or None
        Why it was left alone; None where it was not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None
    elements: int
    zeros_before: int
    zeros: int
    kept: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Pruning(Told):
    """What pruning did to a model.

    Attributes
    ----------
    elements, zeros_before, zeros : int
        Elements of all weights, how many were 0, and how many are.
    weights : tuple of PrunedWeight
        Every weight.
    output : pathlib.Path or None
        Where the model went; None while it is in memory.
    model : bytes or None
        The model, when no `output` was given.
    """

    elements: int
    zeros_before: int
    zeros: int
    weights: tuple[PrunedWeight, ...]
    output: Path | None
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    @property
    def sparsity(self) -> float:
        """The part of all elements that is 0."""
        return self.zeros / max(self.elements, 1)

    def _summary(self) -> str:
        return f"{self.zeros} of {self.elements} weights are 0, {self.zeros_before} before"

    def _repr_html_(self) -> str:
        header = ["weight", "type", "shape", "elements", "zeros", "left alone"]
        rows = (
            [w.name, w.dtype, _html.shape(w.shape), w.elements, w.zeros, w.kept]
            for w in self.weights
        )
        return _html.table(self._summary(), header, rows)


def prune(
    source: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    threshold: float | None = None,
    sparsity: float | None = None,
    mode: Literal["absolute", "relative"] = "absolute",
    per: Literal["tensor", "channel"] = "tensor",
    exclude: Iterable[str] | None = None,
) -> Pruning:
    """Set weights of small magnitude to exactly 0.

    Zeros compress well, and some kernels skip them; the file itself does not become smaller, nor
    does the range that quantization finds, which the largest weights set. A zero stays exactly 0
    when the model is quantized, symmetric or not.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        Where to write the model; it may be `source`. None gives it as ``report.model``, in bytes.
    threshold : float, optional
        Weights become 0 where ``abs(w) < threshold``, compared in the type of the weight as numpy
        does. This, or `sparsity`.
    sparsity : float, optional
        The smallest weights become 0 until this part of all is, to the nearest element; of equal
        ones those that stand first.
    mode : str
        The threshold is a number (``"absolute"``), or a part of the largest magnitude
        (``"relative"``).
    per : str
        The largest magnitude, and the part that is 0, are those of the whole weight (``"tensor"``)
        or of each output channel (``"channel"``).
    exclude : iterable of str, optional
        Weights and nodes to leave alone: names or patterns, as in `quantize`.

    Returns
    -------
    Pruning
        How many elements of each weight are 0. Weights that something else needs as they are, such
        as one that is an output, are left alone and say why.

    Raises
    ------
    OptionError
        An option is out of range, or both of `threshold` and `sparsity` or none are given.
    ModelError
        The model cannot be read, or a weight has NaN or infinity in it.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        A file cannot be read or written. Nothing is left behind.

    Examples
    --------
    >>> import quantize_rs
    >>> report = quantize_rs.prune("examples/digits/digits_cnn.onnx", "sparse.onnx", sparsity=0.5)
    >>> print(f"{report.sparsity:.2f}")
    0.50
    """
    target = writable(output)
    below = _below(threshold, sparsity, mode)
    if per not in ("tensor", "channel"):
        raise OptionError(f"per is {per!r}, expected 'tensor' or 'channel'", option="per")
    with _options.called(excluded_layers="exclude"):
        model, said, text = _source.read(source).pruned(
            below, per == "channel", _options.names("exclude", exclude)
        )
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    found = json.loads(said)
    weights = tuple(
        PrunedWeight(**(weight | {"shape": tuple(weight["shape"])}))
        for weight in found.pop("weights")
    )
    return Pruning(**found, weights=weights, output=target, model=data, _json=said, _text=text)


def wish(
    threshold: SupportsFloat | None, sparsity: SupportsFloat | None
) -> tuple[str, float] | None:
    """How small weights are that become 0 before they are quantized; None where none are to."""
    if threshold is not None and sparsity is not None:
        raise OptionError("sparsity: give it or prune, not both", option="sparsity")
    if sparsity is not None:
        return "sparsity", _options.number("sparsity", sparsity)
    return None if threshold is None else ("absolute", _options.number("prune", threshold))


def _below(
    threshold: SupportsFloat | None, sparsity: SupportsFloat | None, mode: str
) -> tuple[str, float]:
    """How small weights are that become 0: what the number means, and the number."""
    if mode not in ("absolute", "relative"):
        raise OptionError(f"mode is {mode!r}, expected 'absolute' or 'relative'", option="mode")
    match threshold, sparsity:
        case None, None:
            what = "threshold: nothing says which weights are small; give it, or sparsity"
            raise OptionError(what, option="threshold")
        case None, part:
            if mode != "absolute":
                raise OptionError(f"mode is {mode!r}, which is for a threshold", option="mode")
            return "sparsity", _options.number("sparsity", part)
        case number, None:
            return mode, _options.number("threshold", number)
        case _:
            raise OptionError("sparsity: give it or threshold, not both", option="sparsity")
