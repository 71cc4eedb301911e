"""Recurrent networks as torch exports them, batch first: two layers and a head, seeded weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graph import FLOAT, Graph

INPUT, HIDDEN, CLASSES, STEPS = 512, 1024, 128, 32


def lstm(path: Path) -> None:
    """Two LSTM layers in both directions: 152 MB."""
    recurrent(path, "LSTM", gates=4, directions=2)


def gru(path: Path) -> None:
    """Two GRU layers, linear_before_reset as torch has it: 45 MB."""
    recurrent(path, "GRU", gates=3, directions=1, linear_before_reset=1)


def recurrent(path: Path, op: str, gates: int, directions: int, **attributes: int) -> None:
    """Write the layers and the head; each output is reshaped for the next layer."""
    rng = np.random.default_rng(gates)
    graph = Graph()

    def uniform(*shape: int) -> np.ndarray:
        """The initial weights that torch gives to recurrent layers."""
        bound = HIDDEN**-0.5
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    joined = graph.constant("joined", np.array([0, 0, -1]))
    if directions == 2:
        attributes = attributes | {"direction": "bidirectional"}  # type: ignore[dict-item]
    x, width = graph.node("Transpose", ["x"], "steps first", perm=[1, 0, 2]), INPUT
    for layer in (1, 2):
        name = f"{op.lower()}{layer}"
        values = [
            graph.constant(f"{name}.W", uniform(directions, gates * HIDDEN, width)),
            graph.constant(f"{name}.R", uniform(directions, gates * HIDDEN, HIDDEN)),
            graph.constant(f"{name}.B", uniform(directions, 2 * gates * HIDDEN)),
        ]
        y = graph.node(op, [x, *values], name, hidden_size=HIDDEN, **attributes)
        y = graph.node("Transpose", [y], f"{name}.directions last", perm=[0, 2, 1, 3])
        x, width = graph.node("Reshape", [y, joined], f"{name}.joined"), directions * HIDDEN
    x = graph.node("Transpose", [x], "batch first", perm=[1, 0, 2])
    head = graph.constant("head", uniform(width, CLASSES))
    graph.node("MatMul", [x, head], "y")
    inputs = [("x", FLOAT, ["batch", STEPS, INPUT])]
    graph.save(path, op.lower(), inputs, [("y", FLOAT, ["batch", STEPS, CLASSES])])
