"""How weights alone are written, so that ONNX Runtime multiplies by their integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from graphs import built
from onnx import helper

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
    assert not dynamic.warnings
