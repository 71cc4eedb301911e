"""Weights of small magnitude become 0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Literal, SupportsFloat

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._results.pruning import PrunedWeight, Pruning
from ..errors import OptionError

__all__ = ["prune"]


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
    with check.rename_errors(excluded_layers="exclude"):
        model, said, text = read_model(source).pruned(
            below, per == "channel", check.names("exclude", exclude)
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
            return "sparsity", check.number("sparsity", part)
        case number, None:
            return mode, check.number("threshold", number)
        case _:
            raise OptionError("sparsity: give it or threshold, not both", option="sparsity")
