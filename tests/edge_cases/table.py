"""docs/edge-cases.md: the table of edge-case models, generated from the rows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from rows import ROWS, Quantized, Refused, Row, Untouched
from ways import WAYS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "edge-cases.md"

HEAD = """# Edge-case models

Models with one unusual property each, and the result of quantizing them by each method below.
`tests/edge_cases/` builds and quantizes them and checks that

- ONNX Runtime loads the result, with optimizations and without, and `onnx.checker` accepts it;
- everything that should be quantized is quantized, and no float copy of it is left;
- no output is less accurate than this page says, on samples that calibration did not see;
- a refusal is a typed error with the given text, and nothing is written.

Weights in formats for which ONNX Runtime has no kernel are passed to it as the floats that
`onnx.reference` dequantizes them to. This page is written by
`python tests/edge_cases/run.py --write`; a test compares it with the rows.

"""

FOOT = """
{count} models. A cell has the number of quantized weights, and the minimum SQNR where it differs
from the table above. – : the method does not apply to the model.
"""


def document() -> str:
    """The page, from the rows alone."""
    text = HEAD
    text += "| method | options | minimum SQNR, unless the cell differs |\n|---|---|---|\n"
    for name, way in WAYS.items():
        text += f"| {name} | {way.title} | {way.floor:g} dB |\n"
    text += FOOT.format(count=len(ROWS))
    by_family = sorted(ROWS.values(), key=lambda row: row.family)
    for family, rows in groupby(by_family, key=lambda row: row.family):
        text += f"\n## {family.replace('_', ' ').capitalize()}\n\n"
        text += f"| model | property | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}\n"
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
            return "unchanged: nothing to quantize"
        case Quantized(weights, floor):
            count = row.weights if weights is None else weights
            return f"{count}" if floor is None else f"{count}, {floor:g} dB"
    raise TypeError(outcome)
