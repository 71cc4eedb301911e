"""Models of which only the file is known, through every way to quantize: one row per model.

python bench/wild.py MODELS --out target/wild
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import measure
import models
import tools

REPOSITORY = Path(__file__).resolve().parent.parent
MEGABYTE = 1e6


@dataclass(frozen=True)
class Way:
    """A call: its options beside the paths, and whether it takes calibration samples."""

    options: dict[str, Any] = field(default_factory=dict)
    calibrated: bool = False


WAYS = {
    "weights": Way(),
    "static": Way(calibrated=True),
    "dynamic": Way({"output_format": "dynamic"}),
    "int4": Way({"bits": 4}),
    "matmul_nbits": Way({"bits": 4, "output_format": "matmul_nbits"}),
    "static per tensor": Way({"per_channel": False}, calibrated=True),
    "float16": Way({"weights": "float16"}),
}

KINDS = {
    "error": ("far from that of the float model", "has its highest score elsewhere", "dB is low"),
    "slow": ("dequantized at every inference", "slower than", "dequantizes it for each"),
}
"""Kinds of warnings, by what their texts contain."""

POOR_DB, SLOW = 10.0, 1.1
"""What no result may be worse than without a warning of its kind."""

Row = dict[str, Any]


def main() -> None:
    """Run what was asked for; the files are written after each model."""
    options = arguments()
    found = [path for path in sorted(options.models.glob("*.onnx")) if wanted(path, options.only)]
    if not found:
        sys.exit(f"no model in `{options.models}` is named {' or '.join(options.only) or '*.onnx'}")
    ways = {name: WAYS[name] for name in options.ways}
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine.describe(found_tools()), "models": {}}
    for path in found:
        rows = {}
        for name, way in ways.items():
            rows[name] = row(path, way, options.out / "work", options.timeout)
            print(f"{path.stem}: {name}: {cell(rows[name])}", flush=True)
        results["models"][path.stem] = rows
        (options.out / "wild.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "wild.md").write_text(markdown(results["models"]))
    print(markdown(results["models"]))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Quantize every model of a folder in every way.")
    parser.add_argument("models", type=Path, help="folder of .onnx files, each perhaps with .npz")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "target" / "wild")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per process [300]")
    return parser.parse_args()


def wanted(path: Path, patterns: list[str]) -> bool:
    """Whether a pattern matches the name of the file without its ending."""
    return not patterns or any(fnmatch.fnmatch(path.stem, pattern) for pattern in patterns)


def found_tools() -> dict[str, tools.Tool]:
    """The two tools that take part."""
    return {
        tools.OURS: tools.probed(tools.OURS, tools.HERE, "quantize_rs", "quantization-rs"),
        tools.ORT: tools.probed(tools.ORT, tools.HERE, "onnxruntime", "onnxruntime", "onnx"),
    }


def row(model: Path, way: Way, folder: Path, timeout: float) -> Row:
    """One model quantized in one way, in a process of its own, and evaluated in another."""
    output = folder / "output" / "model.onnx"
    common = {"module": "wild_jobs", "limit_seconds": timeout}
    made = common | {"job": "quantize", "model": str(model.resolve())}
    made |= {"output": str(output.resolve()), "options": way.options, "calibrated": way.calibrated}
    cost = measure.job(tools.HERE, made, folder / "scratch")
    if cost.error is not None:
        return {"error": cost.error, "refused": cost.refused}
    before = sum(file.stat().st_size for file in models.files_of(model))
    found: Row = {"size": cost.output / before, "cpu": cost.cpu, "warnings": cost.value["warnings"]}
    found["peak_mb"] = (cost.anonymous_peak - cost.anonymous_before) / MEGABYTE
    found["quantized"] = cost.value["quantized"]
    evaluate = common | {
        "job": "evaluate",
        "model": str(output.resolve()),
        "reference": made["model"],
    }
    measured = measure.job(tools.HERE, evaluate, folder / "scratch")
    return found | {"evaluation": measured.value or {"failed": measured.error}}


def kinds(warnings: list[str]) -> list[str]:
    """The kinds of the warnings, each once."""
    return [
        kind
        for kind, texts in KINDS.items()
        if any(text in warning for text in texts for warning in warnings)
    ]


def sqnr(row: Row) -> float | None:
    """The SQNR of the worst output in the worse of the two kinds of session.

    Infinite if every output is equal, None if there is none.
    """
    evaluation = row.get("evaluation", {})
    ends = [evaluation.get(session) or {} for session in ("optimised", "plain")]
    if any("sqnr" not in end for end in ends):
        return None
    return min(math.inf if end["sqnr"] is None else end["sqnr"] for end in ends)


def time_ratio(row: Row) -> float | None:
    """Time of the result by that of the float model."""
    ratio: float | None = row.get("evaluation", {}).get("time", {}).get("ratio")
    return ratio


def faults(row: Row) -> list[str]:
    """Where a row breaks what is promised of every model."""
    if "error" in row:
        return [f"refused: {row['error']}"]
    said, db, ratio = kinds(row["warnings"]), sqnr(row), time_ratio(row)
    found = []
    if db is None:
        found.append(f"does not run: {not_run(row)}")
    elif db < POOR_DB and "error" not in said:
        found.append(f"{db:.1f} dB without a warning")
    if row["size"] > 1:
        found.append(f"grew to {row['size']:.2f} of the source")
    if ratio is not None and ratio > SLOW and "slow" not in said:
        found.append(f"{ratio:.2f} x the time of float without a warning")
    return found


def not_run(row: Row) -> str:
    """Why a result was not compared."""
    evaluation = row["evaluation"]
    ends = [evaluation.get(session, {}).get("error") for session in ("optimised", "plain")]
    return evaluation.get("failed") or next((end for end in ends if end), "unknown")


def cell(row: Row) -> str:
    """A row in short: decibels, size, time, and the kinds of its warnings."""
    if "error" in row:
        return "refused" if row["refused"] else "failed"
    db, ratio = sqnr(row), time_ratio(row)
    shown = "does not run" if db is None else "equal" if math.isinf(db) and db > 0 else f"{db:.1f}"
    time = "" if ratio is None else f"; {ratio:.2f}"
    said = "".join(f" {kind}" for kind in kinds(row["warnings"]))
    return f"{shown}; {row['size']:.2f}{time}{said}"


def markdown(found: dict[str, dict[str, Row]]) -> str:
    """The table, the medians, and what breaks a promise."""
    ways = list(next(iter(found.values())))
    lines = [f"| model | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for name, rows in found.items():
        lines.append(f"| {name} | {' | '.join(cell(rows[way]) for way in ways)} |")
    middle = [median_cell([rows[way] for rows in found.values()]) for way in ways]
    lines += [f"| median | {' | '.join(middle)} |", ""]
    for name, rows in found.items():
        for way in ways:
            lines += [f"- {name}, {way}: {fault}" for fault in faults(rows[way])]
    return "\n".join(lines) + "\n"


def median_cell(rows: list[Row]) -> str:
    """Medians of decibels, size and time over the models that something was done to."""
    done = [row for row in rows if row.get("quantized")]
    decibels = [db for row in done if (db := sqnr(row)) is not None]
    times = [ratio for row in done if (ratio := time_ratio(row)) is not None]
    parts = [decibels, [row["size"] for row in done], times]
    digits = (1, 2, 2)
    shown = [
        f"{statistics.median(part):.{n}f}" if part else "-"
        for part, n in zip(parts, digits, strict=True)
    ]
    return "; ".join(shown)


if __name__ == "__main__":
    main()
