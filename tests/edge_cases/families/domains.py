"""Operators of other domains, and models that are quantized already."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto
from rows import Beast, Quantized, Refused, Untouched, fixture, row

IMAGE = ["batch", 8, 8, 8]


def sparkle_is_relu(model: ModelProto) -> None:
    """The unknown operator becomes a Relu."""
    for node in model.graph.node:
        if node.domain == "acme.ops":
            node.domain, node.op_type = "", "Relu"
            node.ClearField("attribute")


UNKNOWN = Refused("CalibrationError", "Sparkle")


@row(2, workaround=sparkle_is_relu, static=UNKNOWN)
def domain_unknown(d: Beast) -> None:
    """An operator of an unknown domain between convolutions: no engine can run it."""
    d.opsets["acme.ops"] = 3
    h = d.conv(d.input("x", IMAGE), 8, 16)
    h = d.node("Sparkle", [h], domain="acme.ops", strength=0.5)
    d.output(d.conv(h, 16, 8), IMAGE)


@row(2)
def domain_microsoft(d: Beast) -> None:
    """ONNX Runtime's own operators between standard ones."""
    d.opsets["com.microsoft"] = 1
    h = d.node("Gelu", [d.conv(d.input("x", IMAGE), 8, 16)], domain="com.microsoft")
    d.output(d.conv(h, 16, 8), IMAGE)


@row(2)
def domain_microsoft_matmul(d: Beast) -> None:
    """A FusedMatMul with a constant beside a MatMul: the former's domain is its own."""
    d.opsets["com.microsoft"] = 1
    h = d.relu(d.matmul(d.input("x", ["batch", 64]), 64, 64))
    h = d.node("BiasGelu", [h, d.bias("b", 64)], domain="com.microsoft")
    d.output(d.matmul(h, 64, 32), ["batch", 32])


@row(2, checked=False)
def domain_spelled_out(d: Beast) -> None:
    """The standard domain is spelled `ai.onnx`, in the import and on the nodes."""
    d.opsets = {"ai.onnx": 21}
    h = d.node("Relu", [d.conv(d.input("x", IMAGE), 8, 16, domain="ai.onnx")], domain="ai.onnx")
    d.output(d.conv(h, 16, 8, domain="ai.onnx"), IMAGE)


@row(1)
def domain_ml(d: Beast) -> None:
    """An operator for classical learning, Normalizer of `ai.onnx.ml`, before a product."""
    d.opsets["ai.onnx.ml"] = 3
    h = d.node("Normalizer", [d.input("x", ["batch", 64])], domain="ai.onnx.ml", norm="L2")
    d.output(d.gemm(h, 64, 32), ["batch", 32])


@row(2)
def imported_twice_over(d: Beast) -> None:
    """Domains are imported that no node is of."""
    d.opsets |= {"com.microsoft": 1, "ai.onnx.ml": 3, "acme.unused": 7}
    h = d.relu(d.gemm(d.input("x", ["batch", 64]), 64, 64))
    d.output(d.gemm(h, 64, 32))


# --- quantized before ---

fixture(
    "domains",
    "already_qdq",
    0,
    **{way: Untouched() for way in ("int8", "channel", "int4", "static")},
)


def dequantized(d: Beast, name: str, shape: tuple[int, ...]) -> str:
    """A weight in int8 with a scale a channel, as an earlier run left it."""
    w = d.normal(shape)
    scale = (np.abs(w).reshape(shape[0], -1).max(1) / 127).astype(np.float32)
    q = np.rint(w / scale.reshape(-1, *[1] * (w.ndim - 1))).astype(np.int8)
    values = [
        d.const(f"{name}_quantized", q),
        d.const(f"{name}_scale", scale),
        d.const(f"{name}_zp", np.zeros(shape[0], np.int8)),
    ]
    return d.node("DequantizeLinear", values, [name], axis=0)


@row(1)
def quantized_in_part(d: Beast) -> None:
    """One weight is int8 already, the other still float."""
    x = d.input("x", ["batch", 64])
    w = dequantized(d, "w", (64, 64))
    h = d.relu(d.node("Gemm", [x, w, d.bias("b", 64)], transB=1))
    d.output(d.gemm(h, 64, 32))


@row(1)
def quantized_operators(d: Beast) -> None:
    """A QLinearConv of an earlier run, then a convolution that is still float."""
    x = d.input("x", ["batch", 8, 8, 8])
    scale, zero = d.const("xs", np.float32(0.03)), d.const("xz", np.uint8(128))
    q = d.node("QuantizeLinear", [x, scale, zero])
    w = d.const("w", d.rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8))
    values = [q, scale, zero, w, d.const("ws", np.float32(0.002)), d.const("wz", np.int8(0))]
    values += [d.const("ys", np.float32(0.03)), d.const("yz", np.uint8(128))]
    q = d.node("QLinearConv", values, pads=[1, 1, 1, 1])
    d.output(d.conv(d.node("DequantizeLinear", [q, "ys", "yz"]), 16, 8), ["batch", 8, 8, 8])


@row(2, nbits=Quantized())
def quantization_aware(d: Beast) -> None:
    """As training with simulated quantization leaves it: float weights go through a pair."""
    h = pair(d, d.input("x", ["batch", 64]), 0.03, "x")
    for i, (inputs, outputs) in enumerate([(64, 64), (64, 32)]):
        w = d.weight(f"w{i}", (outputs, inputs))
        scale = float(np.abs(d.normal((4, 4))).max() * 0 + 0.004)
        h = d.node("Gemm", [h, pair(d, w, scale, f"w{i}")], transB=1)
        h = pair(d, d.relu(h), 0.02, f"h{i}")
    d.output(h, ["batch", 32])


def pair(d: Beast, value: str, scale: float, label: str) -> str:
    """QuantizeLinear and DequantizeLinear."""
    parts = [d.const(f"{label}_s", np.float32(scale)), d.const(f"{label}_z", np.int8(0))]
    return d.node("DequantizeLinear", [d.node("QuantizeLinear", [value, *parts]), *parts])


@row(1)
def dynamic_quantized(d: Beast) -> None:
    """A DynamicQuantizeLinear and MatMulInteger of an earlier run, then a float product."""
    x = d.input("x", ["batch", 64])
    d.node("DynamicQuantizeLinear", [x], ["q", "s", "z"])
    w = d.const("w", d.rng.integers(-127, 128, (64, 64)).astype(np.int8))
    h = d.node("Cast", [d.node("MatMulInteger", ["q", w, "z"])], to=TensorProto.FLOAT)
    h = d.node("Mul", [h, d.node("Mul", ["s", d.const("ws", np.float32(0.001))])])
    d.output(d.matmul(d.relu(h), 64, 32), ["batch", 32])


@row(2, nbits=Quantized())
def domain_microsoft_weights(d: Beast) -> None:
    """The weight of an Attention of ONNX Runtime's own, and that of the product after it."""
    d.opsets["com.microsoft"] = 1
    x = d.input("x", [2, 12, 64])
    values = [x, d.const("qkv", d.normal((64, 192), 1)), d.bias("qkv_b", 192)]
    h = d.node("Attention", values, domain="com.microsoft", num_heads=4)
    d.output(d.matmul(h, 64, 32), [2, 12, 32])
