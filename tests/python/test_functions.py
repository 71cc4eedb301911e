"""Functions of the model's own: their nodes take the place of the calls, and compute the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

import quantize_rs

Array = npt.NDArray[Any]

rng = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return rng.normal(0, 1, shape).astype(np.float32)


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """A node; names are separated by blanks, `-` is one left out."""
    ends = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *ends, name=f"n_{ends[1][0]}", **attributes)


def call(function: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    return node(function, inputs, outputs, domain="local", **attributes)


def constant(name: str, array: Array) -> NodeProto:
    return node("Constant", "", name, value=numpy_helper.from_array(array, name))


def refers(made: NodeProto, name: str, outer: str, kind: int) -> NodeProto:
    """The node, an attribute of which is the caller's."""
    made.attribute.append(AttributeProto(name=name, ref_attr_name=outer, type=kind))
    return made


def function(
    name: str, inputs: str, nodes: list[NodeProto], outputs: str = "y", **said: Any
) -> FunctionProto:
    opsets = {"": 17, "local": 1} | said.pop("opsets", {})
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_function(
        "local", name, inputs.split(), outputs.split(), nodes, imports, **said
    )


def body(
    name: str, nodes: list[NodeProto], constants: dict[str, Array] | None = None
) -> GraphProto:
    """A branch of an If, which makes `{name}_out`."""
    held = [numpy_helper.from_array(array, key) for key, array in (constants or {}).items()]
    out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [3, 8])
    return helper.make_graph(nodes, name, [], [out], held)


@dataclasses.dataclass
class Case:
    """A model that calls functions."""

    nodes: list[NodeProto]
    functions: list[FunctionProto]
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    weights: int = 1
    """How many weights there are to quantize once they are found."""
    opset: int = 17
    ir: int = 10
    shape: tuple[int, int] = (3, 8)
    checked: bool = True
    """Whether onnx.checker accepts a function of another version than the model."""

    def model(self) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "calls",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, self.shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("local", 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=self.ir, functions=self.functions
        )
        content: bytes = model.SerializeToString()
        return content


DENSE = function("Dense", "x w b", [node("Gemm", "x w b", "h"), node("Relu", "h")])
OWN = function("Own", "x", [constant("w", normal(8, 8)), node("MatMul", "x w")])
TURN = function("Turn", "x", [node("Transpose", "x", perm=[1, 0])])
W, B = {"w": normal(8, 8)}, {"b": normal(8)}

ADJUST = function(
    "Adjust",
    "x w",
    [
        refers(node("LeakyRelu", "x", "h"), "alpha", "slope", AttributeProto.FLOAT),
        refers(node("Gemm", "h w", "y"), "transB", "turned", AttributeProto.INT),
    ],
    attributes=["turned"],
    attribute_protos=[helper.make_attribute("slope", 0.25)],
)

