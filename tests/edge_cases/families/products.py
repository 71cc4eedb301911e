"""Products of matrices: Gemm, MatMul, Einsum, embeddings."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from rows import Beast, Quantized, row

ROWS = ["batch", 64]


@row(2)
def mlp(d: Beast) -> None:
    """Nothing: two Gemm as PyTorch exports them."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 96))
    d.output(d.gemm(h, 96, 32))


@row(2)
def gemm_untransposed(d: Beast) -> None:
    """transB = 0: output channels lie along axis 1."""
    x = d.input("x", ROWS)
    h = d.relu(d.node("Gemm", [x, d.weight("w1", (64, 96), 1), d.bias("b1", 96)]))
    d.output(d.node("Gemm", [h, d.weight("w2", (96, 32), 1)]), ["batch", 32])


@row(2)
def gemm_alpha_beta(d: Beast) -> None:
    """alpha = 0.5 and beta = 3: the bias counts three times, the product half."""
    x = d.input("x", ROWS)
    b1, b2 = d.const("b1", d.small(96) * 20), d.const("b2", d.small(32) * 20)
    h = d.relu(d.node("Gemm", [x, d.weight("w1", (96, 64)), b1], transB=1, alpha=0.5, beta=3.0))
    d.output(d.node("Gemm", [h, d.weight("w2", (32, 96)), b2], transB=1, beta=3.0))


@row(1)
def gemm_transposed_input(d: Beast) -> None:
    """transA = 1: the input comes with its features first."""
    x = d.input("x", [64, "batch"])
    d.output(d.node("Gemm", [x, d.weight("w", (64, 64), 1), d.bias("b", 64)], transA=1))


@row(1)
def gemm_constant_left(d: Beast) -> None:
    """The constant is Gemm's first input."""
    x = d.input("x", [64, 8])
    d.output(d.node("Gemm", [d.weight("w", (48, 64)), x, d.const("b", d.small(8))]), [48, 8])


@row(1)
def gemm_matrix_bias(d: Beast) -> None:
    """C is a matrix, and a number in the next."""
    x = d.input("x", [4, 64])
    d.output(d.node("Gemm", [x, d.weight("w", (64, 32), 1), d.const("c", d.normal((4, 32)))]))


@row(1)
def gemm_scalar_bias(d: Beast) -> None:
    """C is one number, without any axis."""
    x = d.input("x", ROWS)
    d.output(d.node("Gemm", [x, d.weight("w", (64, 32), 1), d.const("c", np.float32(0.3))]))


@row(1)
def gemm_both_computed(d: Beast) -> None:
    """The second product is one of two activations, scaled."""
    x = d.input("x", [16, 64])
    h = d.gemm(x, 64, 64)
    d.output(d.node("Gemm", [h, x], transB=1, alpha=0.125), [16, 16])


@row(2)
def matmul_batched(d: Beast) -> None:
    """MatMul of an input of rank 4 with a matrix, and a vector added."""
    h = d.node("Add", [d.matmul(d.input("x", [2, 3, 5, 64]), 64, 96), d.bias("b", 96)])
    d.output(d.matmul(d.relu(h), 96, 32))


@row(2)
def matmul_bias_first(d: Beast) -> None:
    """The vector is Add's first input."""
    h = d.node("Add", [d.bias("b", 96), d.matmul(d.input("x", ROWS), 64, 96)])
    d.output(d.matmul(d.relu(h), 96, 32))


@row(1)
def matmul_left(d: Beast) -> None:
    """The constant is MatMul's first input."""
    x = d.input("x", ["batch", 64, 8])
    d.output(d.node("MatMul", [d.weight("w", (48, 64)), x]), ["batch", 48, 8])


@row(1)
def matmul_rank3(d: Beast) -> None:
    """A stack of matrices, one for each head: with a scale a channel ONNX Runtime's own tool makes
    what does not run."""
    x = d.input("x", ["batch", 4, 6, 64])
    d.output(d.node("MatMul", [x, d.weight("w", (4, 64, 32), 2)]), ["batch", 4, 6, 32])


@row(1)
def matmul_rank4(d: Beast) -> None:
    """A weight of rank 4 whose first axes are 1."""
    x = d.input("x", ["batch", 2, 6, 64])
    d.output(d.node("MatMul", [x, d.weight("w", (1, 1, 64, 32), 3)]), ["batch", 2, 6, 32])


