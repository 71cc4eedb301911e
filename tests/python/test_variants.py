"""All variants of a model in one call: names, sizes, errors, and variants that cannot be made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import quantize_rs

RNG = np.random.default_rng(11)

NAMES = ["fp32", "fp16", "q8", "int8", "uint8", "q4", "bnb4", "q4f16"]
FILES = {
    "mlp.onnx",
    "mlp_fp16.onnx",
    "mlp_bnb4.onnx",
    "mlp_quantized.onnx",
    "mlp_int8.onnx",
    "mlp_uint8.onnx",
    "mlp_q4.onnx",
    "mlp_q4f16.onnx",
}


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "second"),
    ]
    weights = {"w": RNG.normal(size=(256, 256)) / 16, "v": RNG.normal(size=(256, 64)) / 16}
    path = tmp_path / "mlp.onnx"
    path.write_bytes(graphs.built(nodes, weights, ["n", 256]))
    return path


def test_every_file_is_there_and_runs(mlp: Path, tmp_path: Path) -> None:
    x = RNG.normal(size=(32, 256)).astype(np.float32)
    made = quantize_rs.variants(mlp, tmp_path / "onnx", x)
    assert [row.name for row in made.variants] == NAMES
    assert {path.name for path in (tmp_path / "onnx").iterdir()} == FILES
    assert (tmp_path / "onnx" / "mlp.onnx").read_bytes() == mlp.read_bytes()
    for row in made.variants:
        assert row.problem is None
        assert row.file is not None
        assert row.bytes == row.file.stat().st_size
        assert row.sqnr_db is not None or row.name == "fp32"
        onnxruntime.InferenceSession(row.file, providers=["CPUExecutionProvider"]).run(
            None, {"x": x[:1]}
        )
    sizes = {row.name: row.bytes or 0 for row in made.variants}
    assert sizes["q4f16"] < sizes["q4"] < sizes["q8"] < sizes["fp16"] < sizes["fp32"]
    errors = {row.name: row.sqnr_db or 0 for row in made.variants}
    assert errors["fp16"] > 55 > errors["q8"] > errors["q4"] > 10
    assert "q4f16" in str(made)
    assert made["q4"].about in made._repr_html_()


def test_some_variants_without_samples(mlp: Path, tmp_path: Path) -> None:
    made = quantize_rs.variants(mlp, tmp_path / "onnx", only=["q4", "fp16"])
    assert [row.name for row in made.variants] == ["fp16", "q4"]
    assert all(row.sqnr_db is None and row.file for row in made.variants)
    assert made.samples == 0
    assert tuple(made) == made.variants
    assert len(made) == 2
    assert "q4" in made
    assert made["q4"] in made
    assert "q8" not in made


def test_uint8_weights_are_uint8(mlp: Path, tmp_path: Path) -> None:
    quantize_rs.variants(mlp, tmp_path / "onnx", only=["int8", "uint8"])
    for name, dtype in (("int8", onnx.TensorProto.INT8), ("uint8", onnx.TensorProto.UINT8)):
        graph = onnx.load(tmp_path / "onnx" / f"mlp_{name}.onnx").graph
        assert dtype in {tensor.data_type for tensor in graph.initializer if len(tensor.dims) == 2}
        assert "MatMulInteger" in {node.op_type for node in graph.node}


def test_the_presets_of_optimum(mlp: Path, tmp_path: Path) -> None:
    out = tmp_path / "onnx"
    made = quantize_rs.variants(mlp, out, platform="optimum")
    assert made["tensorrt"].file is None
    assert "samples" in (made["tensorrt"].problem or "")
    assert (out / "mlp_qint8_avx512_vnni.onnx").exists()
    assert (out / "mlp_quint8_avx2.onnx").exists()
    x = RNG.normal(size=(8, 256)).astype(np.float32)
    made = quantize_rs.variants(mlp, out, x, platform="optimum", only=["tensorrt"])
    assert made["tensorrt"].problem is None
    nodes = {node.op_type for node in onnx.load(out / "mlp_qint8_tensorrt.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= nodes


def test_a_variant_that_cannot_be_made_is_a_row(tmp_path: Path) -> None:
    # Nothing in this model can be quantized to 4 bits in blocks.
    path = tmp_path / "relu.onnx"
    relu = helper.make_node("Relu", ["x"], ["y"])
    path.write_bytes(graphs.built([relu], {}, ["n", 4]))
    made = quantize_rs.variants(path, tmp_path / "onnx")
    assert len(made.variants) == len(NAMES)
    written = {row.name for row in made.variants if row.file is not None}
    assert {"fp32", "fp16"} <= written
    assert all(row.problem for row in made.variants if row.file is None)


def test_the_source_is_not_written_to(mlp: Path) -> None:
    # As Transformers.js and Optimum lay files out: the variants are beside the model.
    model = onnx.load(mlp)
    onnx.save(model, mlp, save_as_external_data=True, location="mlp.onnx_data", size_threshold=16)
    folder = mlp.parent
    (folder / "mlp_fp16.onnx").symlink_to(mlp)
    before = mlp.read_bytes()
    made = quantize_rs.variants(mlp, folder, only=["fp32", "fp16", "q4"])
    assert mlp.read_bytes() == before
    row = made["fp32"]
    assert (row.file, row.problem) == (mlp, None)
    assert row.bytes is not None
    assert row.bytes > 256 * 256 * 4
    assert "the model itself" in row.about
    assert made["fp16"].file is None
    assert "link to the model" in (made["fp16"].problem or "")
    assert made["q4"].file == folder / "mlp_q4.onnx"


def test_a_variant_with_nothing_quantized_is_not_written(tmp_path: Path) -> None:
    # MatMulBnb4 is for float32 weights.
    model = onnx.load_from_string(
        graphs.built(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"w": RNG.normal(size=(256, 256)) / 16},
            ["n", 256],
        )
    )
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    row = quantize_rs.variants(model, tmp_path / "onnx", only=["bnb4"])["bnb4"]
    assert "nothing was quantized" in (row.problem or "")
    assert row.file is None
    assert not list((tmp_path / "onnx").iterdir())


@pytest.mark.parametrize("options", [{"platform": "nowhere"}, {"only": ["q3"]}])
def test_unknown_names_are_errors(mlp: Path, tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(quantize_rs.OptionError, match="expected"):
        quantize_rs.variants(mlp, tmp_path / "onnx", **options)  # type: ignore[arg-type]


def test_the_command_writes_the_same_files(mlp: Path, tmp_path: Path) -> None:
    out = tmp_path / "cli"
    command = [sys.executable, "-m", "quantize_rs", "variants", str(mlp), "-o", str(out)]
    said = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, check=True
    )
    assert [row["name"] for row in json.loads(said.stdout)["variants"]] == NAMES
    quantize_rs.variants(mlp, tmp_path / "python")
    for name in FILES:
        assert (out / name).read_bytes() == (tmp_path / "python" / name).read_bytes()