CASES = {
    "a_weight_that_is_given": Case([call("Dense", "x w b")], [DENSE], W | B),
    "a_weight_in_a_constant_node": Case([call("Own", "x")], [OWN]),
    "called_twice": Case([call("Own", "x", "a"), call("Own", "a")], [OWN]),
    "two_weights_given_in_turn": Case(
        [call("Dense", "x w b", "a"), call("Dense", "a v b")],
        [DENSE],
        W | B | {"v": normal(8, 8)},
        weights=2,
    ),
    "functions_that_call_functions": Case(
        [call("Outer", "x w b")],
        [
            function("Outer", "x w b", [call("Inner", "x w b", "h"), node("Neg", "h")]),
            function("Inner", "x w b", [call("Dense", "x w b", "h"), call("Own", "h")]),
            DENSE,
            OWN,
        ],
        W | B,
        weights=2,
    ),
    "an_attribute_of_the_caller": Case([call("Adjust", "x w", slope=0.5, turned=1)], [ADJUST], W),
    "an_attribute_left_at_its_default": Case([call("Adjust", "x w")], [ADJUST], W),
    "a_constant_of_the_caller": Case(
        [
            call("Fill", "x", "a", fill=numpy_helper.from_array(normal(8, 8))),
            call("Fill", "a", fill=numpy_helper.from_array(normal(8, 8))),
        ],
        [
            function(
                "Fill",
                "x",
                [
                    refers(node("Constant", "", "w"), "value", "fill", AttributeProto.TENSOR),
                    node("MatMul", "x w"),
                ],
                attributes=["fill"],
            )
        ],
        weights=2,
    ),
    "an_input_left_out": Case([call("Dense", "x w -")], [DENSE], W),
    "inputs_left_away": Case([call("Dense", "x w")], [DENSE], W),
    "an_output_left_out": Case(
        [call("Two", "x w", "- y")],
        [function("Two", "x w", [node("MatMul", "x w", "a"), node("Neg", "a", "b")], "a b")],
        W,
    ),
    "names_that_are_taken": Case(
        [node("Neg", "x", "h"), node("Abs", "h", "n_y_h"), call("Dense", "n_y_h h_w b")],
        [function("Dense", "h x b", [node("Gemm", "h x b", "y")])],
        {"h_w": normal(8, 8)} | B,
    ),
    "a_newer_function": Case(
        [call("Dense", "x w b")],
        [function("Dense", "x w b", [node("Gemm", "x w b")], opsets={"": 18})],
        W | B,
        checked=False,
    ),
    "operators_that_the_model_does_not_import": Case(
        [call("Fused", "x w b")],
        [
            function(
                "Fused",
                "x w b",
                [node("MatMul", "x w", "a"), node("BiasGelu", "a b", domain="com.microsoft")],
                opsets={"com.microsoft": 1},
            )
        ],
        W | B,
    ),
    "a_call_in_a_body": Case(
        [
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Greater", "sum zero", "when"),
            node(
                "If",
                "when",
                then_branch=body("then", [call("Dense", "x w b", "then_out")]),
                else_branch=body("else", [call("Own", "x", "else_out")]),
            ),
        ],
        [DENSE, OWN],
        W | B | {"zero": np.float32(0)},
        weights=2,
    ),
    "a_graph_of_the_caller_in_two_places": Case(
        [
            call(
                "Both",
                "x",
                branch=body("g", [node("MatMul", "x v", "g_out")], {"v": normal(8, 8)}),
            )
        ],
        [
            function(
                "Both",
                "x",
                [
                    node("ReduceSum", "x", "sum", keepdims=0),
                    constant("zero", np.float32(0)),
                    node("Greater", "sum zero", "when"),
                    node("Not", "when", "otherwise"),
                    *(
                        refers(
                            node(
                                "If",
                                when,
                                output,
                                else_branch=body(output, [node("Neg", "x", f"{output}_out")]),
                            ),
                            "then_branch",
                            "branch",
                            AttributeProto.GRAPH,
                        )
                        for when, output in (("when", "a"), ("otherwise", "b"))
                    ),
                    node("Add", "a b", "c"),
                    constant("w", normal(8, 8)),
                    node("MatMul", "c w"),
                ],
                attributes=["branch"],
            )
        ],
        weights=2,
    ),
    "a_body_in_a_function": Case(
        [node("Neg", "x", "h"), call("Choose", "h w", "m"), call("Choose", "m w")],
        [
            function(
                "Choose",
                "x w",
                [
                    node("MatMul", "x w", "h"),
                    node("ReduceSum", "h", "sum", keepdims=0),
                    constant("zero", np.float32(0)),
                    node("Greater", "sum zero", "when"),
                    node(
                        "If",
                        "when",
                        then_branch=body(
                            "t",
                            [node("Mul", "h two", "m"), node("Add", "m x", "t_out")],
                            {"two": np.float32(2)},
                        ),
                        else_branch=body("e", [node("MatMul", "x w", "e_out")]),
                    ),
                ],
            )
        ],
        W,
    ),
}

