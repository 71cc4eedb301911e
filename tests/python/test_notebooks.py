"""The notebooks of the examples run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quantize_rs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run(notebook: Path) -> list[dict[str, Any]]:
    """Run a notebook in its folder, in a process of its own; the cells of code, with outputs."""
    command = ["-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=120"]
    done = subprocess.run(
        [sys.executable, *command, notebook], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return code(notebook)


def code(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def printed(cells: list[dict[str, Any]]) -> str:
    outputs = [output for cell in cells for output in cell["outputs"]]
    return "".join("".join(output["text"]) for output in outputs if "text" in output)


def shown(cells: list[dict[str, Any]], kind: str) -> int:
    """How many outputs there are of a type of MIME."""
    outputs = [output for cell in cells for output in cell["outputs"]]
    return sum(kind in output.get("data", {}) for output in outputs)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def test_there_are_four_and_the_reference_names_them() -> None:
    assert len(NOTEBOOKS) == 4
    for document in ("README.md", "README_PYTHON.md"):
        text = (EXAMPLES.parent / document).read_text(encoding="utf-8")
        assert all(f"examples/{path.name}" in text for path in NOTEBOOKS), document


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_its_links_resolve(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code(notebook))
    text = "".join(
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    )
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (EXAMPLES / link).exists(), link


def test_quickstart(examples: Path) -> None:
    cells = run(examples / "quickstart.ipynb")
    assert shown(cells, "image/png") == 3
    assert shown(cells, "text/html") >= 2
    float_, quantized = re.findall(r"(?:float|quantized) +([\d.]+)%", printed(cells))
    assert float(float_) > 99
    assert float(quantized) > 98.5
    assert (examples / "out" / "digits.html").exists()
    # The progress bar is a widget, full at the end.
    book = json.loads((examples / "quickstart.ipynb").read_text(encoding="utf-8"))
    (states,) = book["metadata"]["widgets"].values()
    bars = [
        state["state"]
        for state in states["state"].values()
        if state["model_name"] == "FloatProgressModel"
    ]
    # `auto` runs some of the 200 samples again.
    rounding, (value, most) = sorted((bar["value"], bar["max"]) for bar in bars)
    assert rounding == (100, 100)
    assert value == most >= 200


def test_image_folder(examples: Path) -> None:
    cells = run(examples / "image_folder.ipynb")
    assert shown(cells, "image/png") == 3
    assert "200 images" in printed(cells)
    right, wrong = re.findall(r"pixels .*: +([\d.]+)%", printed(cells))
    assert float(right) > 98.5
    assert float(wrong) < float(right) - 5


def test_transformer(examples: Path) -> None:
    cells = run(examples / "transformer.ipynb")
    assert shown(cells, "image/png") == 1
    found = dict(
        re.findall(
            r"^(\S.*?) +(?:[\d.]+ times smaller, +)?([\d.]+) dB", printed(cells), re.MULTILINE
        )
    )
    # A warning may have decibels too.
    assert set(found) >= {
        "weights, 8 bits",
        "dynamic",
        "static",
        "weights, 4 bits",
        "smoothed",
        "not smoothed",
    }
    assert float(found["smoothed"]) > float(found["not smoothed"]) + 1
    assert float(found["weights, 8 bits"]) > float(found["static"]) > 15


def test_mixed_precision(examples: Path) -> None:
    cells = run(examples / "mixed_precision.ipynb")
    assert sum("quantize_rs.mixed_precision(" in "".join(cell["source"]) for cell in cells) == 3
    assert shown(cells, "image/png") == 2
    assert shown(cells, "text/html") >= 1
    rows = re.findall(r"^(\S.*?) +(\d+) bytes, +([\d.]+) dB", printed(cells), re.MULTILINE)
    found = {name: (int(size), float(decibels)) for name, size, decibels in rows}
    floats = quantize_rs.examples.digits().model.stat().st_size
    targets = {name: row for name, row in found.items() if name.startswith("target_size=")}
    assert len(targets) == 5
    for name, (size, _) in targets.items():
        assert size <= float(name.partition("=")[2]) * floats
    decibels = [row[1] for row in targets.values()]
    assert decibels == sorted(decibels)
    assert found["4 bits everywhere"][1] <= decibels[0]
    assert found["mixed, 16 % in size"] == found["target_size=0.16"]
    assert found["min_sqnr=25"][0] < found["8 bits everywhere"][0]


def test_without_widgets_the_progress_bar_is_text(examples: Path) -> None:
    book = json.loads((examples / "quickstart.ipynb").read_text(encoding="utf-8"))
    source = """
import sys
sys.modules["ipywidgets"] = None
import quantize_rs
digits = quantize_rs.examples.digits()
plan = quantize_rs.open(digits.model).plan(activations="uint8")
ranges = plan.calibrate(digits.calibration, progress=True)
"""
    book["cells"] = [{**code(examples / "quickstart.ipynb")[0], "source": source}]
    (examples / "bar.ipynb").write_text(json.dumps(book), encoding="utf-8")
    text = printed(run(examples / "bar.ipynb"))
    assert "calibrating: 100%" in text
    assert "200/200" in text
    assert "IProgress" not in text
