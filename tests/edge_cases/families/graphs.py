"""The graph as a whole: its size, its inputs, its shapes."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto
from rows import Beast, Quantized, Untouched, fixture, row

ROWS = ["batch", 64]


@row(2)
def dynamic_batch_only(d: Beast) -> None:
    """Every dimension of the input but the channels has only a name."""
    h = d.relu(d.conv(d.input("x", ["batch", 8, "height", "width"]), 8, 16))
    d.output(d.conv(h, 16, 8), ["batch", 8, "height", "width"])


@row(2, varies={"time": (5, 9, 17, 30)})
def lengths_vary(d: Beast) -> None:
    """Every sample is of another length."""
    h = d.relu(d.matmul(d.input("x", [1, "time", 64]), 64, 64))
    d.output(d.matmul(h, 64, 32), [1, "time", 32])


@row(2, checked=False)
def output_without_shape(d: Beast) -> ModelProto:
    """Outputs have a type and no shape."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    d.output(d.gemm(h, 64, 32))
    model = d.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@row(2)
def fixed_batch(d: Beast) -> None:
    """A batch of 4 and no other."""
    h = d.relu(d.conv(d.input("x", [4, 8, 8, 8]), 8, 16))
    d.output(d.conv(h, 16, 8))


@row(3)
def two_inputs(d: Beast) -> None:
    """Two inputs of different shapes and magnitudes."""
    a, b = d.input("a", ROWS), d.input("b", ["batch", 32])
    b = d.node("Mul", [b, d.const("louder", np.float32(50))])
    h = d.node("Add", [d.gemm(a, 64, 64), d.relu(d.gemm(b, 32, 64))])
    d.output(d.gemm(d.relu(h), 64, 32))


@row(1)
def integer_input(d: Beast) -> None:
    """The input is uint8, like image files, and cast to float."""
    x = d.node("Cast", [d.input("x", ["batch", 8, 8, 8], TensorProto.UINT8)], to=1)
    d.output(d.conv(x, 8, 16))


@row(1)
def boolean_input(d: Beast) -> None:
    """A boolean input chooses between two values."""
    x, b = d.input("x", ROWS), d.input("b", ROWS, TensorProto.BOOL)
    h = d.node("Where", [b, x, d.const("else", np.float32(0.5))])
    d.output(d.gemm(h, 64, 32))


@row(2)
def output_also_inside(d: Beast) -> None:
    """What the first convolution makes is an output, and goes on."""
    h = d.conv(d.input("x", ["batch", 8, 8, 8]), 8, 16)
    d.output(h, ["batch", 16, 8, 8])
    d.output(d.conv(d.relu(h), 16, 8))


@row(1, exact=("same", "again"))
def output_is_input(d: Beast) -> None:
    """One output is the input through Identity, another the same value again."""
    x = d.input("x", ROWS)
    d.output(d.gemm(x, 64, 32), ["batch", 32])
    same = d.node("Identity", [x], ["same"])
    d.output(same, ROWS)
    d.output(d.node("Identity", [same], ["again"]), ROWS)


UNTOUCHED = {way: Untouched() for way in ("int8", "channel", "int4")}


@row(0, **UNTOUCHED, static=Untouched())
def no_weights(d: Beast) -> None:
    """Nothing to quantize: no constant at all."""
    d.output(d.relu(d.input("x", ROWS)), ROWS)


@row(0, **UNTOUCHED, static=Quantized(floor=20))
def only_activations(d: Beast) -> None:
    """A product of two activations and nothing else."""
    a, b = d.input("a", [4, 16, 64]), d.input("b", [4, 64, 16])
    d.output(d.node("MatMul", [a, b]), [4, 16, 16])


@row(2)
def dead_branch(d: Beast) -> None:
    """A branch that leads nowhere, with a weight of its own."""
    x = d.input("x", ROWS)
    d.gemm(x, 64, 48)
    h = d.gemm(x, 64, 64)
    d.output(d.relu(h))


