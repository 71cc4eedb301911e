"""Weights alone, rounded with the calibration samples of a model, and what they must reach."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import figures
from case import Job, Target
from tools import OURS


class Width(NamedTuple):
    """A way to store weights, its metrics, and the bound of each."""

    label: str
    options: dict[str, Any]
    at_least: Mapping[str, float] = MappingProxyType({})
    at_most: Mapping[str, float] = MappingProxyType({})

    @property
    def job(self) -> Job:
        label = f"quantize_rs {self.label}, rounded with samples"
        return Job(label, OURS, "correct", "rounded", self.options | {"check": "none"})

    def targets(self) -> list[Target]:
        label = self.job.label

        def target(name: str, **bound: float) -> Target:
            return Target(f"{label}: {name}", figures.metric(label, name), **bound)

        return [
            *(target(name, at_least=bound) for name, bound in self.at_least.items()),
            *(target(name, at_most=bound) for name, bound in self.at_most.items()),
        ]


def blocks(bits: int) -> dict[str, Any]:
    return {"bits": bits, "block_size": 32}


def top1(least: float) -> dict[str, float]:
    return {"top1": least}


WIDTHS: dict[str, tuple[Width, ...]] = {
    "bytegpt/model": (
        Width("int4", {"bits": 4}, at_most={"perplexity": 4.96}),
        Width("int4 blocks of 32", blocks(4), at_most={"perplexity": 4.9447}),
        Width("int3 blocks of 32", blocks(3), at_most={"perplexity": 4.9477}),
        Width("int2 blocks of 32", blocks(2)),
        Width(
            "int2 blocks of 32, best",
            blocks(2) | {"rounding_effort": "best"},
            at_most={"perplexity": 5.0},
        ),
    ),
    "minilm/model": (
        Width("int4", {"bits": 4}, at_least={"mean_cosine": 0.97}),
        Width(
            "int4 blocks of 32",
            blocks(4),
            at_least={"mean_cosine": 0.990, "top1_neighbour_agreement": 0.90},
        ),
    ),
    "ultraface/model_op17": (
        Width("int8", {}, at_least={"sqnr_db scores": 60, "sqnr_db boxes": 60}),
        Width("int4", {"bits": 4}, at_least={"sqnr_db scores": 40, "sqnr_db boxes": 40}),
    ),
    "super_resolution/model": (
        Width("int8", {}, at_least={"sqnr_db 27": 44}),
        Width("int4", {"bits": 4}, at_least={"sqnr_db 27": 26}),
    ),
    # The float models have .8457 and .8539.
    "glyph_resnet/model": (
        Width("int4", {"bits": 4}, at_least=top1(0.8437)),
        Width("int3", {"bits": 3}, at_least=top1(0.8357)),
    ),
    "glyph_mobilenetv2/model": (
        Width("int4", {"bits": 4}, at_least=top1(0.8519)),
        Width("int3", {"bits": 3}, at_least=top1(0.8439)),
    ),
}
"""The widths that are measured of each model."""


def jobs(model: str) -> tuple[Job, ...]:
    return tuple(width.job for width in WIDTHS.get(model, ()))


def targets(model: str) -> list[Target]:
    return [target for width in WIDTHS.get(model, ()) for target in width.targets()]