THROUGH = {
    "before_the_function_that_multiplies": Case(
        [call("Turn", "w", "t"), call("Dense", "x t b")], [TURN, DENSE], W | B
    ),
    "within_the_function_of_a_module": Case(
        [call("Linear", "x w b")],
        [
            function("Linear", "x w b", [call("Turn", "w", "t"), call("Dense", "x t b")]),
            TURN,
            DENSE,
        ],
        W | B,
    ),
    "two_functions_deep": Case(
        [call("Twice", "w", "t"), call("Dense", "x t b")],
        [
            function(
                "Twice",
                "x",
                [
                    call("Turn", "x", "h"),
                    constant("two", np.float32(2)),
                    node("Mul", "h two"),
                ],
            ),
            TURN,
            DENSE,
        ],
        W | B,
    ),
    "a_constant_of_a_function_without_inputs": Case(
        [call("Weight", "", "w"), call("Dense", "x w b")],
        [function("Weight", "", [constant("y", normal(8, 8))]), DENSE],
        B,
    ),
    "in_a_body": Case(
        [
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Greater", "sum zero", "when"),
            node(
                "If",
                "when",
                then_branch=body(
                    "then", [call("Turn", "w", "t"), call("Dense", "x t b", "then_out")]
                ),
                else_branch=body("else", [node("Neg", "x", "else_out")]),
            ),
        ],
        [TURN, DENSE],
        W | B | {"zero": np.float32(0)},
    ),
}
"""Weights that pass through a function before another multiplies by them."""
CASES |= THROUGH

KEPT = {
    "no_weights": Case(
        [call("Act", "x", "a"), node("MatMul", "a w")],
        [function("Act", "x", [node("Sigmoid", "x", "s"), node("Mul", "x s")])],
        W,
    ),
    "a_product_of_two_activations": Case(
        [node("MatMul", "x w", "a"), call("Square", "a scale")],
        [
            function(
                "Square",
                "x s",
                [
                    node("Mul", "x s", "a"),
                    node("Transpose", "a", "b", perm=[1, 0]),
                    node("MatMul", "a b"),
                ],
            )
        ],
        W | {"scale": np.float32(0.5)},
        shape=(3, 3),
    ),
}
"""Functions that planning does not inline, because nothing in them is quantized."""


def held(model: onnx.ModelProto) -> int:
    """The number of int8 matrices."""
    tensors = model.graph.initializer
    return sum(tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2 for tensor in tensors)


@pytest.mark.parametrize("name", CASES | KEPT)
def test_what_is_inlined_computes_the_same(name: str) -> None:
    case = (CASES | KEPT)[name]
    model = case.model()
    if case.checked:
        oracle.check(model)
    report = quantize_rs.optimize(model, passes=["inline_functions"])
    assert [step.name for step in report.steps] == ["inline_functions"]
    assert report.model is not None
    oracle.check(report.model)
    proto = onnx.load_from_string(report.model)
    assert not proto.functions
    feeds = {"x": normal(3, 8)}
    for one, other in zip(
        oracle.ort(model, feeds, optimized=False),
        oracle.ort(report.model, feeds, optimized=False),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert quantize_rs.optimize(report.model, passes=["inline_functions"]).steps == ()


@pytest.mark.parametrize("name", CASES)
def test_weights_in_functions_are_quantized(name: str) -> None:
    model = CASES[name].model()
    report = quantize_rs.quantize(model, None, symmetric=True)
    assert not any("function" in warning for warning in report.warnings)
    assert report.model is not None
    assert held(onnx.load_from_string(report.model)) == CASES[name].weights
    feeds = {"x": normal(3, 8)}
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(report.model, feeds)) > 25
    left = quantize_rs.quantize(model, None, symmetric=True, optimize=False)
    assert any("`inline_functions`" in warning for warning in left.warnings)


@pytest.mark.parametrize("output_format", ["qdq", "dynamic", "matmul_nbits"])
@pytest.mark.parametrize("name", THROUGH)
def test_a_weight_that_passes_a_function_is_quantized_in_every_format(
    name: str, output_format: Any
) -> None:
    model = THROUGH[name].model()
    report = quantize_rs.quantize(model, None, output_format=output_format, allow_larger=True)
    assert report.model is not None
    left = onnx.load_from_string(report.model)
    assert not left.functions
    sizes = {np.prod(t.dims) for t in left.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert 64 not in sizes
    feeds = {"x": normal(3, 8)}
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(report.model, feeds)) > 25


def test_a_weight_that_passes_a_function_before_a_node_is_quantized() -> None:
    model = Case([call("Turn", "w", "t"), node("MatMul", "x t")], [TURN], W).model()
    report = quantize_rs.quantize(model, None, symmetric=True)
    assert report.model is not None
    assert held(onnx.load_from_string(report.model)) == 1


