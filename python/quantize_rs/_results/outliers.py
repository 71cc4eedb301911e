"""What `outliers` found: weights with values far from the others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from . import notebook
from .base import Result


@dataclass(frozen=True, slots=True)
class OutlierElement:
    """An element far from the others.

    Attributes
    ----------
    index : tuple of int
        Where it is.
    value : float
        What it is.
    """

    index: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True)
class OutlierChannel:
    """An output channel with larger weights than the others.

    Attributes
    ----------
    channel : int
        Which one.
    largest : float
        Its largest magnitude.
    """

    channel: int
    largest: float


@dataclass(frozen=True, slots=True)
class WeightOutliers:
    """What of a weight lies far from the rest; zeros do not count.

    Attributes
    ----------
    name, op_type : str
        The weight, and the operator that multiplies by it.
    shape : tuple of int
        Its shape.
    elements : int
        How many elements it has.
    fences : (float, float)
        What is below the first or above the second is far.
    reach : float
        Its largest magnitude, as a multiple of that of the further fence: beyond 1 one scale for
        the whole weight is so many times coarser than without outliers.
    beyond : int
        How many elements lie beyond a fence.
    furthest : tuple of OutlierElement
        The furthest of them.
    axis : int or None
        The axis of its output channels; None where it has none, or they are rows of several
        matrices.
    channels : tuple of OutlierChannel
        Output channels whose largest magnitude lies beyond the fence of all of them, the largest
        first.
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
    """What lies far from the others, weight by weight. `outliers` makes it.

    ``print(found)`` shows a table.

    Attributes
    ----------
    fence : float
        How far the fences lie beyond the quartiles.
    weights : tuple of WeightOutliers
        Every weight of floats, the one with the furthest element first.
    """

    fence: float
    weights: tuple[WeightOutliers, ...]
    _json: str = field(compare=False)
    _text: str = field(compare=False)

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


def parse_outliers(json_text: str, text: str) -> Outliers:
    """Read what the extension module wrote, as JSON and as text."""
    found = json.loads(json_text)
    weights = tuple(_weight(weight) for weight in found["weights"])
    return Outliers(found["fence"], weights, _json=json_text, _text=text)


def _weight(found: dict[str, Any]) -> WeightOutliers:
    low, high = found.pop("fences")
    furthest = found.pop("furthest")
    channels = found.pop("channels")
    return WeightOutliers(
        shape=tuple(found.pop("shape")),
        fences=(low, high),
        furthest=tuple(OutlierElement(tuple(it["index"]), it["value"]) for it in furthest),
        channels=tuple(OutlierChannel(**channel) for channel in channels),
        **found,
    )


def _channels(weight: WeightOutliers) -> str:
    return ", ".join(str(found.channel) for found in weight.channels)
