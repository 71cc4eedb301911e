"""Weights in formats that ONNX Runtime has no kernel for, as floats, by onnx.reference."""

from __future__ import annotations

from collections.abc import Iterable

from census import bodies
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator


def decoded(model: ModelProto) -> ModelProto:
    """The model with floats for what DequantizeLinear makes of constants of 4 and 8 bit floats."""
    made = ModelProto()
    made.CopyFrom(model)
    versions = [helper.make_opsetid(known(v.domain), v.version) for v in made.opset_import]
    _decode(made.graph.node, _constants(made.graph), versions)
    for function in made.functions:
        _decode(function.node, {}, versions)
    return made


def known(domain: str) -> str:
    """The domain as onnx.reference calls it."""
    return "" if domain == "ai.onnx" else domain


def _decode(
    nodes: Iterable[NodeProto],
    constants: dict[str, TensorProto],
    versions: list[OperatorSetIdProto],
) -> None:
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
        if _is_for_few_bits(node, constants):
            value = _evaluated(node, constants, versions)
            constants[node.output[0]] = value
            node.CopyFrom(helper.make_node("Constant", [], list(node.output), value=value))
        for graph in bodies([node]):
            _decode(graph.node, constants | _constants(graph), versions)


def _is_for_few_bits(node: NodeProto, constants: dict[str, TensorProto]) -> bool:
    if node.op_type != "DequantizeLinear" or not all(
        name in constants for name in node.input if name
    ):
        return False
    kinds = {TensorProto.DataType.Name(constants[name].data_type) for name in node.input if name}
    return any(kind.startswith(("FLOAT4", "FLOAT8")) for kind in kinds)


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _evaluated(
    node: NodeProto, constants: dict[str, TensorProto], versions: list[OperatorSetIdProto]
) -> TensorProto:
    given = {}
    for name in dict.fromkeys(filter(None, node.input)):
        tensor = TensorProto()
        tensor.CopyFrom(constants[name])
        tensor.name = name
        given[name] = tensor
    graph = helper.make_graph(
        [node],
        "decoded",
        [],
        [helper.make_empty_tensor_value_info(node.output[0])],
        list(given.values()),
    )
    model = helper.make_model(graph, opset_imports=versions)
    [value] = ReferenceEvaluator(model).run(None, {})
    return numpy_helper.from_array(value, node.output[0])
