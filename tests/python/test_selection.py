"""Which nodes options leave in float, where several nodes multiply by one weight."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import validate

Array: TypeAlias = Any  # numpy's, of any type and shape
F = np.float32
D = 32
W = np.random.default_rng(0).normal(size=(D, D)).astype(F) / F(np.sqrt(D))
X = {"x": np.random.default_rng(1).normal(size=(5, D)).astype(F)}
FLAG = {"flag": np.array(True)}


def value(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Describe a value of any shape."""
    return helper.make_tensor_value_info(name, kind, None)


def model_of(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto]) -> bytes:
    """Make a model of nodes that read the weight `W`."""
    tensors = [numpy_helper.from_array(W, "W")]
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], tensors)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


ROWS = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", D])
SHARED = model_of(
    [
        helper.make_node("MatMul", ["x", "W"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "W"], ["y"], "second"),
    ],
    [ROWS],
)


def branch(name: str) -> onnx.GraphProto:
    """Make a branch that multiplies by the weight."""
    node = helper.make_node("MatMul", ["x", "W"], [name], f"in_{name}")
    return helper.make_graph([node], name, [], [value(name)])


def conditional(main: bool = False) -> bytes:
    """Make a model with an If, and perhaps a node before it that reads the same weight."""
    nodes = [
        helper.make_node(
            "If", ["flag"], ["y"], "choice", then_branch=branch("yes"), else_branch=branch("no")
        )
    ]
    if main:
        nodes[0].output[0] = "p"
        nodes += [
            helper.make_node("MatMul", ["x", "W"], ["q"], "outside"),
            helper.make_node("Add", ["p", "q"], ["y"]),
        ]
    return model_of(nodes, [ROWS, value("flag", TensorProto.BOOL)])


def quantized(
    model: bytes, samples: Any = None, **options: Any
) -> tuple[bytes, quantize_rs.Report]:
    """Quantize to bytes, with samples if there are any."""
    if samples is None:
        report = quantize_rs.quantize(model, None, **options)
    else:
        report = quantize_rs.quantize_with_calibration(model, None, samples, **options)
    assert report.model is not None
    return report.model, report


def nodes_of(model: bytes) -> dict[str, onnx.NodeProto]:
    """The named nodes of a model, those of branches included."""
    found: dict[str, onnx.NodeProto] = {}

    def add(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            found[node.name] = node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    add(attribute.g)

    add(onnx.load_from_string(model).graph)
    return found


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "weights": (None, {}),
    "dynamic": (None, {"output_format": "dynamic"}),
    "matmul_nbits": (None, {"output_format": "matmul_nbits", "bits": 4}),
    "fake_quant": (None, {"output_format": "fake_quant"}),
    "x86": ([X] * 4, {"target": "x86"}),
    "qnn": ([X] * 4, {"target": "qnn"}),
    "tensorrt": ([X] * 4, {"target": "tensorrt"}),
}


