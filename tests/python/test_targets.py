"""Each operator's rule for each target: what is written loads, and computes what it says."""

from __future__ import annotations

from typing import Any

import judge
import numpy as np
import onnx
import pytest
import rules
from onnx import numpy_helper

import quantize_rs
from quantize_rs import OptionError

TARGETS = ["x86", "x86-avx2", "arm", "tensorrt", "openvino", "qnn", "generic"]

# Decibels against the float model. What everything loses in 8 bits shows where numbers are divided
# by their spread, or where few of them decide.
FLOOR = 20.0
LOWER = {("softmax", "qnn"): 15.0}


def quantized(name: str, target: str, **wishes: Any) -> bytes:
    """The model of a rule for a target."""
    types = {"activations": "int8" if target == "tensorrt" else "uint8"}
    wishes = {"per_channel": True, "target": target, **types, **wishes}
    report = quantize_rs.quantize_with_calibration(
        rules.model(name), None, [rules.feeds()], **wishes
    )
    assert report.model is not None
    return report.model


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", rules.CASES)
def test_a_rule_is_right_for_a_target(name: str, target: str) -> None:
    model = quantized(name, target)
    judge.check(model)
    feeds = rules.feeds()
    plain = judge.ort(model, feeds, optimized=False)
    expected = judge.ort(rules.model(name).SerializeToString(), feeds)
    assert judge.sqnr(expected, plain) > LOWER.get((name, target), FLOOR)
    # ONNX's own definition, but for the operators that its reference computes in another way.
    assert judge.sqnr(judge.reference(model, feeds), plain) > 40
    # Fused, it may be off where a sum fell on the border of two integers.
    assert judge.sqnr(plain, judge.ort(model, feeds)) > 25


@pytest.mark.parametrize("name", [name for name, case in rules.CASES.items() if case.kernel])
def test_the_kernel_that_a_rule_names_is_run(name: str) -> None:
    found = judge.kernels(quantized(name, "x86"))
    kernel = rules.CASES[name].kernel
    assert found[str(kernel)] or found[f"Nhwc{kernel}"], found
    assert found["QLinearConv"] == 2 or "b" not in str(rules.CASES[name].reads)
    assert found["Conv"] == found["MatMul"] == 0, found


@pytest.mark.parametrize("name", [name for name, case in rules.CASES.items() if not case.kernel])
def test_what_has_no_kernel_leaves_the_rest_on_integers(name: str) -> None:
    found = judge.kernels(quantized(name, "x86"))
    assert found["QLinearConv"] >= 1, found
    assert found["MatMulIntegerToFloat"] == 1, found


def _constants(model: bytes) -> judge.Feeds:
    graph = onnx.load_from_string(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_tensorrt_has_only_zero_points_of_zero_and_float_biases() -> None:
    constants = _constants(quantized("add", "tensorrt"))
    integers = [array for array in constants.values() if array.dtype == np.int8]
    assert integers
    assert not any(array.dtype in (np.uint8, np.int32) for array in constants.values())
    assert all((array == 0).all() for name, array in constants.items() if "zp" in name)
    graph = onnx.load_from_string(quantized("add", "tensorrt")).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    (add,) = (node for node in graph.node if node.op_type == "Add")
    assert sorted(made[name] for name in add.input) == ["Conv", "DequantizeLinear"]


def test_weights_for_avx2_have_seven_bits() -> None:
    largest = {
        target: max(
            np.abs(array.astype(int)).max()
            for array in _constants(quantized("add", target)).values()
            if array.dtype == np.int8 and array.ndim == 4
        )
        for target in ("x86", "x86-avx2")
    }
    assert largest == {"x86": 127, "x86-avx2": 63}


def test_everything_is_quantized_for_qnn() -> None:
    graph = onnx.load_from_string(quantized("hard_swish", "qnn")).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    (swish,) = (node for node in graph.node if node.op_type == "HardSwish")
    assert made[swish.input[0]] == "DequantizeLinear"
    readers = [node.op_type for node in graph.node if swish.output[0] in node.input]
    assert readers == ["QuantizeLinear"]


def test_types_that_a_target_does_not_take_are_refused() -> None:
    with pytest.raises(OptionError, match="activations is uint8, expected int8"):
        quantized("add", "tensorrt", activations="uint8")
    with pytest.raises(OptionError, match="x86-avx2, arm, tensorrt"):
        quantized("add", "x68")


def test_only_the_operators_that_were_asked_for() -> None:
    graph = onnx.load_from_string(quantized("add", "x86", op_types=["MatMul"])).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type in ("Conv", "MatMul"):
            from_integers = [made.get(name) == "DequantizeLinear" for name in node.input]
            assert any(from_integers) == (node.op_type == "MatMul"), node.op_type
    with pytest.raises(OptionError, match="did you mean `Conv`"):
        quantized("add", "x86", op_types=["Cnov"])


@pytest.mark.parametrize("activations", ["uint16", "int16"])
def test_sixteen_bits_are_closer_than_eight(activations: str) -> None:
    feeds = rules.feeds()
    exact = judge.ort(rules.model("add").SerializeToString(), feeds)
    near, far = (
        judge.sqnr(exact, judge.ort(quantized("add", "x86", activations=kind, bits=bits), feeds))
        for kind, bits in ((activations, 16), ("uint8", 8))
    )
    assert near > far + 20
