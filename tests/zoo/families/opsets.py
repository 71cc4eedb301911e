"""An operator that a newer opset defines otherwise, in a model of an older one.

Scales for a channel need opset 13, for blocks and 4 bits opset 21: there the model is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto
from rows import Beast, Refused, row
from ways import WAYS

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


def f(number: float) -> np.float32:
    return np.float32(number)


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
    """The newest opset that ONNX Runtime 1.31 opens."""
    return d.relu(h)


def as_opset_26(model: ModelProto) -> None:
    """The newest opset that ONNX Runtime 1.31 opens."""
    model.opset_import[0].version, model.ir_version = 26, 13


@row(2, opset=28, mend=as_opset_26)
def opset28_mlp(d: Beast) -> None:
    """The newest opset there is, which ONNX Runtime 1.31 does not open."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32), ["batch", 32])


@row(0, opset=99, ir=13, checked=False, **dict.fromkeys(WAYS, UNKNOWN))
def opset99(d: Beast) -> None:
    """An opset that nobody has written yet: what it changes is unknown."""
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32), ["batch", 32])
