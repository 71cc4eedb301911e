"""How weights alone are written, so that ONNX Runtime multiplies by their integers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import oracle
import processor
import pytest
from graphs import built
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

SIZE = 256


def product(op_type: str, **attributes: int) -> bytes:
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(0, 0.1, (SIZE, SIZE)), "b": rng.normal(0, 0.1, SIZE)}
    nodes = (
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product", **attributes)]
        if op_type == "Gemm"
        else [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
            helper.make_node("Add", ["b", "p"], ["y"], name="sum"),
        ]
    )
    return built(nodes, constants, ["n", SIZE])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_a_bias_does_not_keep_a_product_from_its_integers(
    op_type: str, bits: int, tmp_path: Path
) -> None:
    """ONNX Runtime dequantizes the weight of a Gemm with a bias at every inference."""
    source = product(op_type)
    report = quantize_rs.quantize(source, None, bits=bits)
    assert report.model is not None
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(report.model, options, providers=["CPUExecutionProvider"])
    found = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "MatMulNBits" in found
    assert "Gemm" not in found
    feeds = {"x": np.random.default_rng(1).normal(0, 1, (5, SIZE)).astype(np.float32)}
    expected = oracle.ort(source, feeds)
    assert oracle.sqnr(expected, oracle.ort(report.model, feeds)) > (30 if bits == 8 else 12)
    assert quantize_rs.validate(source, report.model).passed
    assert not report.warnings
    # The nodes keep their names, and the float model computes the same bits.
    names = [node.name for node in onnx.load_from_string(report.model).graph.node]
    assert "product" in names
    assert op_type == "Gemm" or "sum" in names
    unquantized = quantize_rs.optimize(source, passes=["subtract_bias"]).model
    assert unquantized is not None
    (plain,) = oracle.ort(source, feeds, optimized=False)
    (negated,) = oracle.ort(unquantized, feeds, optimized=False)
    if op_type == "MatMul":
        np.testing.assert_array_equal(plain, negated)
    else:  # a Gemm may begin its sums with the bias
        np.testing.assert_allclose(plain, negated, rtol=1e-5, atol=1e-6)


def test_a_gemm_that_dequantizes_its_weight_is_called_slow() -> None:
    report = quantize_rs.quantize(product("Gemm", transB=1), None)
    assert report.warnings[0].startswith("`w`: dequantized at every inference")
    dynamic = quantize_rs.quantize(product("Gemm", transB=1), None, output_format="dynamic")
    assert not processor.others(dynamic.warnings)


@pytest.mark.parametrize(
    ("options", "formats"),
    [
        ({}, 'output_format="dynamic" or "matmul_nbits"'),
        ({"bits": 4}, 'output_format="matmul_nbits"'),
    ],
)
def test_tables_that_are_most_of_the_weights_are_called_slow(
    options: dict[str, Any], formats: str
) -> None:
    random = np.random.default_rng(0)

    def warnings(rows: int, **options: Any) -> list[str]:
        table = random.standard_normal((rows, 64)).astype(np.float32)
        weight = random.standard_normal((64, 64)).astype(np.float32)
        graph = helper.make_graph(
            [
                helper.make_node("Gather", ["table", "ids"], ["rows"]),
                helper.make_node("MatMul", ["rows", "w"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
            [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        report = quantize_rs.quantize(
            bytes(model.SerializeToString()), None, check="none", **options
        )
        return [text for text in report.warnings if "that are looked up" in text]

    (warning,) = warnings(20_000, **options)
    assert warning.startswith("`table`: dequantized whole at every inference")
    assert f"use {formats}, or leave it float with exclude" in warning
    assert not warnings(2_000, **options)
    # The formats that it names dequantize the rows alone.
    for name in re.findall(r"dynamic|matmul_nbits", formats):
        assert not warnings(20_000, output_format=name, **options)
