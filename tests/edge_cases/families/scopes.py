"""Graphs inside nodes, and functions."""

from __future__ import annotations

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)
from rows import Beast, Quantized, row

ROWS = ["batch", 64]


def condition(d: Beast, x: str) -> str:
    """A condition that holds for about half of all samples."""
    total = d.node("ReduceSum", [x], keepdims=0)
    return d.node("Greater", [total, d.const("threshold", np.float32(0))])


@row(2)
def if_captured_activation(d: Beast) -> None:
    """Only a branch reads the output of a quantized matrix multiplication."""
    x = d.input("x", ROWS)
    h = d.gemm(x, 64, 64)
    then, other = d.inner("then"), d.inner("other")
    then.output(then.relu(h), ROWS)
    other.output(other.node("Neg", [h]), ROWS)
    h = d.node("If", [condition(d, x)], then_branch=then.graph(), else_branch=other.graph())
    d.output(d.gemm(h, 64, 32), ["batch", 32])


@row(3, nbits=Quantized())
def if_in_if(d: Beast) -> None:
    """An If in a branch of an If; the innermost graphs read weights of every scope."""
    x = d.input("x", ROWS)
    h = d.relu(d.gemm(x, 64, 64))
    yes = condition(d, x)
    top = d.weight("top", (64, 64), 1)
    middle, plain = d.inner("middle"), d.inner("plain")
    middle_w = middle.weight("middle_w", (64, 64), 1)
    branches = {}
    for name, w in (("then_branch", top), ("else_branch", middle_w)):
        innermost = middle.inner(f"inner_{name}")
        innermost.output(innermost.node("MatMul", [h, w]), ROWS)
        branches[name] = innermost.graph()
    middle.output(middle.node("If", [yes], **branches), ROWS)
    plain.output(plain.node("Identity", [h]), ROWS)
    d.output(d.node("If", [yes], then_branch=middle.graph(), else_branch=plain.graph()), ROWS)


@row(3, nbits=Quantized())
def loop_body(d: Beast) -> None:
    """A loop of three rounds: its body reads an outer weight and has one of its own."""
    h = d.relu(d.matmul(d.input("x", ROWS), 64, 64))
    outer = d.weight("outer", (64, 64), 1)
    body = d.inner("body")
    body.input("i", [], TensorProto.INT64)
    body.input("go_in", [], TensorProto.BOOL)
    state = body.input("h_in", ROWS)
    state = body.relu(body.node("MatMul", [state, outer]))
    state = body.node("MatMul", [state, body.weight("inner", (64, 64), 1)], ["h_out"])
    body.output(body.node("Identity", ["go_in"], ["go_out"]), [], TensorProto.BOOL)
    body.output(state, ROWS)
    rounds, go_on = d.const("rounds", np.int64(3)), d.const("go_on", np.bool_(True))
    d.output(d.node("Loop", [rounds, go_on, h], ["last"], body=body.graph()), ROWS)


@row(2, nbits=Quantized())
def loop_constant_node(d: Beast) -> None:
    """The weight of a loop's body is made by a Constant node in it."""
    h = d.matmul(d.input("x", ROWS), 64, 64)
    body = d.inner("body")
    body.input("i", [], TensorProto.INT64)
    body.input("go_in", [], TensorProto.BOOL)
    state = body.input("h_in", ROWS)
    w = body.node("Constant", [], value=numpy_helper.from_array(body.normal((64, 64), 1), "w"))
    state = body.node("Tanh", [body.node("MatMul", [state, w])], ["h_out"])
    body.output(body.node("Identity", ["go_in"], ["go_out"]), [], TensorProto.BOOL)
    body.output(state, ROWS)
    rounds = d.const("rounds", np.int64(2))
    d.output(d.node("Loop", [rounds, "", h], ["last"], body=body.graph()), ROWS)


