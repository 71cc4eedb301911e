"""Scripts in the idiom of onnxruntime.quantization run with the import changed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import oracle
import pytest
from decoders import decoder, prompts
from onnx import helper

import quantize_rs

SCRIPTS = Path(__file__).with_name("scripts")
THEIRS, OURS = "onnxruntime.quantization", "quantize_rs.compat.onnxruntime"
DIGITS = quantize_rs.examples.digits()


def run(script: str, package: str, folder: Path, *arguments: str | Path) -> str:
    """Run a script in a folder of its own, and return what it prints."""
    folder.mkdir()
    text = (SCRIPTS / script).read_text("utf-8").replace(THEIRS, package)
    assert package in text
    (folder / script).write_text(text, "utf-8")
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs(model: Path, feeds: dict[str, Any]) -> Any:
    return oracle.ort(model, feeds)[0]


def error(model: Path, original: Path, feeds: dict[str, Any]) -> float:
    """Return the mean squared error of the first output."""
    return float(np.square(outputs(model, feeds) - outputs(original, feeds)).mean())


def encoder() -> bytes:
    """Make a layer of attention with a classifier."""
    rng = np.random.default_rng(2)
    names = ("query", "key", "value", "output", "classifier")
    weights = {f"{name}.weight": rng.normal(size=(32, 32)) / 6 for name in names}

    def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs.split(), [output], f"/{output}", **attributes)

    nodes = [
        *(node("MatMul", f"x {name}.weight", name) for name in names[:3]),
        node("Transpose", "key", "keys", perm=[0, 2, 1]),
        node("MatMul", "query keys", "scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares value", "mixed"),
        node("MatMul", "mixed output.weight", "projected"),
        node("Add", "projected x", "sum"),
        helper.make_node("MatMul", ["sum", "classifier.weight"], ["y"], "/classifier/MatMul"),
    ]
    return graphs.built(nodes, weights, [1, 12, 32])


def test_a_classifier_with_a_reader_of_images(tmp_path: Path) -> None:
    images = np.load(DIGITS.test)["images"][:64]
    errors = {}
    for name, package in (("theirs", THEIRS), ("ours", OURS)):
        folder = tmp_path / name
        arguments = (DIGITS.model, DIGITS.calibration, "out.onnx")
        said = run("classifier_static.py", package, folder, *arguments)
        assert said == "Calibrated and quantized model saved.\n"
        assert sorted(path.name for path in folder.iterdir()) == [
            "classifier_static.py",
            "out.onnx",
        ]
        errors[name] = error(folder / "out.onnx", Path(DIGITS.model), {"image": images})
    assert errors["ours"] <= errors["theirs"] * 1.02


def test_an_encoder_with_dynamic_quantization(tmp_path: Path) -> None:
    model = tmp_path / "encoder.onnx"
    model.write_bytes(encoder())
    x = np.random.default_rng(4).normal(size=(1, 12, 32)).astype(np.float32)
    errors, operators = {}, {}
    for name, package in (("theirs", THEIRS), ("ours", OURS)):
        folder = tmp_path / name
        run("encoder_dynamic.py", package, folder, model, "out.onnx")
        errors[name] = error(folder / "out.onnx", model, {"x": x})
        kinds = [node.op_type for node in onnx.load(folder / "out.onnx").graph.node]
        operators[name] = {kind: kinds.count(kind) for kind in ("MatMul", "MatMulInteger")}
    assert errors["ours"] <= errors["theirs"] * 1.02
    assert operators["ours"] == operators["theirs"] == {"MatMul": 3, "MatMulInteger": 4}


@pytest.mark.parametrize("package", [THEIRS, OURS])
def test_a_detector_with_a_calibration_table(package: str, tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    folder = tmp_path / "run"
    images = tmp_path / "images.npy"
    np.save(images, np.load(DIGITS.calibration)[:40])
    said = run("detector_table.py", package, folder, DIGITS.model, images)
    lines = (folder / "calibration.cache").read_text("utf-8").splitlines()
    largest = dict(line.split() for line in lines)
    assert f"{len(largest)} tensors" in said
    assert float(largest["image"]) == pytest.approx(1, rel=0.01)
    assert float(largest["relu1_out"]) == pytest.approx(2.487, rel=0.01)
    assert (folder / "calibration.flatbuffers").exists()
    table = json.loads((folder / "calibration.json").read_text("utf-8"))
    assert set(table["data"]) == set(largest)


def test_a_decoder_in_4_bits(tmp_path: Path) -> None:
    model = tmp_path / "decoder.onnx"
    model.write_bytes(decoder())
    # Their quantizer needs the package onnx-ir.
    packages = [("ours", OURS), ("theirs", THEIRS)]
    packages = packages if find_spec("onnx_ir") else packages[:1]
    errors = {}
    for name, package in packages:
        folder = tmp_path / name
        run("decoder_nbits.py", package, folder, model, "out.onnx")
        nodes = onnx.load(folder / "out.onnx", load_external_data=False).graph.node
        assert sum(node.op_type == "MatMulNBits" for node in nodes) == 18
        assert [node.name for node in nodes if node.op_type == "MatMul"] == ["/lm_head/MatMul"]
        assert len(list(folder.glob("out.onnx.*"))) + len(list(folder.glob("out.data"))) == 1
        errors[name] = error(folder / "out.onnx", model, prompts(1)[0])
    # Without theirs, 13 dB.
    power = float(np.square(outputs(model, prompts(1)[0])).mean())
    assert errors["ours"] <= errors.get("theirs", 0.05 * power) * 1.02
