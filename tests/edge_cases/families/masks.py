"""Masks: numbers that only say 'not this one'."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from rows import Beast, Quantized, row

WIDTH = 64
FLOOR = 20  # scores decide the probabilities: an error of theirs is a relative one of these


def attention(d: Beast, masked: str) -> None:
    """Attention of one head over the scores that `masked` makes of them."""
    h = d.inputs[0].name
    q, k, v = (d.matmul(h, WIDTH, WIDTH) for _ in range(3))
    scores = d.node("MatMul", [q, d.node("Transpose", [k], perm=[0, 2, 1])])
    scores = d.node("Mul", [scores, d.const("scaled", np.float32(WIDTH**-0.5))])
    for step in masked.split():
        scores = d.node(step, [scores, "mask"])
    h = d.node("MatMul", [d.node("Softmax", [scores], axis=-1), v])
    d.output(d.matmul(h, WIDTH, WIDTH), ["batch", 12, WIDTH])


def triangle(low: float) -> np.ndarray:
    return np.triu(np.full((12, 12), low, np.float32), 1)


@row(4, static=Quantized(floor=FLOOR))
def mask_minus_ten_thousand(d: Beast) -> None:
    """A causal mask of -1e4 is added to the scores."""
    d.input("x", ["batch", 12, WIDTH])
    d.const("mask", triangle(-1e4))
    attention(d, "Add")


@row(4, static=Quantized(floor=FLOOR))
def mask_lowest(d: Beast) -> None:
    """A causal mask of the lowest float32 is added to the scores."""
    d.input("x", ["batch", 12, WIDTH])
    d.const("mask", triangle(float(np.finfo(np.float32).min)))
    attention(d, "Add")


@row(4, static=Quantized(floor=FLOOR))
def mask_infinite(d: Beast) -> None:
    """A causal mask of -inf is added to the scores."""
    d.input("x", ["batch", 12, WIDTH])
    low = np.zeros((12, 12), np.float32)
    low[np.triu_indices(12, 1)] = -np.inf
    d.const("mask", low)
    attention(d, "Add")


@row(4, static=Quantized(floor=FLOOR))
def mask_where(d: Beast) -> None:
    """Where puts -inf for the scores that count not."""
    d.input("x", ["batch", 12, WIDTH])
    h = d.inputs[0].name
    q, k, v = (d.matmul(h, WIDTH, WIDTH) for _ in range(3))
    scores = d.node("MatMul", [q, d.node("Transpose", [k], perm=[0, 2, 1])])
    scores = d.node("Mul", [scores, d.const("scaled", np.float32(WIDTH**-0.5))])
    keep, low = d.const("keep", np.tri(12, dtype=bool)), d.const("low", np.float32(-np.inf))
    probabilities = d.node("Softmax", [d.node("Where", [keep, scores, low])], axis=-1)
    d.output(d.matmul(d.node("MatMul", [probabilities, v]), WIDTH, WIDTH), ["batch", 12, WIDTH])


@row(4, ranges={"mask_of": (0, 1)}, static=Quantized(floor=FLOOR))
def mask_of_input(d: Beast) -> None:
    """The mask is computed from an input of integers, -10000 (1 - mask), as BERT has it."""
    d.input("x", ["batch", 12, WIDTH])
    m = d.node("Cast", [d.input("mask_of", ["batch", 12], TensorProto.INT64)], to=1)
    m = d.node("Unsqueeze", [m, d.integers("one_axis", 1)])
    m = d.node("Sub", [d.const("one", np.float32(1)), m])
    d.node("Mul", [m, d.const("low", np.float32(-1e4))], ["mask"])
    attention(d, "Add")


@row(4, opset=23, static=Quantized(floor=FLOOR))
def attention_operator(d: Beast) -> None:
    """ONNX's own Attention of opset 23, which ONNX Runtime's tool takes for another."""
    x = d.input("x", [2, 12, WIDTH])
    q, k, v = (d.matmul(x, WIDTH, WIDTH) for _ in range(3))
    h = d.node("Attention", [q, k, v], q_num_heads=4, kv_num_heads=4, is_causal=1)
    d.output(d.matmul(h, WIDTH, WIDTH), [2, 12, WIDTH])
