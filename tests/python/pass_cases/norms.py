"""Nodes that scale and shift channels, after a product and before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from odd import Array, Odd, node, normal, relu

BN = {"s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}


def normalized(first: onnx.NodeProto, constants: dict[str, Array], **rest: Any) -> Odd:
    bn = node("BatchNormalization", "a s b m v", "c", epsilon=1e-3)
    return Odd([first, bn, relu("c")], BN | constants, rounds=True, **rest)


def after(op_type: str, inputs: str, constant: Array, **rest: Any) -> Odd:
    """A convolution, and a constant after it."""
    conv = node("Conv", "x w bias", "a")
    constants = {"w": normal(4, 3, 3, 3), "bias": normal(4), "k": constant}
    return Odd([conv, node(op_type, inputs, "c"), relu("c")], constants, rounds=True, **rest)


def before(op_type: str, reads: str, constant: Array, product: onnx.NodeProto, **rest: Any) -> Odd:
    """A constant, and a product of the value that is computed with it."""
    constants = {"k": constant} | rest.pop("constants", {"w": normal(4, 3, 3, 3)})
    nodes = [node(op_type, reads, "a"), product, *rest.pop("more", [relu("c")])]
    return Odd(nodes, constants, rounds=True, **rest)


def normalized_before(product: onnx.NodeProto, constants: dict[str, Array], **rest: Any) -> Odd:
    bn = node("BatchNormalization", "x s b m v", "a", epsilon=1e-3)
    channels = rest["inputs"]["x"][1]
    held = {"s": normal(channels), "b": normal(channels), "m": normal(channels)}
    held |= {"v": np.abs(normal(channels)) + 0.5} | constants
    return Odd([bn, product, relu("c")], held, rounds=True, **rest)


FORWARD = "fold_batch_norm_forward"
PADDED = {"pads": [1, 1, 1, 1]}
ROWS: dict[str, list[Any]] = {"x": [3, 8]}

DONE: dict[str, tuple[str, Odd, int]] = {
    "conv_and_norm": (
        "fold_batch_norm",
        normalized(node("Conv", "x w", "a"), {"w": normal(4, 3, 3, 3)}),
        2,
    ),
    "conv_with_groups_and_norm": (
        "fold_batch_norm",
        normalized(
            node("Conv", "x w bias", "a", group=2),
            {"w": normal(4, 2, 3, 3), "bias": normal(4)},
            inputs={"x": [2, 4, 8, 8]},
        ),
        2,
    ),
    "conv_transpose_with_groups_and_norm": (
        "fold_batch_norm",
        normalized(
            node("ConvTranspose", "x w", "a", group=2, strides=[2, 2]),
            {"w": normal(6, 2, 3, 3)},
            inputs={"x": [2, 6, 5, 5]},
        ),
        2,
    ),
    "gemm_and_norm": (
        "fold_batch_norm",
        normalized(
            node("Gemm", "x w k", "a", alpha=0.5, beta=2.0, transB=1),
            {"w": normal(4, 8), "k": normal(1, 4)},
            inputs={"x": [3, 8]},
        ),
        2,
    ),
    "gemm_with_a_scalar_and_norm": (
        "fold_batch_norm",
        normalized(
            node("Gemm", "x w k", "a"),
            {"w": normal(8, 4), "k": normal(1)},
            inputs={"x": [3, 8]},
        ),
        2,
    ),
    "matmul_and_norm": (
        "fold_batch_norm",
        normalized(node("MatMul", "x w", "a"), {"w": normal(8, 4)}, inputs={"x": ["N", 8]}),
        3,
    ),
    "matmul_and_add_and_norm": (
        "fold_batch_norm",
        Odd(
            [
                node("MatMul", "x w", "p"),
                node("Add", "k p", "a"),
                node("BatchNormalization", "a s b m v", "c"),
                relu("c"),
            ],
            BN | {"w": normal(8, 4), "k": normal(4)},
            inputs={"x": ["N", 8]},
            rounds=True,
        ),
        3,
    ),
    "norm_in_float64": (
        "fold_batch_norm",
        Odd(
            [node("Gemm", "x w", "a"), node("Mul", "a k", "c"), relu("c")],
            {"w": normal(8, 4).astype(np.float64), "k": normal(4).astype(np.float64)},
            inputs={"x": [3, 8]},
            dtype=np.float64,
            rounds=True,
        ),
        2,
    ),
    "norm_that_is_an_output": (
        "fold_batch_norm",
        Odd(
            [node("Conv", "x w", "a"), node("BatchNormalization", "a s b m v")],
            BN | {"w": normal(4, 3, 3, 3)},
            rounds=True,
        ),
        1,
    ),
    "conv_plus_constant": ("fold_batch_norm", after("Add", "k a", normal(4, 1, 1)), 2),
    "conv_plus_scalar": ("fold_batch_norm", after("Add", "a k", normal(1)), 2),
    "conv_minus_constant": ("fold_batch_norm", after("Sub", "a k", normal(1, 4, 1, 1)), 2),
    "constant_minus_conv": ("fold_batch_norm", after("Sub", "k a", normal(4, 1, 1)), 2),
    "conv_times_constant": ("fold_batch_norm", after("Mul", "a k", normal(4, 1, 1)), 2),
    "conv_by_constant": ("fold_batch_norm", after("Div", "a k", normal(4, 1, 1) + 3), 2),
    "a_weight_of_two_norms": (
        "fold_batch_norm",
        Odd(
            [
                node("Conv", "x w", "a"),
                node("BatchNormalization", "a s b m v", "c"),
                node("Conv", "x w", "d"),
                node("BatchNormalization", "d b s m v", "e"),
                node("Add", "c e"),
            ],
            BN | {"w": normal(4, 3, 3, 3)},
            rounds=True,
        ),
        3,
    ),
    "norm_and_conv": (
        FORWARD,
        normalized_before(
            node("Conv", "a w", "c"), {"w": normal(4, 3, 3, 3)}, inputs={"x": [2, 3, 8, 8]}
        ),
        2,
    ),
    "norm_and_conv_with_groups": (
        FORWARD,
        normalized_before(
            node("Conv", "a w bias", "c", group=2),
            {"w": normal(4, 2, 3, 3), "bias": normal(4)},
            inputs={"x": [2, 4, 8, 8]},
        ),
        2,
    ),
    "norm_and_gemm": (
        FORWARD,
        normalized_before(
            node("Gemm", "a w k", "c", alpha=0.5, beta=2.0, transB=1),
            {"w": normal(4, 8), "k": normal(4)},
            inputs=ROWS,
        ),
        2,
    ),
    "norm_and_gemm_without_bias": (
        FORWARD,
        normalized_before(node("Gemm", "a w", "c"), {"w": normal(8, 4)}, inputs=ROWS),
        2,
    ),
    "factors_and_padded_conv": (
        FORWARD,
        before("Mul", "k x", normal(3, 1, 1), node("Conv", "a w", "c", **PADDED)),
        2,
    ),
    "one_factor_and_conv": (
        FORWARD,
        before("Div", "x k", np.float32(255), node("Conv", "a w", "c", **PADDED)),
        2,
    ),
    "shifts_and_conv": (
        FORWARD,
        before("Sub", "x k", normal(3, 1, 1), node("Conv", "a w", "c", auto_pad="VALID")),
        2,
    ),
    "factors_and_conv_transpose": (
        FORWARD,
        before(
            "Mul",
            "x k",
            normal(6, 1, 1),
            node("ConvTranspose", "a w", "c", group=2, strides=[2, 2]),
            constants={"w": normal(6, 2, 3, 3)},
            inputs={"x": [2, 6, 5, 5]},
        ),
        2,
    ),
    "factors_and_matmul": (
        FORWARD,
        before(
            "Mul",
            "x k",
            normal(8),
            node("MatMul", "a w", "c"),
            constants={"w": normal(8, 4)},
            inputs={"x": [2, 3, 8]},
        ),
        2,
    ),
    "shifts_and_matmul_with_a_sum": (
        FORWARD,
        before(
            "Sub",
            "k x",
            normal(1, 8),
            node("MatMul", "a w", "p"),
            constants={"w": normal(8, 4), "bias": normal(4)},
            more=[node("Add", "p bias", "c"), relu("c")],
            inputs=ROWS,
        ),
        3,
    ),
}

NORM = {
    "w": normal(4, 3, 3, 3),
    "scale": np.ones(4, np.float32),
    "bias": np.zeros(4, np.float32),
    "mean": np.zeros(4, np.float32),
    "var": np.ones(4, np.float32),
}

KEPT: dict[str, Odd] = {
    # Before opset 14, more outputs than one make it train.
    "norm_with_statistics_that_nothing_reads": Odd(
        [
            node("Conv", "x w", "a"),
            node("BatchNormalization", "a scale bias mean var", "y m v sm sv"),
        ],
        NORM,
        opset=9,
    ),
    # ONNX Runtime writes the new mean over the old one.
    "equal_constants_of_a_norm_that_trains": Odd(
        [
            node("Conv", "x w", "a"),
            node("BatchNormalization", "a scale bias mean var", "y m v", training_mode=1),
        ],
        NORM,
        opset=15,
    ),
    # With their constants ONNX Runtime knows these as one function.
    "gelu_written_out": Odd(
        [
            node("Div", "x root", "d"),
            node("Erf", "d", "e"),
            node("Add", "e one", "o"),
            node("Mul", "x o", "p"),
            node("Mul", "p half", "q"),
            node("MatMul", "q w"),
        ],
        {
            "root": np.float32(2**0.5),
            "one": np.float32(1),
            "half": np.float32(0.5),
            "w": normal(8, 4),
        },
        inputs=ROWS,
    ),
    "normalization_written_out": Odd(
        [
            node("ReduceMean", "x", "m", axes=[-1]),
            node("Sub", "x m", "c"),
            node("Pow", "c two", "s"),
            node("ReduceMean", "s", "v", axes=[-1]),
            node("Add", "v little", "t"),
            node("Sqrt", "t", "r"),
            node("Div", "c r", "n"),
            node("Mul", "n gain", "g"),
            node("Add", "g shift", "l"),
            node("MatMul", "l w"),
        ],
        {
            "two": np.float32(2),
            "little": np.float32(1e-5),
            "gain": normal(8),
            "shift": normal(8),
            "w": normal(8, 4),
        },
        inputs=ROWS,
    ),
    "overridable_factors": Odd(
        [node("Conv", "x w", "a"), node("Mul", "a k")],
        {"w": normal(4, 3, 3, 3), "k": normal(4, 1, 1)},
        also_inputs=("k",),
    ),
    "matmul_plus_constant": Odd(
        [node("MatMul", "x w", "a"), node("Add", "a k")], {"w": normal(8, 4), "k": normal(4)}
    ),
    "a_product_read_twice": Odd(
        [node("Conv", "x w", "a"), node("Mul", "a k", "c"), node("Add", "a c")],
        {"w": normal(4, 3, 3, 3), "k": normal(4, 1, 1)},
    ),
    "a_product_that_is_an_output": Odd(
        [node("Conv", "x w", "a"), node("Mul", "a k")],
        {"w": normal(4, 3, 3, 3), "k": normal(4, 1, 1)},
        outputs=("y", "a"),
    ),
    "a_norm_over_another_axis": Odd(
        [node("MatMul", "x w", "a"), node("BatchNormalization", "a s b m v")],
        BN | {"w": normal(8, 4)},
        inputs={"x": [2, 4, 8]},
    ),
    "a_constant_along_the_rows": after("Mul", "a k", normal(6, 1)),
    "a_constant_of_more_axes": after("Add", "a k", normal(1, 1, 4, 1, 1)),
    "a_factor_that_overflows": after("Mul", "a k", np.full((4, 1, 1), 3e38, np.float32)),
    "a_division_by_zero": after("Div", "a k", np.zeros((4, 1, 1), np.float32)),
    "shifts_before_a_padded_conv": before(
        "Add", "x k", normal(3, 1, 1), node("Conv", "a w", "c", **PADDED)
    ),
    "shifts_before_a_matmul_without_a_sum": before(
        "Add",
        "x k",
        normal(8),
        node("MatMul", "a w", "c"),
        constants={"w": normal(8, 4)},
        inputs=ROWS,
    ),
    "factors_that_others_read": before(
        "Mul",
        "x k",
        normal(3, 1, 1),
        node("Conv", "a w", "c", **PADDED),
        more=[node("Add", "c a")],
        constants={"w": normal(3, 3, 3, 3)},
    ),
    "factors_before_a_function": before(
        "Mul",
        "x k",
        normal(8),
        relu("a", "b"),
        constants={"w": normal(8, 4)},
        more=[node("MatMul", "b w")],
        inputs=ROWS,
    ),
    "factors_that_make_channels": before(
        "Mul",
        "x k",
        normal(8),
        node("MatMul", "a w", "c"),
        constants={"w": normal(8, 4)},
        inputs={"x": [3, 1]},
    ),
    "factors_of_what_is_transposed": before(
        "Mul",
        "x k",
        normal(4),
        node("Gemm", "a w", "c", transA=1),
        constants={"w": normal(8, 4)},
        inputs={"x": [8, 4]},
    ),
}
