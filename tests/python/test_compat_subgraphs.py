"""Names of nodes and weights in subgraphs and in Constant nodes, in `compat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantize_rs.compat import onnxruntime as ours

RNG = np.random.default_rng(0)
SIZE = 64
OFF = {"EnableSubgraph": False}


def product(name: str, inputs: str, output: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", inputs.split(), [output], name=name)


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE])


def weight(name: str) -> onnx.TensorProto:
    matrix = RNG.normal(size=(SIZE, SIZE)) / 8
    return numpy_helper.from_array(matrix.astype(np.float32), name)


def branching() -> onnx.ModelProto:
    """Make a model with a product in front of an If, two in one branch and one in the other."""
    inner = helper.make_node("Constant", [], ["w2"], name="inner", value=weight("w2"))
    yes = [product("yes_1", "a w1", "k"), inner, product("yes_2", "k w2", "o")]
    no = [product("no_1", "a w3", "o2")]
    branches = {
        "then_branch": helper.make_graph(yes, "t", [], [value("o")]),
        "else_branch": helper.make_graph(no, "e", [], [value("o2")], [weight("w3")]),
    }
    nodes = [
        product("outer", "x w0", "a"),
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
    ]
    inputs = [value("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], [weight("w0"), weight("w1")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODEL = branching()
ALL = {"outer", "yes_1", "yes_2", "no_1"}


def float_products(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the products that read a float weight, in subgraphs too."""
    found = set()
    for node in graph.node:
        if node.op_type == "MatMul":
            found.add(node.name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= float_products(attribute.g)
    return found


def dynamic(tool: Any, out: Path, **options: Any) -> set[str]:
    model = out.with_name("model.onnx")
    onnx.save(MODEL, model)
    tool.quantize_dynamic(model, out, **options)
    return float_products(onnx.load(out).graph)


def quantized(report: Any) -> set[str]:
    return {row.name for row in report.weights if row.quantized}


def feeds() -> Any:
    return iter([{"x": RNG.normal(size=(2, SIZE)).astype(np.float32), "c": np.array(True)}] * 4)


def test_nodes_in_subgraphs_are_excluded_and_chosen_as_by_onnxruntime(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "o.onnx"
    on = {"EnableSubgraph": True}
    # onnxruntime leaves `yes_2` in float, whose weight is in a Constant node.
    names = ["yes_1", "no_1"]
    for options in ({"nodes_to_exclude": [*names, "yes_2"]}, {"nodes_to_quantize": names}):
        expected = dynamic(theirs, out, extra_options=on, **options)
        assert dynamic(ours, out, extra_options=on, **options) == expected
    assert expected == {"outer", "yes_2"}
    assert dynamic(ours, out, nodes_to_exclude=["yes_2"]) == {"yes_2"}
    assert dynamic(ours, out, nodes_to_quantize=["yes_2"]) == ALL - {"yes_2"}
    assert "has no node" not in caplog.text


def test_without_subgraphs_only_the_main_graph_is_quantized(tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    assert dynamic(theirs, out, extra_options=OFF) == ALL - {"outer"}
    assert dynamic(ours, out, extra_options=OFF) == ALL - {"outer"}
    assert dynamic(ours, out) == set()
    assert quantized(ours.quantize_static(MODEL, out, feeds(), extra_options=OFF)) == {"w0"}
    chosen = {"nodes_to_quantize": ["outer", "yes_2"]}
    assert dynamic(ours, out, extra_options=OFF, **chosen) == ALL - {"outer"}
    # In a model without subgraphs there is nothing to leave out.
    graph = helper.make_graph([product("p", "x w", "y")], "g", [value("x")], [value("y")])
    graph.initializer.append(weight("w"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert quantized(ours.quantize_dynamic(model, out, extra_options=OFF)) == {"w"}


def test_nodes_in_subgraphs_are_excluded_from_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    excluded = ["yes_1", "no_1"]
    quantizer = ours.MatMulNBitsQuantizer(MODEL, block_size=32, nodes_to_exclude=excluded)
    quantizer.process()
    out = tmp_path / "o.onnx"
    quantizer.model.save_model_to_file(out)
    assert float_products(onnx.load(out).graph) == set(excluded)
    assert "has no node" not in caplog.text


@pytest.mark.parametrize("name", ["w1", "w2", "w3"])
def test_weights_in_subgraphs_and_constant_nodes_have_overrides(tmp_path: Path, name: str) -> None:
    extra = {"TensorQuantOverrides": {name: [{"quant_type": ours.QuantType.QUInt8}]}}
    out = tmp_path / "o.onnx"
    for report in (
        ours.quantize_static(MODEL, out, feeds(), extra_options=extra),
        ours.quantize_dynamic(MODEL, out, extra_options=extra),
    ):
        types = {row.name: row.qtype for row in report.weights}
        assert types.pop(name) == "uint8"
        assert set(types.values()) == {"int8"}


def test_a_constant_of_the_main_graph_is_excluded_and_overridden(tmp_path: Path) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    (constant,) = (tensor for tensor in model.graph.initializer if tensor.name == "w0")
    node = helper.make_node("Constant", [], ["w0"], name="held", value=constant)
    model.graph.node.insert(0, node)
    model.graph.initializer.remove(constant)
    out = tmp_path / "o.onnx"
    extra = {"TensorQuantOverrides": {"w0": [{"quant_type": ours.QuantType.QInt16}]}}
    report = ours.quantize_static(model, out, feeds(), extra_options=extra)
    assert {row.name: row.qtype for row in report.weights}["w0"] == "int16"
    report = ours.quantize_static(model, out, feeds(), nodes_to_exclude=["w0"])
    assert "w0" not in quantized(report)
