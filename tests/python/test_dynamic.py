"""Products whose activations become integers when the model runs."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import errors

Array: TypeAlias = Any  # numpy's, of any type and shape
F = np.float32


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Make normal numbers whose channels (the last axis) have different magnitudes."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * rng.uniform(0.2, 2, size=shape[-1])).astype(F)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    feeds: dict[str, Array],
    opset: int = 17,
    output: int = TensorProto.FLOAT,
) -> bytes:
    """Make a model whose inputs are as `feeds`, of any shape."""
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
        )
        for name, value in feeds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=6).SerializeToString())


def quantized(model: bytes, **options: Any) -> bytes:
    """Quantize to bytes."""
    written = quantize_rs.quantize(model, None, output_format="dynamic", **options).model
    assert written is not None
    return written


def operators(model: bytes) -> Counter[str]:
    """Count the operators of a model."""
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)


MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
CASES: dict[str, tuple[onnx.NodeProto, dict[str, Array], Array]] = {
    "matmul": (MATMUL, {"w": numbers((40, 7))}, numbers((3, 40), 1)),
    "matmul of a batch": (MATMUL, {"w": numbers((40, 7))}, numbers((2, 3, 40), 1)),
    "matmul by a batch": (MATMUL, {"w": numbers((2, 40, 7))}, numbers((2, 3, 40), 1)),
    "vector": (MATMUL, {"w": numbers((40, 7))}, numbers((40,), 1)),
    "gemm": (
        helper.make_node("Gemm", ["x", "w", "c"], ["y"]),
        {"w": numbers((40, 7)), "c": numbers((7,), 2)},
        numbers((3, 40), 1),
    ),
    "gemm with factors": (
        helper.make_node("Gemm", ["x", "w", "c"], ["y"], alpha=0.5, beta=-2.0, transB=1),
        {"w": numbers((7, 40)), "c": numbers((3, 7), 2)},
        numbers((3, 40), 1),
    ),
    "conv": (
        helper.make_node("Conv", ["x", "w", "c"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1]),
        {"w": numbers((6, 4, 3, 3)), "c": numbers((6,), 2)},
        np.abs(numbers((2, 4, 8, 9), 1)) - F(0.3),
    ),
    "conv in groups": (
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=4),
        {"w": numbers((8, 1, 3, 3))},
        np.abs(numbers((2, 4, 8, 9), 1)) - F(0.3),
    ),
    "conv along one axis": (
        helper.make_node("Conv", ["x", "w", "c"], ["y"], pads=[3, 1], dilations=[2]),
        {"w": numbers((6, 4, 3)), "c": numbers((6,), 2)},
        np.abs(numbers((2, 4, 11), 1)) - F(0.3),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [11, 17])
def test_products_of_integers_come_near_those_of_floats(
    case: str, weights: str, per_channel: bool, opset: int
) -> None:
    node, constants, x = CASES[case]
    model = model_of([node], constants, {"x": x}, opset)
    written = quantized(model, weights=weights, per_channel=per_channel)
    made = operators(written)
    assert made["DynamicQuantizeLinear"] == 1
    assert made["ConvInteger" if node.op_type == "Conv" else "MatMulInteger"] == 1
    assert node.op_type not in made
    expected = oracle.reference(model, {"x": x})
    exact = oracle.reference(written, {"x": x})
    for optimized in (False, True):
        found = oracle.ort(written, {"x": x}, optimized=optimized)
        # Integers are summed exactly; two products of floats are left, in either order.
        assert oracle.sqnr(exact, found) > 100
        # 8 bits on both sides, of normal numbers.
        assert oracle.sqnr(expected, found) > 28


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_one_sign_use_all_integers(case: str, weights: str, per_channel: bool) -> None:
    node, constants, x = CASES[case]
    model = model_of([node], constants | {"w": np.abs(constants["w"]) + F(2)}, {"x": x})
    options: dict[str, Any] = {"weights": weights, "per_channel": per_channel}
    report = quantize_rs.quantize(
        model, None, output_format="dynamic", symmetric=False, allow_larger=True, **options
    )
    assert report.model is not None
    # `ConvInteger` has one zero point for all channels.
    fixed = per_channel and node.op_type == "Conv"
    assert report.weights[0].symmetric == fixed
    assert any("symmetric=False" in warning for warning in report.warnings) == fixed
    if fixed:
        return
    symmetric = quantize_rs.quantize(
        model, None, output_format="dynamic", symmetric=True, allow_larger=True, **options
    )
    near, far = report.weights[0].sqnr_db, symmetric.weights[0].sqnr_db
    assert near is not None
    assert far is not None
    assert near > far + 3
    exact = oracle.reference(report.model, {"x": x})
    for optimized in (False, True):
        found = oracle.ort(report.model, {"x": x}, optimized=optimized)
        assert oracle.sqnr(exact, found) > 100


def test_a_scale_a_channel_is_nearer() -> None:
    for case in ("matmul", "gemm", "conv"):
        node, constants, x = CASES[case]
        axis = 0 if node.op_type == "Conv" else 1
        shape = [1] * constants["w"].ndim
        shape[axis] = -1
        spread = np.logspace(-2, 0, constants["w"].shape[axis], dtype=F).reshape(shape)
        model = model_of([node], constants | {"w": constants["w"] * spread}, {"x": x})
        expected = oracle.reference(model, {"x": x})
        whole, each = (
            oracle.ort(quantized(model, per_channel=fine), {"x": x}) for fine in (False, True)
        )
        assert oracle.sqnr(expected, each) > oracle.sqnr(expected, whole)


def test_products_that_read_one_value_share_its_integers() -> None:
    x = numbers((3, 40), 1)
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}y"]) for name in ("q", "k", "v")]
    nodes += [
        helper.make_node("Transpose", ["ky"], ["kt"], perm=[1, 0]),
        helper.make_node("MatMul", ["qy", "kt"], ["s"]),
        helper.make_node("MatMul", ["s", "vy"], ["y"]),
    ]
    constants = {name: numbers((40, 8), seed) for seed, name in enumerate("qkv")}
    made = operators(quantized(model_of(nodes, constants, {"x": x})))
    assert made["DynamicQuantizeLinear"] == 1
    assert made["MatMulInteger"] == 3
    assert made["MatMul"] == 2, "products of two activations stay float"


def test_onnxruntime_fuses_what_is_written() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "c"], ["y"]),
    ]
    constants = {"w": numbers((40, 8)), "c": numbers((8,), 2)}
    for per_channel in (False, True):
        model = quantized(
            model_of(nodes, constants, {"x": numbers((3, 40))}), per_channel=per_channel
        )
        assert oracle.kernels(model) == {"DynamicQuantizeMatMul": 1}


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_products_of_other_floats_run(dtype: Any) -> None:
    w, x = numbers((40, 8)).astype(dtype), numbers((3, 40), 1).astype(dtype)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Gemm", ["h", "v", "c"], ["y"], alpha=0.5, beta=-2.0),
    ]
    constants = {"w": w, "v": numbers((8, 5), 3).astype(dtype), "c": numbers((5,), 4).astype(dtype)}
    model = model_of(
        nodes, constants, {"x": x}, output=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    )
    written = quantized(model, per_channel=True)
    assert operators(written)["MatMulInteger"] == 2
    expected = oracle.reference(model, {"x": x})
    for optimized in (False, True):
        found = oracle.ort(written, {"x": x}, optimized=optimized)
        assert found[0].dtype == dtype
        assert oracle.sqnr(expected, found) > 28


def test_constants_behind_other_nodes_are_found() -> None:
    w, x = numbers((8, 40)), numbers((3, 40), 1)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w)),
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Transpose", ["v"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    model = model_of(nodes, {}, {"x": x})
    written = quantized(model, per_channel=True)
    assert not operators(written).keys() & {"Transpose", "Identity", "Constant", "MatMul"}
    found = oracle.ort(written, {"x": x})
    assert oracle.sqnr(oracle.reference(model, {"x": x}), found) > 30


@pytest.mark.parametrize("per_channel", [False, True])
def test_tables_are_looked_up_as_integers(per_channel: bool) -> None:
    w, i = numbers((64, 32)), np.array([[1, 63], [0, 7]])
    model = model_of([helper.make_node("Gather", ["w", "i"], ["y"])], {"w": w}, {"i": i})
    written = quantized(model, per_channel=per_channel)
    made = operators(written)
    assert made["Gather"] == 1 + per_channel
    for optimized in (False, True):
        found = oracle.ort(written, {"i": i}, optimized=optimized)
        assert oracle.sqnr([w[i]], found) > 35


def test_op_types_choose_and_the_rest_stays_float() -> None:
    x = np.abs(numbers((2, 4, 8, 8), 1))
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    model = model_of(nodes, {"k": numbers((4, 4, 1, 1)), "w": numbers((8, 5))}, {"x": x})
    made = operators(quantized(model, op_types=["MatMul"]))
    assert made["Conv"] == made["MatMulInteger"] == 1
    plan = quantize_rs.open(model).plan(output_format="dynamic", op_types=["MatMul"])
    why = {value.name: value.why for value in plan}
    assert why["k"] == "not quantized: read by Conv, not one of op_types"
    at_run_time = "quantized at run time: becomes uint8 when the model runs, for node making `y`"
    assert why["h"].startswith(at_run_time)


def test_seven_bits_are_used_where_sums_saturate() -> None:
    x = numbers((3, 40), 1)
    model = model_of([MATMUL], {"w": numbers((40, 8))}, {"x": x})
    plan = quantize_rs.open(model).plan(output_format="dynamic", target="x86-avx2")
    (row,) = [value for value in plan.apply().report.values if value.role == "weight"]
    assert row.quantized
    written = onnx.load_from_string(plan.apply().to_bytes())
    (integers,) = [t for t in written.graph.initializer if t.name == "w_quantized"]
    assert np.abs(numpy_helper.to_array(integers).astype(int)).max() <= 64


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"bits": 4}, "weights"),
        ({"bits": 16}, "weights"),
        ({"weights": "float8"}, "weights"),
        ({"block_size": 32}, "block_size"),
        ({"layer_bits": {"w": 4}}, "layer_bits"),
        ({"target": "tensorrt"}, "target"),
        ({"accuracy_level": 4}, "accuracy_level"),
    ],
)
def test_what_integer_products_cannot_have_is_refused_by_name(
    options: dict[str, Any], option: str
) -> None:
    model = model_of([MATMUL], {"w": numbers((40, 8))}, {"x": numbers((3, 40))})
    with pytest.raises(errors.OptionError, match="output_format") as refused:
        quantized(model, **options)
    assert refused.value.option == option


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm", "Conv"])
def test_sums_that_would_leave_int32_are_not_made_of_integers(op_type: str) -> None:
    # 255 · 127 · 66400 is more than 2³¹; sums of integers that large change their sign.
    depth = 66400
    lengths = (
        [(1, depth, 1, 1), (4, depth, 1, 1)] if op_type == "Conv" else [(1, depth), (depth, 4)]
    )
    x, w = (np.ones(shape, F) for shape in lengths)
    feeds = {"x": x}
    model = model_of([helper.make_node(op_type, ["x", "w"], ["y"])], {"w": w}, feeds)
    found = quantized(model, per_channel=True)
    assert operators(found)["DequantizeLinear"] == 1
    for optimized in (True, False):
        (y,) = oracle.ort(found, feeds, optimized=optimized)
        assert np.allclose(y, depth, rtol=0.01)


@pytest.mark.parametrize("width", [4, 40])
def test_a_small_last_product_stays_in_float(width: int) -> None:
    # No later layer averages out its error. As it is small, it stays in float to be accurate.
    nodes = [
        helper.make_node("MatMul", ["x", "body"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "head"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["y"]),
    ]
    body, head, bias = numbers((96, 48)), numbers((48, width), 1), numbers((width,), 2)
    model = model_of(nodes, {"body": body, "head": head, "bias": bias}, {"x": numbers((3, 96), 3)})
    report = quantize_rs.quantize(model, None, output_format="dynamic", per_channel=True)
    assert report.model is not None
    made = operators(report.model)
    few = width == 4
    assert (made["MatMulInteger"], made["MatMul"]) == ((1, 1) if few else (2, 0))
    assert made["DequantizeLinear"] == int(few)
    kinds = {value.name: value.qtype for value in report.values if value.role == "weight"}
    assert kinds == {"body": "int8", "head": "int8"}


def test_a_last_product_in_float_keeps_the_sums_of_its_weights() -> None:
    """Integers of other products keep the sums of the errors small; so do its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "body"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "head"], ["y"]),
    ]
    head = numbers((48, 4), 1)
    model = model_of(nodes, {"body": numbers((96, 48)), "head": head}, {"x": numbers((3, 96), 3)})

    def errors(**options: Any) -> Any:
        report = quantize_rs.quantize(model, None, output_format="dynamic", **options)
        assert report.model is not None
        parts = {t.name: t for t in onnx.load_from_string(report.model).graph.initializer}
        q, scale, zero = (
            numpy_helper.to_array(parts[f"head_{part}"]).astype(np.float64)
            for part in ("quantized", "scale", "zp")
        )
        return abs(((q - zero) * scale - head).sum(axis=0)).sum()

    assert errors() < 0.5 * errors(rounding="nearest")
