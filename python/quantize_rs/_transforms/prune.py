"""Magnitude pruning of weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, SupportsFloat

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._options.resolve import with_aliases
from .._results.build import result
from .._results.pruning import Pruning
from ..errors import OptionError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options.aliases import ExcludeAliases

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
    **aliases: Unpack[ExcludeAliases],
) -> Pruning:
    """Set weights of small magnitude to exactly 0.

    Zeros compress well, and some kernels skip them. The file itself does not become smaller, and
    the range of a weight does not change, as its largest elements determine it. Quantization keeps
    zeros exact, symmetric or not.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path, optional
        The file to write, which may be `source`. If None, ``report.model`` holds the bytes.
    threshold : float, optional
        Elements with ``abs(w) < threshold`` become 0; the comparison is in the type of the weight,
        as in numpy. Give this or `sparsity`.
    sparsity : float, optional
        The fraction of elements to set to 0, the smallest magnitudes first; among equal magnitudes
        the first in memory order.
    mode : str
        Whether `threshold` is a number (``"absolute"``) or a fraction of the largest magnitude
        (``"relative"``).
    per : str
        Whether the largest magnitude and `sparsity` apply to the whole weight (``"tensor"``) or to
        each output channel (``"channel"``).
    exclude : iterable of str, optional
        Weights and nodes to exclude: names or patterns, as in `quantize`.
    **aliases
        Other names of `exclude`, as in `quantize`.

    Returns
    -------
    Pruning
        How many elements of each weight are 0. Weights that must not change, such as an output of
        the model, are skipped with a reason.

    Raises
    ------
    OptionError
        An option is out of range, or not exactly one of `threshold` and `sparsity` is given.
    ModelError
        The model cannot be read, or a weight holds NaN or infinity.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        A file cannot be read or written. Nothing is left behind.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.prune(digits.model, "sparse.onnx", sparsity=0.5)
    >>> print(f"{report.sparsity:.2f}")
    0.50
    """
    (exclude,) = with_aliases(aliases, exclude=exclude)
    target = writable(output, option="output")
    below = _below(threshold, sparsity, mode)
    if per not in ("tensor", "channel"):
        raise OptionError(f"per is {per!r}, expected 'tensor' or 'channel'", option="per")
    with check.rename_errors():
        model, outcome = read_model(source).pruned(
            below, per == "channel", check.names("exclude", exclude)
        )
    data = None
    if target is None:
        data = model.to_bytes()
    else:
        model.save(target)
    return result(Pruning, outcome, output=target, model=data)


def _below(
    threshold: SupportsFloat | None, sparsity: SupportsFloat | None, mode: str
) -> tuple[str, float]:
    """Return the meaning of the number that decides what is pruned, and the number."""
    if mode not in ("absolute", "relative"):
        raise OptionError(f"mode is {mode!r}, expected 'absolute' or 'relative'", option="mode")
    match threshold, sparsity:
        case None, None:
            what = "threshold: give it, or sparsity"
            raise OptionError(what, option="threshold")
        case None, part:
            if mode != "absolute":
                raise OptionError(f"mode is {mode!r}, which is for a threshold", option="mode")
            return "sparsity", check.number("sparsity", part)
        case number, None:
            return mode, check.number("threshold", number)
        case _:
            raise OptionError("sparsity: give it or threshold, not both", option="sparsity")