@row(1)
def shape_arithmetic(d: Beast) -> None:
    """Flatten as PyTorch exports it: Shape, Gather, Unsqueeze, Concat, Reshape."""
    x = d.input("x", ["batch", 4, 4, 4])
    batch = d.node("Gather", [d.node("Shape", [x]), d.const("first", np.int64(0))])
    batch = d.node("Unsqueeze", [batch, d.integers("axis", 0)])
    shape = d.node("Concat", [batch, d.integers("rest", -1)], axis=0)
    d.output(d.gemm(d.node("Reshape", [x, shape]), 64, 32), ["batch", 32])


@row(3)
def sequence_values(d: Beast) -> None:
    """Values that are no tensors: a sequence of two results, joined again."""
    x = d.input("x", ["batch", 8, 8, 8])
    pair = d.node("SequenceConstruct", [d.conv(x, 8, 16), d.conv(x, 8, 16)])
    h = d.node("ConcatFromSequence", [pair], axis=1)
    d.output(d.conv(h, 32, 8), ["batch", 8, 8, 8])


@row(100)
def many_nodes(d: Beast) -> None:
    """A hundred layers: 300 nodes."""
    h = d.input("x", ["batch", 16])
    for i in range(100):
        w = np.linalg.qr(d.rng.standard_normal((16, 16)))[0].astype(np.float32)
        b = d.const(f"b{i}", np.full(16, 0.5, np.float32))
        h = d.relu(d.node("Add", [d.node("MatMul", [h, d.const(f"w{i}", w)]), b]))
    d.output(h, ["batch", 16])


@row(41)
def many_branches(d: Beast) -> None:
    """Forty layers read one value, and their results are joined."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    branches = [d.relu(d.gemm(h, 64, 16)) for _ in range(40)]
    d.output(d.node("Concat", branches, axis=1), ["batch", 640])


@row(6, static=Quantized(floor=20))
def transformer_layer(d: Beast) -> None:
    """A layer of a transformer: four heads, LayerNormalization, Gelu."""
    x = d.input("x", [2, 12, 64])
    heads = d.integers("heads", 0, 0, 4, 16)
    q, k, v = (
        d.node("Transpose", [d.node("Reshape", [d.matmul(x, 64, 64), heads])], perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = d.node("Mul", [d.node("MatMul", [q, k]), d.const("quarter", np.float32(0.25))])
    h = d.node("MatMul", [d.node("Softmax", [scores]), v])
    h = d.node("Reshape", [d.node("Transpose", [h], perm=[0, 2, 1, 3]), d.integers("j", 0, 0, 64)])
    h = norm(d, d.node("Add", [x, d.matmul(h, 64, 64)]))
    f = d.node("Gelu", [d.node("Add", [d.matmul(h, 64, 128), d.bias("b1", 128)])])
    f = d.node("Add", [d.matmul(f, 128, 64), d.bias("b2", 64)])
    d.output(norm(d, d.node("Add", [h, f])), [2, 12, 64])


def norm(d: Beast, x: str) -> str:
    label = d.next_label("layernormalization")
    scale = d.const(f"{label}_s", d.rng.uniform(0.5, 1.5, 64).astype(np.float32))
    return d.node("LayerNormalization", [x, scale, d.bias(f"{label}_b", 64)])


fixture("graphs", "two_towers", 3)
fixture("graphs", "dropout_ratio_input", 3)


@row(2)
def strings_beside(d: Beast) -> None:
    """An unused constant of strings, beside two matrix multiplications."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    d.const("labels", np.array(["cat", "dog"], object))
    d.output(d.gemm(h, 64, 32))


# ONNX Runtime has no kernel for RandomNormal of the version that these formats bring with them.
@row(2, mxfp4=None, nvfp4=None)
def random_numbers(d: Beast) -> None:
    """Noise of a fixed seed, times 0, is added: no constant, though it has no inputs."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    noise = d.node("RandomNormal", [], shape=[64], seed=1.0)
    h = d.node("Add", [h, d.node("Mul", [noise, d.const("none", np.float32(0))])])
    d.output(d.gemm(h, 64, 32))


@row(2)
def top_k(d: Beast) -> None:
    """The best five of what a product makes, values only."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 64))
    h = d.gemm(h, 64, 64)
    d.output(d.node("TopK", [h, d.integers("five", 5)], ["best", "where"]), ["batch", 5])
