"""Weights as codes of 4 bits in blocks, in ONNX Runtime's MatMulBnb4."""

from __future__ import annotations

from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer as Theirs

import quantize_rs
from quantize_rs import errors
from quantize_rs.compat.onnxruntime import MatMulBnb4Quantizer

CODEBOOKS = {"fp4": 0, "nf4": 1}


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def net(depth: int = 64, width: int = 24) -> bytes:
    """A product, and a Gemm with all that it can have."""
    weights = {
        "w": rng(1).normal(size=(depth, width)),
        "g": rng(2).normal(size=(8, width)),
        "b": rng(3).normal(size=8),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Gemm", ["m", "g", "b"], ["y"], "gemm", transB=1, alpha=0.5, beta=2.0),
    ]
    return graphs.built(nodes, weights, ["n", depth])


def made(model: bytes, weights: str = "nf4", **options: Any) -> bytes:
    report = quantize_rs.quantize(
        model, None, weights=weights, output_format="matmul_bnb4", allow_larger=True, **options
    )
    assert report.model is not None
    return report.model


def constants(model: bytes) -> dict[str, np.ndarray]:
    graph = onnx.load_from_string(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def run(model: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("weights", CODEBOOKS)
@pytest.mark.parametrize(
    ("depth", "block_size"), [(64, 64), (64, 16), (40, 16), (37, 32), (512, 256)]
)
def test_codes_are_those_of_onnxruntime(weights: str, depth: int, block_size: int) -> None:
    model = net(depth)
    theirs = Theirs(onnx.load_from_string(model), CODEBOOKS[weights], block_size)
    theirs.process()
    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in theirs.model.model.graph.initializer
    }
    ours = made(model, weights, block_size=block_size, weight_method="minmax", op_types=["MatMul"])
    own = constants(ours)
    np.testing.assert_array_equal(own["w_scale"], found["w_absmax"])
    # They leave zeros of different signs and halves of the last byte to chance.
    same = own["w_quantized"][:-1] == found["w_Bnb4"][:-1]
    assert same.mean() > 0.99
    x = rng(4).normal(size=(5, depth)).astype(np.float32)
    expected = run(theirs.model.model.SerializeToString(), x)
    np.testing.assert_allclose(run(ours, x), expected, rtol=0, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("weights", CODEBOOKS)
def test_all_of_a_gemm_is_computed_and_validated(weights: str) -> None:
    model = net()
    quantized = made(model, weights, block_size=16)
    types = [node.op_type for node in onnx.load_from_string(quantized).graph.node]
    assert types.count("MatMulBnb4") == 2
    x = rng(5).normal(size=(7, 64)).astype(np.float32)
    exact, found = run(model, x), run(quantized, x)
    assert quantize_rs.validate(model, quantized)
    error = np.square(exact - found).sum() / np.square(exact).sum()
    assert error < 0.04
    # An engine that does not know the operator reads floats.
    by_tract = quantize_rs.compare(model, quantized, x, engine="tract", latency=False)
    by_ort = quantize_rs.compare(model, quantized, x, engine="onnxruntime", latency=False)
    assert by_tract.sqnr_db == pytest.approx(by_ort.sqnr_db, abs=0.01)


@pytest.mark.parametrize("weights", CODEBOOKS)
def test_scales_with_the_least_error_are_better(weights: str) -> None:
    model = net(256, 64)
    errors_of = {}
    for method in ("minmax", "mse"):
        report = quantize_rs.quantize(
            model, None, weights=weights, output_format="matmul_bnb4", weight_method=method
        )
        errors_of[method] = next(v.mse or 0.0 for v in report.values if v.name == "w")
    default = quantize_rs.quantize(model, None, weights=weights, output_format="matmul_bnb4")
    usual = next(value for value in default.values if value.name == "w")
    assert usual.mse == errors_of["mse"]
    assert errors_of["mse"] < errors_of["minmax"]
    assert usual.kind == f"{weights} in uint4 symmetric blocks of 64 on axis 0 as matmul_bnb4"


def test_a_damaged_code_or_scale_is_found() -> None:
    model = net()
    for name in ("w_quantized", "w_scale"):
        proto = onnx.load_from_string(made(model, block_size=16))
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
        values = numpy_helper.to_array(tensor).copy()
        values[3] = values[3] ^ 0x70 if values.dtype == np.uint8 else values[3] * 3
        tensor.CopyFrom(numpy_helper.from_array(values, name))
        found = quantize_rs.validate(model, proto)
        assert not found
        assert any("w" in problem.name for problem in found.problems), found.problems
    proto = onnx.load_from_string(made(model))
    for attribute in proto.graph.node[0].attribute:
        if attribute.name == "quant_type":
            attribute.i = 0
    assert not quantize_rs.validate(model, proto)


def test_layers_may_have_other_codebooks() -> None:
    quantized = made(net(), "nf4", layer_types={"product": "fp4"})
    kinds = {
        node.name: next(a.i for a in node.attribute if a.name == "quant_type")
        for node in onnx.load_from_string(quantized).graph.node
        if node.op_type == "MatMulBnb4"
    }
    assert kinds == {"product": 0, "gemm": 1}


def test_the_same_call_as_with_onnxruntime() -> None:
    proto = onnx.load_from_string(net())
    before = proto.SerializeToString()
    ours = MatMulBnb4Quantizer(proto, MatMulBnb4Quantizer.NF4, 32, ["gemm"])
    assert ours.model.model == proto
    ours.process()
    assert proto.SerializeToString() == before
    types = [node.op_type for node in ours.model.model.graph.node]
    assert types == ["MatMulBnb4", "Gemm"]
    with pytest.raises(errors.OptionError, match="quant_type is 2"):
        MatMulBnb4Quantizer(proto, 2, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "nf4"}, "which needs output_format=matmul_bnb4"),
        ({"weights": "nf4", "output_format": "matmul_nbits"}, "matmul_nbits"),
        ({"bits": 4, "output_format": "matmul_bnb4"}, "expected one of fp4, nf4"),
        ({"output_format": "matmul_bnb4"}, "expected one of fp4, nf4"),
        ({"weights": "fp4", "output_format": "matmul_bnb4", "block_size": 24}, "power of two"),
        ({"weights": "fp4", "output_format": "matmul_bnb4", "target": "qnn"}, "qnn"),
        ({"weights": "fp4", "output_format": "matmul_bnb4", "block_size": 512}, "16 to 256"),
        ({"weights": "fp4", "output_format": "matmul_bnb4", "symmetric": False}, "symmetric"),
        ({"weights": "fp4", "output_format": "matmul_bnb4", "per_channel": True}, "per_channel"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.OptionError, match=message):
        quantize_rs.quantize(net(), None, **options)


def test_weights_that_something_else_reads_stay_float() -> None:
    weights = {"w": rng(1).normal(size=(64, 24))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("ReduceLogSumExp", ["w"], ["s"], "sum", keepdims=0),
        helper.make_node("Add", ["m", "s"], ["y"], "add"),
    ]
    report = quantize_rs.quantize(
        graphs.built(nodes, weights, ["n", 64]),
        None,
        weights="nf4",
        output_format="matmul_bnb4",
        allow_larger=True,
    )
    assert report.model is not None
    assert "MatMulBnb4" not in str(onnx.load_from_string(report.model).graph.node)
