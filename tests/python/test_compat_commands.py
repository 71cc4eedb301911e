"""Modules of `compat` that are commands, as those of onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest

from quantize_rs.compat.onnxruntime import matmul_nbits_quantizer

COMMANDS = {
    "matmul_nbits_quantizer": "MatMulNBits",
    "matmul_4bits_quantizer": "MatMulNBits",
    "matmul_bnb4_quantizer": "MatMulBnb4",
}


def command(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    module = f"quantize_rs.compat.onnxruntime.{module}"
    call = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", [*COMMANDS, "preprocess"])
def test_python_does_not_warn_of_a_command(module: str) -> None:
    done = command(module, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["matmul_nbits_quantizer", "matmul_bnb4_quantizer"])
def test_a_command_is_an_attribute_of_the_package(module: str) -> None:
    lines = [
        "import quantize_rs.compat.onnxruntime as ours",
        f"assert {module!r} in dir(ours)",
        f"print(ours.{module}.__name__)",
    ]
    call = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.stdout == f"quantize_rs.compat.onnxruntime.{module}\n", done.stderr


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
        onnx.helper.make_node("MatMul", ["h", "w"], ["y"], "last"),
    ]
    weights = {"v": rng.normal(size=(64, 64)), "w": rng.normal(size=(64, 32))}
    path = tmp_path / "products.onnx"
    path.write_bytes(graphs.built(nodes, weights, ["n", 64]))
    return path


@pytest.mark.parametrize("module", COMMANDS)
def test_quantizers_of_weights_are_commands_too(
    products: Path, tmp_path: Path, module: str
) -> None:
    out = tmp_path / "q.onnx"
    given = ("--input_model", products, "--output_model", out, "--block_size", 32)
    done = command(module, *given, "--nodes_to_exclude", "last")
    assert done.returncode == 0, done.stderr
    assert [node.op_type for node in onnx.load(out).graph.node] == [COMMANDS[module], "MatMul"]
    assert not done.stdout
    again = command(module, *given)
    assert again.returncode == 1
    assert again.stderr.endswith(f"error: {out} already exists\n")


def test_the_command_of_blocks_takes_the_arguments_of_onnxruntime(
    products: Path, tmp_path: Path
) -> None:
    def made(*arguments: str) -> Any:
        out = tmp_path / "q.onnx"
        out.unlink(missing_ok=True)
        matmul_nbits_quantizer.main(
            ["--input_model", str(products), "--output_model", str(out), *arguments]
        )
        return onnx.load(out).graph

    (node, *_) = made().node
    assert len([name for name in node.input if name]) == 3  # symmetric by default
    (node, *_) = made("--symmetric", "False", "--bits", "8", "--accuracy_level", "4").node
    values = {attribute.name: attribute.i for attribute in node.attribute}
    assert (values["bits"], values["block_size"], values["accuracy_level"]) == (8, 32, 4)
    assert len(node.input) == 4
    for method in ("hqq", "rtn", "k_quant"):
        assert len(made("--quant_method", method).node[0].input) == 4
    graph = made("--quant_format", "QDQ", "--nodes_to_include", "first", "--quant_axes", "MatMul:0")
    assert "DequantizeLinear" in {node.op_type for node in graph.node}
    for wrong in (["--quant_method", "gptq"], ["--quant_axes", "MatMul"], ["--symmetric", "maybe"]):
        with pytest.raises(SystemExit) as caught:
            made(*wrong)
        assert caught.value.code == 2
    with pytest.raises(SystemExit, match="error: weight_type is `int99`"):
        made("--bits", "99")


@pytest.mark.parametrize("module", [*COMMANDS, "preprocess", "static_quantize_runner"])
def test_a_command_says_in_one_line_what_went_wrong(module: str, tmp_path: Path) -> None:
    flags = ["--input_model", "--output_model"]
    if module == "preprocess":
        flags = ["--input", "--output"]
    elif module == "static_quantize_runner":
        flags = ["--input_model_path", "--output_quantized_model_path"]
    done = command(module, flags[0], tmp_path / "none.onnx", flags[1], tmp_path / "out.onnx")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "none.onnx" in line
