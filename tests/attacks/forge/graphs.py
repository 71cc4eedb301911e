"""Graphs that no runtime could run, though each message is well formed."""

from __future__ import annotations

from onnx import ModelProto, helper, numpy_helper

from .registry import attack, encoded, honest, weights


@attack("ModelError", "cycle")
def cycle() -> bytes:
    """a needs b, b needs a."""
    model = honest()
    model.graph.node.extend(
        [
            helper.make_node("Add", ["h", "q"], ["p"], "a"),
            helper.make_node("Neg", ["p"], ["q"], "b"),
        ]
    )
    return encoded(model)


@attack("ModelError", "cycle")
def self_loop() -> bytes:
    """A node reads its own output."""
    model = honest()
    model.graph.node.append(helper.make_node("Add", ["h", "p"], ["p"], "loop"))
    return encoded(model)


@attack("ModelError", "`missing`")
def unknown_input() -> bytes:
    """A node reads a value that no node produces."""
    model = honest()
    model.graph.node[1].input[0] = "missing"
    return encoded(model)


@attack("ModelError", "`missing`")
def unknown_output() -> bytes:
    """An output of the model is a value that no node produces."""
    model = honest()
    model.graph.output[0].name = "missing"
    return encoded(model)


@attack("ModelError", "`h`", "twice")
def value_made_twice() -> bytes:
    """Two nodes make `h`."""
    model = honest()
    model.graph.node.append(helper.make_node("Neg", ["x"], ["h"], "again"))
    return encoded(model)


@attack("ModelError", "`w`", "twice")
def duplicate_initializer() -> bytes:
    """Two initializers are called `w`."""
    model = honest()
    model.graph.initializer.append(numpy_helper.from_array(weights(12, 16), "w"))
    return encoded(model)


@attack("ModelError", "`w`", "twice")
def initializer_shadowed_by_node() -> bytes:
    """A node makes a value of the initializer's name."""
    model = honest()
    model.graph.node.append(helper.make_node("Neg", ["x"], ["w"], "shadow"))
    return encoded(model)


@attack("ModelError", "Conv")
def conv_no_inputs() -> bytes:
    """A convolution of nothing."""
    return _with_conv([])


@attack("ModelError", "Conv")
def conv_no_weight() -> bytes:
    """A convolution without a weight."""
    return _with_conv(["x"])


@attack("ModelError", "Conv")
def conv_weight_rank_1() -> bytes:
    """A convolution whose weight has one dimension."""
    return _with_conv(["x", "b"])


@attack("ModelError", "Conv")
def conv_no_outputs() -> bytes:
    """A convolution that makes nothing."""
    return _with_conv(["x", "w4"], outputs=[])


def _with_conv(inputs: list[str], outputs: list[str] | None = None) -> bytes:
    model = honest()
    made = ["c"] if outputs is None else outputs
    model.graph.initializer.append(numpy_helper.from_array(weights(4, 16, 1, 1), "w4"))
    model.graph.node.append(helper.make_node("Conv", inputs, made, "conv"))
    return encoded(model)


@attack("ModelError", "`gemm`")
def attribute_of_wrong_kind() -> bytes:
    """transB is a text."""
    model = honest()
    transposed = next(a for a in model.graph.node[0].attribute if a.name == "transB")
    transposed.CopyFrom(helper.make_attribute("transB", "yes"))
    return encoded(model)


@attack("ModelError", "op_type")
def node_without_op_type() -> bytes:
    """A node does not say what it does."""
    model = honest()
    model.graph.node[1].ClearField("op_type")
    return encoded(model)


@attack("ModelError", "graph")
def no_graph() -> bytes:
    """A model with a version and nothing else."""
    model = honest()
    model.ClearField("graph")
    return encoded(model)


# --- versions ---


@attack("ModelError", "opset_import")
def no_opset_import() -> bytes:
    """Nothing says what the operators mean."""
    model = honest()
    model.ClearField("opset_import")
    return encoded(model)


@attack("ModelError", "-5")
def negative_opset() -> bytes:
    """Operator set -5."""
    return _of_opset(-5)


@attack("ModelError", "version 0")
def opset_zero() -> bytes:
    """Operator set 0."""
    return _of_opset(0)


@attack("UnsupportedModelError", "99999")
def opset_from_the_future() -> bytes:
    """An operator set that does not exist yet: the meaning of its operators is unknown."""
    return _of_opset(99999)


@attack("ModelError", "twice")
def opset_imported_twice() -> bytes:
    """The standard domain under both of its names, with different versions."""
    model = honest()
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    return encoded(model)


@attack("ModelError", "IR version 0")
def ir_version_zero() -> bytes:
    """A model of no version."""
    model = honest()
    model.ir_version = 0
    return encoded(model)


def _of_opset(version: int) -> bytes:
    model: ModelProto = honest()
    model.opset_import[0].version = version
    return encoded(model)


@attack("ModelError", "`f`", "calls itself")
def recursive_function() -> bytes:
    """Two functions call one another."""
    model = honest()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for name, other in (("f", "g"), ("g", "f")):
        node = helper.make_node(other, ["x"], ["y"], domain="local")
        model.functions.append(helper.make_function("local", name, ["x"], ["y"], [node], opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("f", ["h"], ["z"], domain="local"))
    return encoded(model)
