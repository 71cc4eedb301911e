"""Where the wheel cannot be checked in a bare system, `tools/bare_system.py` says what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there is no chroot", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import bare_system


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, for a process that takes itself for root and finds no program."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "system"
    folder.mkdir()
    return folder


def refused(root: Path) -> str:
    with pytest.raises(bare_system.UnusableError) as caught:
        bare_system.make(root)
    return str(caught.value)


def test_only_root_may(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root: run it with sudo" in refused(root)


def test_debootstrap_is_named_with_its_package(root: Path) -> None:
    assert "apt-get install debootstrap" in refused(root)
    assert "apt-get install debootstrap" in refused(root / "new")


def test_other_folders_are_left_alone(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    assert "neither empty nor a system" in refused(root)


def test_an_unfinished_system_is_refused(root: Path) -> None:
    (root / "debootstrap").mkdir()
    assert "remove the folder" in refused(root)


def test_a_system_with_a_compiler_is_refused(root: Path) -> None:
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").touch()
    assert "no folder tmp" in refused(root)
    (root / "tmp").mkdir()
    bare_system.make(root)
    (programs / "x86_64-linux-gnu-gcc-12").touch()
    assert "has a compiler (x86_64-linux-gnu-gcc-12)" in refused(root)
