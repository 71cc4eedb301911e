"""Weights in ONNX Runtime's own operators: layout, numbers, and what has no form in them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state

import quantize_rs
from quantize_rs import errors

Array: TypeAlias = Any  # numpy's, of any type and shape

F = np.float32
BLOCK = 16
LEVELS = [
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
]


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    feeds: dict[str, Array],
    opset: int = 17,
    output: str = "y",
    float_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
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
        [helper.make_tensor_value_info(output, float_type, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: bytes, feeds: dict[str, Array], level: Any = LEVELS[1]) -> Array:
    """Run the one output of a model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def quantized(model: onnx.ModelProto, **options: Any) -> tuple[onnx.ModelProto, Any]:
    """Quantize to bytes, in blocks of 16 unless the options say otherwise."""
    asked: dict[str, Any] = {"output_format": "matmul_nbits", "block_size": BLOCK, **options}
    report = quantize_rs.quantize(model, None, **asked)
    assert report.model is not None
    return onnx.load_from_string(report.model), report


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    """Give the constants of a model by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Make normal numbers, a few of them large."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * rng.choice([1, 1, 1, 4], size=shape)).astype(F)


def unpacked(packed: Array, bits: int) -> Array:
    """Give each code of the bytes along the last axis its own place, low bits first."""
    codes = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(codes, -1).reshape(*packed.shape[:-1], -1)


def restored(found: dict[str, Array], bits: int, depth: int) -> Array:
    """Compute the matrix that the constants of `w` stand for, as `depth` columns of rows."""
    scale = found["w_scale"].astype(F)
    codes = unpacked(found["w_quantized"].reshape(len(scale), -1), bits).astype(F)
    points = (
        unpacked(found["w_zp"], bits) if "w_zp" in found else np.full_like(scale, 1 << bits - 1)
    )
    each = np.repeat(np.arange(scale.shape[1]), BLOCK)[: codes.shape[1]]
    return ((codes - points.astype(F)[:, each]) * scale[:, each])[:, :depth].T


CASES = [
    (bits, symmetric, shape)
    for bits in (2, 4, 8)
    for symmetric in (False, True)
    for shape in ((32, 5), (40, 7), (5, 130), (33, 3))
]


@pytest.mark.parametrize(("bits", "symmetric", "shape"), CASES)
def test_a_product_is_that_with_the_matrix_that_the_integers_stand_for(
    bits: int, symmetric: bool, shape: tuple[int, int]
) -> None:
    w, x = numbers(shape), numbers((2, 3, shape[0]), 1)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], {"w": w}, {"x": x})
    result, report = quantized(model, bits=bits, symmetric=symmetric, weight_method="minmax")
    found = constants(result)
    back = restored(found, bits, shape[0])
    (node,) = result.graph.node
    assert (node.domain, node.op_type, node.name) == ("com.microsoft", "MatMulNBits", "mm")
    assert ("w_zp" in found) == (not symmetric)
    # An element is at most half a step off, or a step where the shorter end of a symmetric grid
    # clips. Zero points are rounded too, which shifts a whole block by up to half a step.
    step = np.repeat(np.abs(found["w_scale"]), 16, 1)[:, : shape[0]].T
    assert np.all(np.abs(back - w) <= step * 1.001)
    (row,) = [value for value in report.values if value.role == "weight"]
    assert (row.qtype, row.format) == (f"uint{bits}", "matmul_nbits")
    assert row.mse == pytest.approx(np.mean((back - w) ** 2), rel=1e-3)
    for level in LEVELS:
        # Sums of up to 40 products in another order.
        got = run(result.SerializeToString(), {"x": x}, level)
        np.testing.assert_allclose(got, x @ back, rtol=0, atol=2e-5 * np.abs(x @ back).max())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shape", [(64, 24), (72, 5)])
def test_the_layout_is_that_of_onnxruntimes_own_tool(
    bits: int, symmetric: bool, shape: tuple[int, int]
) -> None:
    w, x = numbers(shape), numbers((3, shape[0]), 1)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], {"w": w}, {"x": x})
    found = constants(quantized(model, bits=bits, symmetric=symmetric, weight_method="minmax")[0])
    ours: list[Array] = [found["w_quantized"], found["w_scale"], found.get("w_zp")]
    # The function that MatMulNBitsQuantizer calls, with arrays of the same shapes.
    (depth, width), blocks = shape, -(-shape[0] // BLOCK)
    other: list[Array] = [
        np.zeros((width, blocks, BLOCK * bits // 8), np.uint8),
        np.zeros((width, blocks), F),
        np.zeros((width, -(-blocks * bits // 8)), np.uint8),
    ]
    theirs = getattr(_pybind_state, f"quantize_matmul_{bits}bits")
    theirs(other[0], w, other[1], other[2], BLOCK, width, depth, symmetric)
    assert [None if part is None else part.shape for part in ours] == [
        part.shape for part in other[: 3 - symmetric]
    ] + [None] * symmetric
    # It computes scales in float32, and multiplies by their inverse: a code may differ by one where
    # the quotient is within an ulp of a half.
    same = np.isclose(ours[1], other[1], rtol=3e-7, atol=0)
    if bits == 8 and symmetric:
        # Nothing clips here: where the shorter end of the grid decides, steps are 1/127 wider.
        np.testing.assert_allclose(ours[1][~same], other[1][~same] * F(128 / 127), rtol=1 / 127)
    elif symmetric:
        # A block keeps a wider step where clipping the shorter side costs more than it gains.
        assert np.all(same | (np.abs(ours[1]) > np.abs(other[1])))
    else:
        assert np.all(same)
    if not symmetric:
        np.testing.assert_array_equal(ours[2], other[2])
    codes, expected = (unpacked(part, bits).reshape(len(part), -1) for part in (ours[0], other[0]))
    codes, expected = codes[:, : shape[0]].astype(int), expected[:, : shape[0]].astype(int)
    steps = w.T / np.repeat(ours[1], 16, 1)[:, : shape[0]]
    near_half = np.abs(np.abs(steps - np.trunc(steps)) - 0.5) < 1e-4
    differ = np.repeat(~same, BLOCK, 1)[:, : shape[0]]
    assert np.all((codes == expected) | differ | near_half & (np.abs(codes - expected) == 1))
    assert np.mean((codes == expected)[~differ]) > 0.95


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"alpha": 0.5, "beta": -2.0}, {"beta": 0.0}]
)
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (3, 5), (1,), ()])
def test_gemm_is_a_product_with_what_it_adds(attributes: dict[str, Any], bias: Any) -> None:
    w, x = numbers((40, 5)), numbers((3, 40), 1)
    stored = {"w": np.ascontiguousarray(w.T) if attributes.get("transB") else w}
    names = ["x", "w"]
    if bias is not None:
        stored["c"] = numbers(bias, 2) if bias else np.array(1.5, F)
        names.append("c")
    node = helper.make_node("Gemm", names, ["y"], "gemm", **attributes)
    # The passes would take the factors into weight and bias.
    result, _ = quantized(model_of([node], stored, {"x": x}), bits=4, optimize=False)
    assert [n.op_type for n in result.graph.node].count("MatMulNBits") == 1
    assert all(n.op_type in ("MatMulNBits", "Mul", "Add") for n in result.graph.node)
    back = restored(constants(result), 4, 40)
    expected = attributes.get("alpha", 1.0) * (x @ back)
    if bias is not None:
        expected = expected + attributes.get("beta", 1.0) * stored["c"]
    for level in LEVELS:
        got = run(result.SerializeToString(), {"x": x}, level)
        np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


def test_a_plain_bias_is_added_by_the_product_itself() -> None:
    x = numbers((3, 40), 1)
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"])
    stored = {"w": numbers((40, 5)), "c": numbers((5,), 2)}
    result, _ = quantized(model_of([node], stored, {"x": x}))
    assert [n.op_type for n in result.graph.node] == ["MatMulNBits"]
    assert result.graph.node[0].input[5] == "c"


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("columns", [32, 40])
def test_rows_of_a_table_are_those_that_the_integers_stand_for(
    bits: int, symmetric: bool, columns: int
) -> None:
    w, i = numbers((9, columns)), np.array([[0, 8, 3], [-1, 2, 2]])
    model = model_of([helper.make_node("Gather", ["w", "i"], ["y"])], {"w": w}, {"i": i})
    result, _ = quantized(model, bits=bits, symmetric=symmetric)
    (node,) = result.graph.node
    assert (node.domain, node.op_type) == ("com.microsoft", "GatherBlockQuantized")
    back = restored(constants(result), bits, columns).T
    for level in LEVELS:
        # One subtraction and one product each: exact but for their order.
        got = run(result.SerializeToString(), {"i": i}, level)
        np.testing.assert_allclose(got, back[i], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("columns", [32, 40])
def test_a_table_that_is_multiplied_by_too_is_kept_once(columns: int) -> None:
    w, i = numbers((64, columns)), np.array([3, 5])
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["h"]),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "wt"], ["y"]),
    ]
    result, _ = quantized(model_of(nodes, {"w": w}, {"i": i}), bits=4)
    assert "Transpose" not in [node.op_type for node in result.graph.node]
    found = constants(result)
    back = restored(found, 4, columns).T
    for level in LEVELS:
        got = run(result.SerializeToString(), {"i": i}, level)
        np.testing.assert_allclose(got, back[i] @ back.T, rtol=0, atol=1e-3)
    assert ("w_rows" in found) == (columns % 16 != 0), "padded rows need a copy of their own"


H = np.float16
HALVES = [
    (bits, symmetric, method)
    for bits in (2, 4, 8)
    for symmetric in (False, True)
    for method in ("minmax", "mse", "hqq")
]


@pytest.mark.parametrize(("bits", "symmetric", "method"), HALVES)
def test_products_of_float16_have_scales_of_float16(
    bits: int, symmetric: bool, method: str
) -> None:
    stored = {"w": numbers((40, 7)).astype(H), "c": numbers((7,), 2).astype(H)}
    x = numbers((3, 40), 1).astype(H)
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], alpha=0.5, beta=-2.0)
    model = model_of([node], stored, {"x": x}, float_type=TensorProto.FLOAT16)
    options = {"bits": bits, "symmetric": symmetric, "weight_method": method}
    result, report = quantized(model, optimize=False, **options)
    assert [n.op_type for n in result.graph.node].count("MatMulNBits") == 1
    found = constants(result)
    assert found["w_scale"].dtype == H
    back = restored(found, bits, 40)
    step = np.repeat(np.abs(found["w_scale"].astype(F)), BLOCK, 1)[:, :40].T
    if method == "minmax":
        # As with float32; scales of float16 are rounded up.
        assert np.all(np.abs(back - stored["w"]) <= step * 1.001)
    (row,) = [value for value in report.values if value.name == "w"]
    assert row.mse == pytest.approx(np.mean((back - stored["w"]) ** 2), rel=1e-3)
    assert quantize_rs.validate(model, result, optimize=False).passed
    expected = 0.5 * (x.astype(F) @ back) - 2 * stored["c"].astype(F)
    for level in LEVELS:
        # ONNX Runtime rounds the product, and each step after it, to float16.
        got = run(result.SerializeToString(), {"x": x}, level)
        assert got.dtype == H
        np.testing.assert_allclose(got, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_cast_to_float16_has_scales_of_float16(bits: int) -> None:
    w, x = numbers((40, 7)).astype(H).astype(F), numbers((3, 40), 1).astype(H)
    nodes = [
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    model = model_of(nodes, {"w": w}, {"x": x}, float_type=TensorProto.FLOAT16)
    result, _ = quantized(model, bits=bits, optimize=False)
    found = constants(result)
    scale = next(value for name, value in found.items() if name.endswith("scale"))
    assert scale.dtype == H
    points = [value for name, value in found.items() if name.endswith("zp")]
    assert all(value.dtype == np.uint8 for value in points)
    assert quantize_rs.validate(model, result).passed


def test_tables_of_float16_are_looked_up_as_float16() -> None:
    w, i = numbers((9, 32)).astype(H), np.array([[0, 8, 3], [-1, 2, 2]])
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    model = model_of([node], {"w": w}, {"i": i}, float_type=TensorProto.FLOAT16)
    result, _ = quantized(model, bits=4)
    back = restored(constants(result), 4, 32).T
    for level in LEVELS:
        got = run(result.SerializeToString(), {"i": i}, level)
        assert got.dtype == H
        np.testing.assert_allclose(got, back[i], rtol=1e-3, atol=1e-6)


def test_constants_behind_other_nodes_are_found() -> None:
    w, x = numbers((5, 40)), numbers((2, 40), 1)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w)),
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Transpose", ["v"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    result, _ = quantized(model_of(nodes, {}, {"x": x}), bits=8)
    assert [node.op_type for node in result.graph.node] == ["MatMulNBits"]
    # 8 bits: 0.4 % of the range a block.
    np.testing.assert_allclose(run(result.SerializeToString(), {"x": x}), x @ w.T, atol=0.6)


@pytest.mark.parametrize(
    ("node", "shape", "x", "why"),
    [
        (helper.make_node("MatMul", ["w", "x"], ["y"]), (5, 40), (40, 3), "from the right"),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (2, 40, 5), (2, 3, 40), "3 axes"),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transA=1), (40, 5), (40, 3), "transposes"),
        (helper.make_node("Conv", ["x", "w"], ["y"]), (4, 3, 3, 3), (1, 3, 8, 8), "3 axes|4 axes"),
        (helper.make_node("Gather", ["w", "i"], ["y"], axis=1), (9, 32), None, "rows"),
        (helper.make_node("Gather", ["w", "i"], ["y"]), (9, 33), None, "fill bytes"),
    ],
)
def test_what_has_no_form_stays_float_and_says_why(
    node: onnx.NodeProto, shape: tuple[int, ...], x: Any, why: str
) -> None:
    w = numbers(shape)
    feeds = {"i": np.array([1, 0])} if x is None else {"x": numbers(x, 1)}
    model = model_of([node], {"w": w}, feeds)
    result, report = quantized(model, bits=4)
    (row,) = [value for value in report.values if value.name == "w"]
    assert not row.quantized
    assert row.why.startswith("not quantized: matmul_nbits has no form for it: ")
    assert any(part in row.why for part in why.split("|")), row.why
    assert result.graph == model.graph


def test_a_function_of_the_name_is_not_taken_for_the_operator() -> None:
    x = numbers((2, 32), 1)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": numbers((32, 4))}, {"x": x}
    )
    body = [helper.make_node("Identity", ["a"], ["b"])]
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("com.microsoft", "MatMulNBits", ["a"], ["b"], body, opset)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    _, report = quantized(model)
    assert "a function of its own" in next(v.why for v in report.values if v.name == "w")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"bits": 16}, "weights"),
        ({"weights": "float8"}, "weights"),
        ({"layer_bits": {"w": 16}}, "layer_bits"),
        ({"layer_bits": {"w": "float8"}}, "layer_bits"),
        ({"block_size": 512}, "block_size"),
        ({"block_size": 24}, "block_size"),
        ({"native_int4": False}, "native_int4"),
        ({"narrow_range": True}, "narrow_range"),
        ({"target": "tensorrt"}, "target"),
        ({"accuracy_level": 5}, "accuracy_level"),
        ({"output_format": "nbits"}, "output_format"),
        ({"output_format": "qdq", "accuracy_level": 4, "block_size": None}, "accuracy_level"),
    ],
)
def test_options_that_contradict_the_format_name_both(options: dict[str, Any], option: str) -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"w": numbers((32, 4))},
        {"x": numbers((2, 32))},
    )
    with pytest.raises(errors.OptionError) as refused:
        quantized(model, **options)
    assert refused.value.option == option
    if option != "output_format" and options.get("accuracy_level") != 5:
        assert "output_format" in str(refused.value)


def test_a_plan_shows_the_format_and_refuses_calibrated_activations() -> None:
    model = quantize_rs.open(
        model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"w": numbers((32, 4))},
            {"x": numbers((2, 32))},
            opset=7,
        )
    )
    plan = model.plan(weights="int4", output_format="matmul_nbits")
    kinds = [value.kind for value in plan if value.role == "weight"]
    assert kinds == ["uint4 blocks of 32 on axis 0 as matmul_nbits"]
    assert kinds[0] in str(plan)
    with pytest.raises(errors.OptionError, match=r"activations .*output_format is matmul_nbits"):
        model.plan(activations="uint8", output_format="matmul_nbits")


def test_the_accuracy_level_is_written() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"w": numbers((32, 4))},
        {"x": numbers((2, 32))},
    )
    (node,) = quantized(model, bits=4, accuracy_level=4)[0].graph.node
    found = {attribute.name: attribute.i for attribute in node.attribute}
    expected = {"K": 32, "N": 4, "bits": 4, "block_size": 16, "accuracy_level": 4}
    assert found == expected
