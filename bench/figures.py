"""The numbers that targets are about, read from the result of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import peers
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


def part_ratio(label: str, part: str, below: str) -> Figure:
    """The CPU seconds of a part of a job, by those of another job."""

    def figure(result: Result) -> float | None:
        row = result["rows"].get(label, {"cost": {"parts": {}}})
        a, b = row["cost"]["parts"].get(part), cost(below, "cpu")(result)
        return a / b if a is not None and b else None

    return figure


def smaller(label: str) -> Figure:
    """How many times smaller the output is than the model."""

    def figure(result: Result) -> float | None:
        output = cost(label, "output")(result)
        return result["model_bytes"] / output if output else None

    return figure


def over(pick: Callable[[list[float]], float], *figures: Figure) -> Figure:
    """One of several figures, such as the largest; not measured when one of them is not."""

    def figure(result: Result) -> float | None:
        values = [value for each in figures if (value := each(result)) is not None]
        return pick(values) if values and len(values) == len(figures) else None

    return figure


def memory_over_output(label: str, factor: float) -> Figure:
    """Peak of anonymous memory beyond `factor` times the size of the output, in MB."""

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
    return float(sum(bad(row) for row in answered)) if answered else None


def bad(row: Mapping[str, Any]) -> bool:
    """Whether the row's job crashed, or its output was checked and is not valid."""
    return row["cost"]["error"] is not None or ("quality" in row and not valid(row))


def valid(row: Mapping[str, Any]) -> bool:
    """Whether the row's output loads, optimised and not, and passes the checker."""
    found = row.get("quality") or {}
    return all(name in found and not failed(found[name]) for name in VALIDITY)


VALIDITY = ("checker", "optimised", "plain")


def failed(check: object) -> bool:
    """Whether a check holds an error instead of a result."""
    return isinstance(check, dict) and "error" in check


def sqnr_margin(ours: str, theirs: str) -> Figure:
    """How many decibels our SQNR is above theirs, on the output with the smallest margin."""

    def figure(result: Result) -> float | None:
        a, b = sqnr(result, ours), sqnr(result, theirs)
        return min((a[name] - b[name] for name in a if name in b), default=None)

    return figure


def sqnr(result: Result, label: str) -> dict[str, float]:
    """SQNR by output as ONNX Runtime runs the model by default; exact outputs are left out."""
    found = result["rows"].get(label, {}).get("quality") or {}
    values = found.get("optimised", {}).get("sqnr", {})
    return {name: value for name, value in values.items() if value is not None}


def sqnr_apart(a: str, b: str) -> Figure:
    """The largest difference in SQNR between two jobs over the outputs, in decibels."""

    def figure(result: Result) -> float | None:
        x, y = sqnr(result, a), sqnr(result, b)
        return max((abs(x[name] - y[name]) for name in x if name in y), default=None)

    return figure


def worst_sqnr(label: str) -> Figure:
    """The SQNR of the worst output, in decibels."""
    return lambda result: min(sqnr(result, label).values(), default=None)


def metric_above(label: str, below: str, name: str) -> Figure:
    """How much larger a figure of the model's own metric is than that of another job."""

    def figure(result: Result) -> float | None:
        a, b = metric(label, name)(result), metric(below, name)(result)
        return None if a is None or b is None else a - b

    return figure


def metric(label: str, name: str) -> Figure:
    """One figure of the model's own metric."""
    return lambda result: metrics(result, label).get(name)


def metric_margin(label: str, kind: str, name: str) -> Figure:
    """How much better a figure of the metric is than that of the best recorded peer of the kind."""

    def figure(result: Result) -> float | None:
        ours, best = metrics(result, label), result["peers"].get(kind)
        if best is None or name not in ours or not peers.same_data(ours, best["metric"]):
            return None
        return peers.better_by(name, ours[name], best["metric"][name])

    return figure


def metrics(result: Result, label: str) -> dict[str, float]:
    """The figures of the model's own metric, flat."""
    quality = result["rows"].get(label, {}).get("quality") or {}
    found = quality.get("metric") or {}
    return {} if failed(found) else peers.flat(found)


def size_by_peer(label: str, kind: str) -> Figure:
    """Bytes of the output by those of the best recorded peer's."""

    def figure(result: Result) -> float | None:
        ours, best = cost(label, "output")(result), result["peers"].get(kind)
        return ours / best["file_bytes"] if ours and best else None

    return figure


def no_larger_margin(labels: list[str], kind: str, names: list[str], name: str) -> Figure:
    """As `metric_margin`, of the row whose smallest margin over all `names` is largest.

    Rows whose output is larger than that of the best peer do not count. When no row is left, the
    figure is None: `size_by_peer` says by how much the outputs are larger.
    """
    rows = [
        (cost(label, "output"), [metric_margin(label, kind, each) for each in names])
        for label in labels
    ]

    def figure(result: Result) -> float | None:
        best = result["peers"].get(kind)
        found = []
        for output, margins in rows:
            size, values = output(result), [margin(result) for margin in margins]
            known = [value for value in values if value is not None]
            if best is None or size is None or len(known) < len(values):
                return None
            if size <= best["file_bytes"]:
                found.append(known)
        return max(found, key=min)[names.index(name)] if found else None

    return figure


def integer_share(label: str) -> Figure:
    """The share of layers (Conv, Gemm and their like) that run on integers."""

    def figure(result: Result) -> float | None:
        quality = result["rows"].get(label, {}).get("quality") or {}
        found = quality.get("kernels") or {"error": "not counted"}
        if failed(found):
            return None
        integer = sum(found["integer"].get(op, 0) for op in INTEGER_LAYERS)
        total = integer + sum(found["float"].values())
        return integer / total if total else None

    return figure


INTEGER_LAYERS = (
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
)
"""The integer kernels that take the place of Conv, Gemm and MatMul."""


def latency_ratio(ours: str, theirs: str, batch: int) -> Figure:
    """Inference time of ours by theirs: the median over rounds, CPU time on one thread."""

    def figure(result: Result) -> float | None:
        for found in result["latency"]:
            if found["batch"] == batch and f"{ours} / {theirs}" in found["ratios"]:
                return float(found["ratios"][f"{ours} / {theirs}"]["cpu"])
        return None

    return figure
