"""Integers that ONNX Runtime moves through other nodes keep their values, in every opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

MOVING: dict[str, dict[str, Any]] = {
    "Reshape": {"to": np.array([1, 16, 4, 8])},
    "Slice": {"from": np.array([0]), "to": np.array([8]), "along": np.array([1])},
    "Squeeze": {"which": np.array([0])},
    "Transpose": {},
    "Unsqueeze": {"which": np.array([1])},
}


def assert_near(model: onnx.ModelProto, way: str, ids: np.ndarray) -> None:
    """Check that ONNX Runtime loads models with one scale per tensor, with accurate outputs."""
    samples = [{"ids": each} for each in ids]
    expected = oracle.ort(model.SerializeToString(), samples[0])
    for symmetric in (True, False):
        options: dict[str, Any] = {"per_channel": False, "symmetric": symmetric}
        if way == "static":
            report = quantize_rs.quantize_with_calibration(model, None, samples, **options)
        else:
            output_format = "dynamic" if way == "dynamic" else "qdq"
            report = quantize_rs.quantize(model, None, output_format=output_format, **options)
        assert report.model is not None
        for optimized in (True, False):
            found = oracle.ort(report.model, samples[0], optimized=optimized)
            assert oracle.sqnr(expected, found) > 30


@pytest.mark.parametrize("way", ["weights", "static", "dynamic"])
@pytest.mark.parametrize("opset", [13, 20, 21, 23])
@pytest.mark.parametrize("op_type", MOVING)
def test_rows_that_are_moved_keep_their_sign(op_type: str, opset: int, way: str) -> None:
    """ONNX Runtime quantizes moved values again: to uint8 unless the graph says int8."""
    rng = np.random.default_rng(12)
    stored = {"table": rng.standard_normal((500, 32)).astype(np.float32)} | MOVING[op_type]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node(op_type, ["rows", *MOVING[op_type]], ["moved"]),
            helper.make_node("Tanh", ["moved"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    assert_near(model, way, rng.integers(0, 500, (16, 1, 16)))


@pytest.mark.parametrize("way", ["weights", "static", "dynamic"])
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("end", ["Gemm", "MatMul"])
def test_a_table_that_ends_the_model_too_loads(end: str, opset: int, way: str) -> None:
    """The nodes that the last product needs are not added for the rows, which are only moved."""
    rng = np.random.default_rng(14)
    stored = {
        "table": rng.standard_normal((300, 32)).astype(np.float32),
        "flat": np.array([-1, 32]),
        "b": rng.standard_normal(300).astype(np.float32),
    }
    last = {
        "Gemm": [helper.make_node("Gemm", ["h", "table", "b"], ["y"], "last", transB=1)],
        "MatMul": [
            helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "turned"], ["last"]),
            helper.make_node("Add", ["last", "b"], ["y"]),
        ],
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Reshape", ["rows", "flat"], ["moved"]),
            helper.make_node("Tanh", ["moved"], ["h"]),
            *last[end],
        ],
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    assert_near(model, way, rng.integers(0, 300, (16, 1, 16)))


def products(*axes: int) -> onnx.ModelProto:
    """Make a product with a bias, of which ONNX Runtime makes a `Gemm`."""
    rng = np.random.default_rng(13)
    stored = {
        "w": rng.standard_normal((32, 16)).astype(np.float32),
        "b": rng.standard_normal(16).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
            helper.make_node("Add", ["m", "b"], ["y"]),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*axes, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("axes", [(), (6,), (1, 6), (2, 1, 3)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"activations": "uint8"},
        {"activations": "int8"},
        {"activations": "int8", "target": "x86"},
        {"activations": "int8", "target": "x86", "per_channel": False},
        {"activations": "int8", "target": "arm"},
        {"activations": "int8", "target": "generic"},
        {"activations": "int8", "output_format": "qoperator"},
        {"target": "tensorrt"},
    ],
    ids=str,
)
def test_products_with_biases_load(
    options: dict[str, Any], axes: tuple[int, ...], optimized: bool
) -> None:
    """The bias of int8 is a matrix of one row, which ONNX Runtime leaves outside of a `Gemm`."""
    model, rng = products(*axes), np.random.default_rng(14)
    samples = [{"x": rng.standard_normal((*axes, 32)).astype(np.float32)} for _ in range(16)]
    report = quantize_rs.quantize_with_calibration(model, None, samples, **options)
    assert report.model is not None
    assert not [warning for warning in report.warnings if "load" in warning]
    found = oracle.ort(report.model, samples[0], optimized=optimized)
    assert oracle.sqnr(oracle.ort(model.SerializeToString(), samples[0]), found) > 30


STORED = ["initializer", "shared initializer", "initializer of two sums", "Constant"]


@pytest.mark.parametrize("stored", STORED)
def test_a_bias_becomes_a_row_wherever_it_is_stored(stored: str) -> None:
    model, rng = products(1, 6), np.random.default_rng(15)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "b")
    if stored == "Constant":
        model.graph.initializer.remove(bias)
        node = helper.make_node("Constant", [], ["b"], value=bias)
        model.graph.node.insert(0, node)
    if stored == "shared initializer":
        model.graph.node.append(helper.make_node("Neg", ["b"], ["negative"]))
        model.graph.output.append(helper.make_tensor_value_info("negative", 1, [16]))
    if stored == "initializer of two sums":
        weight = rng.standard_normal((32, 16)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, "v"))
        model.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["n"], "second"))
        model.graph.node.append(helper.make_node("Add", ["b", "n"], ["z"]))
        model.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    samples = [{"x": rng.standard_normal((1, 6, 32)).astype(np.float32)} for _ in range(16)]
    report = quantize_rs.quantize_with_calibration(model, None, samples, activations="int8")
    assert report.model is not None
    # The vector stays only for what else reads it.
    vectors = [
        tensor.name
        for tensor in onnx.load_from_string(report.model).graph.initializer
        if list(tensor.dims) == [16] and not tensor.name.endswith(("_scale", "_zp"))
    ]
    assert vectors == (["b"] if stored == "shared initializer" else [])
    expected = oracle.ort(model.SerializeToString(), samples[0])
    found = oracle.ort(report.model, samples[0])
    assert oracle.sqnr(expected, found) > 30


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
@pytest.mark.parametrize("opset", [10, 11, 12, 13])
@pytest.mark.parametrize(
    ("op_type", "attributes", "channels", "least"),
    [
        ("DepthToSpace", {"blocksize": 2}, 1, 11),
        ("ReduceMax", {"axes": [2]}, 4, 12),
        ("ReduceMin", {"axes": [2]}, 4, 12),
    ],
)
def test_operators_between_integers_have_the_opset_for_them(
    op_type: str,
    attributes: dict[str, Any],
    channels: int,
    least: int,
    opset: int,
    output_format: str,
) -> None:
    """ONNX Runtime lets them take integers in every opset, and then has no kernel."""
    rng = np.random.default_rng(16)
    stored = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((2, channels, 1, 1)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "first"),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node(op_type, ["r"], ["m"], "odd", **attributes),
            helper.make_node("Conv", ["m", "v"], ["y"], "second"),
        ],
        "between",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    samples = [{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(16)]
    for target in ("x86", "qnn" if output_format == "qdq" else "web"):
        options: dict[str, Any] = {"target": target, "output_format": output_format}
        report = quantize_rs.quantize_with_calibration(
            model, None, samples, per_channel=False, allow_larger=True, **options
        )
        assert report.model is not None
        assert report.opset == max(opset, least)
        expected = oracle.ort(model.SerializeToString(), samples[0])
        for optimized in (True, False):
            found = oracle.ort(report.model, samples[0], optimized=optimized)
            assert oracle.sqnr(expected, found) > 20


@pytest.mark.parametrize("target", ["x86", "x86-avx2", "arm", "generic"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_rows_that_are_moved_into_a_product_are_what_targets_take(
    target: str, per_channel: bool
) -> None:
    """The table has one scale; its moved rows, which are multiplied, have another."""
    rng = np.random.default_rng(15)
    stored = {
        "table": rng.standard_normal((40, 32)).astype(np.float32),
        "from": np.array([0]),
        "to": np.array([4]),
        "along": np.array([1]),
        "w": rng.standard_normal((32, 16)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Slice", ["rows", "from", "to", "along"], ["moved"]),
            helper.make_node("MatMul", ["moved", "w"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"ids": rng.integers(0, 40, (1, 6))} for _ in range(16)]
    report = quantize_rs.quantize_with_calibration(
        model, None, samples, target=target, per_channel=per_channel
    )
    assert report.model is not None
    expected = oracle.ort(model.SerializeToString(), samples[0])
    for optimized in (True, False):
        found = oracle.ort(report.model, samples[0], optimized=optimized)
        assert oracle.sqnr(expected, found) > 28


TURNED: dict[str, tuple[list[onnx.NodeProto], list[int]]] = {
    "tied": (
        [
            helper.make_node("Gather", ["w", "ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "v"], ["h"]),
            helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "turned"], ["y"]),
        ],
        [96, 64],
    ),
    "twice": (
        [
            helper.make_node("Gather", ["u", "ids"], ["rows"]),
            helper.make_node("Transpose", ["w"], ["one"], perm=[1, 0]),
            helper.make_node("MatMul", ["rows", "one"], ["h"]),
            helper.make_node("Transpose", ["w"], ["other"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "other"], ["y"]),
        ],
        [64, 64],
    ),
    "both ways": (
        [
            helper.make_node("Gather", ["u", "ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "w"], ["h"]),
            helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "turned"], ["y"]),
        ],
        [64, 96],
    ),
}


def turned(case: str) -> onnx.ModelProto:
    """Make a model that transposes a weight, which is also read in another place."""
    nodes, shape = TURNED[case]
    rng = np.random.default_rng(16)
    read = {name for node in nodes for name in node.input}
    shapes = {"w": shape, "u": [96, 64], "v": [64, 64]}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) / 8
        for name, shape in shapes.items()
        if name in read
    }
    graph = helper.make_graph(
        nodes,
        case,
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("options", [{}, {"per_channel": False}, {"symmetric": False}], ids=str)
@pytest.mark.parametrize("weights", ["int2", "uint2", "int4"])
@pytest.mark.parametrize("case", TURNED)
def test_a_weight_of_2_bits_that_is_turned_loads(
    case: str, weights: str, options: dict[str, Any]
) -> None:
    """ONNX Runtime transposes integers, but not those of 2 bits."""
    model = turned(case)
    report = quantize_rs.quantize(model, None, weights=weights, allow_larger=True, **options)
    assert report.model is not None
    assert not any("onnxruntime" in warning for warning in report.warnings)
    proto = onnx.load_from_string(report.model)
    readers = [node for node in proto.graph.node if "w_quantized" in node.input]
    narrow = next(node for node in readers if node.op_type == "DequantizeLinear")
    assert any(found.name == "block_size" for found in narrow.attribute) == ("2" in weights)
    # One table for both.
    assert sum(tensor.dims == TURNED[case][1] for tensor in proto.graph.initializer) == 1
    feeds = {"ids": np.arange(10).reshape(2, 5)}
    fast, plain = (
        oracle.ort(report.model, feeds, optimized=optimized) for optimized in (True, False)
    )
    # The other product is fused, and rounds its input to 8 bits.
    assert oracle.sqnr(plain, fast) > 35
    assert quantize_rs.validate(model, report.model)


def test_mixed_precision_takes_2_bits_for_a_tied_table() -> None:
    model = turned("tied")
    samples = [{"ids": np.arange(5)[None] + at} for at in range(6)]
    found = quantize_rs.mixed_precision(
        model, samples, target_size=0.12, engine="onnxruntime", bits=(8, 4, 2)
    )
    assert 2 in found.layer_bits.values()
