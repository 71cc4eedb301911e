"""Models that compute in float16, as exporters and casting leave them, and samples for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
RNG = np.random.default_rng(1611)


def halves(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.normal(size=shape) * scale).astype(np.float16)


def value(name: str, shape: list[Any], dtype: int = HALF) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def made(
    nodes: list[NodeProto],
    constants: dict[str, np.ndarray],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int = 17,
    **graph: Any,
) -> ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    proto = helper.make_graph(nodes, "half", inputs, outputs, tensors, **graph)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    name = f"n_{outputs.split()[0]}"
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def image_net() -> ModelProto:
    """Convolutions with biases, one with a normalization that is folded, a skip, a classifier."""
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 scale shift mean var", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
        node("Add", "c2 r1", "a"),
        node("Relu", "a", "r2"),
        node("GlobalAveragePool", "r2", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w3 b3", "y", transB=1),
    ]
    constants = {
        "w1": halves(16, 3, 3, 3, scale=0.2),
        "scale": 1 + halves(16, scale=0.1),
        "shift": halves(16, scale=0.1),
        "mean": halves(16, scale=0.1),
        "var": np.abs(halves(16)) + np.float16(0.5),
        "w2": halves(16, 16, 3, 3, scale=0.1),
        "b2": halves(16, scale=0.1),
        "w3": halves(10, 16),
        "b3": halves(10),
    }
    return made(nodes, constants, [value("x", ["N", 3, 16, 16])], [value("y", ["N", 10])])


def exported_block() -> ModelProto:
    """A feed-forward block as exporters write it: constants in nodes, types in attributes."""
    half = numpy_helper.from_array(np.array(0.5, np.float16))
    like = numpy_helper.from_array(np.ones(1, np.float16))
    nodes = [
        helper.make_node("Constant", [], ["half"], value=half),
        node("MatMul", "x w1", "m1"),
        node("Add", "m1 b1", "h"),
        node("Erf", "h", "e"),
        node("Mul", "e half", "g"),
        node("Mul", "g h", "k"),
        node("MatMul", "k w2", "m2"),
        node("Add", "m2 x", "s"),
        node("LayerNormalization", "s gain offset", "l"),
        node("Shape", "l", "shape"),
        node("ConstantOfShape", "shape", "ones", value=like),
        node("Add", "l ones", "y"),
    ]
    constants = {
        "w1": halves(32, 64, scale=0.2),
        "b1": halves(64),
        "w2": halves(64, 32, scale=0.2),
        "gain": 1 + halves(32, scale=0.1),
        "offset": halves(32, scale=0.1),
    }
    return made(nodes, constants, [value("x", ["N", 5, 32])], [value("y", ["N", 5, 32])])


def autocast() -> ModelProto:
    """Products in float16 between normalizations in float32, as torch.autocast exports them."""
    nodes = [
        node("Cast", "x", "x16", to=HALF),
        node("MatMul", "x16 w1", "m1"),
        node("Cast", "m1", "m32", to=SINGLE),
        node("LayerNormalization", "m32 gain", "l"),
        node("Cast", "l", "l16", to=HALF),
        node("MatMul", "l16 w2", "m2"),
        node("Cast", "m2", "y", to=SINGLE),
    ]
    gain = 1 + RNG.normal(size=48).astype(np.float32) * np.float32(0.1)
    constants = {"w1": halves(32, 48), "gain": gain, "w2": halves(48, 32)}
    ends = [value("x", ["N", 5, 32], SINGLE)], [value("y", ["N", 5, 32], SINGLE)]
    return made(nodes, constants, *ends)


def chosen_branch() -> ModelProto:
    """Graphs inside a node read what is around them as float16, and a weight besides."""
    outs = [[value("t", [])], [value("e", [])]]
    then = helper.make_graph([helper.make_node("MatMul", ["h", "w2"], ["t"])], "then", [], outs[0])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["e"])], "else", [], outs[1])
    for graph in (then, other):
        graph.output[0].type.tensor_type.ClearField("shape")
    nodes = [
        node("MatMul", "x w1", "h"),
        node("MatMul", "h w2", "k"),
        node("ReduceSum", "h", "sum", keepdims=0),
        node("Cast", "sum", "single", to=SINGLE),
        node("Greater", "single zero", "cond"),
        helper.make_node("If", ["cond"], ["z"], name="choice", then_branch=then, else_branch=other),
        node("Add", "z k", "y"),
    ]
    constants = {"w1": halves(32, 32), "w2": halves(32, 32), "zero": np.float32(0)}
    shape = ["N", 5, 32]
    return made(nodes, constants, [value("x", shape)], [value("y", shape), value("h", shape)])


def foreign() -> ModelProto:
    """An operator that ONNX does not know, between products."""
    nodes = [
        node("MatMul", "x w1", "h"),
        helper.make_node("QuickGelu", ["h"], ["g"], name="gelu", domain="com.microsoft"),
        node("MatMul", "g w2", "y"),
    ]
    shape = ["N", 5, 32]
    info = [value("g", shape)]
    constants = {"w1": halves(32, 32, scale=0.2), "w2": halves(32, 32)}
    return made(nodes, constants, [value("x", shape)], [value("y", shape)], value_info=info)


def read_twice() -> ModelProto:
    """A weight and an input that are outputs too, a bias that another node reads in float16."""
    nodes = [
        node("Gemm", "x w b", "y"),
        node("Identity", "x", "same"),
        node("Cast", "b", "b32", to=SINGLE),
        node("Size", "w", "count"),
    ]
    outputs = [value("y", ["N", 32]), value("w", [32, 32]), value("same", ["N", 32])]
    outputs += [value("b32", [32], SINGLE), value("count", [], TensorProto.INT64)]
    return made(nodes, {"w": halves(32, 32), "b": halves(32)}, [value("x", ["N", 32])], outputs)


def looked_up() -> ModelProto:
    """A table that is looked up, a product, a type that an attribute says."""
    nodes = [
        node("Gather", "table ids", "rows"),
        node("RandomNormalLike", "rows", "noise", dtype=HALF, scale=0.001),
        node("Add", "rows noise", "h"),
        node("MatMul", "h w", "y"),
    ]
    constants = {"table": halves(50, 32), "w": halves(32, 32)}
    ids = value("ids", ["N", 5], TensorProto.INT64)
    return made(nodes, constants, [ids], [value("y", ["N", 5, 32])])


def old_initializers() -> ModelProto:
    """IR 3: constants stand among the inputs."""
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c", "y")]
    constants = {"w": halves(8, 3, 3, 3), "b": halves(8)}
    inputs = [value("x", ["N", 3, 8, 8]), value("w", [8, 3, 3, 3]), value("b", [8])]
    model = made(nodes, constants, inputs, [value("y", ["N", 8, 6, 6])], opset=13)
    model.ir_version = 3
    return model


def given_bias() -> ModelProto:
    """A constant that the caller may replace."""
    nodes = [node("Gemm", "x w b", "h"), node("Gemm", "h w2", "y")]
    inputs = [value("x", ["N", 32]), value("b", [8])]
    constants = {"w": halves(32, 8), "b": halves(8), "w2": halves(8, 8)}
    return made(nodes, constants, inputs, [value("y", ["N", 8])])


def plain_net() -> ModelProto:
    """Convolutions behind rectifiers, and a product behind a normalization with large channels."""
    gain = halves(16, scale=0.1) + np.float16(0.2)
    gain[:2] = 40
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2"),
        node("Transpose", "r2", "t", perm=[0, 2, 3, 1]),
        node("LayerNormalization", "t gain", "l"),
        node("MatMul", "l w3", "y"),
    ]
    constants = {
        "w1": halves(16, 3, 3, 3, scale=0.2),
        "w2": halves(16, 16, 3, 3, scale=0.1),
        "b2": halves(16, scale=0.1),
        "gain": gain,
        "w3": halves(16, 10),
    }
    return made(nodes, constants, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 8, 8, 10])])


def guarded_mask() -> ModelProto:
    """A fully masked row, whose -1e9 is -inf in float16, is recognized by its NaN values."""
    nodes = [
        node("MatMul", "x wq", "q"),
        node("Transpose", "x", "k", perm=[0, 2, 1]),
        node("MatMul", "q k", "scores"),
        node("Where", "masked large none", "mask"),
        node("Cast", "mask", "mask16", to=HALF),
        node("Add", "scores mask16", "s"),
        node("Softmax", "s", "p"),
        node("IsNaN", "p", "lost"),
        node("Where", "lost zero p", "kept"),
        node("MatMul", "kept x", "y"),
    ]
    constants = {
        "wq": halves(32, 32, scale=0.05),
        "large": np.float32(-1e9),
        "none": np.float32(0),
        "zero": np.float16(0),
    }
    ends = [value("x", ["N", 5, 32]), value("masked", ["N", 5, 5], TensorProto.BOOL)]
    return made(nodes, constants, ends, [value("y", ["N", 5, 32])])


def equal_when_rounded() -> ModelProto:
    """A value is compared with a float16 constant: only its rounded value is equal to it."""
    nodes = [
        node("Cast", "x", "x16", to=HALF),
        node("MatMul", "x16 w", "h"),
        node("Equal", "x16 tenth", "same"),
        node("Where", "same large h", "y"),
    ]
    constants = {"w": halves(32, 32), "tenth": np.float16(0.1), "large": np.float16(100)}
    return made(nodes, constants, [value("x", ["N", 32], SINGLE)], [value("y", ["N", 32])])


def rest() -> ModelProto:
    """The error of rounding to float16 is multiplied as well, as in products of split numbers."""
    nodes = [
        node("Cast", "x", "x16", to=HALF),
        node("Cast", "x16", "near", to=SINGLE),
        node("MatMul", "x16 w", "h"),
        node("Sub", "x near", "rest"),
        node("Mul", "rest many", "y"),
    ]
    constants = {"w": halves(32, 32), "many": np.float32(4096)}
    outputs = [value("h", ["N", 32]), value("y", ["N", 32], SINGLE)]
    return made(nodes, constants, [value("x", ["N", 32], SINGLE)], outputs)


def rounded_positions() -> ModelProto:
    """Positions are rounded to bfloat16 on purpose, beside a product of float16."""
    nodes = [
        node("Cast", "at", "p", to=SINGLE),
        node("Cast", "p", "p16", to=TensorProto.BFLOAT16),
        node("Cast", "p16", "p32", to=SINGLE),
        node("Mul", "p32 rate", "angle"),
        node("Cos", "angle", "cos"),
        node("Cast", "cos", "cos16", to=HALF),
        node("MatMul", "x w", "h"),
        node("Mul", "h cos16", "y"),
    ]
    constants = {"w": halves(32, 32), "rate": np.float32(0.7)}
    ends = [value("x", ["N", 32]), value("at", ["N", 1], TensorProto.INT64)]
    return made(nodes, constants, ends, [value("y", ["N", 32])])


def samples(model: ModelProto, count: int) -> list[dict[str, np.ndarray]]:
    constant = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constant]

    def sample() -> dict[str, np.ndarray]:
        feeds = {}
        for info in inputs:
            shape = [dim.dim_value or 2 for dim in info.type.tensor_type.shape.dim]
            kind = info.type.tensor_type.elem_type
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            whole = kind == TensorProto.INT64
            numbers = RNG.integers(0, 50, shape) if whole else RNG.normal(size=shape)
            feeds[info.name] = np.asarray(numbers).astype(dtype)
        return feeds

    return [sample() for _ in range(count)]


def single(model: ModelProto) -> ModelProto:
    """The same numbers in float32."""
    twin = ModelProto()
    twin.CopyFrom(model)
    for tensor in twin.graph.initializer:
        if tensor.data_type == HALF:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for info in [*twin.graph.input, *twin.graph.output]:
        info.type.tensor_type.elem_type = SINGLE
    return twin
