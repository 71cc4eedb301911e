"""The result of `outliers`: weight elements and channels far from the others."""

from __future__ import annotations

from dataclasses import dataclass

from . import notebook
from .base import Result


@dataclass(frozen=True, slots=True)
class OutlierElement:
    """An element far from the others.

    Attributes
    ----------
    index : tuple of int
        Its index.
    value : float
        Its value.
    """

    index: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True)
class OutlierChannel:
    """An output channel with larger weights than the others.

    Attributes
    ----------
    channel : int
        Its index.
    largest : float
        Its largest magnitude.
    """

    channel: int
    largest: float


@dataclass(frozen=True, slots=True)
class WeightOutliers:
    """The outliers of one weight; zeros are ignored.

    Attributes
    ----------
    name, op_type : str
        The weight, and the operator type of the node that uses it.
    shape : tuple of int
        Its shape.
    elements : int
        The number of elements.
    fences : (float, float)
        Elements below the first or above the second fence are outliers.
    reach : float
        Its largest magnitude divided by that of the farther fence. Above 1, it is the factor by
        which outliers make a per-tensor scale coarser.
    beyond : int
        The number of elements beyond a fence.
    furthest : tuple of OutlierElement
        The elements that are farthest beyond a fence.
    axis : int or None
        The axis of its output channels; None if it has none, or if it is a stack of matrices.
    channels : tuple of OutlierChannel
        Output channels whose largest magnitude lies beyond the fence of the channel maxima, the
        largest first.
    """

    name: str
    op_type: str
    shape: tuple[int, ...]
    elements: int
    fences: tuple[float, float]
    reach: float
    beyond: int
    furthest: tuple[OutlierElement, ...]
    axis: int | None
    channels: tuple[OutlierChannel, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Outliers(Result):
    """The outliers of all weights. `outliers` returns it.

    ``print(found)`` shows a table.

    Attributes
    ----------
    fence : float
        The distance of the fences from the quartiles, in interquartile ranges.
    weights : tuple of WeightOutliers
        Every float weight, the one with the farthest element first.
    notes : tuple of str
        Weights that were left out, with the reason: NaN and infinity have no fences.
    """

    fence: float
    weights: tuple[WeightOutliers, ...]
    notes: tuple[str, ...]

    def _summary(self) -> str:
        far = [weight for weight in self.weights if weight.beyond]
        return f"{len(far)} of {len(self.weights)} weights have outliers"

    def _repr_html_(self) -> str:
        header = ["weight", "operator", "shape", "elements", "beyond", "reach", "channels"]
        rows = (
            [
                w.name,
                w.op_type,
                notebook.shape(w.shape),
                w.elements,
                w.beyond,
                w.reach,
                _channels(w),
            ]
            for w in self.weights
        )
        return notebook.table(self._summary(), header, rows)


def _channels(weight: WeightOutliers) -> str:
    return ", ".join(str(found.channel) for found in weight.channels)
