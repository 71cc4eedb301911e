"""Graphs inside nodes, and functions."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper
from rows import Beast, row

ROWS = ["batch", 64]


def condition(d: Beast, x: str) -> str:
    """A condition that holds for about half of all samples."""
    total = d.node("ReduceSum", [x], keepdims=0)
    return d.node("Greater", [total, d.const("threshold", np.float32(0))])


@row(2)
def if_captured_activation(d: Beast) -> None:
    """A branch reads what a quantized product made, and nobody else does."""
    x = d.input("x", ROWS)
    h = d.gemm(x, 64, 64)
    then, other = d.inner("then"), d.inner("other")
    then.output(then.relu(h), ROWS)
    other.output(other.node("Neg", [h]), ROWS)
    h = d.node("If", [condition(d, x)], then_branch=then.graph(), else_branch=other.graph())
    d.output(d.gemm(h, 64, 32), ["batch", 32])


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
) -> object:
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
