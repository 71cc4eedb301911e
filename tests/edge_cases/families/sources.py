"""Where a weight comes from, of what type it is, and who else reads it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rows import Beast, Quantized, Untouched, fixture, row

ROWS = ["batch", 64]


def head(d: Beast, w: str, n: int = 48) -> None:
    """The product that the odd weight, [outputs, inputs], is for."""
    x = d.inputs[0].name if d.inputs else d.input("x", ROWS)
    d.output(d.node("Gemm", [x, w, d.bias("b", n)], transB=1), ["batch", n])


@row(1, nbits=Quantized())
def weight_identity(d: Beast) -> None:
    """The weight passes through two Identity nodes."""
    head(d, d.node("Identity", [d.node("Identity", [d.weight("w", (48, 64))])]))


@row(1, nbits=Quantized())
def weight_transposed(d: Beast) -> None:
    """The weight is stored [inputs, outputs] and transposed on the way."""
    head(d, d.node("Transpose", [d.weight("w", (64, 48), 1)], perm=[1, 0]))


@row(1, nbits=Quantized())
def weight_transposed_for_matmul(d: Beast) -> None:
    """A linear layer as MatMul: the weight [outputs, inputs] goes through Transpose."""
    w = d.node("Transpose", [d.weight("w", (48, 64))])
    d.output(d.node("MatMul", [d.input("x", ROWS), w]), ["batch", 48])


@row(1, nbits=Quantized())
def weight_reshaped(d: Beast) -> None:
    """The weight is stored flat and reshaped."""
    flat = d.const("w", d.normal((48, 64)).reshape(-1))
    head(d, d.node("Reshape", [flat, d.integers("shape", 48, -1)]))


@row(1)
def weight_unsqueezed(d: Beast) -> None:
    """A matrix becomes the weight of a pointwise convolution by Unsqueeze."""
    x = d.input("x", ["batch", 64, 6, 6])
    w = d.node("Unsqueeze", [d.weight("w", (48, 64)), d.integers("axes", 2, 3)])
    d.output(d.node("Conv", [x, w, d.bias("b", 48)]), ["batch", 48, 6, 6])


@row(1, nbits=Quantized())
def weight_cast_from_half(d: Beast) -> None:
    """The weight is stored as float16 and cast to float32."""
    half = d.const("w", d.normal((48, 64)).astype(np.float16))
    head(d, d.node("Cast", [half], to=TensorProto.FLOAT))


@row(1, nbits=Quantized())
def weight_cast_from_bfloat16(d: Beast) -> None:
    """The weight is stored as bfloat16 and cast to float32."""
    stored = d.const("w", d.normal((48, 64)).astype(ml_dtypes.bfloat16))
    head(d, d.node("Cast", [stored], to=TensorProto.FLOAT))


@row(1, nbits=Quantized())
def weight_cast_from_double(d: Beast) -> None:
    """The weight is stored as float64 and cast to float32."""
    stored = d.const("w", d.normal((48, 64)).astype(np.float64))
    head(d, d.node("Cast", [stored], to=TensorProto.FLOAT))


@row(1, nbits=Quantized())
def weight_constant_node(d: Beast) -> None:
    """The weight is made by a Constant node, its bias by `value_floats`."""
    x = d.input("x", ROWS)
    w = d.node("Constant", [], value=numpy_helper.from_array(d.normal((48, 64)), "w"))
    b = d.node("Constant", [], value_floats=[float(v) for v in d.small(48)])
    d.output(d.node("Gemm", [x, w, b], transB=1), ["batch", 48])


@row(1, nbits=Quantized())
def weight_constant_transposed(d: Beast) -> None:
    """A Constant node, then Transpose, then Identity."""
    w = d.node("Constant", [], value=numpy_helper.from_array(d.normal((64, 48), 1), "w"))
    head(d, d.node("Identity", [d.node("Transpose", [w], perm=[1, 0])]))


@row(1, nbits=Quantized())
def weight_constant_list(d: Beast) -> None:
    """The weight is a list in a Constant node, `value_floats`, and reshaped."""
    numbers = [float(v) for v in d.normal((48, 64)).reshape(-1)]
    flat = d.node("Constant", [], value_floats=numbers)
    head(d, d.node("Reshape", [flat, d.integers("shape", 48, 64)]))


@row(1, nbits=Quantized())
def weight_scaled(d: Beast) -> None:
    """The weight is multiplied by a constant before it is read, as layers of equalized rate do."""
    scale = d.const("scale", np.float32(0.125))
    head(d, d.node("Mul", [d.const("w", d.normal((48, 64)) * 8), scale]))


@row(2)
def equal_weights(d: Beast) -> None:
    """Two initializers hold the same and are read along different axes: each has its scales."""
    x, same = d.input("x", ROWS), d.normal((64, 64))
    h = d.relu(d.node("Gemm", [x, d.const("w1", same), d.bias("b1", 64)], transB=1))
    d.output(d.node("MatMul", [h, d.const("w2", same)]), ROWS)


# --- one weight, many readers ---


@row(1)
def shared_by_two_convolutions(d: Beast) -> None:
    """Two convolutions read one weight, each with its own bias."""
    h, w = d.input("x", ["batch", 16, 12, 12]), d.weight("w", (16, 16, 3, 3))
    for i in (1, 2):
        h = d.relu(d.node("Conv", [h, w, d.bias(f"b{i}", 16)], pads=[1, 1, 1, 1]))
    d.output(h)


@row(1, nbits=Untouched())
def shared_axis_clash(d: Beast) -> None:
    """A square matrix read with transB = 0 and transB = 1: its channels lie on either axis."""
    x, w = d.input("x", ROWS), d.weight("w", (64, 64))
    h = d.relu(d.node("Gemm", [x, w, d.bias("b1", 64)]))
    d.output(d.node("Gemm", [h, w, d.bias("b2", 64)], transB=1), ROWS)


@row(2)
def shared_bias(d: Beast) -> None:
    """Two convolutions of different scale read one bias: in int32 it has two scales."""
    x, b = d.input("x", ["batch", 3, 12, 12]), d.bias("b", 32)
    h = d.relu(d.node("Conv", [x, d.weight("w1", (32, 3, 3, 3)), b], pads=[1, 1, 1, 1]))
    w2 = d.const("w2", d.normal((32, 32, 3, 3)) * np.float32(0.05))
    d.output(d.node("Conv", [h, w2, b], pads=[1, 1, 1, 1]))


@row(1, copies=True)
def shared_with_arithmetic(d: Beast) -> None:
    """The weight of a convolution is read by ReduceL2 and Shape as well, which compute in float."""
    x = d.input("x", ["batch", 8, 12, 12])
    h = d.node("Conv", [x, d.weight("w", (32, 8, 3, 3))], pads=[1, 1, 1, 1])
    norm = d.node("ReduceL2", ["w", d.integers("axes", 1, 2, 3)], keepdims=0)
    norm = d.node("Reshape", [norm, d.integers("channels", 32, 1, 1)])
    d.output(d.node("Div", [h, norm]))
    d.output(d.node("Shape", ["w"]), [4], TensorProto.INT64)


FLOAT_OUTPUT = ("int8", "channel", "int4", "nbits", "dynamic", "mxfp4", "nvfp4")


@row(1, copies=True, exact=("w",), **dict.fromkeys(FLOAT_OUTPUT, Untouched()))
def weight_is_output(d: Beast) -> None:
    """The weight is an output of the model, too, and comes out exactly as it was."""
    w = d.weight("w", (48, 64))
    head(d, w)
    d.output(w, [48, 64])


@row(1)
def tied_embedding(d: Beast) -> None:
    """One matrix is the table of tokens and, transposed, the head."""
    ids = d.input("ids", ["batch", 12], TensorProto.INT64)
    table = d.weight("table", (100, 64))
    h = d.node("Gather", [table, ids])
    h = d.node("Tanh", [h])
    d.output(d.node("MatMul", [h, d.node("Transpose", [table])]), ["batch", 12, 100])


@row(1)
def tied_embedding_gemm(d: Beast) -> None:
    """One matrix is the table of tokens and a Gemm's weight with transB = 1."""
    ids = d.input("ids", ["batch"], TensorProto.INT64)
    table = d.weight("table", (100, 64))
    h = d.node("Tanh", [d.node("Gather", [table, ids])])
    d.output(d.node("Gemm", [h, table], transB=1), ["batch", 100])


