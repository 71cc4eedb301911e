"""The numbers that targets are about, read from the result of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools import OURS

MB = 1_000_000

Result = Mapping[str, Any]
"""What `run.py` found out about a case: `rows` by label, and `latency`."""

Figure = Callable[[Result], float | None]
"""A number of a case; None when it was not measured."""


def cost(label: str, name: str) -> Figure:
    """One figure of what a job cost."""
    return lambda result: result["rows"].get(label, {"cost": {}})["cost"].get(name)


def times(factor: float, figure: Figure) -> Figure:
    """The figure in another unit."""
    return lambda result: None if (value := figure(result)) is None else factor * value


def ratio(above: str, below: str, name: str) -> Figure:
    """One figure of two jobs, the first by the second."""

    def figure(result: Result) -> float | None:
        a, b = cost(above, name)(result), cost(below, name)(result)
        return a / b if a is not None and b else None

    return figure


def memory_over_output(label: str, factor: float) -> Figure:
    """Peak of anonymous memory beyond so many times the output, in MB."""

    def figure(result: Result) -> float | None:
        peak, output = cost(label, "anonymous_peak")(result), cost(label, "output")(result)
        return (peak - factor * output) / MB if peak is not None and output is not None else None

    return figure


def bad_outputs(result: Result) -> float | None:
    """How many of our jobs crashed or wrote a model that does not load or is not valid.

    A refusal is neither: it is an answer, and the row shows it.
    """
    ours = [row for row in result["rows"].values() if row["tool"] == OURS]
    answered = [row for row in ours if not row["cost"]["refused"] and not row["missing"]]
    return float(sum(not valid(row) for row in answered)) if answered else None


def valid(row: Mapping[str, Any]) -> bool:
    """Whether the row's output loads, optimised and not, and passes the checker."""
    found = row.get("quality") or {}
    return all(name in found and not failed(found[name]) for name in VALIDITY)


VALIDITY = ("checker", "optimised", "plain")


def failed(check: object) -> bool:
    """Whether a check holds an error instead of a result."""
    return isinstance(check, dict) and "error" in check


def sqnr_lead(ours: str, theirs: str) -> Figure:
    """How many decibels ours is ahead, on the output where it leads least."""

    def figure(result: Result) -> float | None:
        a, b = sqnr(result, ours), sqnr(result, theirs)
        return min((a[name] - b[name] for name in a if name in b), default=None)

    return figure


def sqnr(result: Result, label: str) -> dict[str, float]:
    """SQNR by output as ONNX Runtime runs the model by default; exact outputs are left out."""
    found = result["rows"].get(label, {}).get("quality") or {}
    values = found.get("optimised", {}).get("sqnr", {})
    return {name: value for name, value in values.items() if value is not None}


def latency_ratio(ours: str, theirs: str, batch: int) -> Figure:
    """Inference time of ours by theirs: the median over rounds, CPU time on one thread."""

    def figure(result: Result) -> float | None:
        for found in result["latency"]:
            if found["batch"] == batch and f"{ours} / {theirs}" in found["ratios"]:
                return float(found["ratios"][f"{ours} / {theirs}"]["cpu"])
        return None

    return figure
