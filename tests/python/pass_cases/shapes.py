"""Shapes that a model computes from other shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from odd import Odd, ints, node, relu
from onnx import TensorProto


def shaped(*wanted: str, read: str = "x", **rest: Any) -> Odd:
    """A Reshape to lengths that are picked from shapes, as exporters write it."""
    picked = [
        found
        for at, one in enumerate(dict.fromkeys(wanted))
        if not one.startswith("k")
        for found in (
            node("Shape", one[0], f"shape{at}"),
            node("Gather", f"shape{at} at{one[1]}", one),
        )
    ]
    join = node("Concat", " ".join(wanted), "wanted", axis=0)
    constants = {"at0": ints(0), "at1": ints(1), "at2": ints(2), "k8": ints(8), "k4": ints(4)}
    constants |= {"krest": ints(-1)}
    used = {*wanted, *(f"at{one[1]}" for one in wanted)}
    constants = {name: value for name, value in constants.items() if name in used}
    attributes = {key: rest.pop(key) for key in ("allowzero",) if key in rest}
    last = node("Reshape", f"{read} wanted", "a", **attributes)
    inputs = rest.pop("inputs", {"x": ["N", "M", 32], "z": ["K", 8]})
    nodes = [*picked, join, last, relu(), *([relu("z", "v")] if "z" in inputs else [])]
    outputs = ("y", "v") if "z" in inputs else ("y",)
    return Odd(nodes, constants, inputs=inputs, outputs=outputs, **rest)


DONE: dict[str, tuple[str, Odd, int]] = {
    "a_known_length_of_a_shape_that_varies": (
        "fold_constants",
        Odd(
            [
                node("Shape", "x", "s"),
                node("Gather", "s two", "n"),
                node("Cast", "n", "f", to=TensorProto.FLOAT),
                node("Mul", "x f"),
            ],
            {"two": np.int64(2)},
            inputs={"x": ["N", "M", 32]},
        ),
        1,
    ),
    "heads_that_are_split_off": ("fold_shapes", shaped("x0", "x1", "k4", "k8"), 3),
    "lengths_that_one_is_left_of": (
        "fold_shapes",
        shaped("x1", "k4", "k8", inputs={"x": [1, "M", 32]}),
        2,
    ),
    "the_rest": ("fold_shapes", shaped("x0", "krest"), 3),
    "reshape_to_the_shape_that_it_has": (
        "remove_identity",
        Odd(
            [node("Shape", "x", "s"), node("Reshape", "x s", "a"), relu()],
            inputs={"x": ["N", "M", 32]},
        ),
        1,
    ),
}

KEPT: dict[str, Odd] = {
    "lengths_of_which_two_are_open": shaped(
        "x1", "z0", "k8", inputs={"x": ["N", "M", 8], "z": ["K", 8]}
    ),
    "a_length_of_another_and_the_rest": shaped("z0", "krest"),
    "zeros_that_mean_zero": shaped("x0", "x1", "k4", "k8", allowzero=1),
}
