"""A layer between quantized ones whose weights have bits that no integer kernel takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from graphs import built
from onnx import helper, load_from_string, numpy_helper

import quantize_rs

TARGETS = ["x86", "x86-avx2", "arm", "web", "tensorrt", "openvino", "generic"]

RNG = np.random.default_rng(4)


def convolutions(names: bool = True) -> tuple[bytes, oracle.Feeds]:
    """Three convolutions, the one in the middle with a bias."""
    constants = {
        "w0": RNG.normal(0, 0.3, (16, 3, 3, 3)),
        "w1": RNG.normal(0, 0.1, (16, 16, 3, 3)),
        "b1": RNG.normal(0, 0.1, 16),
        "w2": RNG.normal(0, 0.1, (16, 16, 3, 3)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "middle" * names, pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["y"], pads=[1] * 4),
    ]
    model = built(nodes, constants, ["n", 3, 8, 8])
    return model, {"x": RNG.normal(0, 1, (8, 3, 8, 8)).astype(np.float32)}


def products(op_type: str) -> tuple[bytes, oracle.Feeds]:
    """Three products with functions between them."""
    constants = {name: RNG.normal(0, 0.2, (32, 32)) for name in ("w0", "w1", "w2")}
    nodes = [
        helper.make_node("Gemm", ["x", "w0"], ["g0"]),
        helper.make_node("Relu", ["g0"], ["r0"]),
        helper.make_node(op_type, ["r0", "w1"], ["g1"]),
        helper.make_node("Relu", ["g1"], ["r1"]),
        helper.make_node("Gemm", ["r1", "w2"], ["y"]),
    ]
    model = built(nodes, constants, ["n", 32])
    return model, {"x": RNG.normal(0, 1, (16, 32)).astype(np.float32)}


def quantized(model: bytes, feeds: oracle.Feeds, **options: Any) -> bytes:
    report = quantize_rs.quantize_with_calibration(model, None, [feeds], **options)
    assert report.model is not None
    assert next(value.quantized for value in report.values if value.name == "w1")
    assert quantize_rs.validate(model, report.model).passed
    return report.model


@pytest.mark.parametrize("bits", [2, "uint2", 3, 4, "uint4", 16])
@pytest.mark.parametrize("target", TARGETS)
def test_a_layer_of_other_bits_computes_in_float(target: str, bits: int | str) -> None:
    for names in (True, False):
        model, feeds = convolutions(names)
        by_name = {"match": {"name": "middle" if names else "w1"}, "weights": bits}
        options: dict[str, Any]
        for options in ({"layer_bits": {"w1": bits}}, {"overrides": [by_name]}):
            made = quantized(model, feeds, target=target, **options)
            fast, plain = (oracle.ort(made, feeds, optimized=it) for it in (True, False))
            assert oracle.sqnr(plain, fast) > 25
            assert oracle.sqnr(oracle.ort(model, feeds), fast) > 8


def test_weights_beside_a_float_bias_have_seven_bits_for_avx2() -> None:
    """ONNX Runtime quantizes the bias, so that the sums saturate there too."""
    model, feeds = convolutions()
    made = quantized(model, feeds, target="x86-avx2", exclude=["b1"])
    constants = load_from_string(made).graph.initializer
    (integers,) = (found for found in constants if found.name == "w1_quantized")
    assert np.abs(numpy_helper.to_array(integers).astype(int)).max() == 63


@pytest.mark.parametrize("options", [{}, {"per_channel": False}], ids=str)
@pytest.mark.parametrize("weights", ["int2", "uint2"])
@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
def test_a_layer_of_2_bits_between_integers_loads(
    op_type: str, weights: str, options: dict[str, Any]
) -> None:
    """ONNX Runtime replaces such nodes by operators on integers, which take no 2 bits."""
    model, feeds = convolutions() if op_type == "Conv" else products(op_type)
    made = quantized(model, feeds, layer_bits={"w1": weights}, **options)
    fast, plain = (oracle.ort(made, feeds, optimized=it) for it in (True, False))
    assert oracle.sqnr(plain, fast) > 25
    in_float = {"Conv", "FusedConv", "FusedGemm", "Gemm", "MatMul", "MatMulNBits"}
    assert in_float & oracle.kernels(made).keys()
