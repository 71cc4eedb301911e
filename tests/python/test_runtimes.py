"""docs/runtimes.md says what ONNX Runtime does."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtimes"))

import runtimes
from cells import OPERATORS, OPSETS, RARE, outcome, ways

WRITTEN = runtimes.DOCUMENT.read_text("utf-8")
WRONG = ("does not load", "without optimizations", "wrong")
SAME = f"ONNX Runtime {onnxruntime.__version__} " in WRITTEN


@pytest.mark.skipif(not SAME, reason="the page is of another version of ONNX Runtime")
def test_the_document_is_what_onnx_runtime_does() -> None:
    assert runtimes.document() == WRITTEN, "python tests/runtimes/runtimes.py --write"


@pytest.mark.skipif(SAME, reason="the page says more")
@pytest.mark.parametrize("op_type", OPERATORS)
def test_what_needs_no_target_is_right_in_every_onnx_runtime(op_type: str) -> None:
    for way in ways():
        if "target" not in way.options:
            found = outcome(way, op_type, OPSETS[0])
            assert found is None or not found.startswith(WRONG), way


def test_the_document_says_that_what_needs_no_target_runs() -> None:
    lines = [line for line in WRITTEN.splitlines() if line.startswith(("| qdq", "| mat", "| dyn"))]
    rows = [line.strip("| ").split(" | ") for line in lines]
    for way in ways():
        wanted = (way.format, way.weights, way.scales, way.activations or "float")
        found = [
            row[5:]
            for row in rows
            if all(name in cell.split(", ") for name, cell in zip(wanted, row[:4], strict=True))
        ]
        assert found, way
        wrong = any(cell.startswith(WRONG) for cells in found for cell in cells)
        assert not wrong or way.weights in (*RARE, "float8e4m3fn", "float8e5m2"), way
