"""Operators that run slower with integers than in float give a warning."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import oracle
import processor
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUT = 64
SLOW = "dequantized at every inference"


def recurrent(op_type: str, hidden: int, steps: int | None, layout: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    gates = GATES[op_type] * hidden
    shapes = {"w": (1, gates, INPUT), "r": (1, gates, hidden), "v": (hidden, 16)}
    stored = {k: (rng.normal(size=shape) * 0.1).astype(np.float32) for k, shape in shapes.items()}
    shape = [1, steps, INPUT] if layout else [steps, 1, INPUT]
    graph = helper.make_graph(
        [
            helper.make_node(
                op_type, ["x", "w", "r"], ["h"], "along", hidden_size=hidden, layout=layout
            ),
            helper.make_node("MatMul", ["h", "v"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def slow_warnings(model: onnx.ModelProto, **options: Any) -> list[str]:
    report = quantize_rs.open(model).plan(**options).warnings
    return [warning for warning in report if SLOW in warning]


@pytest.mark.parametrize(
    "options", [{}, {"activations": "uint8"}, {"output_format": "dynamic"}], ids=str
)
@pytest.mark.parametrize("op_type", GATES)
def test_few_steps_are_slower_than_in_float(op_type: str, options: dict[str, Any]) -> None:
    hidden = 256
    (warning,) = slow_warnings(recurrent(op_type, hidden, 1), **options)
    assert "`along`" in warning
    assert ("dynamic_lstm" in warning) == (op_type == "LSTM")
    assert slow_warnings(recurrent(op_type, hidden, 16), **options)
    assert not slow_warnings(recurrent(op_type, hidden, 64), **options)
    assert not slow_warnings(recurrent(op_type, 8, 1), **options)
    # The number of steps is unknown.
    assert not slow_warnings(recurrent(op_type, hidden, None), **options)
    assert not slow_warnings(recurrent(op_type, hidden, 1), exclude=["along"], **options)


def test_steps_are_where_the_layout_has_them() -> None:
    assert slow_warnings(recurrent("GRU", 256, 2, layout=1), activations="uint8")
    assert not slow_warnings(recurrent("GRU", 256, 64, layout=1), activations="uint8")


def test_integer_formats_give_no_warning() -> None:
    model = recurrent("LSTM", 256, 1)
    assert not slow_warnings(model, output_format="dynamic", dynamic_lstm=True)
    assert not slow_warnings(model, activations="int8", target="tensorrt")


def convolutions(count: int) -> onnx.ModelProto:
    rng = np.random.default_rng(4)
    stored = {f"w{i}": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) for i in range(count)}
    names = ["x", *(f"c{i}" for i in range(count - 1)), "y"]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], f"conv{i}")
            for i in range(count)
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_dynamic_convolutions_give_a_warning_of_slowness() -> None:
    plan = quantize_rs.open(convolutions(2)).plan(output_format="dynamic")
    (warning,) = plan.warnings
    assert "2 convolutions are computed by ConvInteger" in warning
    # The option that the warning names helps.
    (name,) = re.findall(r"exclude=\[\"(\w+)\"\]", warning)
    for options in ({"exclude": [name]}, {"op_types": ["MatMul"]}, {"exclude": ["conv0", "conv1"]}):
        found = quantize_rs.open(convolutions(2)).plan(output_format="dynamic", **options).warnings
        assert not [said for said in found if "ConvInteger" in said]
    assert not quantize_rs.open(convolutions(2)).plan(activations="uint8").warnings


def inside(op_type: str, width: int) -> onnx.ModelProto:
    """Make a product in float: in a branch, by an `Einsum`, or by a weight on the left."""
    rng = np.random.default_rng(5)
    stored = {"w": rng.normal(size=(width, width)).astype(np.float32)}
    shape = [8, width]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if op_type == "If":
        made = [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
        then = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["t"])], "a", [], made)
        made = [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)]
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "b", [], made)
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
        ends.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    elif op_type == "Einsum":
        nodes = [helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik")]
    else:
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["w", "t"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        ends,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("If", {"activations": "uint8"}),
        ("Einsum", {"output_format": "dynamic"}),
        ("MatMul", {"output_format": "dynamic"}),
    ],
)
def test_products_in_float_dequantize_their_weights(op_type: str, options: dict[str, Any]) -> None:
    (warning,) = slow_warnings(inside(op_type, 256), **options)
    assert warning.startswith("`w`: ")
    (alone,) = slow_warnings(inside(op_type, 256))
    assert 'output_format="dynamic"' in alone
    assert not slow_warnings(inside(op_type, 256), exclude=["w"], **options)
    assert not slow_warnings(inside(op_type, 64), **options)


@pytest.mark.parametrize("form", ["Transpose", "Gemm"])
def test_a_tied_head_is_fast_or_called_slow(form: str) -> None:
    """A table that is looked up and multiplied by: dynamic stores it once, as integers."""
    rng = np.random.default_rng(8)
    table = rng.normal(size=(600, 128)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    if form == "Gemm":
        nodes.append(helper.make_node("Gemm", ["rows", "table"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["rows", "turned"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 600])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (warning,) = quantize_rs.open(model).plan().warnings
    assert warning.startswith("`table`: several nodes read it")
    feeds = {"ids": np.array([1, 599, 7])}
    expected = oracle.reference(model.SerializeToString(), feeds)
    for per_channel in (False, True):
        report = quantize_rs.quantize(model, None, output_format="dynamic", per_channel=per_channel)
        assert report.model is not None
        assert not processor.others(report.warnings)
        assert len(report.model) < 0.35 * table.nbytes
        kernels = oracle.kernels(report.model)
        assert kernels["DynamicQuantizeMatMul"] == 1
        assert not kernels.keys() & {"MatMul", "Gemm", "Transpose"}
        for optimized in (False, True):
            found = oracle.ort(report.model, feeds, optimized=optimized)
            assert oracle.sqnr(expected, found) > 30
        checked = quantize_rs.validate(model, report.model)
        assert checked, checked
        assert [weight.name for weight in checked.weights] == ["table"]


@pytest.mark.parametrize(("op_type", "transposed"), [("MatMul", 0), ("Gemm", 0), ("Gemm", 1)])
def test_products_that_read_integers_dequantize_nothing(op_type: str, transposed: int) -> None:
    """ONNX Runtime fuses a weight on the right that is not transposed into a `MatMulNBits`."""
    rng = np.random.default_rng(6)
    stored = {name: rng.normal(size=(256, 256)).astype(np.float32) for name in ("w", "v")}
    attributes = {"transB": 1} if transposed else {}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
            helper.make_node(op_type, ["h", "w"], ["y"], "product", **attributes),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    samples = [{"x": rng.normal(size=(8, 256)).astype(np.float32)} for _ in range(8)]
    report = quantize_rs.quantize_with_calibration(model, None, samples, bits=4)
    assert report.model is not None
    in_float = oracle.kernels(report.model)["MatMulNBits"] < 2
    assert in_float == bool([said for said in report.warnings if SLOW in said]), report.warnings
    assert in_float == bool(transposed)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_blocks_that_are_multiplied_in_float_give_a_warning_of_slowness(bits: int) -> None:
    """Gather, weights of 4 bits and activations of 8 bits give no such warning."""
    rng = np.random.default_rng(7)
    table = numpy_helper.from_array(rng.normal(size=(256, 256)).astype(np.float32), "table")
    weight = numpy_helper.from_array(rng.normal(size=(256, 256)).astype(np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [table, weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def found(**options: Any) -> list[str]:
        plan = quantize_rs.open(model).plan(f"int{bits}", output_format="matmul_nbits", **options)
        return [said for said in plan.warnings if "many times slower" in said]

    if bits == 4:
        assert not found()
        return
    (warning,) = found()
    assert warning.startswith("`w`: ")
    (level,) = re.findall(r"accuracy_level=(\d)", warning)
    assert not found(accuracy_level=int(level))
    assert found(accuracy_level=1)
    assert not found(exclude=["w"])