@row(1, checked=False)
def sparse_weight(d: Beast) -> None:
    """A weight stored as a sparse tensor stays so, beside a dense one."""
    h = d.relu(d.matmul(d.input("x", ROWS), 64, 64))
    at = np.sort(d.rng.choice(64 * 64, 400, replace=False)).astype(np.int64)
    values = numpy_helper.from_array(d.small(400), "w_sparse")
    indices = numpy_helper.from_array(at, "w_sparse_indices")
    d.sparse_initializers.append(helper.make_sparse_tensor(values, indices, [64, 64]))
    d.output(d.node("MatMul", [h, "w_sparse"]), ROWS)


@row(2)
def unused_initializer(d: Beast) -> None:
    """A large initializer that is not used is kept."""
    h = d.relu(d.matmul(d.input("x", ROWS), 64, 64))
    d.const("unused", np.arange(100, dtype=np.int64))
    d.output(d.matmul(h, 64, 32))


# --- an initializer that is an input, too ---


@row(1)
def overridable(d: Beast) -> None:
    """`w` is an input with a default, which a caller may replace; `fixed` may not be."""
    x = d.input("x", ROWS)
    d.input("w", [64, 64])
    h = d.relu(d.node("MatMul", [x, d.weight("w", (64, 64), 1)]))
    d.output(d.node("MatMul", [h, d.weight("fixed", (64, 48), 1)]), ["batch", 48])


