"""The results as Markdown tables, for the terminal and for RESULTS.md alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import figures
from figures import MB

ERROR_LENGTH = 200
PATTERNS_SHOWN = 6

Row = dict[str, Any]
Column = tuple[str, Callable[[str, Row, Row], str]]
"""A heading, and the cell of a row: its label, the row, and our row of the same group."""


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    parts = [heading(results), all_targets(results), *(case(result) for result in results["cases"])]
    return "\n".join(parts)


def heading(results: dict[str, Any]) -> str:
    """The machine and how to read the tables."""
    at = results["machine"]
    lines = [
        "# Measured beside the peers",
        "",
        f"{at['processor']} ({', '.join(at['features'])}), {at['cores']} cores, "
        f"{at['memory_gb']} GB, {at['system']}, Python {at['python']}; "
        f"load before the run {at['load'][0]}.",
        "",
        *(f"- {name}: {versions(found)}" for name, found in at["tools"].items()),
        "",
        f"Medians of {results['runs']} runs in fresh processes. MB = 10⁶ bytes. "
        "`bench/README.md` says how each figure is measured.",
        "",
    ]
    return "\n".join(lines)


def versions(found: dict[str, str] | str) -> str:
    """Versions in one line."""
    return (
        found if isinstance(found, str) else ", ".join(f"{name} {v}" for name, v in found.items())
    )


def all_targets(results: dict[str, Any]) -> str:
    """Every target in one table."""
    rows = [
        [found["name"], target["text"], number(target["figure"]), target["bound"], target["result"]]
        for found in results["cases"]
        for target in found["targets"]
    ]
    return table(["case", "figure", "measured", "target", "result"], rows, "## Targets")


def case(result: dict[str, Any]) -> str:
    """One case: its cost, quality and latency tables, its errors and its targets."""
    parts = [
        f"## {result['title']}\n",
        f"{result['model_bytes'] / MB:.2f} MB" + float_line(result["float"]) + "\n",
        filled(COST, result["rows"], lambda _: True),
        filled(QUALITY, result["rows"], lambda row: bool(row.get("quality"))),
        best_peers(result["peers"]),
        *(latency(found) for found in result["latency"]),
        notes(result),
        targets(result),
    ]
    return "\n".join(part for part in parts if part)


def float_line(found: Row | None) -> str:
    """The metric of the float model."""
    text = metric(found or {})
    return f"; float: {text}" if text else ""


def best_peers(found: dict[str, Row]) -> str:
    """What the best peers reached when the model was prepared."""
    rows = [
        [kind, best["name"], figures_line(best["metric"]), f"{best['file_bytes'] / MB:.3f}"]
        for kind, best in found.items()
    ]
    return table(["best recorded peer", "way", "metric", "MB"], rows) if rows else ""


def measured(row: Row) -> bool:
    """Whether the job ran through."""
    return row["cost"]["error"] is None


def times_ours(row: Row, ours: Row) -> str:
    """CPU time as a multiple of ours."""
    mine, theirs = ours.get("cost", {}).get("cpu"), row["cost"]["cpu"]
    return f"{theirs / mine:.2f}" if mine and theirs and row is not ours else ""


def size(name: str) -> Callable[[str, Row, Row], str]:
    """A size of the cost in MB."""
    return lambda _, row, __: "" if row["cost"][name] is None else f"{row['cost'][name] / MB:.2f}"


def seconds(name: str) -> Callable[[str, Row, Row], str]:
    """A time of the cost."""
    return lambda _, row, __: "" if row["cost"][name] is None else f"{row['cost'][name]:.3f}"


def part(row: Row, name: str) -> str:
    """CPU seconds of a part of the call."""
    value = row["cost"]["parts"].get(name)
    return "" if value is None else f"{value:.3f}"


def engine(row: Row) -> str:
    """Who ran the samples."""
    value = row["cost"]["value"]
    return value.get("engine") or "" if isinstance(value, dict) else ""


COST: list[Column] = [
    ("job", lambda label, *_: label),
    ("CPU s", seconds("cpu")),
    ("÷ ours", lambda _, row, ours: times_ours(row, ours)),
    ("wall s", seconds("wall")),
    ("anonymous peak MB", size("anonymous_peak")),
    ("before the call MB", size("anonymous_before")),
    ("RSS growth MB", size("rss_growth")),
    ("written MB", size("written")),
    ("output MB", size("output")),
    ("calibrating CPU s", lambda _, row, __: part(row, "calibrating")),
    ("engine", lambda _, row, __: engine(row)),
    ("start-up CPU s", seconds("cpu_before")),
    ("result", lambda _, row, __: outcome(row)),
]

QUALITY: list[Column] = [
    ("job", lambda label, *_: label),
    ("loads", lambda _, row, __: yes(row["quality"]["optimised"])),
    ("unoptimised", lambda _, row, __: yes(row["quality"]["plain"])),
    ("checker", lambda _, row, __: yes(row["quality"]["checker"])),
    ("SQNR dB", lambda _, row, __: sqnr(row["quality"]["optimised"])),
    ("SQNR dB unoptimised", lambda _, row, __: sqnr(row["quality"]["plain"])),
    ("metric", lambda _, row, __: metric(row["quality"])),
    ("integer kernels", lambda _, row, __: total(row["quality"], "integer")),
    ("float kernels", lambda _, row, __: total(row["quality"], "float")),
    ("Q + DQ left", lambda _, row, __: total(row["quality"], "conversions")),
]


def yes(found: Any) -> str:
    """Yes, or no when the check holds an error."""
    return "**no**" if figures.failed(found) else "yes"


def sqnr(found: Row) -> str:
    """SQNR of each output."""
    return " / ".join(
        "equal" if db is None else f"{db:.1f}" for db in found.get("sqnr", {}).values()
    )


def metric(found: Row) -> str:
    """The model's own metric; what repeats the SQNR or counts the samples is left out."""
    values = found.get("metric") or {}
    if figures.failed(values):
        return "failed"
    return figures_line({k: v for k, v in values.items() if isinstance(v, float | str)})


