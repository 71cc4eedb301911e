"""Hostile files: each gets the error that the index promises, and nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import quantize_rs
from quantize_rs import QuantizeError

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
INDEX: dict[str, dict[str, Any]] = json.loads((ATTACKS / "index.json").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder inside another, for what an attack looks for above."""
    folder = tmp_path / "attack" / "folder"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", INDEX)
def test_attack(name: str, folder: Path, digits: Path) -> None:
    said = INDEX[name]
    file = _set_up(name, said, folder)
    before = _files(folder.parent)
    target = folder / "out.onnx"

    def attack() -> None:
        if said["stage"] == "calibrate":
            quantize_rs.quantize_with_calibration(digits, target, file)
        else:
            quantize_rs.quantize(file, target)

    if said["error"] is None:
        attack()
        assert target.exists()
    elif said["may_work"]:
        try:
            attack()
        except getattr(quantize_rs, said["error"]):
            assert _files(folder.parent) == before
    else:
        with pytest.raises(getattr(quantize_rs, said["error"])) as caught:
            attack()
        for part in said["contains"]:
            assert part in str(caught.value)
        assert _files(folder.parent) == before


@pytest.mark.parametrize("name", [n for n, said in INDEX.items() if said["stage"] == "quantize"])
def test_what_opens_can_be_looked_at(name: str, folder: Path) -> None:
    said = INDEX[name]
    file = _set_up(name, said, folder)
    if said["opens"]:
        assert quantize_rs.model_info(file).bytes > 0
        return
    try:
        info = quantize_rs.model_info(file)
    except QuantizeError:
        return
    assert said["may_work"] or info, "data may fail later than the structure"


def test_every_file_is_in_the_index() -> None:
    assert {path.name for path in (ATTACKS / "files").iterdir()} == set(INDEX)


def _set_up(name: str, said: dict[str, Any], folder: Path) -> Path:
    file = folder / name
    shutil.copyfile(ATTACKS / "files" / name, file)
    for place, length in said["make"].get("write", {}).items():
        path = folder / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(length))
    for place, goal in said["make"].get("symlink", {}).items():
        (folder / place).symlink_to(goal)
    return file


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}
