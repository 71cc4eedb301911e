"""Every model of the zoo, in every way: what comes of it is what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "zoo"))

import run as zoo
import table
from rows import ROWS


@pytest.mark.parametrize(("name", "way"), zoo.cases())
def test_zoo(name: str, way: str) -> None:
    zoo.run(ROWS[name], way)


def test_the_table_in_the_documents_is_up_to_date() -> None:
    assert table.DOCUMENT.read_text("utf-8") == table.document(), "python tests/zoo/run.py --write"


def test_every_model_is_odd_in_its_own_way() -> None:
    assert all(row.odd for row in ROWS.values())
    models = [row.files()[0] for row in ROWS.values()]
    assert len(set(models)) == len(models)
