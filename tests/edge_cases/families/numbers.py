"""Weights with odd numbers in them."""

from __future__ import annotations

import numpy as np
from rows import Beast, Quantized, Untouched, row

ROWS = ["batch", 64]


def single(d: Beast, w: np.ndarray) -> None:
    """One product with the odd weight, [outputs, inputs]."""
    x = d.input("x", ROWS)
    d.output(d.node("Gemm", [x, d.const("w", w.astype(np.float32))], transB=1))


@row(0, nbits=Quantized())
def weight_nan(d: Beast) -> None:
    """One weight is NaN."""
    w = d.normal((48, 64))
    w[5, 7] = np.nan
    single(d, w)


@row(0, nbits=Quantized())
def weight_infinite(d: Beast) -> None:
    """One weight is infinite."""
    w = d.normal((48, 64))
    w[5, 7] = -np.inf
    single(d, w)


@row(1)
def weight_tiny(d: Beast) -> None:
    """All weights are about 1e-12: an absolute lower limit of a scale would make them zeros."""
    single(d, d.normal((48, 64)) * 1e-12)


@row(1)
def weight_huge(d: Beast) -> None:
    """Weights of about 1e37 either way: their difference overflows float32."""
    x = d.input("x", ROWS)
    w = d.rng.uniform(-1, 1, (48, 64))
    w[0, :2] = 1, -1
    h = d.node("Mul", [x, d.const("less", np.float32(1e-30))])
    w = d.const("w", (w * 3.4e38).astype(np.float32))
    d.output(d.node("Gemm", [h, w], transB=1), ["batch", 48])


@row(1)
def weight_denormal_channel(d: Beast) -> None:
    """The weights of one channel are denormal numbers, which runtimes may flush to zero."""
    w = d.normal((48, 64))
    w[3] *= 1e-40
    single(d, w)


@row(1)
def weight_constant(d: Beast) -> None:
    """Every weight is 0.25: a range without a width."""
    single(d, np.full((48, 64), 0.25))


@row(1)
def weight_zero(d: Beast) -> None:
    """Every weight is 0, and only the bias speaks."""
    x = d.input("x", ROWS)
    w = d.const("w", np.zeros((48, 64), np.float32))
    d.output(d.node("Gemm", [x, w, d.bias("b", 48)], transB=1))


@row(1)
def weight_zero_channel(d: Beast) -> None:
    """One output channel is pruned: its weights are all 0, and stay so."""
    w = d.normal((48, 64))
    w[7] = 0
    single(d, w)


@row(1)
def weight_positive(d: Beast) -> None:
    """All weights are between 10 and 11: zero is not among them, and has to be in their range."""
    single(d, d.rng.uniform(10, 11, (48, 64)))


@row(1)
def weight_negative(d: Beast) -> None:
    """All weights are between -5 and -4."""
    single(d, d.rng.uniform(-5, -4, (48, 64)))


@row(1)
def weight_whole_numbers(d: Beast) -> None:
    """Whole numbers from -4 to 3, and negative zeros."""
    w = d.rng.integers(-4, 4, (48, 64)).astype(np.float32)
    single(d, np.where(w == 0, np.float32(-0.0), w))


@row(1, int8=Quantized(floor=22))
def weight_outlier(d: Beast) -> None:
    """One weight is ten times as large as any other of its tensor."""
    w = d.normal((48, 64))
    w[5, 7] = 5
    single(d, w)


@row(1, int8=Quantized(floor=18))
def weight_channels_apart(d: Beast) -> None:
    """Output channels differ by a factor of a thousand."""
    w = d.normal((48, 64)) * np.logspace(0, 3, 48)[:, None]
    x = d.input("x", ROWS)
    d.output(d.node("Gemm", [x, d.const("w", w.astype(np.float32))], transB=1))


@row(0, **{way: Untouched() for way in ("int8", "channel", "int4", "static")})
def weight_without_elements(d: Beast) -> None:
    """The weight has no rows: [0, 64]."""
    x = d.input("x", ROWS)
    w = d.const("w", np.zeros((0, 64), np.float32))
    d.output(d.node("Gemm", [x, w], transB=1), ["batch", 0])


