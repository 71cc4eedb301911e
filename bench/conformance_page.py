"""docs/conformance.md: the rows of `conformance.py`, what deviates, and why."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance import Row, Side

PAGE = Path(__file__).resolve().parent.parent / "docs" / "conformance.md"

MARGIN_DB = 0.1
"""How far below theirs our SQNR may be."""

ERROR, SQNR, CPU, MEMORY = "no result", "SQNR", "CPU time", "memory"
"""The kinds of deviations."""


@dataclass(frozen=True)
class Reason:
    """Why a kind of deviation is there, for the models and calls that the patterns match."""

    subject: str
    call: str
    kind: str
    text: str


REASONS: tuple[Reason, ...] = (
    Reason(
        "*",
        "static *, every operator",
        SQNR,
        "`ForceQuantizeNoInputCheck` quantizes every operator here, as NPUs need it, with the "
        "scale of all that Sigmoid can produce; onnxruntime quantizes operators of its list alone",
    ),
    Reason(
        "*",
        "static *, entropy",
        SQNR,
        "ours searches thresholds; with the 128 bins of onnxruntime there is one, the full range",
    ),
    Reason(
        "upsampler",
        "dynamic *",
        SQNR,
        "ours also stores the weights of ConvTranspose in 8 bits, which onnxruntime leaves float: "
        "the file is less than half as large",
    ),
    Reason(
        "gather_embedding",
        "dynamic *",
        SQNR,
        "onnxruntime multiplies the integers of a table by those of a weight; ours dequantizes the "
        "rows first, so that other operators can read them, and quantizes them again",
    ),
    Reason(
        "gather_embedding",
        "*",
        SQNR,
        "a product of 16 by 8 elements: the weights are closer, its output is not, by chance",
    ),
    Reason(
        "lstm",
        "dynamic *",
        SQNR,
        "onnxruntime has a scale for each direction even without `per_channel`, ours one",
    ),
    Reason(
        "transformer_block",
        "dynamic *, 7 bits",
        SQNR,
        "0.9 dB in products of 32 columns, by chance: `encoder` is 0.3 dB closer with this call",
    ),
    Reason(
        "*",
        "dynamic *",
        SQNR,
        "integers are rounded so that the sums of channels are kept, which brings most models "
        "closer, by up to 14 dB, and this one not: its channels have few elements",
    ),
    Reason(
        "matmul_3d_weight",
        "static u*",
        SQNR,
        "onnxruntime gives a weight with three axes scales along the summed one, with which no "
        "kernel computes on integers; ours gives it one scale",
    ),
    Reason(
        "fp16_model",
        "static u8s4 *",
        SQNR,
        "two weights of 8 and 10 channels: their squared error is 30 % smaller, that of the output "
        "is not, by chance",
    ),
    Reason(
        "fp16_model",
        "static u16*",
        SQNR,
        "the weights are the same; biases are corrected for the error of the weights on the "
        "samples, and outputs this close are bounded by the arithmetic of float16",
    ),
    Reason(
        "conv_sigmoid",
        "static *",
        SQNR,
        "0.15 dB, the noise of rounding in convolutions of 8 channels",
    ),
    Reason(
        "*",
        "[48] bits, *",
        CPU,
        "a call of a few ms: a plan, a search for the scales with the least squared error, a file "
        "that is complete on disk; onnxruntime takes the range, and leaves Gemm float",
    ),
    Reason(
        "minilm",
        "?[FP]4, *",
        CPU,
        "a search for the scales with the least squared error, 0.2 dB closer; onnxruntime takes "
        "the largest magnitude",
    ),
    Reason(
        "bytegpt",
        "?[FP]4, *",
        CPU,
        "a search for the scales with the least squared error: a perplexity of 4.949, where "
        "onnxruntime, which takes the largest magnitude, has 4.965",
    ),
    Reason(
        "bytegpt",
        "*4*, blocks of *",
        SQNR,
        "the perplexity, on all evaluation data, is lower: 4.949 with NF4 and 4.950 with 4 bits, "
        "where onnxruntime has 4.965 and 4.954",
    ),
    Reason(
        "*",
        "?[FP]4, *",
        MEMORY,
        "the model in memory is serialized once, beside the object that the caller holds",
    ),
    Reason(
        "*",
        "?[FP]4, *",
        CPU,
        "a call of a few ms: a plan, a search for the scales with the least squared error, a file "
        "that is complete on disk; onnxruntime takes the largest magnitude",
    ),
    Reason(
        "*",
        "dynamic *",
        CPU,
        "a call of about 10 ms: mostly a plan, checks and a file that is complete on disk",
    ),
    Reason(
        "*",
        "static *",
        CPU,
        "a call of 15 to 60 ms, which mostly prepares the engine and its threads for a model that "
        "runs in microseconds",
    ),
)
"""The reasons of all known deviations; the first that matches counts."""

HEAD = """# Conformance

The same calls of `onnxruntime.quantization` and of `quantize_rs.compat.onnxruntime`, with nothing
but the import changed. Wherever onnxruntime's result loads in ONNX Runtime and runs, ours

- loads and has the same inputs and outputs: names, types and shapes;
- is as close to the float model: the SQNR of its worst output is at most {margin} dB lower, on
  samples that calibration did not see;
- takes less CPU time and less memory.

