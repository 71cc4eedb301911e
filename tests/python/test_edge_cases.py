"""Every model of the edge cases, in every way: what comes of it is what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "edge_cases"))

import run as edge_cases
import table
from rows import ROWS


@pytest.mark.parametrize(("name", "way"), edge_cases.cases())
def test_edge_cases(name: str, way: str) -> None:
    edge_cases.run(ROWS[name], way)


def test_the_table_in_the_documents_is_up_to_date() -> None:
    assert table.DOCUMENT.read_text("utf-8") == table.document(), (
        "python tests/edge_cases/run.py --write"
    )


def test_every_model_is_odd_in_its_own_way() -> None:
    assert all(row.odd for row in ROWS.values())
    models = [row.files()[0] for row in ROWS.values()]
    assert len(set(models)) == len(models)
