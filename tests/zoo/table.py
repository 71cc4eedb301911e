"""docs/zoo.md: the table of the zoo, as the rows say it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from rows import ROWS, Quantized, Refused, Row, Untouched
from ways import WAYS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "zoo.md"

HEAD = """# The zoo

Models with one oddity each, and what comes of them. `tests/zoo/` writes them, quantizes them in
every way of this table and holds the outcome against it: ONNX Runtime opens what comes out, with
its optimizations and without, `onnx.checker` accepts it, all that should be quantized is, no float
copy of it is left, and no output is further from the float model than the table says, on samples
that calibration did not see. What is refused is refused by a typed error that says so, and nothing
is written. Weights in formats that ONNX Runtime has no kernel for are given to it as the floats
that `onnx.reference` makes of them. This page is written by `python tests/zoo/run.py --write`; a
test holds it against the rows.

"""

FOOT = """
{count} models. A cell holds the number of weights that are quantized, and the decibels that are
kept where these differ; – where the way makes no sense for the model.
"""


def document() -> str:
    """The page, from the rows alone."""
    text = HEAD
    text += "| way | what is asked for | at least, where nothing else is said |\n|---|---|---|\n"
    for name, way in WAYS.items():
        text += f"| {name} | {way.title} | {way.floor:g} dB |\n"
    text += FOOT.format(count=len(ROWS))
    by_family = sorted(ROWS.values(), key=lambda row: row.family)
    for family, rows in groupby(by_family, key=lambda row: row.family):
        text += f"\n## {family.replace('_', ' ').capitalize()}\n\n"
        text += f"| model | what is odd | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}\n"
        for row in rows:
            cells = " | ".join(_cell(row, way) for way in WAYS)
            text += f"| `{row.name}` | {row.odd.replace('|', '¦')} | {cells} |\n"
    return text


def _cell(row: Row, way: str) -> str:
    outcome = row.expected(way)
    match outcome:
        case None:
            return "–"
        case Refused(error, says):
            return f"refused: `{error}`, “{says}”"
        case Untouched():
            return "as it was: nothing to quantize"
        case Quantized(weights, floor):
            count = row.weights if weights is None else weights
            return f"{count}" if floor is None else f"{count}, {floor:g} dB"
    raise TypeError(outcome)
