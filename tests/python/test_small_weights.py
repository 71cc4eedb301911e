"""The smallest weights of a network of convolutions stay float where only weights are quantized."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

LOUDNESS = 10 ** np.linspace(2, 0, 3)[:, None, None]
"""The factor of each channel of the input."""


def network(layers: int) -> bytes:
    """A convolution of 3 channels, one with a filter per channel, and large ones.

    The first is sensitive: its inputs differ by a factor of 100, and its weights make up for that.
    """
    rng = np.random.default_rng(0)
    channels = 24
    constants = {
        "first": rng.normal(0, 1, (channels, 3, 3, 3)) / LOUDNESS,
        "each": rng.normal(0, 0.3, (channels, 1, 3, 3)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["v0"], pads=[1] * 4),
        helper.make_node("Conv", ["v0", "each"], ["v1"], pads=[1] * 4, group=channels),
    ]
    for layer in range(2, layers):
        constants[f"w{layer}"] = rng.normal(
            0, np.sqrt(2 / channels / 49), (channels, channels, 7, 7)
        )
        nodes += [
            helper.make_node("Relu", [f"v{layer - 1}"], [f"r{layer}"]),
            helper.make_node("Conv", [f"r{layer}", f"w{layer}"], [f"v{layer}"], pads=[3] * 4),
        ]
    nodes.append(helper.make_node("GlobalAveragePool", [f"v{layers - 1}"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def float_weights(report: quantize_rs.Report) -> set[str]:
    """The weights that stay float."""
    return {weight.name for weight in report.weights if not weight.quantized}


def test_the_smallest_weights_of_a_deep_network_stay_float() -> None:
    source = network(22)
    report = quantize_rs.quantize(source, None)
    assert float_weights(report) == {"first", "each"}
    why = {weight.name: weight.why for weight in report.weights}
    assert why["first"] == "not quantized: has 648 elements, fewer than 28224"
    assert report.bytes_after < 0.28 * report.bytes_before
    everything = quantize_rs.quantize(source, None, include=["Conv"])
    assert float_weights(everything) == set()
    assert report.model is not None
    assert everything.model is not None
    data = np.random.default_rng(1).normal(0, 1, (8, 3, 12, 12)) * LOUDNESS
    feeds = {"x": data.astype(np.float32)}
    expected = oracle.ort(source, feeds)
    gained = oracle.sqnr(expected, oracle.ort(report.model, feeds))
    assert gained > oracle.sqnr(expected, oracle.ort(everything.model, feeds)) + 1


@pytest.mark.parametrize(
    "options",
    [{"op_types": ["Conv"]}, {"output_format": "dynamic"}, {"layer_bits": {"first": 8, "each": 8}}],
)
def test_weights_that_are_asked_for_are_quantized(options: dict[str, object]) -> None:
    report = quantize_rs.quantize(network(22), None, **options)  # type: ignore[arg-type]
    assert float_weights(report) == set()


def test_all_weights_are_quantized_for_integer_kernels_and_in_small_networks() -> None:
    data = np.random.default_rng(1).normal(0, 1, (4, 3, 12, 12)).astype(np.float32)
    static = quantize_rs.quantize_with_calibration(network(22), None, data)
    assert "each" not in float_weights(static)
    assert float_weights(quantize_rs.quantize(network(12), None)) == set()