def figures_line(values: Mapping[str, float | str]) -> str:
    """Figures with their names in one line."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def total(found: Row, kind: str) -> str:
    """Number of kernels of a kind."""
    counts = found.get("kernels", {}).get(kind)
    return "" if counts is None else str(sum(counts.values()))


def filled(columns: list[Column], rows: dict[str, Row], shown: Callable[[Row], bool]) -> str:
    """A table of the rows that have the figures; columns without any are left out."""
    ours = {
        row["group"]: row
        for row in reversed(rows.values())
        if row["tool"] == "quantize_rs" and measured(row)
    }
    chosen = {label: row for label, row in rows.items() if shown(row)}
    if not chosen:
        return ""
    cells = [
        [cell(label, row, ours.get(row["group"], {})) for _, cell in columns]
        for label, row in chosen.items()
    ]
    kept = [i for i in range(len(columns)) if any(line[i] for line in cells)]
    return table([columns[i][0] for i in kept], [[line[i] for i in kept] for line in cells])


def latency(found: dict[str, Any]) -> str:
    """Inference times of one batch size."""
    if "error" in found:
        return f"Inference, batch {found['batch']}: {found['error']}\n"
    rows = [
        [
            label,
            f"{times['wall_ms']:.3f}",
            f"{times['cpu_ms']:.3f}",
            *(
                f"{found['ratios'][f'{label} / {base}']['cpu']:.3f}" if base != label else ""
                for base in found["models"]
            ),
        ]
        for label, times in found["models"].items()
    ]
    head = ["one thread", "wall ms", "CPU ms", *(f"CPU by {base}" for base in found["models"])]
    return table(head, rows, f"Inference, batch {found['batch']}, interleaved:")


def notes(result: dict[str, Any]) -> str:
    """Errors, failed checks, remarks, and what stayed float in our outputs."""
    lines = []
    for label, row in result["rows"].items():
        if row["cost"]["error"]:
            lines.append(f"- {label}: {outcome(row)}: {cut(row['cost']['error'])}")
        lines += [f"- {label}: {note}" for note in row["cost"]["notes"]]
        lines += [f"- {label}: {line}" for line in quality_notes(row)]
    lines += [f"- {label}: left out, {reason}" for label, reason in result["left_out"].items()]
    return "\n".join(lines) + "\n" if lines else ""


def outcome(row: Row) -> str:
    """How the job ended."""
    if row["missing"]:
        return "not there"
    if row["cost"]["error"] is None:
        return "done"
    return "refused" if row["cost"]["refused"] else "failed"


def quality_notes(row: Row) -> list[str]:
    """Checks that failed; for static outputs the float kernels that read dequantized values."""
    found = row.get("quality") or {}
    failed = {name: check["error"] for name, check in found.items() if figures.failed(check)}
    lines = [f"{name}: {cut(error)}" for name, error in failed.items()]
    patterns = found.get("kernels", {}).get("stayed_float", {})
    if patterns and row["group"] == "static":
        shown = [
            f"{count} × {pattern}" for pattern, count in list(patterns.items())[:PATTERNS_SHOWN]
        ]
        more = len(patterns) - len(shown)
        lines.append(
            "computed in float: " + "; ".join(shown) + (f"; {more} more patterns" if more else "")
        )
    return lines


def targets(result: dict[str, Any]) -> str:
    """The targets of a case and their results, a line each."""
    lines = [
        f"- **{t['result']}** {t['text']}: {number(t['figure'])} (target {t['bound']})"
        for t in result["targets"]
    ]
    return "\n".join(lines) + "\n" if lines else ""


def number(value: float | str | None) -> str:
    """Four significant digits."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"


def cut(text: str) -> str:
    """An error that fits into a line; the JSON has all of it."""
    return text if len(text) <= ERROR_LENGTH else text[:ERROR_LENGTH] + " …"


def table(head: list[str], rows: list[list[str]], title: str = "") -> str:
    """A Markdown table with aligned columns: words to the left, figures to the right."""
    columns = [column(list(cells)) for cells in zip(head, *rows, strict=True)]
    lines = ["| " + " | ".join(line) + " |" for line in zip(*columns, strict=True)]
    return "\n".join([*([title, ""] if title else []), *lines]) + "\n"


def column(cells: list[str]) -> list[str]:
    """The cells of a column and the rule below its heading, in one width."""
    head, *body = [cell.replace("|", "\\|") for cell in cells]
    width = max(3, *(len(cell) for cell in [head, *body]))
    if all(not cell or cell[0] in FIGURE_BEGINS for cell in body):
        return [cell.rjust(width) for cell in [head, "-" * (width - 1) + ":", *body]]
    return [cell.ljust(width) for cell in [head, "-" * width, *body]]


FIGURE_BEGINS = "0123456789-–≤≥"
