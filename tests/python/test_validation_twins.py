"""What `validate` reports of operators with scales as inputs, such as `QLinearConv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from quantize_rs import validate

F = np.float32
MICROSOFT = "com.microsoft"


class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
    """Samples in the form that the other tool reads."""

    def __init__(self, feeds: list[dict[str, Any]]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Any:
        return next(self.left, None)


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(F)


def original() -> ModelProto:
    """Make convolutions that a `Relu` and a `Clip` follow, a pooling, a sum, and a `Gemm`."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        make("Relu", ["c1"], ["r1"], "relu"),
        make("Conv", ["r1", "w2"], ["c2"], "second", kernel_shape=[1, 1]),
        make("Clip", ["c2", "low", "high"], ["k2"], "clip"),
        make("Add", ["k2", "r1"], ["s"], "sum"),
        make("AveragePool", ["s"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        make("Concat", ["p", "p"], ["j"], "joined", axis=1),
        make("Flatten", ["j"], ["f"], "flat"),
        make("Gemm", ["f", "w3", "b3"], ["g"], "gemm", transB=1),
        make("Softmax", ["g"], ["y"], "softmax", axis=-1),
    ]
    tensors = {
        "w1": normal(1, 4, 4, 3, 3),
        "b1": normal(2, 4),
        "w2": normal(3, 4, 4, 1, 1),
        "low": np.array(0, F),
        "high": np.array(2, F),
        "w3": normal(4, 6, 32),
        "b3": normal(5, 6),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelProto, ModelProto]:
    """The model, and the result of another tool."""
    folder = tmp_path_factory.mktemp("twins")
    before = original()
    onnx.save(before, folder / "model.onnx")
    feeds = [{"x": normal(10 + at, 1, 4, 4, 4)} for at in range(4)]
    paths = str(folder / "model.onnx"), str(folder / "peer.onnx")
    quantize_static(*paths, Reader(feeds), quant_format=QuantFormat.QOperator, per_channel=True)
    return before, onnx.load(paths[1])


def named(made: ModelProto, op_type: str, at: int = 0) -> NodeProto:
    return [found for found in made.graph.node if found.op_type == op_type][at]


def array(made: ModelProto, name: str) -> Any:
    (found,) = (tensor for tensor in made.graph.initializer if tensor.name == name)
    return np.array(numpy_helper.to_array(found))


def put(made: ModelProto, name: str, value: Any) -> None:
    (found,) = (tensor for tensor in made.graph.initializer if tensor.name == name)
    found.CopyFrom(numpy_helper.from_array(np.asarray(value), name))


def add(made: ModelProto, name: str, value: Any) -> str:
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def attributes(found: NodeProto, **values: Any) -> None:
    kept = [attribute for attribute in found.attribute if attribute.name not in values]
    del found.attribute[:]
    found.attribute.extend(kept)
    said = {name: value for name, value in values.items() if value is not None}
    found.attribute.extend(helper.make_attribute(*item) for item in said.items())


def test_a_sound_file_of_another_tool_passes(both: tuple[ModelProto, ModelProto]) -> None:
    before, made = both
    kinds = {node.op_type for node in made.graph.node}
    expected = {"QLinearConv", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QGemm"}
    assert expected <= kinds
    assert "QLinearSoftmax" in kinds
    assert not kinds & {"Relu", "Clip"}
    found = validate(before, made)
    assert found, found
    assert not found.not_compared, found


def bias_moved(made: ModelProto) -> None:
    name = named(made, "QLinearConv").input[8]
    put(made, name, array(made, name) + np.array([0, 0, 1 << 20, 0], np.int32))


def bias_of_gemm_moved(made: ModelProto) -> None:
    name = named(made, "QGemm").input[6]
    put(made, name, array(made, name) * np.int32(2))


def bias_of_none(made: ModelProto) -> None:
    bias = add(made, "bias", np.full(4, 5000, np.int32))
    named(made, "QLinearConv", 1).input.append(bias)


def bias_left_out(made: ModelProto) -> None:
    del named(made, "QLinearConv").input[8:]


def moved_zero_point(made: ModelProto, at: int) -> None:
    name = named(made, "QLinearConv", at).input[7]
    put(made, name, array(made, name) + array(made, name).dtype.type(40))


def wide_scale(made: ModelProto) -> None:
    name = named(made, "QLinearConv", 1).input[6]
    put(made, name, array(made, name) * F(2))


def joined_with_more(made: ModelProto) -> None:
    found = named(made, "QLinearConcat")
    found.input.extend(found.input[2:5])


def joined_with_less(made: ModelProto) -> None:
    del named(made, "QLinearConcat").input[-3:]


def domain(op_type: str, name: str) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        named(made, op_type).domain = name

    return change


def says(op_type: str, at: int = 0, **values: Any) -> Callable[[ModelProto], None]:
    return lambda made: attributes(named(made, op_type, at), **values)


def reads_with(op_type: str, at: int, input_: int, change: Callable[[Any], Any]) -> Any:
    """Give a node a scale or zero point of its own for a value that it reads."""

    def wrong(made: ModelProto) -> None:
        node = named(made, op_type, at)
        value = change(array(made, node.input[input_]))
        node.input[input_] = add(made, "another", value)

    return wrong


WRONG: dict[str, tuple[str, str, Callable[[ModelProto], None]]] = {
    "a bias of QLinearConv": ("weights", "element 2 is", bias_moved),
    "a bias of QGemm": ("weights", "the original", bias_of_gemm_moved),
    "a bias where there is none": ("weights", "the original 0", bias_of_none),
    "no bias": ("connectivity", "reads `b1`", bias_left_out),
    "no Relu": ("scale", "limits its output to 0 to inf", lambda made: moved_zero_point(made, 0)),
    "no Clip below": (
        "scale",
        "limits its output to 0 to 2",
        lambda made: moved_zero_point(made, 1),
    ),
    "no Clip above": ("scale", "limits its output to 0 to 2", wide_scale),
    "a scale of the input of the model": (
        "scale",
        "which it is quantized with",
        reads_with("QLinearConv", 0, 1, lambda scale: scale * F(2)),
    ),
    "a scale of the first convolution": (
        "scale",
        "which it is quantized with",
        reads_with("QLinearConv", 1, 1, lambda scale: scale * F(1.01)),
    ),
    "a zero point of a sum": (
        "scale",
        "zero point that",
        reads_with("QLinearAdd", 0, 5, lambda zero: zero + zero.dtype.type(1)),
    ),
    "a scale of what is joined": (
        "scale",
        "which it is quantized with",
        reads_with("QLinearConcat", 0, 3, lambda scale: scale / F(3)),
    ),
    "a scale past a Flatten": (
        "scale",
        "which it is quantized with",
        reads_with("QGemm", 0, 1, lambda scale: scale * F(4)),
    ),
    "a scale of the output": (
        "scale",
        "dequantized with",
        reads_with("DequantizeLinear", 0, 1, lambda scale: scale * F(2)),
    ),
    "one joined twice": ("connectivity", "the original nothing", joined_with_more),
    "one not joined": ("connectivity", "is missing", joined_with_less),
    "pads left out": ("connectivity", "attributes", says("QLinearConv", pads=None)),
    "pads of its own": ("connectivity", "attributes", says("QLinearConv", 1, pads=[1, 1, 1, 1])),
    "groups of its own": ("connectivity", "attributes", says("QLinearConv", 1, group=2)),
    "channels last": ("connectivity", "attributes", says("QLinearAveragePool", channels_last=1)),
    "a factor": ("connectivity", "attributes", says("QGemm", alpha=0.5)),
    "not turned": ("connectivity", "attributes", says("QGemm", transB=None)),
    "another axis": ("connectivity", "attributes", says("QLinearSoftmax", axis=0)),
    "an older Softmax": ("connectivity", "attributes", says("QLinearSoftmax", opset=11)),
    "ONNX's QLinearAdd": ("connectivity", "QLinearAdd", domain("QLinearAdd", "")),
    "another QLinearConv": ("connectivity", "QLinearConv", domain("QLinearConv", MICROSOFT)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(both: tuple[ModelProto, ModelProto], name: str) -> None:
    before, made = both
    check, says, change = WRONG[name]
    wrong = ModelProto.FromString(made.SerializeToString())
    change(wrong)
    found = validate(before, wrong)
    assert any(p.check == check and says in str(p) for p in found.problems), found


RIGHT: dict[str, Callable[[ModelProto], None]] = {
    "defaults of a pooling": says("QLinearAveragePool", channels_last=0, ceil_mode=0),
    "defaults of a convolution": says(
        "QLinearConv", 1, group=1, dilations=[1, 1], pads=[0, 0, 0, 0], kernel_shape=None
    ),
    "defaults of a product": says("QGemm", alpha=1.0, transA=0),
    "the usual axis": says("QLinearSoftmax", axis=None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_says_nothing_may_be_left_out(both: tuple[ModelProto, ModelProto], name: str) -> None:
    before, made = both
    other = ModelProto.FromString(made.SerializeToString())
    RIGHT[name](other)
    found = validate(before, other)
    assert found, found


def test_constants_that_are_multiplied_by_are_compared() -> None:
    """`QLinearAdd` and its like read constants as integers too."""
    made = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node(
                "QLinearMul",
                ["q", "s", "z", "k_quantized", "k_scale", "k_zp", "s", "z"],
                ["r"],
                domain=MICROSOFT,
            ),
            helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
    )
    before = helper.make_graph(
        [helper.make_node("Mul", ["x", "k"], ["y"])], "g", made.input, made.output
    )
    factors = np.array([-1, 0.5, 0.25, 1], F)
    before.initializer.append(numpy_helper.from_array(factors, "k"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    graphs = [helper.make_model(it, opset_imports=opsets, ir_version=8) for it in (before, made)]
    for name, value in {
        "s": F(0.1),
        "z": np.uint8(128),
        "k_quantized": np.rint(factors * F(127)).astype(np.int8),
        "k_scale": F(1 / 127),
        "k_zp": np.int8(0),
    }.items():
        add(graphs[1], name, value)
    found = validate(*graphs)
    assert found, found
    assert [weight.name for weight in found.weights] == ["k"]
    put(graphs[1], "k_quantized", np.array([-127, 64, 60, 127], np.int8))
    found = validate(*graphs)
    assert [(p.check, p.name) for p in found.problems] == [("weights", "k_quantized")]