@pytest.mark.parametrize("name", KEPT)
def test_functions_without_weights_stay(name: str) -> None:
    model = KEPT[name].model()
    report = quantize_rs.quantize(model, None)
    assert not any("function" in warning for warning in report.warnings)
    assert report.model is not None
    before, after = onnx.load_from_string(model), onnx.load_from_string(report.model)
    assert held(after) == 1
    assert after.functions == before.functions
    assert "inline_functions" not in [step.name for step in report.steps]


def test_a_weight_of_two_calls_is_held_once() -> None:
    report = quantize_rs.optimize(CASES["called_twice"].model(), passes=["inline_functions"])
    assert report.model is not None
    graph = onnx.load_from_string(report.model).graph
    assert [tensor.name for tensor in graph.initializer] == ["Own_w"]


def test_what_comes_in_may_be_handed_out() -> None:
    through = function("Through", "x w", [node("MatMul", "x w", "a")], "a x")
    nodes = [call("Through", "x w", "b c"), node("Add", "b c")]
    report = quantize_rs.optimize(Case(nodes, [through], W).model())
    assert report.model is not None
    x = normal(3, 8)
    (found,) = oracle.ort(report.model, {"x": x})
    np.testing.assert_allclose(found, x @ W["w"] + x, rtol=1e-5, atol=1e-5)


def test_an_older_function_is_converted() -> None:
    """ONNX Runtime does not convert it: it reads the nodes in the opset of the model."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Unsqueeze", "a", "b", axes=[0]),
        node("Squeeze", "b", axes=[0]),
    ]
    model = Case([call("Old", "x w")], [function("Old", "x w", nodes, opsets={"": 11})], W).model()
    x = normal(3, 8)
    for report in (quantize_rs.optimize(model), quantize_rs.quantize(model, None)):
        assert report.model is not None
        (found,) = oracle.ort(report.model, {"x": x})
        assert oracle.sqnr([x @ W["w"]], [found]) > 25


def test_overloads_are_distinguished() -> None:
    case = CASES["a_weight_in_a_constant_node"]
    other = function("Own", "x", [node("Neg", "x")])
    other.overload = "negative"
    first, second = call("Own", "x", "a"), call("Own", "a")
    first.overload = "negative"
    model = Case([first, second], [*case.functions, other]).model()
    report = quantize_rs.optimize(model)
    assert report.model is not None
    proto = onnx.load_from_string(report.model)
    assert [made.op_type for made in proto.graph.node] == ["Neg", "MatMul"]
    # Planning inlines only the function that has a weight.
    quantized = quantize_rs.quantize(model, None)
    assert quantized.model is not None
    assert [f.overload for f in onnx.load_from_string(quantized.model).functions] == ["negative"]


def test_a_function_of_other_operators_stays_with_a_reason() -> None:
    nodes = [node("Gemm", "x w b", "h"), node("ReduceMax", "h axes", keepdims=1)]
    newer = function("Newer", "x w b axes", nodes, opsets={"": 18})
    held = W | B | {"axes": np.array([1], np.int64)}
    model = Case([call("Newer", "x w b axes")], [newer], held).model()
    report = quantize_rs.quantize(model, None)
    assert any("`local.Newer`" in text and "ReduceMax" in text for text in report.warnings)
    assert report.model == model


def test_every_opset_of_a_function_is_compared() -> None:
    nodes = [node("MatMul", "x w", "a"), node("Other", "a", domain="com.x")]
    older = function("Older", "x w", nodes, opsets={"com.x": 2})
    made = onnx.load_from_string(Case([call("Older", "x w")], [older], W, opset=21).model())
    made.opset_import.append(helper.make_opsetid("com.x", 1))
    model = made.SerializeToString()
    report = quantize_rs.quantize(model, None)
    assert any("`local.Older`" in text and "com.x" in text for text in report.warnings)
    assert report.model == model


def test_functions_do_not_outgrow_memory() -> None:
    long = node("Neg", "x")
    long.doc_string = "." * (1 << 16)
    levels = [function("F0", "x", [long])]
    for level in range(1, 40):
        calls = [call(f"F{level - 1}", "x", "h"), call(f"F{level - 1}", "h")]
        levels.append(function(f"F{level}", "x", calls))
    model = Case([call("F39", "x", "a"), node("MatMul", "a w")], levels, W).model()
    report = quantize_rs.optimize(model, passes=["inline_functions"])
    assert 1 << 7 < report.nodes_after < 1 << 13
