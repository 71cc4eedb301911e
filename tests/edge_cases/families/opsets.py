"""An operator that a newer opset defines otherwise, in a model of an older one.

Scales for a channel need opset 13, for blocks and 4 bits opset 21: there the model is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from rows import Beast, Refused, row
from ways import WAYS

NO_SCAN = Refused("UnsupportedModelError", "node `scan1` (Scan): cannot be converted")
UNKNOWN = Refused("UnsupportedModelError", "the newest known here")

Middle = Callable[[Beast, str], str]


def between(opset: int, shape: list[int] | None = None, **said: Any) -> Callable[[Middle], Middle]:
    """A row: two convolutions with the operator between, [4, 16, 12, 12] going into it."""

    def register(middle: Middle) -> Middle:
        def build(d: Beast) -> None:
            h = d.conv(d.input("x", [4, 3, 12, 12]), 3, 16)
            h = middle(d, h)
            w = d.weight("last_w", (16, 16, 1, 1))
            d.output(d.node("Conv", [h, w], kernel_shape=[1, 1]), shape)

        build.__name__, build.__doc__ = middle.__name__, middle.__doc__
        build.__module__ = middle.__module__
        row(2, opset=opset, **said)(build)
        return middle

    return register


@between(7)
def opset7_batch_norm(d: Beast, h: str) -> str:
    """BatchNormalization with `spatial`, which opset 9 took away."""
    from .convolutions import batch_norm

    return batch_norm(d, h, 16, epsilon=1e-3, momentum=0.8, spatial=1)


@between(7)
def opset7_dropout(d: Beast, h: str) -> str:
    """Dropout, its ratio an attribute until 12."""
    return d.node("Dropout", [h], ratio=0.3)


@between(7)
def opset7_upsample(d: Beast, h: str) -> str:
    """Upsample by an attribute: by input from 9 on, gone with 10."""
    return d.node("Upsample", [h], scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")


@between(9)
def opset9_upsample_linear(d: Beast, h: str) -> str:
    """Upsample by input, linear: what became of it is a Resize with coordinates of its own."""
    return d.node("Upsample", [h, d.const("s", np.array([1, 1, 2, 2], np.float32))], mode="linear")


@between(7)
def opset7_average_pool(d: Beast, h: str) -> str:
    """AveragePool with padding that does not count."""
    return d.node("AveragePool", [h], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])


@between(8)
def opset8_max_pool(d: Beast, h: str) -> str:
    """MaxPool before it had dilations and ceil_mode."""
    return d.node("MaxPool", [h], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])


@between(8)
def opset8_expand(d: Beast, h: str) -> str:
    """Expand, then a mean over what was spread."""
    wide = d.node("Expand", [d.node("Unsqueeze", [h], axes=[0]), d.integers("s", 2, 1, 1, 1, 1)])
    return d.node("ReduceMean", [wide], axes=[0], keepdims=0)


@between(9)
def opset9_slice(d: Beast, h: str) -> str:
    """Slice by attributes: by inputs from 10 on."""
    return d.node("Slice", [h], axes=[2, 3], starts=[1, -9], ends=[-1, 1000])


@between(9)
def opset9_slice_without_axes(d: Beast, h: str) -> str:
    """Slice without axes: all of them, from the first on."""
    return d.node("Slice", [h], starts=[0, 0, 1], ends=[1000, 16, 9])


@between(9)
def opset9_clip(d: Beast, h: str) -> str:
    """Clip by attributes: by inputs from 11 on."""
    return d.node("Clip", [h], min=-0.5, max=1.5)


@between(9)
def opset9_clip_one_limit(d: Beast, h: str) -> str:
    """Clip with an upper limit only."""
    return d.node("Clip", [h], max=1.0)


@between(10)
def opset10_pad(d: Beast, h: str) -> str:
    """Pad by attributes: by inputs from 11 on."""
    return d.node("Pad", [h], pads=[0, 0, 1, 1, 0, 0, 2, 0], mode="constant", value=0.25)


@between(10)
def opset10_pad_reflect(d: Beast, h: str) -> str:
    """Pad by attributes, reflecting, and cutting where the number is negative."""
    return d.node("Pad", [h], pads=[0, 0, 2, 0, 0, 0, 2, -1], mode="reflect")


@between(9)
def opset9_top_k(d: Beast, h: str) -> str:
    """TopK with k as an attribute: an input from 10 on."""
    return d.node("TopK", [h], ["best", "where"], k=5, axis=3)


@between(10)
def opset10_top_k(d: Beast, h: str) -> str:
    """TopK before it had `largest` and `sorted`."""
    return d.node("TopK", [h, d.integers("k", 4)], ["best", "where"], axis=-1)


@between(10)
def opset10_resize(d: Beast, h: str) -> str:
    """Resize with scales alone, whose coordinates are asymmetric."""
    return d.node("Resize", [h, d.const("s", np.array([1, 1, 2, 2], np.float32))], mode="linear")


@between(10)
def opset10_resize_down(d: Beast, h: str) -> str:
    """Resize to less, the nearest, which rounds down."""
    return d.node("Resize", [h, d.const("s", np.array([1, 1, 0.5, 0.75], np.float32))])


@between(11)
def opset11_resize(d: Beast, h: str) -> str:
    """Resize by sizes, with an empty roi and scales."""
    empty = d.const("empty", np.array([], np.float32))
    sizes = d.integers("sizes", 4, 16, 20, 7)
    return d.node("Resize", [h, empty, empty, sizes], mode="linear")


@between(11)
def opset11_squeeze_unsqueeze(d: Beast, h: str) -> str:
    """Unsqueeze and Squeeze by attributes: by inputs from 13 on."""
    return d.node("Squeeze", [d.node("Unsqueeze", [h], axes=[0, 3])], axes=[3, 0])


@between(12)
def opset12_squeeze_all(d: Beast, h: str) -> str:
    """Squeeze without axes, of a value that has one axis of length 1."""
    return d.node("Squeeze", [d.node("Unsqueeze", [h], axes=[1])])


@between(11)
def opset11_reduce_sum(d: Beast, h: str) -> str:
    """ReduceSum by an attribute: by input from 13 on."""
    total = d.node("ReduceSum", [h], axes=[2, -1], keepdims=1)
    return d.node("Add", [h, d.node("Mul", [total, d.const("less", f(0.02))])])


@between(12)
def opset12_reduce_sum_all(d: Beast, h: str) -> str:
    """ReduceSum over all axes."""
    return d.node("Add", [h, d.node("Mul", [d.node("ReduceSum", [h]), d.const("s", f(1e-3))])])


def f(number: float) -> np.float32:
    return np.float32(number)


@between(13)
def opset13_reduce_mean(d: Beast, h: str) -> str:
    """ReduceMean by an attribute: by input from 18 on."""
    return d.node("Sub", [h, d.node("ReduceMean", [h], axes=[1], keepdims=1)])


@between(17)
def opset17_reduce_max_min(d: Beast, h: str) -> str:
    """ReduceMax and ReduceMin by attributes."""
    high = d.node("ReduceMax", [h], axes=[2, 3])
    low = d.node("ReduceMin", [h], axes=[-1])
    return d.node("Sub", [d.node("Sub", [h, high]), low])


@between(17)
def opset17_reduce_norms(d: Beast, h: str) -> str:
    """ReduceL2, ReduceL1 and ReduceLogSumExp by attributes."""
    two = d.node("ReduceL2", [h], axes=[1])
    one = d.node("ReduceL1", [h], axes=[1])
    soft = d.node("ReduceLogSumExp", [h], axes=[3], keepdims=1)
    return d.node("Add", [d.node("Div", [h, two]), d.node("Div", [soft, one])])


@between(17)
def opset17_reduce_prod(d: Beast, h: str) -> str:
    """ReduceProd and ReduceSumSquare by attributes."""
    h = d.node("Sigmoid", [h])
    square = d.node("ReduceSumSquare", [h], axes=[1])
    return d.node("Div", [d.node("Add", [h, d.node("ReduceProd", [h], axes=[-1])]), square])


@between(12)
def opset12_log_softmax(d: Beast, h: str) -> str:
    """LogSoftmax without an axis, which was 1, and is the last from 13 on."""
    return d.node("LogSoftmax", [h])


@between(12)
def opset12_hardmax(d: Beast, h: str) -> str:
    """Hardmax over all axes from 2 on together, its result multiplied away."""
    none = d.node("Mul", [d.node("Hardmax", [h], axis=2), d.const("none", f(0))])
    return d.node("Add", [h, none])


@between(12)
def opset12_softmax_last(d: Beast, h: str) -> str:
    """Softmax over the last axis, which is the same in both."""
    return d.node("Mul", [d.node("Softmax", [h], axis=3), d.const("size", f(10))])


@between(11)
def opset11_split(d: Beast, h: str) -> str:
    """Split by an attribute: by input from 13 on."""
    d.node("Split", [h], ["left", "right"], axis=1, split=[5, 11])
    return d.node("Concat", ["right", "left"], axis=1)


@between(17)
def opset17_split_even(d: Beast, h: str) -> str:
    """Split into as many as there are outputs: from 18 on their number is an attribute."""
    d.node("Split", [h], ["a", "b", "c", "e"], axis=1)
    return d.node("Concat", ["e", "a", "b", "c"], axis=1)


@between(7)
def opset7_pow(d: Beast, h: str) -> str:
    """Pow, Sqrt and a sum that spreads."""
    two = d.node("Pow", [h, d.const("two", f(2))])
    return d.node("Sqrt", [d.node("Add", [two, d.const("little", f(1e-2))])])


@between(8)
def opset8_cast(d: Beast, h: str) -> str:
    """Cast to integers and back."""
    up = d.node("Mul", [h, d.const("hundred", f(100))])
    whole = d.node("Cast", [d.node("Cast", [up], to=TensorProto.INT32)], to=TensorProto.FLOAT)
    return d.node("Mul", [whole, d.const("hundredth", f(0.01))])


@between(9)
def opset9_where(d: Beast, h: str) -> str:
    """Where and Greater of opset 9, Not, Shape and ConstantOfShape."""
    shape = d.node("Shape", [h])
    zeros = d.node("ConstantOfShape", [shape])
    return d.node("Where", [d.node("Greater", [h, zeros]), h, zeros])


@between(12)
def opset12_dropout(d: Beast, h: str) -> str:
    """Dropout with its ratio as an input, which stops many engines."""
    return d.node("Dropout", [h, d.const("ratio", f(0.5))])


@between(12)
def opset12_arg_max(d: Beast, h: str) -> str:
    """ArgMax before it had select_last_index, times 0."""
    best = d.node("Cast", [d.node("ArgMax", [h], axis=1)], to=TensorProto.FLOAT)
    return d.node("Add", [h, d.node("Mul", [best, d.const("none", f(0))])])


@between(13)
def opset13_layer_norm(d: Beast, h: str) -> str:
    """A layer normalization written out, as exports before 17 have it."""
    mean = d.node("ReduceMean", [h], axes=[-1])
    centred = d.node("Sub", [h, mean])
    variance = d.node("ReduceMean", [d.node("Pow", [centred, d.const("two", f(2))])], axes=[-1])
    root = d.node("Sqrt", [d.node("Add", [variance, d.const("eps", f(1e-5))])])
    return d.node("Div", [centred, root])


@between(14)
def opset14_batch_norm(d: Beast, h: str) -> str:
    """BatchNormalization with training_mode = 0."""
    from .convolutions import batch_norm

    return batch_norm(d, h, 16, training_mode=0)


@between(16)
def opset16_grid_sample(d: Beast, h: str) -> str:
    """GridSample, whose mode `bilinear` is `linear` from 20 on."""
    grid = np.stack(np.meshgrid(*[np.linspace(-0.9, 0.9, 12)] * 2), -1)[None].repeat(4, 0)
    return d.node("GridSample", [h, d.const("grid", grid.astype(np.float32))], mode="bilinear")


@between(16)
def opset16_prelu(d: Beast, h: str) -> str:
    """PRelu with a slope a channel, and LeakyRelu."""
    slope = d.const("slope", d.rng.uniform(0.1, 0.5, (16, 1, 1)).astype(np.float32))
    return d.node("LeakyRelu", [d.node("PRelu", [h, slope])], alpha=0.7)


@between(18)
def opset18_reduce(d: Beast, h: str) -> str:
    """ReduceMean by input and Split by num_outputs."""
    d.node("Split", [h], ["left", "right"], axis=1, num_outputs=2)
    left = d.node("Sub", ["left", d.node("ReduceMean", ["left", d.integers("axis", 1)])])
    return d.node("Concat", [left, "right"], axis=1)


@between(18, [4, 16, 12, 12], checked=False)
def opset18_group_norm(d: Beast, h: str) -> str:
    """GroupNormalization with a scale for each group: for each channel from 21 on."""
    scale = d.const("scale", d.rng.uniform(0.5, 2, 4).astype(np.float32))
    return d.node("GroupNormalization", [h, scale, d.bias("shift", 4)], num_groups=4)


@between(19)
def opset19_resize_antialias(d: Beast, h: str) -> str:
    """Resize that names its axes and smooths as it shrinks, between values of unwritten shapes."""
    scales = d.const("s", np.array([0.5, 0.5], np.float32))
    return d.node("Resize", [h, "", scales], mode="linear", antialias=1, axes=[2, 3])


@between(20)
def opset20_gelu(d: Beast, h: str) -> str:
    """Gelu by its own operator, approximated."""
    return d.node("Gelu", [h], approximate="tanh")


@between(22)
def opset22_dropout(d: Beast, h: str) -> str:
    """The opset after that of 4 bits."""
    return d.node("Dropout", [d.node("Mish", [h]), d.const("ratio", f(0.1))])


@between(23)
def opset23_rms_norm(d: Beast, h: str) -> str:
    """RMSNormalization, new in 23."""
    scale = d.const("scale", d.rng.uniform(0.5, 2, 12).astype(np.float32))
    return d.node("RMSNormalization", [h, scale])


@between(25)
def opset25_relu(d: Beast, h: str) -> str:
    """The opset of 2 bits."""
    return d.relu(h)


@between(26)
def opset26_relu(d: Beast, h: str) -> str:
    """The newest opset that ONNX Runtime 1.31 opens; 1.32 opens one more."""
    return d.relu(h)


@row(2, opset=7, ir=3)
def opset7_network(d: Beast) -> None:
    """A whole network of opset 7 as it was published in 2018, IR 3."""
    from .convolutions import batch_norm

    h = batch_norm(d, d.conv(d.input("x", ["batch", 3, 12, 12]), 3, 16, bias=False), 16)
    h = d.node("MaxPool", [d.relu(h)], kernel_shape=[2, 2], strides=[2, 2])
    h = d.node("Dropout", [d.node("Flatten", [h])], ratio=0.5)
    h = d.node("Gemm", [h, d.weight("fc", (10, 576)), d.bias("fc_b", 10)], transB=1)
    d.output(d.node("Softmax", [h]), ["batch", 10])


@row(1, opset=8, **{way: NO_SCAN for way in WAYS if way != "nbits"})
def opset8_scan(d: Beast) -> None:
    """Scan as opset 8 had it, with a batch: no newer opset has an operator like it."""
    x = d.input("x", [2, 5, 16])
    start = d.const("start", np.zeros((2, 16), np.float32))
    body = d.inner("body")
    h, item = body.input("h_in", [16]), body.input("item", [16])
    body.output(body.node("Add", [h, item], ["h_out"]), [16])
    body.output(body.node("Identity", ["h_out"], ["step"]), [16])
    d.node("Scan", ["", start, x], ["last", "steps"], body=body.graph(), num_scan_inputs=1)
    w = d.weight("w", (64, 16))
    d.output(d.node("Gemm", ["last", w, d.bias("b", 64)], transB=1), [2, 64])


def as_opset_26(model: ModelProto) -> None:
    """The newest opset that ONNX Runtime 1.31 opens; 1.32 opens one more."""
    model.opset_import[0].version, model.ir_version = 26, 13


@row(2, opset=28, workaround=as_opset_26)
def opset28_mlp(d: Beast) -> None:
    """The newest opset there is, which ONNX Runtime 1.32 does not open."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32), ["batch", 32])


@row(0, opset=99, ir=13, checked=False, **dict.fromkeys(WAYS, UNKNOWN))
def opset99(d: Beast) -> None:
    """An opset that does not exist yet: what it changes is unknown."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32), ["batch", 32])
