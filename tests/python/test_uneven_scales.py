"""Constants whose elements differ so much that one scale, or a runtime's own, loses some."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from graphs import built
from onnx import helper

import quantize_rs

TARGETS = ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"]


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
        assert (
            quantized
            or rows["c1"].why == "not quantized: holds factors that differ too much for one scale"
        )


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


def with_normalization(uneven: bool) -> bytes:
    """Two convolutions with a batch normalization each, whose factors may differ by channel."""
    rng = np.random.default_rng(0)
    constants: dict[str, npt.NDArray[np.floating]] = {}
    nodes, value, inputs = [], "x", 3
    for layer in range(2):
        factors = np.where(np.arange(32) % 8 == 0, 20.0, 0.3) if uneven else np.ones(32)
        constants |= {
            f"w{layer}": rng.normal(0, 0.2, (32, inputs, 3, 3)),
            f"s{layer}": factors,
            f"b{layer}": rng.normal(0, 0.1, 32),
            f"m{layer}": rng.normal(0, 0.1, 32),
            f"v{layer}": np.ones(32),
        }
        names = [f"{kind}{layer}" for kind in "sbmv"]
        # Channels with large factors have small weights in the next convolution.
        if layer == 1 and uneven:
            constants["w1"][:, ::8] *= 0.2
        nodes += [
            helper.make_node("Conv", [value, f"w{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("BatchNormalization", [f"c{layer}", *names], [f"n{layer}"]),
            helper.make_node("Relu", [f"n{layer}"], ["y" if layer else "r"]),
        ]
        value, inputs = "r", 32
    return built(nodes, constants, ["n", 3, 16, 16])


@pytest.mark.parametrize("uneven", [False, True])
def test_one_scale_per_tensor_is_not_spoilt_by_folding_factors(uneven: bool) -> None:
    model = with_normalization(uneven)
    feeds = {"x": np.random.default_rng(5).normal(0, 1, (8, 3, 16, 16)).astype(np.float32)}
    report = quantize_rs.quantize(model, None, per_channel=False)
    assert report.model is not None
    expected, found = (oracle.ort(it, feeds) for it in (model, report.model))
    # All factors folded: 19.5 dB.
    assert oracle.sqnr(expected, found) > 25
    assert quantize_rs.validate(model, report.model).passed
    ops = [node.op_type for node in onnx.load_from_string(report.model).graph.node]
    assert ops.count("BatchNormalization") == (2 if uneven else 0)
    # With a scale per channel, every factor is folded.
    report = quantize_rs.quantize(model, None)
    assert report.model is not None
    ops = [node.op_type for node in onnx.load_from_string(report.model).graph.node]
    assert "BatchNormalization" not in ops
