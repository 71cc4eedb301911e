"""What ends a process elsewhere: files that change while they are open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent

posix = pytest.mark.skipif(os.name == "nt", reason="Windows refuses to change a mapped file")

# Opens the model, changes its file, and works with it: every way to work, each way to change.
# A process of its own, which a signal could end.
OPEN_CHANGE_WORK = """
import sys
from pathlib import Path

import numpy as np

import quantize_rs

changed = Path(sys.argv[2])
content = changed.read_bytes()
samples = np.ones((8, 4), np.float32)


def restore() -> None:
    # The table between is zeros, which take no space in a sparse file.
    with changed.open("wb") as file:
        file.write(content[:100_000])
        file.seek(len(content) - 100_000)
        file.write(content[-100_000:])


def cut() -> None:
    with changed.open("r+b") as file:
        file.truncate(1000)


def emptied() -> None:
    changed.open("wb").close()


def grown() -> None:
    with changed.open("ab") as file:
        file.write(bytes(10))


def written_over() -> None:
    with changed.open("r+b") as file:
        file.write(bytes(range(256)) * 16)


def replaced() -> None:
    other = changed.with_name("new")
    other.write_bytes(b"another file")
    other.replace(changed)


def work(model: quantize_rs.Model, name: str) -> None:
    if name == "plan":
        model.plan()
    elif name == "save":
        plans[id(model)].apply().save("result.onnx")
    elif name == "calibrate":
        plans[id(model)].calibrate(samples, engine="tract")
    elif name == "compare":
        quantize_rs.compare(model, "whole.onnx", samples, engine="tract", latency=False)
    elif name == "validate":
        quantize_rs.validate(model, "whole.onnx")
    elif name == "outliers":
        quantize_rs.outliers(model)
    elif name == "recommend":
        quantize_rs.recommend(model)


for change in (cut, emptied, grown, written_over, replaced):
    for name in ("plan", "save", "calibrate", "compare", "validate", "outliers", "recommend"):
        restore()
        model = quantize_rs.open(sys.argv[1])
        plans = {id(model): model.plan(activations="uint8" if name == "calibrate" else None)}
        print(change.__name__, name, flush=True)
        change()
        try:
            work(model, name)
        except quantize_rs.ModelError as error:
            assert "open it again" in str(error), error
            assert error.path == changed.resolve(), error.path
            assert change is not replaced, error
            assert not Path("result.onnx").exists()
        else:
            assert change is replaced, f"{name} works on a file that was {change.__name__}"
        Path("result.onnx").unlink(missing_ok=True)
hidden = [path.name for path in Path.cwd().iterdir() if path.name.startswith(".quantize")]
assert not hidden, hidden
"""


def large_model(path: Path, *, external: bool) -> Path:
    """A model that is mapped on each system. Returns the file of its weights."""
    table = np.zeros(66 << 20, np.uint8)
    weight = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["entry"]),
        helper.make_node("Cast", ["entry"], ["offset"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "offset"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.array(0, np.int64), "index"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if not external:
        onnx.save(model, path)
        return path
    data = path.with_name("weights.bin")
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    return data


@posix
@pytest.mark.parametrize("external", [False, True])
def test_a_model_file_that_changes_is_an_error(tmp_path: Path, external: bool) -> None:
    large_model(tmp_path / "whole.onnx", external=False)
    path = tmp_path / "model.onnx"
    changed = large_model(path, external=external)
    script = [sys.executable, "-c", OPEN_CHANGE_WORK, str(path), str(changed)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-200:]}{done.stderr[-2000:]}"


@posix
def test_other_signals_are_passed_on(tmp_path: Path) -> None:
    """SIGBUS that is not about a mapped model ends the process as before, with its traceback."""
    large_model(tmp_path / "model.onnx", external=False)
    for first in ("", "import faulthandler; faulthandler.enable()"):
        script = f"""
{first}
import os, signal
import quantize_rs
model = quantize_rs.open("model.onnx")
os.kill(os.getpid(), signal.SIGBUS)
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"},
        )
        assert done.returncode < 0, done
        assert ("Bus error" in done.stderr) == bool(first), done.stderr