@pytest.mark.parametrize(
    "options",
    [
        {"excluded_layers": ["second"]},
        {"included_layers": ["first"]},
        {"overrides": [{"match": {"name": "second"}, "exclude": True}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS)
def test_an_excluded_node_keeps_the_floats_of_a_weight_that_others_read(
    way: str, options: dict[str, Any]
) -> None:
    samples, rest = WAYS[way]
    written, report = quantized(SHARED, samples, **rest, **options)
    nodes = nodes_of(written)
    assert nodes["second"].op_type == "MatMul"
    assert nodes["second"].input[1] == "W"
    assert nodes["first"].input[1] != "W"
    tensors = {tensor.name: tensor for tensor in onnx.load_from_string(written).graph.initializer}
    if way != "fake_quant":
        assert np.array_equal(numpy_helper.to_array(tensors["W"]), W)
        assert any("`W`" in said and "floats stay" in said for said in report.warnings)
    # The second node multiplies what it reads by the exact weight.
    kept = onnx.load_from_string(written)
    del kept.graph.output[:]
    read = nodes["second"].input[0]
    kept.graph.output.extend([value(read), value("y")])
    b, y = oracle.ort(kept.SerializeToString(), X, optimized=False)
    assert oracle.sqnr([b @ W], [y]) > (100 if way != "qnn" else 30)
    assert validate(SHARED, written)


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_stays_float_if_all_its_nodes_are_excluded(way: str) -> None:
    samples, rest = WAYS[way]
    for excluded in (["first", "second"], ["MatMul"], ["W"]):
        written, report = quantized(SHARED, samples, **rest, excluded_layers=excluded)
        (row,) = [row for row in report.values if row.name == "W"]
        assert not row.quantized
        assert row.why == f"not quantized: excluded by `{excluded[0]}`"
        assert nodes_of(written)["first"].input[1] == "W"


def test_a_table_whose_product_is_excluded_stays_float() -> None:
    """Its rows are not looked up faster as integers, and the floats are needed anyway."""
    nodes = [
        helper.make_node("Gather", ["W", "i"], ["h"], "rows"),
        helper.make_node("Transpose", ["W"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"], "head"),
    ]
    model = model_of(nodes, [value("i", TensorProto.INT64)])
    _, report = quantized(model, excluded_layers=["head"])
    assert not [row for row in report.values if row.quantized]


SELECTORS: list[dict[str, Any]] = [
    {"excluded_layers": ["choice"]},
    {"excluded_layers": ["If"]},
    {"excluded_layers": ["cho*"]},
    {"overrides": [{"match": {"op_type": "If"}, "exclude": True}]},
    {"op_types": ["Loop"]},
]


@pytest.mark.parametrize("options", SELECTORS, ids=str)
@pytest.mark.parametrize("way", ["weights", "dynamic", "matmul_nbits"])
def test_an_if_stands_for_its_branches(way: str, options: dict[str, Any]) -> None:
    rest = WAYS[way][1]
    model = conditional()
    _, report = quantized(model, **rest)
    assert [row.name for row in report.values if row.quantized] == ["W"]
    written, report = quantized(model, **rest, **options)
    assert not [row for row in report.values if row.quantized]
    assert nodes_of(written)["in_yes"].input[1] == "W"


@pytest.mark.parametrize(
    "options",
    [
        {"included_layers": ["choice"]},
        {"op_types": ["If"]},
        {"op_types": ["MatMul"]},
        {"layer_bits": {"If": 8}},
        {"layer_dtype": {"choice": "int8"}},
    ],
    ids=str,
)
def test_including_an_if_includes_its_branches(options: dict[str, Any]) -> None:
    written, report = quantized(conditional(), **options)
    assert [row.name for row in report.values if row.quantized] == ["W"]
    feeds = X | FLAG
    assert oracle.sqnr(oracle.reference(conditional(), feeds), oracle.ort(written, feeds)) > 30


@pytest.mark.parametrize("excluded", ["choice", "in_yes", "outside"])
@pytest.mark.parametrize("way", ["weights", "dynamic", "matmul_nbits"])
def test_nodes_in_and_around_an_if_are_excluded_one_by_one(way: str, excluded: str) -> None:
    model = conditional(main=True)
    written, report = quantized(model, **WAYS[way][1], excluded_layers=[excluded])
    nodes = nodes_of(written)
    left = {"choice": {"in_yes", "in_no"}}.get(excluded, {excluded})
    for name in ("in_yes", "in_no", "outside"):
        assert (nodes[name].input[1] == "W") == (name in left), name
    assert any("`W`" in said and "floats stay" in said for said in report.warnings)
    for flag in (True, False):
        feeds = X | {"flag": np.array(flag)}
        for optimized in (False, True):
            found = oracle.ort(written, feeds, optimized=optimized)
            assert oracle.sqnr(oracle.reference(model, feeds), found) > 15
    assert validate(model, written)


def read_otherwise(reader: str) -> bytes:
    """Make a model whose weight is multiplied by, and needed in float for something else."""
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"], "first")]
    if reader == "other":
        nodes.append(helper.make_node("Neg", ["W"], ["z"], "other"))
    model = onnx.load_from_string(model_of(nodes, [ROWS]))
    model.graph.output.append(value("z" if reader == "other" else "W"))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ("output", "is an output of the model"),
        ("other", "also read by node `other` (Neg), which needs it in float"),
    ],
)
def test_weights_alone_stay_float_where_integers_make_the_file_larger(
    reader: str, why: str
) -> None:
    model = read_otherwise(reader)
    ways: list[dict[str, Any]] = [{}, {"bits": 4}, {"bits": 4, "block_size": 16}]
    for options in (*ways, {"output_format": "dynamic"}):
        written, report = quantized(model, **options)
        (row,) = [row for row in report.values if row.name == "W"]
        assert row.why == f"not quantized: {why}"
        assert nodes_of(written)["first"].input[1] == "W"
    # Integers that are computed with gain speed, and whoever names the type of a weight gets it.
    for way in ("fake_quant", "x86"):
        samples, rest = WAYS[way]
        _, report = quantized(model, samples, **rest)
        assert "W" in [row.name for row in report.values if row.quantized], way
    _, report = quantized(model, layer_bits={"W": 4})
    assert "W" in [row.name for row in report.values if row.quantized]
