"""Counts the constants of a model by the width of their type, whichever tool wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

SMALL = tuple(
    element
    for name, element in TensorProto.DataType.items()
    if re.fullmatch("U?INT(2|4|8|16)|FLOAT[48].*", name)
)

# The inputs of operators that are scales or zero points of other inputs.
PARAMETERS: dict[str, tuple[int, ...]] = {
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "MatMulInteger": (2, 3),
    "ConvInteger": (2, 3),
    "QLinearConv": (2, 5, 7),
    "QLinearMatMul": (2, 5, 7),
    "MatMulNBits": (3,),
    "GatherBlockQuantized": (3,),
    "DynamicQuantizeLSTM": (9, 11),
    "DynamicQuantizeMatMul": (3,),
    "QAttention": (6, 7),
}


@dataclass(frozen=True)
class Census:
    """How many weights are stored in integers or small floats, and how many floats there are."""

    weights: int
    elements: int
    floats: int


def census(model: ModelProto) -> Census:
    """Count the constants of the model, graphs inside nodes and functions included."""
    weights = elements = floats = 0
    for nodes, constants in _scopes(model):
        said = {
            node.input[at]
            for node in nodes
            for at in PARAMETERS.get(node.op_type, ())
            if at < len(node.input)
        }
        # Scales may be quantized too.
        said |= {
            n.input[0] for n in nodes if n.op_type == "DequantizeLinear" and n.output[0] in said
        }
        # Weights that were stored in 16-bit floats, under the names that they get then.
        halved = {node.input[0] for node in nodes if node.op_type == "Cast"}
        halved = {name for name in halved if name.endswith("_float16")}
        for name, tensor in constants.items():
            count = _count(tensor.dims)
            if name in halved and count > 1:
                weights += 1
                elements += count
            elif tensor.data_type in FLOATS:
                floats += count
            elif tensor.data_type in SMALL and name not in said and count > 1:
                weights += 1
                elements += _packed(name, tensor.dims, nodes) or count
    return Census(weights, elements, floats)


def _scopes(model: ModelProto) -> Iterator[tuple[list[NodeProto], dict[str, TensorProto]]]:
    """For each graph, the nodes that may read its constants, and the constants."""
    for nodes, constants in [
        (model.graph.node, model.graph.initializer),
        *((function.node, ()) for function in model.functions),
    ]:
        yield from _scope(list(nodes), list(constants))
    for function_or_graph in (model.graph, *model.functions):
        for graph in bodies(function_or_graph.node):
            yield from _scope(list(graph.node), list(graph.initializer))


def _scope(
    nodes: list[NodeProto], initializers: list[TensorProto]
) -> Iterator[tuple[list[NodeProto], dict[str, TensorProto]]]:
    constants = {tensor.name: tensor for tensor in initializers}
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
                elif attribute.name in ("value_floats", "value_float"):
                    given = helper.get_attribute_value(attribute)
                    numbers = given if isinstance(given, list) else [given]
                    constants[node.output[0]] = helper.make_tensor(
                        "", TensorProto.FLOAT, [len(numbers)], numbers
                    )
    inside = [node for graph in bodies(nodes) for node in graph.node]
    yield nodes + inside, constants


def rows_and_columns(model: ModelProto) -> int:
    """How many matrices of float32 or float16 there are that only MatMul and Gemm multiply by from
    the right, and Gather takes rows of."""
    held = set()
    given = {end.name for end in model.graph.input} if model.ir_version >= 4 else set()
    constants = {t.name: t for t in model.graph.initializer if t.name not in given}
    for node in model.graph.node:
        said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        at = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
        if at is None or said.get("transA") or said.get("axis"):
            continue
        tensor = constants.get(node.input[at])
        if (
            tensor
            and len(tensor.dims) == 2
            and 0 not in tensor.dims
            and tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        ):
            held.add(tensor.name)
    return len(held)


def bodies(nodes: object) -> Iterator[GraphProto]:
    """Every graph inside the nodes, however deep."""
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield graph
                yield from bodies(graph.node)


def _packed(name: str, dims: object, nodes: list[NodeProto]) -> int:
    """How many weights an operator of ONNX Runtime's own has packed into bytes."""
    for node in nodes:
        if node.op_type == "MatMulNBits" and node.input[1] == name:
            said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            return int(said["K"] * said["N"])
        if node.op_type == "GatherBlockQuantized" and node.input[0] == name:
            said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            return int(np.prod(dims)) * 8 // said.get("bits", 4)
    return 0


def _count(dims: object) -> int:
    count = 1
    for length in dims:  # type: ignore[attr-defined]
        count *= length
    return count
