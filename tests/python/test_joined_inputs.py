"""Values of different size that meet in one tensor: one scale must not lose the small ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from graphs import built
from onnx import NodeProto, helper

import quantize_rs

TARGETS = ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"]


def boxes_and_scores(*ends: NodeProto, scale: float = 40) -> bytes:
    """Boxes in pixels, `b`, and scores from 0 to 1, `s`, which the last nodes join."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(0, scale, (32, 8)), "v": rng.normal(0, 0.3, (32, 8))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["b"]),
        helper.make_node("MatMul", ["x", "v"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["s"]),
    ]
    return built([*nodes, *ends], constants, ["n", 32])


def samples(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 1, (64, 32)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_scores_survive_beside_boxes_in_one_concat(target: str) -> None:
    model = boxes_and_scores(helper.make_node("Concat", ["b", "s"], ["y"], axis=1))
    report = quantize_rs.quantize_with_calibration(model, None, samples(1), target=target)
    assert report.model is not None
    expected, found = (oracle.ort(it, {"x": samples(2)})[0] for it in (model, report.model))
    for columns in (slice(0, 8), slice(8, 16)):
        assert oracle.sqnr([expected[:, columns]], [found[:, columns]]) > 30


def test_the_plan_says_which_input_would_be_lost() -> None:
    model = boxes_and_scores(helper.make_node("Concat", ["b", "s"], ["y"], axis=1))
    report = quantize_rs.quantize_with_calibration(model, None, samples(1), target="qnn")
    (row,) = (value for value in report.values if value.name == "y")
    assert not row.quantized
    assert row.why == "not quantized: one scale for all of its inputs would lose `s`"
    (warning,) = (found for found in report.warnings if "`y` stays float" in found)
    assert "activation_types" in warning


def test_16_bits_and_values_of_one_size_stay_quantized() -> None:
    end = helper.make_node("Concat", ["b", "s"], ["y"], axis=1)
    cases: list[tuple[bytes, dict[str, Any]]] = [
        (boxes_and_scores(end), {"activation_types": {"y": "uint16"}}),
        (boxes_and_scores(end, scale=0.1), {}),
    ]
    for model, options in cases:
        report = quantize_rs.quantize_with_calibration(
            model, None, samples(1), target="qnn", **options
        )
        (row,) = (value for value in report.values if value.name == "y")
        assert row.quantized, options


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_a_small_bound_is_not_rounded_to_nothing(op_type: str) -> None:
    """A bound of 0.01 that keeps a divisor from 0 is less than half a step of the scale."""
    rng = np.random.default_rng(0)
    sign = 1.0 if op_type == "Max" else -1.0
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node(op_type, ["p", "bound"], ["y"]),
    ]
    constants = {"w": rng.normal(0, 40, (32, 8)), "bound": np.array([0.01 * sign])}
    model = built(nodes, constants, ["n", 32])
    report = quantize_rs.quantize_with_calibration(model, None, samples(1), target="qnn")
    assert report.model is not None
    found = oracle.ort(report.model, {"x": samples(2)})[0]
    assert np.abs(found).min() == pytest.approx(0.01, rel=0.01)