@row(2, nbits=Quantized())
def all_overridable(d: Beast) -> None:
    """Every initializer is an input too, as an option of PyTorch writes it."""
    x = d.input("x", ROWS)
    d.input("w1", [64, 64])
    d.input("w2", [64, 48])
    h = d.relu(d.node("MatMul", [x, d.weight("w1", (64, 64), 1)]))
    d.output(d.node("MatMul", [h, d.weight("w2", (64, 48), 1)]), ["batch", 48])


@row(2, opset=8, ir=3)
def initializers_are_inputs(d: Beast) -> None:
    """IR 3: every initializer stands among the inputs, and is constant all the same."""
    h = d.relu(d.conv(d.input("x", ["batch", 3, 12, 12]), 3, 32))
    d.output(d.conv(h, 32, 16))


# --- weights of another float type ---


@row(2)
def half_model(d: Beast) -> None:
    """float16 throughout: inputs, weights and outputs."""
    x = d.input("x", ROWS, TensorProto.FLOAT16)
    w1 = d.const("w1", d.normal((64, 64), 1).astype(np.float16))
    w2 = d.const("w2", d.normal((64, 48), 1).astype(np.float16))
    h = d.relu(d.node("MatMul", [x, w1]))
    d.output(d.node("MatMul", [h, w2]), ["batch", 48], TensorProto.FLOAT16)


@row(2)
def half_convolutions(d: Beast) -> None:
    """float16 throughout, with convolutions and biases."""
    x = d.input("x", ["batch", 8, 12, 12], TensorProto.FLOAT16)
    h = x
    for i, (inputs, outputs) in enumerate([(8, 32), (32, 16)]):
        w = d.const(f"w{i}", d.normal((outputs, inputs, 3, 3)).astype(np.float16))
        b = d.const(f"b{i}", d.small(outputs).astype(np.float16))
        h = d.relu(d.node("Conv", [h, w, b], pads=[1, 1, 1, 1]))
    d.output(h, ["batch", 16, 12, 12], TensorProto.FLOAT16)


@row(2)
def double_model(d: Beast) -> None:
    """float64 throughout."""
    x = d.input("x", ROWS, TensorProto.DOUBLE)
    w1, w2 = d.normal((64, 64)).astype(np.float64), d.normal((64, 48), 1).astype(np.float64)
    b = d.const("b1", d.small(64).astype(np.float64))
    h = d.relu(d.node("Gemm", [x, d.const("w1", w1), b], transB=1))
    d.output(d.node("MatMul", [h, d.const("w2", w2)]), ["batch", 48], TensorProto.DOUBLE)


def as_single(model: ModelProto) -> None:
    """float32 in the place of bfloat16, whose products ONNX Runtime's CPU does not have."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            single = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(single, tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.i == TensorProto.BFLOAT16 and attribute.name in ("to", "output_dtype"):
                attribute.i = TensorProto.FLOAT


@row(2, workaround=as_single)
def bfloat16_inside(d: Beast) -> None:
    """bfloat16 between two casts: inputs and outputs are float32."""
    x = d.node("Cast", [d.input("x", ROWS)], to=TensorProto.BFLOAT16)
    w1 = d.const("w1", d.normal((64, 64), 1).astype(ml_dtypes.bfloat16))
    w2 = d.const("w2", d.normal((64, 48), 1).astype(ml_dtypes.bfloat16))
    h = d.relu(d.node("MatMul", [x, w1]))
    h = d.node("MatMul", [h, w2])
    d.output(d.node("Cast", [h], to=TensorProto.FLOAT), ["batch", 48])


@row(2)
def half_and_single(d: Beast) -> None:
    """The first half of the model computes in float32, the second in float16."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    h = d.node("Cast", [h], to=TensorProto.FLOAT16)
    w = d.const("w2", d.normal((64, 48), 1).astype(np.float16))
    d.output(d.node("MatMul", [h, w]), ["batch", 48], TensorProto.FLOAT16)


fixture("sources", "typed_data_fields", 3, nbits=Quantized(), mxfp4=Quantized(floor=10))
