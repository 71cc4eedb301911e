"""Where only weights are quantized, the smallest ones get 16 bits beside int8, or stay float."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

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
    return model_of(nodes, constants, ["n", 3, 12, 12])


def model_of(
    nodes: list[NodeProto], constants: dict[str, npt.NDArray[np.float64]], shape: list[str | int]
) -> bytes:
    """A model from `x` of a shape to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def worse_by(source: bytes, worse: quantize_rs.Report, better: quantize_rs.Report) -> float:
    """The difference of two results in the SQNR of the output of `network`, in decibels."""
    data = np.random.default_rng(1).normal(0, 1, (8, 3, 12, 12)) * LOUDNESS
    feeds = {"x": data.astype(np.float32)}
    expected = oracle.ort(source, feeds)
    assert better.model is not None
    assert worse.model is not None
    found = [oracle.sqnr(expected, oracle.ort(made, feeds)) for made in (better.model, worse.model)]
    return found[0] - found[1]


def float_weights(report: quantize_rs.Report) -> set[str]:
    """The weights that stay float."""
    return {weight.name for weight in report.weights if not weight.quantized}


def test_the_smallest_weights_get_16_bits_beside_int8() -> None:
    source = network(22)
    report = quantize_rs.quantize(source, None)
    kinds = {weight.name: weight.kind for weight in report.weights}
    assert kinds.pop("first") == kinds.pop("each") == "float16"
    assert set(kinds.values()) == {"int8 axis 0"}
    assert "22 of 22 weights quantized, 2 of them to 16-bit floats" in str(report)
    everything = quantize_rs.quantize(source, None, include=["Conv"])
    assert {weight.qtype for weight in everything.weights} == {"int8"}
    assert report.bytes_after < everything.bytes_after + 0.02 * report.bytes_before
    assert worse_by(source, everything, report) > 3


@pytest.mark.parametrize(
    ("scale", "qtype"), [(1.0, "float16"), (1e-6, "int8"), (1e6, "int8")], ids=str
)
def test_16_bit_floats_are_taken_where_they_hold_the_weight(scale: float, qtype: str) -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(0, scale, (16, 16)), rng.normal(0, 1, (16, 400))
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["v"]),
        helper.make_node("MatMul", ["v", "large"], ["y"]),
    ]
    report = quantize_rs.quantize(
        model_of(nodes, {"small": small, "large": large}, ["n", 16]), None
    )
    assert {weight.name: weight.qtype for weight in report.weights} == {
        "small": qtype,
        "large": "int8",
    }


def test_the_smallest_weights_of_a_deep_network_stay_float_beside_uint8() -> None:
    source = network(22)
    report = quantize_rs.quantize(source, None, weights="uint8")
    assert float_weights(report) == {"first", "each"}
    why = {weight.name: weight.why for weight in report.weights}
    assert why["first"] == "not quantized: has 648 elements, fewer than 28224"
    assert report.bytes_after < 0.28 * report.bytes_before
    everything = quantize_rs.quantize(source, None, weights="uint8", include=["Conv"])
    assert float_weights(everything) == set()
    assert worse_by(source, everything, report) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"op_types": ["Conv"]},
        {"output_format": "dynamic"},
        {"layer_bits": {"first": 8, "each": 8}},
        {"onnxruntime_names": True},
        {"onnxruntime_names": True, "weights": "uint8"},
    ],
)
def test_weights_that_are_asked_for_are_quantized(options: dict[str, object]) -> None:
    report = quantize_rs.quantize(network(22), None, **options)  # type: ignore[arg-type]
    assert float_weights(report) == set()
    assert {weight.qtype for weight in report.weights} == {options.get("weights", "int8")}


@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_excluded_weights_count_as_well(weights: str) -> None:
    """An option that leaves one weight float makes no other one less accurate."""
    source = network(20)
    option: dict[str, Any]
    for option in (
        {"exclude": ["w7"]},
        {"exclude": ["w*"]},
        {"layer_bits": {"w7": "float32"}},
    ):
        report = quantize_rs.quantize(source, None, weights=weights, **option)
        kinds = {weight.name: weight.kind for weight in report.weights}
        assert kinds["first"] == kinds["each"], option
        assert kinds["first"] in ("float16", "float32"), option


def test_all_weights_are_quantized_for_integer_kernels_and_in_small_networks() -> None:
    data = np.random.default_rng(1).normal(0, 1, (4, 3, 12, 12)).astype(np.float32)
    static = quantize_rs.quantize_with_calibration(network(22), None, data)
    assert "each" not in float_weights(static)
    assert float_weights(quantize_rs.quantize(network(12), None)) == set()


def test_a_result_quantized_again_keeps_its_16_bit_weights() -> None:
    first = quantize_rs.quantize(network(22), None)
    assert first.model is not None
    again = quantize_rs.quantize(first.model, None)
    assert again.model == first.model
    assert any("the model holds integers already" in warning for warning in again.warnings)


def test_calibrating_with_few_bits_gives_the_weights_of_quantizing_alone() -> None:
    """Operators do not multiply integers of 4 bits, so nothing but weights is quantized."""
    model = network(5)
    samples = np.random.default_rng(2).normal(size=(16, 3, 12, 12)).astype(np.float32)
    options: dict[str, Any] = {"bits": 4, "engine": "tract"}
    calibrated = quantize_rs.quantize_with_calibration(model, None, samples, **options)
    alone = quantize_rs.quantize(model, None, calibration_data=samples, **options)
    assert kinds_of(calibrated) == kinds_of(alone)
    assert "int8" in kinds_of(calibrated)["each"]
    assert "int4" in kinds_of(calibrated)["w3"]
    assert any("no activation is quantized" in warning for warning in calibrated.warnings)


def test_weights_that_get_8_bits_are_not_stored_in_the_blocks_of_fewer() -> None:
    source = network(5)
    options: dict[str, Any] = {"bits": 2, "block_size": 32, "check": "none"}

    def kinds(**more: Any) -> dict[str, str]:
        return kinds_of(quantize_rs.quantize(source, None, **options, **more))

    wide = kinds(layer_bits={"w2": 8})
    assert "block" not in wide["w2"]
    assert "block" in wide["w3"]
    asked = kinds(overrides=[{"match": {"name": "w2"}, "weights": 8, "block_size": 16}])
    assert "blocks of 16" in asked["w2"]


def kinds_of(report: quantize_rs.Report) -> dict[str, str]:
    """What each weight is stored as."""
    return {value.name: value.kind for value in report.values if value.role == "weight"}
