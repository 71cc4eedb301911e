"""The same calls with both packages: the list of exceptions is what a part of the models gives.

`make conformance` compares all models, and CPU time and memory too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import processor
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import conformance_page

# Other tests have modules of the same names as others there.
sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every call on the models that are small enough; the other package changes its process."""
    if processor.SATURATES:
        pytest.skip("sums of uint8 x int8 saturate on this processor")
    pytest.importorskip("onnx_ir")  # which its quantizer of weights in blocks needs
    out = tmp_path_factory.mktemp("conformance") / "rows.json"
    command = [sys.executable, str(BENCH / "conformance.py"), "--tested", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr
    found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_the_page_lists_what_deviates(rows: list[dict[str, Any]]) -> None:
    found = {(row["subject"], row["call"], kind) for row in rows for kind in row["deviations"]}
    names = {row["subject"] for row in rows}
    kinds = {conformance_page.ERROR, conformance_page.SQNR}
    listed = {
        (subject, call, kind)
        for subject, call, kind in conformance_page.listed()
        if subject in names and kind in kinds
    }
    # On another processor, what is at the margin may be on its other side.
    at_margin = {
        (row["subject"], row["call"], conformance_page.SQNR)
        for row in rows
        if None not in (row["theirs"]["sqnr"], row["ours"]["sqnr"])
        and abs(row["ours"]["sqnr"] - row["theirs"]["sqnr"] + conformance_page.MARGIN_DB) < 0.05
    }
    assert found - at_margin == listed - at_margin
    assert len(at_margin) < 0.1 * len(rows)


def test_most_results_are_compared(rows: list[dict[str, Any]]) -> None:
    """The suite itself works: both packages have results, and ours has one wherever theirs has."""
    valid = [row for row in rows if row["theirs"]["error"] is None]
    assert len(valid) > 0.9 * len(rows) > 100
    assert all(row["ours"]["error"] is None for row in valid)
    compared = [row for row in valid if None not in (row["theirs"]["sqnr"], row["ours"]["sqnr"])]
    assert len(compared) > 0.6 * len(rows)
    ahead = sum(row["ours"]["sqnr"] >= row["theirs"]["sqnr"] - 0.1 for row in compared)
    assert ahead > 0.9 * len(compared)
