"""Weights that the bodies of If, Loop and Scan multiply by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import validate

Array: TypeAlias = Any  # numpy's, of any type and shape
Nodes: TypeAlias = list[onnx.NodeProto]
F = np.float32
D = 24


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Make normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(F) / F(np.sqrt(shape[0]))


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node whose inputs are separated by spaces."""
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def square(name: str, shape: tuple[int, ...] = (D, D)) -> dict[str, Array]:
    """Make a weight."""
    return {name: numbers(shape, sum(map(ord, name)))}


# Nodes that compute `out` from `x`, and the constants that they read.
PARTS: dict[str, tuple[Nodes, dict[str, Array]]] = {
    "matmul": ([node("MatMul", "x w", "m"), node("Relu", "m", "out")], square("w")),
    "one value read twice": (
        # The second product reads the weight that comes first in the file.
        [
            node("MatMul", "x v", "a"),
            node("MatMul", "x w", "b"),
            node("Tanh", "a", "t"),
            node("Mul", "t b", "out"),
        ],
        square("w") | square("v"),
    ),
    "one after the other": (
        # The input of the second product has one sign, for which weights are rounded otherwise.
        [node("MatMul", "x w", "m"), node("Relu", "m", "r"), node("MatMul", "r v", "out")],
        square("w") | square("v"),
    ),
    "gemm": (
        [node("Gemm", "x w c", "out", alpha=0.5, beta=-2.0, transB=1)],
        square("w") | square("c", (D,)),
    ),
    "transposed": (
        [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "out")],
        square("w"),
    ),
    "convolution": (
        [
            node("Unsqueeze", "x axes", "u"),
            node("Conv", "u k c", "h", pads=[1, 1]),
            node("Squeeze", "h axes", "s"),
            node("MatMul", "s w", "out"),
        ],
        square("k", (3, 3, 3))
        | square("c", (3,))
        | square("w")
        | {"axes": np.array([0], np.int64)},
    ),
}
X = numbers((3, D), 5) * F(4)


