"""Recurrent layers: gates stacked in one tensor, directions along its first axis."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from rows import Beast, Quantized, row

SEQUENCE = [10, "batch", 48]
INPUT, HIDDEN = 48, 48


def cell(d: Beast, op: str, x: str, gates: int, directions: int = 1, **attributes: object) -> str:
    """A recurrent layer with weights W and R and a bias; the name of its first output."""
    label = d.next_label(op.lower())
    w = d.const(f"{label}_w", layer(d, directions, gates * HIDDEN, INPUT))
    r = d.const(f"{label}_r", layer(d, directions, gates * HIDDEN, HIDDEN))
    b = d.const(f"{label}_b", d.rng.normal(0, 0.1, (directions, 2 * gates * HIDDEN)).astype("f4"))
    outputs = [f"{label}_y", f"{label}_h"]
    return d.node(op, [x, w, r, b], outputs, hidden_size=HIDDEN, **attributes)


def layer(d: Beast, directions: int, rows: int, columns: int) -> np.ndarray:
    return d.rng.normal(0, columns**-0.5, (directions, rows, columns)).astype(np.float32)


@row(2)
def lstm(d: Beast) -> None:
    """An LSTM: W and R hold four gates each."""
    d.output(cell(d, "LSTM", d.input("x", SEQUENCE), 4), [10, 1, "batch", HIDDEN])
    d.output("lstm1_h", [1, "batch", HIDDEN])


@row(2)
def lstm_bidirectional(d: Beast) -> None:
    """Both directions: two layers in one tensor, one of ten times the magnitude."""
    x = d.input("x", SEQUENCE)
    w, r = layer(d, 2, 4 * HIDDEN, INPUT), layer(d, 2, 4 * HIDDEN, HIDDEN)
    w[1] *= 0.1
    r[1] *= 0.1
    values = [x, d.const("w", w), d.const("r", r)]
    d.node("LSTM", values, ["y"], hidden_size=HIDDEN, direction="bidirectional")
    d.output("y", [10, 2, "batch", HIDDEN])


@row(2)
def lstm_states_and_peepholes(d: Beast) -> None:
    """Lengths, initial states and peepholes given, cell clipped."""
    x = d.input("x", SEQUENCE)
    w, r = d.const("w", layer(d, 1, 192, 48)), d.const("r", layer(d, 1, 192, 48))
    b = d.const("b", d.rng.normal(0, 0.1, (1, 384)).astype(np.float32))
    lengths = d.const("lengths", np.array([10, 7, 3, 1], np.int32))
    start_h = d.const("h0", d.rng.normal(0, 0.5, (1, 4, HIDDEN)).astype(np.float32))
    start_c = d.const("c0", d.rng.normal(0, 0.5, (1, 4, HIDDEN)).astype(np.float32))
    peep = d.const("p", d.rng.normal(0, 0.1, (1, 3 * HIDDEN)).astype(np.float32))
    d.node(
        "LSTM",
        [x, w, r, b, lengths, start_h, start_c, peep],
        ["y", "h", "c"],
        hidden_size=HIDDEN,
        clip=2.0,
    )
    d.output("y", [10, 1, "batch", HIDDEN])
    d.output("c", [1, "batch", HIDDEN])


@row(2)
def lstm_without_bias(d: Beast) -> None:
    """The bias and the lengths are left out by empty names, initial states are given."""
    x = d.input("x", SEQUENCE)
    w, r = d.const("w", layer(d, 1, 192, 48)), d.const("r", layer(d, 1, 192, 48))
    start = d.const("start", d.rng.normal(0, 0.5, (1, 4, HIDDEN)).astype(np.float32))
    d.node("LSTM", [x, w, r, "", "", start, start], ["", "", "c"], hidden_size=HIDDEN)
    d.output("c", [1, "batch", HIDDEN])


@row(4)
def lstm_stacked(d: Beast) -> None:
    """Two layers with a Squeeze between them, and a head."""
    h = d.node("Squeeze", [cell(d, "LSTM", d.input("x", SEQUENCE), 4), d.integers("one", 1)])
    h = d.node("Squeeze", [cell(d, "LSTM", h, 4), "one"])
    d.output(h, [10, "batch", HIDDEN])


@row(3)
def lstm_and_head(d: Beast) -> None:
    """A product after the last state."""
    cell(d, "LSTM", d.input("x", SEQUENCE), 4)
    h = d.node("Squeeze", ["lstm1_h", d.integers("zero", 0)])
    d.output(d.gemm(h, HIDDEN, 32), ["batch", 32])


@row(2)
def gru(d: Beast) -> None:
    """A GRU as PyTorch exports it, linear_before_reset = 1."""
    y = cell(d, "GRU", d.input("x", SEQUENCE), 3, linear_before_reset=1)
    d.output(y, [10, 1, "batch", HIDDEN])


@row(2)
def gru_bidirectional(d: Beast) -> None:
    """A GRU in both directions, as the standard defines it by default."""
    y = cell(d, "GRU", d.input("x", SEQUENCE), 3, 2, direction="bidirectional")
    d.output(y, [10, 2, "batch", HIDDEN])


@row(2)
def gru_reverse(d: Beast) -> None:
    """A GRU that reads from the end."""
    y = cell(d, "GRU", d.input("x", SEQUENCE), 3, direction="reverse")
    d.output(y, [10, 1, "batch", HIDDEN])


@row(2)
def rnn(d: Beast) -> None:
    """A plain RNN."""
    d.output(cell(d, "RNN", d.input("x", SEQUENCE), 1), [10, 1, "batch", HIDDEN])


@row(2)
def rnn_relu_bidirectional(d: Beast) -> None:
    """A plain RNN with Relu, whose states grow, in both directions."""
    given = {"direction": "bidirectional", "activations": ["Relu", "Relu"]}
    y = cell(d, "RNN", d.input("x", SEQUENCE), 1, 2, **given)
    d.output(y, [10, 2, "batch", HIDDEN])


@row(3)
def lstm_of_tokens(d: Beast) -> None:
    """Tokens, a table, an LSTM: what is small here is most of many text models."""
    ids = d.input("ids", [10, "batch"], TensorProto.INT64)
    table = d.const("table", d.rng.normal(0, 1, (100, INPUT)).astype(np.float32))
    y = cell(d, "LSTM", d.node("Gather", [table, ids]), 4)
    d.output(y, [10, 1, "batch", HIDDEN])


@row(2, opset=7)
def lstm_opset7(d: Beast) -> None:
    """An LSTM of opset 7."""
    d.output(cell(d, "LSTM", d.input("x", SEQUENCE), 4), [10, 1, "batch", HIDDEN])


@row(2, opset=9, int4=Quantized(floor=12))
def gru_opset9(d: Beast) -> None:
    """A GRU of opset 9."""
    d.output(cell(d, "GRU", d.input("x", SEQUENCE), 3), [10, 1, "batch", HIDDEN])


@row(2)
def lstm_constant_nodes(d: Beast) -> None:
    """The weights of an LSTM are made by Constant nodes."""
    x = d.input("x", SEQUENCE)
    made = [
        d.node("Constant", [], value=helper.make_tensor("", TensorProto.FLOAT, a.shape, a.ravel()))
        for a in (layer(d, 1, 192, 48), layer(d, 1, 192, 48))
    ]
    d.node("LSTM", [x, *made], ["", "h"], hidden_size=HIDDEN)
    d.output("h", [1, "batch", HIDDEN])