@row(3, nbits=Quantized())
def scan_body(d: Beast) -> None:
    """A recurrent layer written with Scan; one weight of its body is outer, one inner."""
    x = d.input("x", [5, 4, 64])
    outer = d.weight("outer", (64, 48), 1)
    start = d.const("start", np.zeros((4, 48), np.float32))
    body = d.inner("body")
    h, item = body.input("h_in", [4, 48]), body.input("item", [4, 64])
    recurrent = body.node("MatMul", [h, body.weight("inner", (48, 48), 1)])
    mixed = body.node("Add", [body.node("MatMul", [item, outer]), recurrent])
    body.output(body.node("Tanh", [mixed], ["h_out"]), [4, 48])
    d.node("Scan", [start, x], ["last"], body=body.graph(), num_scan_inputs=1)
    d.output(d.matmul("last", 48, 48), [4, 48])


@row(1)
def body_shadows_nothing(d: Beast) -> None:
    """A body has a constant that looks like a weight and is a bias."""
    x = d.input("x", ROWS)
    h = d.gemm(x, 64, 64)
    then, other = d.inner("then"), d.inner("other")
    then.output(then.node("Add", [h, then.bias("b", 64)]), ROWS)
    other.output(other.node("Identity", [h]), ROWS)
    d.output(d.node("If", [condition(d, x)], then_branch=then.graph(), else_branch=other.graph()))


# --- functions ---


def function(
    name: str,
    inputs: list[str],
    nodes: list[NodeProto],
    opset: int,
    attributes: list[str] | None = None,
) -> FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, ["y"], nodes, opsets, attributes)


@row(1)
def function_beside(d: Beast) -> ModelProto:
    """A function without any weights beside an ordinary product."""
    d.opsets["local"] = 1
    h = d.gemm(d.input("x", ROWS), 64, 48)
    d.output(d.node("Act", [h], ["y"], domain="local"), ["batch", 48])
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["y"]),
    ]
    return d.model(functions=[function("Act", ["x"], nodes, 21)])


@row(2, nbits=Quantized())
def function_weight_given(d: Beast) -> ModelProto:
    """A function multiplies by a weight that its caller gives; it is called with two."""
    d.opsets["local"] = 1
    h = d.input("x", ROWS)
    for i in (1, 2):
        values = [h, d.weight(f"w{i}", (64, 64)), d.bias(f"b{i}", 64)]
        h = d.node("Dense", values, domain="local")
    d.output(h, ROWS)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    return d.model(functions=[function("Dense", ["x", "w", "b"], nodes, 21)])


@row(1, nbits=Quantized())
def function_weight_inside(d: Beast) -> ModelProto:
    """A function has its weight in a Constant node, and is called twice."""
    d.opsets["local"] = 1
    h = d.node("Own", [d.input("x", ROWS)], domain="local")
    d.output(d.node("Own", [h], domain="local"), ROWS)
    w = numpy_helper.from_array(d.normal((64, 64), 1), "w")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=w),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    return d.model(functions=[function("Own", ["x"], nodes, 21)])


@row(2, nbits=Quantized())
def function_in_function(d: Beast) -> ModelProto:
    """A function calls another; the weight of one is its own, that of the other is given."""
    d.opsets["local"] = 1
    x, w = d.input("x", ROWS), d.weight("w", (64, 48), 1)
    d.output(d.node("Outer", [x, w], domain="local"), ["batch", 48])
    inner_w = numpy_helper.from_array(d.normal((64, 64), 1), "w")
    inner = [
        helper.make_node("Constant", [], ["w"], value=inner_w),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    outer = [
        helper.make_node("Inner", ["x"], ["h"], domain="local"),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    functions = [function("Outer", ["x", "w"], outer, 21), function("Inner", ["x"], inner, 21)]
    return d.model(functions=functions)


@row(1, nbits=Quantized())
def function_attribute(d: Beast) -> ModelProto:
    """What a function does to its weight is an attribute of the caller; one has a default."""
    d.opsets["local"] = 1
    x, w = d.input("x", ROWS), d.weight("w", (48, 64))
    d.output(d.node("Dense", [x, w], domain="local", turned=1), ["batch", 48])
    gemm = helper.make_node("Gemm", ["x", "w"], ["h"])
    gemm.attribute.add(name="transB", type=AttributeProto.INT, ref_attr_name="turned")
    leak = helper.make_node("LeakyRelu", ["h"], ["y"])
    leak.attribute.add(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    dense = function("Dense", ["x", "w"], [gemm, leak], 21, ["turned"])
    dense.attribute_proto.append(helper.make_attribute("slope", 0.25))
    return d.model(functions=[dense])
