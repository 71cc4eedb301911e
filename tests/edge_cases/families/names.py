"""Names that are taken, missing, twice there, or strange."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto
from rows import Beast, fixture, row

IMAGE = ["batch", 8, 8, 8]


def number_nodes(model: ModelProto) -> None:
    """Give every node a name of its own, without which ONNX Runtime 1.31 refuses duplicates."""
    for at, node in enumerate(model.graph.node):
        node.name = f"node{at}"


fixture("names", "name_collisions", 2)
fixture("names", "unicode_names", 2)
fixture("names", "nodes_out_of_order", 2)


@row(1)
def taken_by_initializer(d: Beast) -> None:
    """`w_scale`, `w_zp` and `w_quantized` are initializers of something else."""
    x = d.input("x", ["batch", 64])
    taken = [d.const("w_scale", np.float32(2)), d.const("w_zp", np.float32(1))]
    h = d.node("Add", [d.node("Mul", [x, taken[0]]), taken[1]])
    h = d.node("Add", [h, d.bias("w_quantized", 64)])
    d.output(d.node("MatMul", [h, d.weight("w", (64, 48), 1)]), ["batch", 48])


@row(1)
def taken_by_input(d: Beast) -> None:
    """An input of the model is called `w_scale`, an output `w_quantized`."""
    x, scale = d.input("x", ["batch", 64]), d.input("w_scale", [64])
    h = d.node("Add", [x, scale])
    d.node("MatMul", [h, d.weight("w", (64, 48), 1)], ["w_quantized"])
    d.output("w_quantized", ["batch", 48])


@row(1)
def taken_in_a_body(d: Beast) -> None:
    """A graph inside a node has a value called `w_scale`."""
    x = d.input("x", ["batch", 64])
    h = d.node("MatMul", [x, d.weight("w", (64, 48), 1)])
    yes = d.node("Less", [d.node("ReduceMax", [x], keepdims=0), d.const("far", np.float32(1e9))])
    then, other = d.inner("then"), d.inner("other")
    then.output(then.node("Relu", [h], ["w_scale"]), ["batch", 48])
    other.output(other.node("Neg", [h], ["w_zp"]), ["batch", 48])
    d.output(d.node("If", [yes], then_branch=then.graph(), else_branch=other.graph()))


@row(2, workaround=number_nodes)
def same_node_names(d: Beast) -> None:
    """Every node is called `same`."""
    h = d.relu(d.conv(d.input("x", IMAGE), 8, 16))
    d.output(d.conv(h, 16, 8))
    for node in d.nodes:
        node.name = "same"


@row(2)
def no_node_names(d: Beast) -> None:
    """No node has a name, and values are numbers."""
    x = d.input("0", IMAGE)
    w1, w2 = d.weight("1", (16, 8, 3, 3)), d.weight("2", (8, 16, 3, 3))
    h = d.node("Relu", [d.node("Conv", [x, w1, d.bias("3", 16)], ["4"], pads=[1] * 4)], ["5"])
    d.output(d.node("Conv", [h, w2, d.bias("6", 8)], ["7"], pads=[1, 1, 1, 1]))
    for node in d.nodes:
        node.ClearField("name")


@row(2)
def unnamed_shared_bias(d: Beast) -> None:
    """Two nodes without names share a bias, which ONNX Runtime's tool then scales for one only."""
    x, b = d.input("x", ["batch", 64]), d.bias("b", 64)
    h = d.node("Gemm", [x, d.weight("w1", (64, 64)), b], transB=1)
    w2 = d.const("w2", d.normal((64, 64)) * np.float32(0.05))
    d.output(d.node("Gemm", [d.relu(h), w2, b], transB=1))
    for node in d.nodes:
        node.ClearField("name")


@row(2)
def nodes_named_as_values(d: Beast) -> None:
    """Nodes have the names of their weights."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))
    for node in d.nodes:
        if node.op_type == "Gemm":
            node.name = node.input[1]


@row(2)
def quantized_names_of_its_own(d: Beast) -> None:
    """The weights are called as a quantizer would call its results: `a_quantized`, `a_scale`."""
    x = d.input("x", ["batch", 64])
    h = d.relu(d.node("MatMul", [x, d.weight("a_quantized", (64, 64), 1)]))
    d.output(d.node("MatMul", [h, d.weight("a_scale", (64, 32), 1)]), ["batch", 32])