def value(name: str, kind: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    """Describe a value of any shape."""
    return helper.make_tensor_value_info(name, kind, shape)


def renamed(nodes: Nodes, names: dict[str, str]) -> Nodes:
    """Copy nodes with other names."""
    copies = []
    for old in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(old)
        copy.input[:] = [names.get(name, name) for name in old.input]
        copy.output[:] = [names.get(name, name) for name in old.output]
        copies.append(copy)
    return copies


def body(part: str, name: str, inside: bool) -> tuple[Nodes, dict[str, Array], str]:
    """Make the nodes of a body with names of its own, its constants, and the name of its result."""
    nodes, constants = PARTS[part]
    names = {made: f"{name}_{made}" for one in nodes for made in one.output}
    if inside:
        names |= {made: f"{name}_{made}" for made in constants}
    constants = {names[made]: constant for made, constant in constants.items()} if inside else {}
    return renamed(nodes, names), constants, names["out"]


def tensors(constants: dict[str, Array]) -> list[onnx.TensorProto]:
    """Make initializers."""
    return [numpy_helper.from_array(constant, name) for name, constant in constants.items()]


def conditional(part: str, inside: bool, deep: bool = False) -> onnx.NodeProto:
    """Make an If; `deep` puts another into its first branch."""
    branches = []
    for name in ("yes", "no"):
        nodes, constants, out = body(part, name, inside)
        branch = helper.make_graph(nodes, name, [], [value(out)], tensors(constants))
        if deep and name == "yes":
            inner = helper.make_node("If", ["flag"], ["inner"], then_branch=branch)
            empty = helper.make_graph([node("Identity", "x", "same")], "same", [], [value("same")])
            inner.attribute.append(helper.make_attribute("else_branch", empty))
            branch = helper.make_graph([inner], "outer", [], [value("inner")])
        branches.append(branch)
    yes, no = branches
    return helper.make_node("If", ["flag"], ["y"], "choice", then_branch=yes, else_branch=no)


def loop(part: str, inside: bool) -> onnx.NodeProto:
    """Make a Loop that applies the nodes to `x`, again and again."""
    nodes, constants, out = body(part, "body", inside)
    nodes = [*renamed(nodes, {"x": "state"}), node("Identity", "going", "goes")]
    inputs = [value("i", TensorProto.INT64, []), value("going", TensorProto.BOOL, [])]
    inputs.append(value("state", shape=[None, D]))
    outputs = [value("goes", TensorProto.BOOL, []), value(out, shape=[None, D])]
    graph = helper.make_graph(nodes, "body", inputs, outputs, tensors(constants))
    return helper.make_node("Loop", ["count", "flag", "x"], ["y"], "loop", body=graph)


def scan(part: str, inside: bool) -> onnx.NodeProto:
    """Make a Scan that applies the nodes to a matrix of each step."""
    nodes, constants, out = body(part, "body", inside)
    nodes = renamed(nodes, {"x": "step"})
    outputs = [value(out, shape=[None, D])]
    inputs = [value("step", shape=[None, D])]
    graph = helper.make_graph(nodes, "body", inputs, outputs, tensors(constants))
    return helper.make_node("Scan", ["xs"], ["y"], "scan", body=graph, num_scan_inputs=1)


def model_of(owner: Nodes, part: str, inside: bool = False, opset: int = 17) -> bytes:
    """Make a model around nodes with bodies."""
    inputs = [value("x", shape=[None, D]), value("flag", TensorProto.BOOL, [])]
    inputs += [value("count", TensorProto.INT64, []), value("xs", shape=[2, None, D])]
    read = {name for one in owner for name in one.input} | {"x", "flag"}
    constants = {} if inside else PARTS[part][1]
    graph = helper.make_graph(
        owner,
        "g",
        [one for one in inputs if one.name in read],
        [value("y")],
        tensors(constants),
    )
    opsets = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Give a graph and the graphs in it."""
    yield graph
    for one in graph.node:
        for attribute in one.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def operators(model: bytes, inside: bool = True) -> Counter[str]:
    """Count the operators of the bodies, or of the main graph."""
    first, *others = graphs(onnx.load_from_string(model).graph)
    found = others if inside else [first]
    return Counter(one.op_type for graph in found for one in graph.node)


def quantized(model: bytes, **options: Any) -> tuple[bytes, quantize_rs.Report]:
    """Quantize to bytes."""
    report = quantize_rs.quantize(model, None, **options)
    assert report.model is not None
    return report.model, report


FLAG = {"flag": np.array(True)}
OWNERS: dict[str, tuple[Any, dict[str, Array]]] = {
    "If": (conditional, {"x": X} | FLAG),
    "If in an If": (lambda part, inside: conditional(part, inside, True), {"x": X} | FLAG),
    "Loop": (loop, {"x": X, "count": np.array(3)} | FLAG),
    "Scan": (scan, {"x": X, "xs": np.stack([X, -X])} | FLAG),
}


@pytest.mark.parametrize("inside", [False, True], ids=["weights outside", "weights inside"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("owner", OWNERS)
def test_bodies_multiply_integers(owner: str, part: str, inside: bool) -> None:
    make, feeds = OWNERS[owner]
    model = model_of([make(part, inside)], part, inside)
    written, report = quantized(model, output_format="dynamic")
    made, before = operators(written), operators(model)
    assert made["MatMulInteger"] == before["MatMul"] + before["Gemm"]
    assert made["ConvInteger"] == before["Conv"]
    assert not made.keys() & {"MatMul", "Gemm", "Conv", "Transpose", "DequantizeLinear"}
    assert "DequantizeLinear" not in operators(written, inside=False)
    # A value that several products of a body read is quantized once.
    values = {
        one.input[0]
        for graph in [*graphs(onnx.load_from_string(model).graph)][1:]
        for one in graph.node
        if one.op_type in ("MatMul", "Gemm", "Conv")
    }
    bodies = 2 if owner.startswith("If") and "x" in values else 1
    assert made["DynamicQuantizeLinear"] == len(values) + bodies - 1
    expected = oracle.reference(model, feeds)
    exact = oracle.reference(written, feeds)
    for optimized in (False, True):
        found = oracle.ort(written, feeds, optimized=optimized)
        assert oracle.sqnr(exact, found) > 100
        assert oracle.sqnr(expected, found) > 25
    assert not [warning for warning in report.warnings if "dequantized" in warning]
    checked = validate(model, written)
    assert checked, checked
    assert not checked.not_compared, checked
    assert {one.name for one in checked.weights} == {one.name for one in report.quantized}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("output_format", ["dynamic", "matmul_nbits"])
def test_a_body_computes_what_its_nodes_compute_in_the_main_graph(
    part: str, output_format: str
) -> None:
    if output_format == "matmul_nbits" and part == "convolution":
        pytest.skip("the format has no convolution")
    nodes, _ = PARTS[part]
    inlined = model_of(renamed(nodes, {"out": "y"}), part)
    branches = model_of([conditional(part, False)], part)
    bits = {"bits": 4} if output_format == "matmul_nbits" else {}
    feeds = {"x": X} | FLAG
    found = []
    for model in (inlined, branches):
        written, _ = quantized(model, output_format=output_format, **bits)
        found += oracle.ort(written, feeds)
    assert np.array_equal(*found)


def test_onnxruntime_fuses_what_bodies_hold() -> None:
    written, _ = quantized(
        model_of([conditional("matmul", False)], "matmul"), output_format="dynamic"
    )
    run = oracle.optimized(written).SerializeToString()
    assert operators(run)["DynamicQuantizeMatMul"] == 2


def test_a_weight_that_a_body_multiplies_from_the_left_is_dequantized() -> None:
    """No integer product reads it: the report says that this takes time."""
    nodes = [node("MatMul", "big x", "out")]
    big = numbers((512, 512))
    branch = helper.make_graph(nodes, "yes", [], [value("out")])
    same = helper.make_graph([node("Identity", "x", "same")], "no", [], [value("same")])
    owner = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=same)
    graph = helper.make_graph(
        [owner],
        "g",
        [value("x", shape=[512, None]), value("flag", TensorProto.BOOL, [])],
        [value("y")],
        tensors({"big": big}),
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    written, report = quantized(model, output_format="dynamic")
    assert operators(written)["MatMul"] == 1
    assert any("`big`: dequantized at every inference" in warning for warning in report.warnings)
    feeds = {"x": numbers((512, 2), 1)} | FLAG
    assert oracle.sqnr(oracle.reference(model, feeds), oracle.ort(written, feeds)) > 30


@pytest.mark.parametrize("width", [24, 64])  # rows that fill their blocks, and rows that do not
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_tables_that_bodies_read_are_stored_in_blocks(
    *, wrapped: bool, tied: bool, width: int
) -> None:
    """Merged decoders have their embeddings in the branches of an If."""
    head = [node("Transpose", "table", "columns", perm=[1, 0]), node("MatMul", "n columns", "out")]
    if not tied:
        head = [node("MatMul", "n w", "out")]
    nodes = [node("Gather", "table ids", "e"), node("Tanh", "e", "n"), *head]
    constants = {"table": numbers((300, width))} | ({} if tied else square("w", (width, width)))
    main = renamed(nodes, {"out": "y"})
    if wrapped:
        branches = {}
        for name in ("then", "else"):
            made = {one: f"{name}_{one}" for each in nodes for one in each.output}
            branches[f"{name}_branch"] = helper.make_graph(
                renamed(nodes, made), name, [], [value(made["out"])]
            )
        main = [helper.make_node("If", ["flag"], ["y"], **branches)]
    inputs = [value("ids", TensorProto.INT64, [None, 3])]
    inputs += [value("flag", TensorProto.BOOL, [])] if wrapped else []
    graph = helper.make_graph(main, "merged", inputs, [value("y")], tensors(constants))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    report = quantize_rs.quantize(model, None, bits=4, output_format="matmul_nbits", block_size=16)
    assert not [each.name for each in report.weights if not each.quantized]
    written = bytes(report.model or b"")
    assert operators(written, wrapped)["GatherBlockQuantized"] == (2 if wrapped else 1)
    feeds = {"ids": np.arange(6).reshape(2, 3)} | (FLAG if wrapped else {})
    expected = oracle.ort(model, feeds)[0]
    assert oracle.sqnr([expected], oracle.ort(written, feeds)) > 15
    checked = validate(model, written)
    assert checked, checked
    assert not checked.not_compared, checked


def test_a_pass_that_was_not_left_out_is_not_called_so() -> None:
    model = (Path(__file__).parents[1] / "fixtures/models/if_subgraph.onnx").read_bytes()
    for options in ({"exclude": ["*"]}, {"op_types": ["LSTM"]}, {"min_elements": 10**6}):
        report = quantize_rs.quantize(model, None, **options)
        assert not [text for text in report.warnings if "left out" in text]
    report = quantize_rs.quantize(model, None, passes=False)
    assert [text for text in report.warnings if "`lift_weights`" in text]
