"""Convolutions of every shape."""

from __future__ import annotations

import numpy as np
from rows import Beast, row

IMAGE = ["batch", 3, 12, 12]


@row(2)
def conv_image(d: Beast) -> None:
    """None: two convolutions with a Relu between them, as in most image networks."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 32))
    d.output(d.conv(h, 32, 32))


@row(2)
def conv_1d(d: Beast) -> None:
    """Convolutions over a sequence: rank 3."""
    h = d.relu(d.conv(d.input("x", ["batch", 16, 40]), 16, 32, dims=1, kernel=5))
    d.output(d.conv(h, 32, 32, dims=1))


@row(2)
def conv_3d(d: Beast) -> None:
    """Convolutions over a volume: rank 5."""
    h = d.relu(d.conv(d.input("x", [2, 4, 6, 8, 8]), 4, 16, dims=3))
    d.output(d.conv(h, 16, 16, dims=3))


@row(3)
def conv_depthwise(d: Beast) -> None:
    """Depthwise and pointwise convolutions: a filter for each channel has 9 numbers."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 64))
    h = d.relu(d.conv(h, 64, 64, group=64))
    d.output(d.conv(h, 64, 32, kernel=1))


@row(2)
def conv_groups(d: Beast) -> None:
    """Four groups of channels, dilated and strided, with uneven padding."""
    h = d.relu(d.conv(d.input("x", ["batch", 16, 12, 12]), 16, 32, group=4, pads=[0, 1, 2, 1]))
    d.output(d.conv(h, 32, 32, group=4, dilations=[2, 2], strides=[2, 2], pads=[2, 2, 2, 2]))


@row(2)
def conv_same_upper(d: Beast) -> None:
    """`auto_pad` instead of pads, no kernel_shape, no bias."""
    h = d.node("Conv", [d.input("x", IMAGE), d.weight("w1", (32, 3, 3, 3))], auto_pad="SAME_UPPER")
    h = d.relu(h)
    d.output(d.node("Conv", [h, d.weight("w2", (16, 32, 3, 3))], auto_pad="SAME_LOWER"))


@row(2)
def conv_transpose(d: Beast) -> None:
    """ConvTranspose, whose output channels lie along axis 1, with output_padding."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 32))
    w, b = d.weight("up_w", (32, 16, 3, 3), 1), d.bias("up_b", 16)
    pads, more = [1, 1, 1, 1], [1, 1]
    d.output(d.node("ConvTranspose", [h, w, b], strides=[2, 2], pads=pads, output_padding=more))


@row(2)
def conv_transpose_groups(d: Beast) -> None:
    """ConvTranspose with two groups and a bias: 8 output channels in the weight, 16 in the bias."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 32))
    w, b = d.weight("up_w", (32, 8, 3, 3), 1), d.bias("up_b", 16)
    d.output(d.node("ConvTranspose", [h, w, b], group=2, strides=[2, 2]))


@row(1)
def conv_transpose_1d(d: Beast) -> None:
    """ConvTranspose over a sequence, without a bias."""
    x = d.input("x", ["batch", 32, 10])
    d.output(d.node("ConvTranspose", [x, d.weight("w", (32, 32, 4), 1)], strides=[2]))


@row(1)
def conv_transpose_3d(d: Beast) -> None:
    """ConvTranspose over a volume."""
    x = d.input("x", [2, 16, 3, 4, 4])
    d.output(d.node("ConvTranspose", [x, d.weight("w", (16, 8, 2, 2, 2), 1)], strides=[2, 2, 2]))


@row(1)
def conv_weight_computed(d: Beast) -> None:
    """The second convolution's weight is computed from the input: no constant."""
    x = d.input("x", ["batch", 8, 12, 12])
    h = d.relu(d.conv(x, 8, 64))
    mean = d.node("ReduceMean", [h, d.integers("axes", 0, 2, 3)], keepdims=0)
    w = d.node("Reshape", [mean, d.integers("shape", 1, 64, 1, 1)])
    d.output(d.node("Conv", [h, w]), ["batch", 1, 12, 12])


@row(2)
def conv_batch_norm(d: Beast) -> None:
    """BatchNormalization between the convolution and its Relu."""
    h = d.conv(d.input("x", IMAGE), 3, 32, bias=False)
    h = d.relu(batch_norm(d, h, 32))
    d.output(d.conv(h, 32, 16))


def batch_norm(d: Beast, h: str, n: int, **attributes: float) -> str:
    label = d.next_label("batchnormalization")
    scale, variance = d.rng.uniform(0.5, 2, n), d.rng.uniform(0.5, 2, n)
    values = [
        d.const(f"{label}_s", scale.astype(np.float32)),
        d.bias(f"{label}_b", n),
        d.bias(f"{label}_m", n),
        d.const(f"{label}_v", variance.astype(np.float32)),
    ]
    return d.node("BatchNormalization", [h, *values], **attributes)


@row(3)
def conv_residual(d: Beast) -> None:
    """A sum of two paths, then Relu, then a head on the average."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 32))
    h = d.relu(d.node("Add", [d.conv(h, 32, 32), h]))
    h = d.node("Flatten", [d.node("GlobalAveragePool", [h])])
    d.output(d.gemm(h, 32, 32))


@row(2)
def conv_hard_swish(d: Beast) -> None:
    """HardSwish between convolutions, as MobileNetV3 has it."""
    h = d.node("HardSwish", [d.conv(d.input("x", IMAGE), 3, 32)])
    d.output(d.conv(h, 32, 16))


@row(2)
def conv_relu6(d: Beast) -> None:
    """Clip at 6, its limits as Constant nodes."""
    low = d.node("Constant", [], value_float=0.0)
    high = d.node("Constant", [], value_float=6.0)
    h = d.node("Clip", [d.conv(d.input("x", IMAGE), 3, 32), low, high])
    d.output(d.conv(h, 32, 16))


@row(2)
def conv_pixel_shuffle(d: Beast) -> None:
    """DepthToSpace at the end, as super-resolution networks have it."""
    h = d.relu(d.conv(d.input("x", IMAGE), 3, 32))
    d.output(d.node("DepthToSpace", [d.conv(h, 32, 12)], blocksize=2))


@row(3)
def conv_concat(d: Beast) -> None:
    """Two paths joined along the channels, of different magnitudes."""
    x = d.input("x", IMAGE)
    left = d.relu(d.conv(x, 3, 16))
    right = d.node("Sigmoid", [d.conv(x, 3, 16)])
    d.output(d.conv(d.node("Concat", [left, right], axis=1), 32, 16))