What deviates is listed [at the end](#exceptions), with the reason. `make conformance` compares all
models and calls and writes this page; a test compares some of the models, without costs, and fails
where the list of exceptions is not what it finds.

| column | meaning |
|---|---|
| theirs, ours | SQNR of the worst output in dB; “float”: nothing was quantized or changed |
| size | bytes of our result by those of theirs |
| CPU | CPU time of their call divided by ours |
| memory | peak of anonymous memory of our process by that of theirs |

“error” and “does not run”: there is no result, or ONNX Runtime does not load or run it. Imports,
and loading the engine, come before the call that is measured, once, in a process of its own; the
fixtures of the tests are too small for that. Models that are neither built nor in this repository
are trained ones of a folder, with a part of the calls.

Written by `{command}`:
{machine}.
"""


def deviations(row: Row) -> Iterator[str]:
    """The kinds in which a row is not as it should be; none where theirs has no result."""
    if row.theirs.error is not None:
        return
    if row.ours.error is not None:
        yield ERROR
        return
    if row.theirs.sqnr is not None and decibels(row.ours) < decibels(row.theirs) - MARGIN_DB:
        yield SQNR
    for kind, ours, theirs in (
        (CPU, row.ours.cpu, row.theirs.cpu),
        (MEMORY, row.ours.peak, row.theirs.peak),
    ):
        if ours is not None and theirs is not None and ours > theirs:
            yield kind


def decibels(side: Side) -> float:
    """The SQNR, infinite without noise."""
    return math.inf if side.sqnr is None else side.sqnr


def reason(subject: str, call: str, kind: str) -> Reason | None:
    """The reason for a deviation, if one is known."""
    for one in REASONS:
        fits = fnmatch.fnmatch(subject, one.subject) and fnmatch.fnmatch(call, one.call)
        if fits and one.kind == kind:
            return one
    return None


def unexplained(rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """The deviations without a reason."""
    return [
        (row, kind)
        for row in rows
        for kind in deviations(row)
        if reason(row.subject, row.call, kind) is None
    ]


def line(row: Row) -> str:
    """A row as it is printed."""
    found = ", ".join(deviations(row))
    return f"{row.subject}: {row.call}: {' | '.join(cells(row))}" + (
        f" <- {found}" if found else ""
    )


def cells(row: Row) -> list[str]:
    """The figures of a row."""
    theirs, ours = row.theirs, row.ours
    found = [shown(theirs), shown(ours), ratio(ours.size, theirs.size)]
    return [*found, ratio(theirs.cpu, ours.cpu), ratio(ours.peak, theirs.peak)]


def shown(side: Side) -> str:
    """The SQNR of a result, or what happened instead."""
    if side.error is not None:
        return "does not run" if side.error.startswith(RUNS_NOT) else "error"
    return "float" if side.sqnr is None else f"{side.sqnr:.1f}"


RUNS_NOT = ("the result does not run", "other inputs")
"""How errors of a written model begin."""


def ratio(above: float | None, below: float | None) -> str:
    """One number by another."""
    return "–" if not above or not below else f"{above / below:.2f}"


def page(rows: Sequence[Row], machine: dict[str, Any], command: str) -> str:
    """The page."""
    text = HEAD.format(margin=MARGIN_DB, machine=described(machine), command=command)
    text += "\n## Summary\n\n" + "".join(f"{each}\n" for each in summary(rows))
    for subject, found in groupby(rows, key=lambda row: row.subject):
        text += f"\n## {subject.replace('_', ' ').capitalize()}\n\n"
        text += "| call | theirs | ours | size | CPU | memory |\n|---|---|---|---|---|---|\n"
        text += "".join(f"| {row.call} | {' | '.join(cells(row))} |\n" for row in found)
    text += EXCEPTIONS
    for row in rows:
        for kind in deviations(row):
            why = reason(row.subject, row.call, kind)
            by = why.text if why else "no reason is known"
            text += f"| {row.subject} | {row.call} | {kind} | {by} |\n"
    return text


EXCEPTIONS = """
## Exceptions

| model | call | what | reason |
|---|---|---|---|
"""


def described(machine: dict[str, Any]) -> str:
    """The machine and the versions in a sentence."""
    versions = [
        f"{name} {version}"
        for found in machine["tools"].values()
        for name, version in found.items()
        if name in ("quantization-rs", "onnxruntime")
    ]
    return f"{machine['cores']} cores of {machine['processor']}, {', '.join(versions)}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How many rows there are, in how many theirs runs, and the medians of the ratios."""
    valid = [row for row in rows if row.theirs.error is None]
    ours = [row for row in rows if row.ours.error is None]
    yield (
        f"{len(rows)} calls: {len(valid)} results of onnxruntime run, and {len(ours)} of ours. "
        f"{sum(bool(list(deviations(row))) for row in rows)} of the {len(valid)} deviate."
    )
    both = [row for row in valid if row.ours.error is None]
    for title, figures in (
        ("SQNR of ours minus that of theirs, dB", [margin(row) for row in both]),
        (
            "CPU time of theirs divided by ours",
            [quotient(row.theirs.cpu, row.ours.cpu) for row in both],
        ),
        ("memory of ours by theirs", [quotient(row.ours.peak, row.theirs.peak) for row in both]),
        ("size of ours by theirs", [quotient(row.ours.size, row.theirs.size) for row in both]),
    ):
        known = [figure for figure in figures if figure is not None]
        if known:
            middle = statistics.median(known)
            yield f"- {title}: median {middle:.2f}, from {min(known):.2f} to {max(known):.2f}"


def margin(row: Row) -> float | None:
    """How far our SQNR is above theirs; None where one of them is the float model."""
    ours, theirs = row.ours.sqnr, row.theirs.sqnr
    return None if ours is None or theirs is None else ours - theirs


def quotient(above: float | None, below: float | None) -> float | None:
    """One number by another, if both are known."""
    return above / below if above and below else None


def listed() -> set[tuple[str, str, str]]:
    """The model, the call and the kind of each exception of the page as it is."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(EXCEPTIONS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {(row[0], row[1], row[2]) for row in rows if len(row) == 4}