@row(2, mxfp4=Quantized(floor=11))
def matmul_vector(d: Beast) -> None:
    """The weight is a vector: rank 1, one sum for each row."""
    h = d.matmul(d.input("x", ROWS), 64, 64)
    v = d.const("v", (d.normal((64,)) * 8).astype(np.float32))
    d.output(d.node("MatMul", [h, v]), ["batch"])


@row(2)
def matmul_odd_sizes(d: Beast) -> None:
    """Sums over 37 and 75 numbers: the last block is short."""
    h = d.relu(d.matmul(d.input("x", ["batch", 37]), 37, 75))
    d.output(d.matmul(h, 75, 33))


@row(2)
def matmul_one_output(d: Beast) -> None:
    """The last layer has one output channel."""
    h = d.relu(d.gemm(d.input("x", ROWS), 64, 128))
    d.output(d.gemm(h, 128, 1))


@row(1, static=Quantized(floor=20))
def matmul_activations(d: Beast) -> None:
    """Attention's product of two activations beside one with a weight."""
    h = d.matmul(d.input("x", ["batch", 6, 64]), 64, 64)
    t = d.node("Transpose", [h], perm=[0, 2, 1])
    scores = d.node("Mul", [d.node("MatMul", [h, t]), d.const("scale", np.float32(0.125))])
    d.output(d.node("MatMul", [d.node("Softmax", [scores]), h]), ["batch", 6, 64])


@row(1)
def einsum_matrix(d: Beast) -> None:
    """Einsum as a product with a matrix."""
    x = d.input("x", ["batch", 6, 64])
    d.output(d.node("Einsum", [x, d.weight("w", (64, 48), 1)], equation="bsi,io->bso"))


@row(1)
def einsum_heads(d: Beast) -> None:
    """Einsum with a weight of rank 3, spaces in the equation, summed axis in the middle."""
    x = d.input("x", ["batch", 6, 64])
    w = d.weight("w", (4, 64, 16), 2)
    d.output(d.node("Einsum", [x, w], equation="b s i , h i o -> b h s o"), ["batch", 4, 6, 16])


@row(1)
def embedding(d: Beast) -> None:
    """A table of rows that integers choose, and nothing else to quantize."""
    ids = d.input("ids", ["batch", 12], TensorProto.INT64)
    table = d.const("table", d.rng.normal(0, 1, (100, 64)).astype(np.float32))
    d.output(d.node("Gather", [table, ids]), ["batch", 12, 64])


@row(2, int8=Quantized(floor=30))
def embedding_and_head(d: Beast) -> None:
    """A table, then a product."""
    ids = d.input("ids", ["batch", 12], TensorProto.INT32)
    table = d.const("table", d.rng.normal(0, 1, (100, 64)).astype(np.float32))
    d.output(d.matmul(d.node("Gather", [table, ids]), 64, 100))


@row(1)
def embedding_along_last_axis(d: Beast) -> None:
    """Gather along axis 1: each choice is a column."""
    x = d.input("x", ["batch", 8])
    ids = d.input("ids", [5], TensorProto.INT64)
    table = d.const("table", d.rng.normal(0, 1, (8, 100)).astype(np.float32))
    d.output(d.node("MatMul", [x, d.node("Gather", [table, ids], axis=1)]), ["batch", 5])


@row(1)
def bilinear_by_hand(d: Beast) -> None:
    """A bilinear layer as exporters write it: a weight of rank 3, each of its slices a matrix."""
    x, y = d.input("x", ["batch", 1, 1, 32]), d.input("y", ["batch", 32, 1])
    w = d.weight("w", (16, 32, 32), 2)
    h = d.node("Squeeze", [d.node("MatMul", [x, w]), d.integers("two", 2)])
    d.output(d.node("MatMul", [h, y]), ["batch", 16, 1])


@row(2)
def where_between(d: Beast) -> None:
    """Where joins two products by a condition that is an input's."""
    x = d.input("x", ROWS)
    h = d.node(
        "Where", [d.node("Greater", [x, d.const("zero", np.float32(0))]), d.gemm(x, 64, 64), x]
    )
    d.output(d.gemm(h, 64, 32), ["batch", 32])


@row(2)
def gemm_short_rows(d: Beast) -> None:
    """Sums over 3 numbers: shorter than any block."""
    h = d.relu(d.gemm(d.input("x", ["batch", 3]), 3, 64))
    d.output(d.gemm(h, 64, 3), ["batch", 3])
