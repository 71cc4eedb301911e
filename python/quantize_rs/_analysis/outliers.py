"""Weights with numbers far from all others."""

from __future__ import annotations

from typing import SupportsFloat

from .. import _core
from .._flow.model import Model
from .._inputs.model_source import ModelSource, core_model
from .._options import check
from .._results.outliers import Outliers, parse_outliers

__all__ = ["outliers"]


def outliers(model: ModelSource | Model, *, fence: SupportsFloat = 3.0, most: int = 10) -> Outliers:
    """Find the elements and output channels of weights that lie far from the others.

    Far is what lies beyond the quartiles of all elements that are not 0 by more than `fence` times
    the distance between these. One scale for the whole weight (or for a block) has to span them,
    and is coarser for all others: a channel with large weights wants ``per_channel=True``, a few
    large elements want blocks (`block_size`), more bits, or to be left float.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    fence : float
        3 is what one normally distributed number in 425 000 exceeds; 1.5 is usual for small tables,
        and one in 143 exceeds that.
    most : int
        The furthest elements of a weight that are named.

    Returns
    -------
    Outliers
        A row for each weight, the one with the furthest element first.

    Raises
    ------
    OptionError
        An option is out of range.
    ModelError
        The model cannot be read, or a weight has NaN or infinity in it.
    FileNotFoundError, PermissionError, OSError
        The model cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> found = quantize_rs.outliers("examples/digits/digits_cnn.onnx")
    >>> first = found.weights[0]
    >>> first.reach < 1.5 and first.channels == ()
    True
    """
    fence, most = check.number("fence", fence), check.count("most", most)
    return parse_outliers(*_core.outliers(core_model(model), fence, most))
