"""Weights that constant expressions compute: norms, standardization, matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from odd import ints, node, normal
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantize_rs

RANDOM = np.random.default_rng(3)


def of_constants(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], *, opset: int = 18
) -> onnx.ModelProto:
    """A model that adds `k`, which the nodes compute from the constants, to its input."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Add", ["x", "k"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check_folded(model: onnx.ModelProto) -> None:
    """One node is left, and its constant is what the reference computes."""
    report = quantize_rs.optimize(model.SerializeToString())
    assert report.model is not None
    found = onnx.load_from_string(report.model).graph
    assert [it.op_type for it in found.node] == ["Add"]
    (constant,) = map(numpy_helper.to_array, found.initializer)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": np.zeros((), np.float32)})
    assert constant.dtype == expected.dtype
    assert constant.shape == expected.shape
    np.testing.assert_allclose(constant, expected, rtol=2e-6, atol=2e-6)


REDUCTIONS = ["Mean", "Sum", "L1", "L2", "SumSquare", "Max", "Min"]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(0,), (1, 2), (-1, 0), (0, 1, 2), None])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_are_evaluated(kind: str, axes: tuple[int, ...] | None, keepdims: int) -> None:
    weight = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
    read = "w" if axes is None else "w axes"
    constants = {"w": weight} | ({} if axes is None else {"axes": ints(*axes)})
    check_folded(of_constants([node(f"Reduce{kind}", read, "k", keepdims=keepdims)], constants))
    given: dict[str, Any] = {} if axes is None else {"axes": list(axes)}
    # ReduceSum takes the axes as an attribute before opset 13, the others before opset 18.
    older = [node(f"Reduce{kind}", "w", "k", keepdims=keepdims, **given)]
    check_folded(of_constants(older, {"w": weight}, opset=11))


def test_a_reduction_along_no_axis_changes_nothing() -> None:
    nodes = [node("ReduceMean", "w axes", "k", noop_with_empty_axes=1)]
    check_folded(of_constants(nodes, {"w": normal(3, 4), "axes": ints()}))


FUNCTIONS = ["Exp", "Log", "Sin", "Cos", "Tanh", "Sigmoid", "Softplus", "Relu", "Sign", "Abs"]
FUNCTIONS += ["Sqrt", "Reciprocal"]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_are_evaluated(kind: str) -> None:
    weight = RANDOM.standard_normal((6, 7))
    weight = np.abs(weight) + 0.1 if kind in ("Log", "Sqrt") else weight
    check_folded(of_constants([node(kind, "w", "k")], {"w": weight.astype(np.float32)}))


def test_clip_is_evaluated_with_inputs_and_with_attributes() -> None:
    constants = {"w": normal(5, 6), "low": np.float32(-0.5), "high": np.float32(0.25)}
    check_folded(of_constants([node("Clip", "w low high", "k")], constants))
    del constants["low"], constants["high"]
    check_folded(of_constants([node("Clip", "w", "k", min=-0.5, max=0.25)], constants, opset=10))