@row(1)
def sum_over_nothing(d: Beast) -> None:
    """A product that sums over nothing, K = 0, beside an ordinary one."""
    x, e = d.input("x", ROWS), d.input("e", ["batch", 0])
    w = d.const("w", np.zeros((0, 48), np.float32))
    h = d.node("MatMul", [e, w])
    d.output(d.node("Add", [h, d.matmul(x, 64, 48)]), ["batch", 48])


@row(1)
def bias_huge(d: Beast) -> None:
    """A bias so large beside its weights that int32 cannot hold it at the scale of the product."""
    x = d.input("x", ["batch", 8, 8, 8])
    w = d.const("w", d.normal((16, 8, 3, 3)) * np.float32(1e-7))
    b = d.const("b", d.rng.uniform(50, 100, 16).astype(np.float32))
    d.output(d.node("Conv", [x, w, b], pads=[1, 1, 1, 1]))


@row(2)
def activation_dead(d: Beast) -> None:
    """A Relu that only ever gives 0: its range has no width."""
    x = d.input("x", ["batch", 8, 8, 8])
    b = d.const("b", np.full(16, -1000, np.float32))
    h = d.relu(d.node("Conv", [x, d.weight("w1", (16, 8, 3, 3)), b], pads=[1, 1, 1, 1]))
    h = d.node("Conv", [h, d.weight("w2", (8, 16, 3, 3)), d.bias("b2", 8)], pads=[1, 1, 1, 1])
    d.output(d.node("Add", [h, x]))


@row(2)
def activation_constant(d: Beast) -> None:
    """An activation that is the same number everywhere, whatever comes in."""
    x = d.input("x", ["batch", 8, 8, 8])
    h = d.node("Mul", [d.conv(x, 8, 16), d.const("none", np.float32(0))])
    h = d.node("Add", [h, d.const("always", np.float32(0.75))])
    d.output(d.node("Conv", [h, d.weight("w2", (8, 16, 3, 3))]))


@row(2)
def activation_one_sided(d: Beast) -> None:
    """An activation between 100 and 101: zero has to be in its range all the same."""
    x = d.input("x", ["batch", 8, 8, 8])
    h = d.node("Add", [d.node("Sigmoid", [d.conv(x, 8, 16)]), d.const("far", np.float32(4))])
    d.output(d.conv(h, 16, 8, bias=False))


FEW_STEPS = Quantized(floor=18)  # a step of a tenth of what the other channels hold


@row(1, int8=Quantized(floor=26), channel=Quantized(floor=26), dynamic=FEW_STEPS)
def activation_large_channels(d: Beast) -> None:
    """Four channels behind a LayerNormalization are ten times larger than the others, and their
    weights as much smaller."""
    x = d.input("x", ["batch", 12, 64])
    gain = np.ones(64, np.float32)
    gain[[3, 20, 41, 60]] = 10
    scale = d.const("scale", gain * d.rng.uniform(0.8, 1.2, 64).astype(np.float32))
    h = d.node("LayerNormalization", [x, scale])
    w = d.const("w", d.normal((64, 48), 1) / gain[:, None])
    d.output(d.node("MatMul", [h, w]), ["batch", 12, 48])


@row(2)
def activation_infinite(d: Beast) -> None:
    """Exp overflows for every sample, and what it made is taken back by a Clip."""
    x = d.input("x", ["batch", 64])
    h = d.node("Exp", [d.node("Add", [d.gemm(x, 64, 64), d.const("far", np.float32(200))])])
    h = d.node("Clip", [h, d.const("low", np.float32(0)), d.const("high", np.float32(1))])
    d.output(d.gemm(h, 64, 32))


@row(2)
def weight_of_one_element(d: Beast) -> None:
    """A product with a single number as its matrix, [1, 1], and an ordinary one after it."""
    x = d.input("x", ["batch", 1])
    h = d.node("MatMul", [x, d.const("one", np.array([[0.7]], np.float32))])
    h = d.node("MatMul", [h, d.weight("row", (1, 64), 1)])
    d.output(d.node("MatMul", [h, d.weight("w", (64, 32), 1)]), ["batch", 32])
