"""Everything printed in README.md and README_PYTHON.md runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantize_rs

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "README_PYTHON.md"]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the examples, as a reader of the documents has it."""
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_python_of_a_document_runs_from_top_to_bottom(folder: Path, document: str) -> None:
    programme = "\n".join(blocks(document, "python"))
    done = subprocess.run(
        [sys.executable, "-c", programme], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_of_the_readme_run(folder: Path) -> None:
    commands = [line for block in blocks("README.md", "sh") for line in block.splitlines()]
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    ran = 0
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
            continue
        assert words[0] == "quantize-rs", command
        done = subprocess.run(
            [sys.executable, "-m", "quantize_rs", *words[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ran += 1
    assert ran == 9


def test_the_rust_of_the_readme_is_the_example_that_the_rust_tests_run() -> None:
    example = REPOSITORY / "rust/runner/examples/static_int8.rs"
    assert blocks("README.md", "rust") == [example.read_text(encoding="utf-8")]


def test_the_commands_of_contributing_name_crates_that_exist() -> None:
    for line in "".join(blocks("CONTRIBUTING.md", "sh")).splitlines():
        crate = shlex.split(line)[-1]
        manifests = (path.read_text() for path in REPOSITORY.glob("rust/*/Cargo.toml"))
        assert any(f'name = "{crate}"' in text for text in manifests), line


def test_the_reference_speaks_of_every_public_name() -> None:
    text = (REPOSITORY / "README_PYTHON.md").read_text(encoding="utf-8")
    names = [name for name in quantize_rs.__all__ if not name.startswith("__")]
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing
    assert not [name for name in quantize_rs.kernels.__all__ if f"`{name}`" not in text]


def test_every_public_thing_has_its_members_in_the_reference() -> None:
    text = (REPOSITORY / "README_PYTHON.md").read_text(encoding="utf-8")
    things = [
        quantize_rs.ImageFolder,
        quantize_rs.ModelInfo,
        quantize_rs.Report,
        quantize_rs.Value,
        quantize_rs.Seconds,
        quantize_rs.Model,
        quantize_rs.Plan,
        quantize_rs.Ranges,
        quantize_rs.Quantized,
    ]
    for thing in things:
        members = [name for name in dir(thing) if not name.startswith("_")]
        missing = [name for name in members if not re.search(rf"\b{name}\b", text)]
        assert not missing, thing.__name__


def test_every_requirement_is_in_the_environment_file() -> None:
    done = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "tools/requirements.py",
            REPOSITORY / "pyproject.toml",
            "dev",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"numpy", "pytest", "onnxruntime"} <= {
        re.split(r"[<>=\[]", line)[0] for line in done.stdout.split()
    }
