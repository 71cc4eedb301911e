"""The demo runs, and its table holds what its explanations say, but for latency."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "digits" / "demo.py"
MODEL = DEMO.with_name("digits_demo.onnx")


def test_the_demo_shows_smaller_models_of_the_same_accuracy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--output", tmp_path / "out", "--rounds", "3"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = (
        r"^(float32|int8 \w+|\.\.\. not folded) +"
        r"(\d+) +([\d.]+)x +[\d.]+ +[\d.]+x +([\d.]+) +(inf|[\d.]+)$"
    )
    rows = {name: cells for name, *cells in re.findall(row, done.stdout, re.MULTILINE)}
    assert list(rows) == ["float32", "int8 weights", "... not folded", "int8 static"]
    for name in (*rows, "ms", "accuracy", "SQNR dB"):
        assert re.search(rf"^{re.escape(name)} +[A-Zq]", done.stdout, re.MULTILINE), (
            f"{name}: unexplained"
        )
    exact = float(rows["float32"][2])
    assert exact > 0.97
    for size, smaller, accuracy, sqnr in list(rows.values())[1:]:
        assert int(size) < MODEL.stat().st_size / 3
        assert float(smaller) > 3
        assert abs(float(accuracy) - exact) < 0.01
        assert float(sqnr) > 20
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"digits.weights.onnx", "digits.int8.onnx", "report.html"}


def test_the_model_of_the_demo_is_small_enough_to_be_checked_in() -> None:
    assert MODEL.stat().st_size <= 2_000_000
