"""Nodes that change nothing, and some that do."""

from __future__ import annotations

import numpy as np
from odd import YES, Odd, choice, idle, ints, node, relu
from onnx import TensorProto

DONE: dict[str, tuple[str, Odd, int]] = {
    "identity": ("remove_identity", idle("Identity", "x", {}), 1),
    "identity_of_an_output": (
        "remove_identity",
        Odd([relu("x", "a"), node("Identity", "a")]),
        1,
    ),
    "identities_of_an_output_twice": (
        "remove_identity",
        Odd(
            [relu("x", "a"), node("Identity", "a"), node("Identity", "a", "z")], outputs=("y", "z")
        ),
        2,
    ),
    "identity_read_by_a_body": (
        "remove_identity",
        Odd([node("Identity", "x", "a"), choice("a")], YES),
        1,
    ),
    "a_chain_of_identities": (
        "remove_identity",
        Odd(
            [
                *(node("Identity", f"a{i}" if i else "x", f"a{i + 1}") for i in range(50)),
                relu("a50"),
            ]
        ),
        1,
    ),
    "dropout": ("remove_identity", idle("Dropout", "x", {}), 1),
    "dropout_7": ("remove_identity", idle("Dropout", "x", {}, opset=9, ratio=0.3), 1),
    "dropout_not_training": (
        "remove_identity",
        idle("Dropout", "x r t", {"r": np.float32(0.5), "t": np.array(False)}),
        1,
    ),
    "cast_to_the_same": ("remove_identity", idle("Cast", "x", {}, to=TensorProto.FLOAT), 1),
    "transpose_of_nothing": ("remove_identity", idle("Transpose", "x", {}, perm=[0, 1, 2, 3]), 1),
    "transposes_that_cancel": (
        "remove_identity",
        Odd(
            [
                node("Transpose", "x", "a", perm=[0, 2, 3, 1]),
                node("Transpose", "a", "c", perm=[0, 3, 1, 2]),
                relu("c"),
            ]
        ),
        1,
    ),
    "reshape_to_itself": ("remove_identity", idle("Reshape", "x s", {"s": ints(2, 3, 8, 8)}), 1),
    "reshape_of_a_batch": (
        "remove_identity",
        idle("Reshape", "x s", {"s": ints(-1, 3, 8)}, inputs={"x": ["N", 3, 8]}),
        1,
    ),
    "flatten_of_a_matrix": ("remove_identity", idle("Flatten", "x", {}, inputs={"x": ["N", 8]}), 1),
    "squeeze_of_nothing": ("remove_identity", idle("Squeeze", "x s", {"s": ints()}), 1),
    "pad_of_nothing": (
        "remove_identity",
        idle("Pad", "x p", {"p": ints(0, 0, 0, 0, 0, 0, 0, 0)}),
        1,
    ),
    "slice_of_everything": (
        "remove_identity",
        idle("Slice", "x f t n", {"f": ints(0, 0), "t": ints(3, 2**63 - 1), "n": ints(1, -1)}),
        1,
    ),
    "slice_of_everything_9": (
        "remove_identity",
        idle("Slice", "x", {}, opset=9, starts=[0], ends=[2**31 - 1], axes=[0]),
        1,
    ),
    "expand_to_itself": ("remove_identity", idle("Expand", "x s", {"s": ints(1, 3, 1, 8)}), 1),
    "tile_once": ("remove_identity", idle("Tile", "x r", {"r": ints(1, 1, 1, 1)}), 1),
    "concat_of_one": ("remove_identity", idle("Concat", "x", {}, axis=1), 1),
    "times_one": ("remove_identity", idle("Mul", "k x", {"k": np.float32(1)}), 1),
    "divided_by_ones": (
        "remove_identity",
        idle("Div", "x k", {"k": np.ones((3, 1, 1), "f")}),
        1,
    ),
    "minus_zero": ("remove_identity", idle("Sub", "x k", {"k": np.float32(0)}), 1),
    "plus_minus_zero": ("remove_identity", idle("Add", "x k", {"k": np.float32(-0.0)}), 1),
}

KEPT: dict[str, Odd] = {
    "plus_zero": idle("Add", "x k", {"k": np.float32(0)}),
    "minus_minus_zero": idle("Sub", "x k", {"k": np.float32(-0.0)}),
    "ones_that_broadcast": idle(
        "Mul", "x k", {"k": np.ones((4, 1), np.float32)}, inputs={"x": [1, 8]}
    ),
    "one_with_more_axes": idle("Mul", "x k", {"k": np.ones((1, 1), np.float32)}, inputs={"x": [8]}),
    "dropout_that_trains": Odd(
        [node("Dropout", "x r t", "a"), relu()], {"r": np.float32(0), "t": np.array(True)}
    ),
    "dropout_with_a_mask": Odd([node("Dropout", "x", "y m")], outputs=("y", "m")),
    "cast_to_another": idle("Cast", "x", {}, to=TensorProto.FLOAT16),
    "squeeze_of_whatever_is_one": idle("Squeeze", "x", {}, inputs={"x": ["N", 8]}),
    "slice_of_less": idle("Slice", "x f t", {"f": ints(0), "t": ints(1)}),
    "slice_backwards": idle(
        "Slice", "x f t n m", {"f": ints(-2), "t": ints(-99), "n": ints(3), "m": ints(-1)}
    ),
    "slice_of_what_varies": idle(
        "Slice", "x f t", {"f": ints(0), "t": ints(8)}, inputs={"x": ["N", 8]}
    ),
    "an_input_that_is_an_output": Odd([node("Identity", "x")]),
}