SHAPES = [
    ((4, 5), (5, 6)),
    ((5,), (5, 6)),
    ((4, 5), (5,)),
    ((5,), (5,)),
    ((3, 4, 5), (5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((5,), (3, 5, 6)),
    ((3, 4, 5), (5,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matrix_products_are_evaluated(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    constants = {"a": normal(*left), "b": normal(*right)}
    check_folded(of_constants([node("MatMul", "a b", "k")], constants))


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm_is_evaluated(transposed: tuple[int, int]) -> None:
    (a, b) = transposed
    constants = {
        "a": normal(4, 5).T.copy() if a else normal(4, 5),
        "b": normal(5, 6).T.copy() if b else normal(5, 6),
        "c": normal(6),
    }
    given = {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0}
    check_folded(of_constants([node("Gemm", "a b c", "k", **given)], constants))


def test_normalizations_are_evaluated() -> None:
    constants = {
        "w": normal(3, 4, 5),
        "s": normal(4),
        "b": normal(4),
        "m": normal(4),
        "v": np.abs(normal(4)) + np.float32(0.1),
    }
    check_folded(of_constants([node("BatchNormalization", "w s b m v", "k")], constants))
    training = helper.make_node(
        "BatchNormalization", [*"wsbmv"], ["k", "mean", "var"], training_mode=1
    )
    check_folded(of_constants([training], constants))
    del constants["m"], constants["v"]
    check_folded(of_constants([node("InstanceNormalization", "w s b", "k")], constants))


def test_what_is_not_finite_is_left_to_the_runtime() -> None:
    for kind in ("Exp", "ReduceSumSquare"):
        nodes = [node(kind, "w", "k")]
        model = of_constants(nodes, {"w": np.full((2, 2), 1e30, np.float32)}).SerializeToString()
        report = quantize_rs.optimize(model)
        assert [step.name for step in report.steps if step.name == "fold_constants"] == []


def weights(kind: str, count: int) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """The nodes that compute the weight `k`, and their constants."""
    weight = RANDOM.standard_normal((count, count, 3, 3)).astype(np.float32)
    if kind == "weight_norm":
        nodes = [
            node("ReduceL2", "w axes", "l"),
            node("Div", "g l", "r"),
            node("Mul", "w r", "k"),
        ]
        gain = np.full((count, 1, 1, 1), 9, np.float32)
        return nodes, {"w": weight, "g": gain, "axes": ints(1, 2, 3)}
    if kind == "spectral_norm":
        nodes = [
            node("Reshape", "w flat", "a"),
            node("MatMul", "a v", "av"),
            node("MatMul", "u av", "s"),
            node("Squeeze", "s", "sigma"),
            node("Div", "w sigma", "k"),
        ]
        u, v = np.ones((1, count), np.float32), np.ones((count * 9, 1), np.float32)
        return nodes, {"w": weight, "u": u, "v": v, "flat": ints(count, count * 9)}
    nodes = [
        node("Reshape", "w rows", "a"),
        node("ReduceMean", "a axes", "m", keepdims=0),
        node("ReduceMean", "a axes", "n"),
        node("Sub", "a n", "d"),
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd axes", "v", keepdims=0),
        node("BatchNormalization", "a s b m v", "f"),
        node("Reshape", "f shape", "k"),
    ]
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    shapes = {"rows": ints(1, count, count * 9), "shape": ints(count, count, 3, 3)}
    return nodes, {"w": weight, "s": ones, "b": zeros, "axes": ints(0, 2), **shapes}


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "standardization"])
def test_a_weight_that_nodes_compute_is_quantized(kind: str) -> None:
    count = 32
    nodes, constants = weights(kind, count)
    conv = helper.make_node("Conv", ["x", "k"], ["y"], pads=[1, 1, 1, 1])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, conv],
        "g",
        [value("x", TensorProto.FLOAT, [1, count, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, count, 8, 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    data = model.SerializeToString()
    report = quantize_rs.quantize(data, None)
    assert report.ratio > 3
    assert report.model is not None
    x = RANDOM.standard_normal((1, count, 8, 8)).astype(np.float32)
    (expected,), (found,) = (oracle.ort(it, {"x": x}) for it in (data, report.model))
    assert oracle.sqnr([expected], [found]) > 30
    assert not quantize_rs.validate(data, report.model).problems


@pytest.mark.parametrize("bias", [[64], [1, 64]], ids=str)
def test_a_bias_that_is_cast_is_that_of_an_integer_kernel(bias: list[int]) -> None:
    half = {
        "w16": RANDOM.standard_normal((16, 64)).astype(np.float16),
        "b16": RANDOM.standard_normal(bias).astype(np.float16),
    }
    cast = [helper.make_node("Cast", [f"{it}16"], [it], to=TensorProto.FLOAT) for it in "wb"]
    graph = helper.make_graph(
        [*cast, helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(array, name) for name, array in half.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = RANDOM.standard_normal((32, 1, 16)).astype(np.float32)
    report = quantize_rs.quantize_with_calibration(
        model.SerializeToString(), None, [{"x": sample} for sample in samples]
    )
    assert {row.name: row.qtype for row in report.activations}["x"] == "uint8"
    assert "int32" in {row.qtype for row in report.values}
