"""Recurrent layers: gates stacked in one tensor, directions along its first axis."""

from __future__ import annotations

import numpy as np
from rows import Beast

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
