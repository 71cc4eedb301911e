"""Constants whose elements differ so much that one scale, or a runtime's own, loses some."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

TARGETS = ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"]


def built(
    nodes: list[object], constants: dict[str, npt.NDArray[np.floating]], shape: list[object]
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def with_dead_channels(fraction: float) -> bytes:
    """Convolutions, each with a batch normalization after its Relu, written as Mul and Add.

    In some channels the Relu is always 0: there the factor is 1/√ε, about 100 times the others.
    """
    rng = np.random.default_rng(0)
    constants: dict[str, npt.NDArray[np.floating]] = {}
    nodes, value, inputs, channels = [], "x", 3, 32
    for layer in range(4):
        dead = np.arange(channels) < fraction * channels
        constants |= {
            f"w{layer}": rng.normal(0, np.sqrt(2 / inputs / 9), (channels, inputs, 3, 3)),
            f"b{layer}": np.where(dead, -1e3, 0.0),
            f"c{layer}": np.where(dead, 31.6, rng.uniform(0.05, 0.3, channels))[:, None, None],
            f"d{layer}": rng.normal(0, 0.2, (channels, 1, 1)),
        }
        nodes += [
            helper.make_node(
                "Conv", [value, f"w{layer}", f"b{layer}"], [f"v{layer}"], pads=[1] * 4
            ),
            helper.make_node("Relu", [f"v{layer}"], [f"r{layer}"]),
            helper.make_node("Mul", [f"r{layer}", f"c{layer}"], [f"m{layer}"]),
            helper.make_node("Add", [f"m{layer}", f"d{layer}"], [f"a{layer}"]),
        ]
        value, inputs = f"a{layer}", channels
    constants["g"] = rng.normal(0, 1, (channels, 10))
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "g"], ["y"]),
    ]
    return built(nodes, constants, ["n", 3, 16, 16])


def measured(source: bytes, shape: tuple[int, ...], target: str) -> tuple[float, float]:
    """The SQNR on samples held out, optimized and not."""
    rng = np.random.default_rng(5)
    calibration, feeds = (rng.normal(0, 1, (32, *shape)).astype(np.float32) for _ in range(2))
    report = quantize_rs.quantize_with_calibration(source, None, calibration, target=target)
    assert report.model is not None
    expected = oracle.ort(source, {"x": feeds})
    optimized, plain = (
        oracle.sqnr(expected, oracle.ort(report.model, {"x": feeds}, optimized=on))
        for on in (True, False)
    )
    return optimized, plain


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("target", TARGETS)
def test_factors_of_dead_channels_cost_the_live_ones_nothing(target: str, fraction: float) -> None:
    assert min(measured(with_dead_channels(fraction), (3, 16, 16), target)) > 33


def test_ordinary_factors_are_quantized_and_uneven_ones_are_named() -> None:
    samples = np.random.default_rng(5).normal(0, 1, (8, 3, 16, 16)).astype(np.float32)
    for fraction, quantized in ((0.0, True), (0.2, False)):
        report = quantize_rs.quantize_with_calibration(with_dead_channels(fraction), None, samples)
        rows = {value.name: value for value in report.values}
        assert rows["c1"].quantized == quantized
        assert quantized or rows["c1"].why == "holds factors that differ too much for one scale"


@pytest.mark.parametrize("tiny", ["some", "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_bias_behind_a_product_by_tiny_weights_fits_its_scale(target: str, tiny: str) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.1, (64, 32))
    if tiny == "some":
        weight[:, :8] *= 1e-8
    else:
        weight[:] = 0
    constants: dict[str, npt.NDArray[np.floating]] = {
        "w": weight,
        "b": rng.normal(0, 1, 32),
        "v": rng.normal(0, 0.1, (32, 32)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    assert min(measured(built(nodes, constants, ["n", 64]), (64,), target)) > 33
