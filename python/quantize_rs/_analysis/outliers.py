"""Outliers: elements and channels of weights that are far from the others."""

from __future__ import annotations

from typing import SupportsFloat

from .. import _core
from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._options import check
from .._results.build import result
from .._results.outliers import Outliers

__all__ = ["outliers"]


def outliers(model: ModelSource | Model, *, fence: SupportsFloat = 3.0, most: int = 10) -> Outliers:
    """Find outliers among the elements and output channels of weights.

    An outlier is more than `fence` interquartile ranges beyond the quartiles of all nonzero
    elements. A scale that is shared with outliers is coarser for all other elements. For channels
    with large weights use ``per_channel=True``; for a few large elements use blocks (`block_size`),
    more bits, or keep the weight float.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    fence : float
        The distance of the fences, in interquartile ranges. Of normally distributed numbers, one in
        425 000 exceeds 3, and one in 143 exceeds 1.5, which is usual for small tables.
    most : int
        How many of the farthest elements of each weight to list.

    Returns
    -------
    Outliers
        A row for each weight, the one with the farthest element first. Weights that hold NaN or
        infinity are left out with a note.

    Raises
    ------
    OptionError
        An option is out of range.
    ModelError
        The model cannot be read.
    FileNotFoundError, PermissionError, OSError
        The model cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> found = quantize_rs.outliers(digits.model)
    >>> first = found.weights[0]
    >>> first.reach < 1.5 and first.channels == ()
    True
    """
    fence, most = check.number("fence", fence), check.count("most", most)
    return result(Outliers, _core.outliers(core_model(model), fence, most))
