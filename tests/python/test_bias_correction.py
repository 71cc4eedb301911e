"""Corrected biases, beside the mean of what quantized weights change when both are run."""

from __future__ import annotations

from typing import Any

import judge
import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import pytest

import quantize_rs

Attributes = dict[str, Any]
Array = npt.NDArray[Any]

# Name of a case: the operator, the shapes of input and weight, and attributes.
CASES: dict[str, tuple[str, list[int], list[int], Attributes]] = {
    "conv": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {}),
    "conv_padded": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [1, 1, 1, 1]}),
    "conv_uneven_pads": ("Conv", [1, 6, 9, 7], [8, 6, 3, 3], {"pads": [2, 0, 1, 1]}),
    "conv_strided": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [1] * 4, "strides": [2, 3]}),
    "conv_dilated": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [2] * 4, "dilations": [2, 2]}),
    "conv_grouped": ("Conv", [1, 6, 9, 9], [8, 3, 3, 3], {"group": 2, "pads": [1] * 4}),
    "conv_depthwise": ("Conv", [1, 6, 9, 9], [12, 1, 3, 3], {"group": 6, "pads": [1] * 4}),
    "conv_1d": ("Conv", [1, 6, 20], [8, 6, 5], {"pads": [2, 2]}),
    "gemm": ("Gemm", [4, 6], [6, 8], {}),
    "gemm_transposed": ("Gemm", [4, 6], [8, 6], {"transB": 1}),
    "matmul": ("MatMul", [4, 6], [6, 8], {}),
}


def model(case: str) -> onnx.ModelProto:
    """One operator with a weight and a bias; of a MatMul the bias is added by the next."""
    op_type, x, w, attributes = CASES[case]
    rng = np.random.default_rng(3)
    channels = w[0] if op_type == "Conv" or attributes.get("transB") else w[-1]
    weight = rng.normal(0, 1, w).astype(np.float32)
    bias = rng.normal(0, 1, channels).astype(np.float32)
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node(op_type, ["x", "w", "b"], ["y"], **attributes)]
    if op_type == "MatMul":
        nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    named = zip((weight, bias), ("w", "b"), strict=True)
    arrays = [onnx.numpy_helper.from_array(array, name) for array, name in named]
    graph = onnx.helper.make_graph(nodes, case, [info("x", 1, x)], [info("y", 1, None)], arrays)
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def dequantized(found: onnx.ModelProto, name: str) -> tuple[Array, Array]:
    """What the integers of a constant stand for, and the steps that they are apart by channel."""
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in found.graph.initializer}
    pair = next(n for n in found.graph.node if n.output[0] == name)
    integers, scales = constants[pair.input[0]], constants[pair.input[1]]
    axis = next((a.i for a in pair.attribute if a.name == "axis"), 0)
    shape = [-1 if at == axis else 1 for at in range(integers.ndim)]
    steps = scales.astype(np.float64).reshape(shape)
    return np.asarray(integers * steps), steps


def still(case: str) -> list[Array]:
    """Samples whose channels have one value each, wherever they meet a filter."""
    op_type, x, _, _ = CASES[case]
    rng, axis = np.random.default_rng(5), 1 if op_type == "Conv" else len(x) - 1
    shape = [x[axis] if at == axis else 1 for at in range(len(x))]
    typical = rng.normal(2, 3, shape)
    return [
        np.broadcast_to(typical + rng.normal(0, 0.5, shape), x).astype(np.float32)
        for _ in range(64)
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_bias_takes_back_what_the_mean_of_a_layer_is_off_by(case: str) -> None:
    float_model, samples = model(case), still(case)
    report = quantize_rs.quantize_with_calibration(
        float_model, None, [{"x": x} for x in samples], per_channel=True, symmetric=True
    )
    assert report.corrected_biases == 1
    assert report.model is not None
    found = onnx.load_from_string(report.model)
    reader = next(node for node in found.graph.node if node.op_type == CASES[case][0])
    adds = next((node for node in found.graph.node if node.op_type == "Add"), None)
    after, steps = dequantized(found, adds.input[1] if adds else reader.input[2])

    # The float model with the weight that the integers stand for: how far is it off in the mean?
    rounded = model(case)
    weight = dequantized(found, reader.input[1])[0].astype(np.float32)
    rounded.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    exact, off = float_model.SerializeToString(), rounded.SerializeToString()
    errors = [judge.ort(off, {"x": x})[0] - judge.ort(exact, {"x": x})[0] for x in samples]
    mean = np.mean(errors, axis=0, dtype=np.float64)
    channels = 1 if CASES[case][0] == "Conv" else mean.ndim - 1
    mean = mean.mean(tuple(axis for axis in range(mean.ndim) if axis != channels))
    before = onnx.numpy_helper.to_array(float_model.graph.initializer[1])
    # Half a step is what rounding to int32 leaves, and the mean itself is worked out in float32.
    left = np.abs(after - before + mean)
    assert (left <= steps * 0.5 + 1e-5).all()
    assert (np.abs(mean) > 4 * steps).any()
