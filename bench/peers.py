"""What peers reached on a model when it was prepared: `peers` in its meta.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Metric = Mapping[str, float]

KINDS: dict[str, tuple[str, ...]] = {
    "static": ("static_",),
    "dynamic": ("dyn_",),
    "4 bits": ("nbits4_",),
    "4 bits, to the nearest": ("nbits4_b32_default", "nbits4_b32_rtn"),
}
"""How the names of the entries begin, by what they have in common."""

TASKS: dict[str, tuple[str, ...]] = {
    "classify": ("top1",),
    "lm": ("perplexity",),
    "sentence": ("mean_cosine", "top1_neighbour_agreement"),
    "sqnr": ("sqnr_db",),
}
"""The figures that count, by task; the first decides who is best."""

LESS_IS_BETTER = ("perplexity",)

COUNTS = ("n", "n_bytes")
"""Figures that say on how much data a metric was taken."""


def best(meta_path: Path) -> dict[str, dict[str, Any]]:
    """The best entry of each kind that has any: its name, its metric, its size."""
    meta = json.loads(meta_path.read_text())
    names = figures_of(meta)
    known = (*names, *COUNTS)
    found = {}
    for kind, prefixes in KINDS.items():
        entries = [
            {
                "name": name,
                "metric": {k: v for k, v in flat(entry["metric"]).items() if k in known},
                "file_bytes": entry["file_bytes"],
            }
            for name, entry in meta.get("peers", {}).items()
            if name.startswith(prefixes) and "error" not in entry
        ]
        if entries:
            found[kind] = max(entries, key=lambda entry: [rank(entry["metric"], n) for n in names])
    return found


def figures_of(meta: dict[str, Any]) -> list[str]:
    """The figures that count for the model; one for each output where the metric is SQNR."""
    names = TASKS.get(meta.get("task", ""), ())
    outputs = meta.get("model", {}).get("outputs", {})
    return [
        figure
        for name in names
        for figure in ([f"{name} {output}" for output in outputs] if name == "sqnr_db" else [name])
    ]


def rank(metric: Metric, name: str) -> float:
    """A figure, the larger the better."""
    return better_by(name, metric[name], 0)


def better_by(name: str, ours: float, theirs: float) -> float:
    """How far our figure is ahead of theirs."""
    return theirs - ours if name in LESS_IS_BETTER else ours - theirs


def flat(metric: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a metric; those that are given by output are named after both."""
    found: dict[str, float] = {}
    for name, value in metric.items():
        if isinstance(value, dict):
            found |= {f"{name} {output}": v for output, v in value.items() if v is not None}
        elif isinstance(value, int | float):
            found[name] = value
    return found


def same_data(a: Metric, b: Metric) -> bool:
    """Whether both metrics were taken on as many samples."""
    return all(a.get(name) == b.get(name) for name in COUNTS)
