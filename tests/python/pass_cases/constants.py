"""Values that are constant at inference time, and values that only seem to be."""

from __future__ import annotations

import numpy as np
from odd import Odd, ints, node, normal
from onnx import TensorProto, helper, numpy_helper

DONE: dict[str, tuple[str, Odd, int]] = {
    "transposed_weight": (
        "fold_constants",
        Odd(
            [node("Transpose", "w", "a", perm=[1, 0]), node("MatMul", "x a")],
            {"w": normal(5, 8)},
        ),
        1,
    ),
    "shape_of_a_known_shape": (
        "fold_constants",
        Odd(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "n"),
                node("Unsqueeze", "n zeros", "n1"),
                node("Concat", "n1 rest", "t", axis=0),
                node("Reshape", "x t"),
            ],
            {"zero": np.int64(0), "zeros": ints(0), "rest": ints(-1)},
        ),
        1,
    ),
    "arithmetic": (
        "fold_constants",
        Odd(
            [
                node("Sqrt", "k", "r"),
                node("Reciprocal", "r", "q"),
                node("Pow", "q two", "p"),
                node("Neg", "p", "n"),
                node("Where", "c n k", "u"),
                node("Max", "u k", "m"),
                node("Add", "x m"),
            ],
            {
                "k": np.array([2.0, 3.0, 5.0, 7.0, 0.1, 0.7, 11.0, 13.0], np.float32),
                "two": np.float32(2),
                "c": np.array([True, False] * 4),
            },
        ),
        1,
    ),
    "a_slice_of_nothing": (
        "fold_constants",
        Odd(
            [
                node("Slice", "nothing m e zero m", "s"),
                node("ReduceSum", "s one", "t", keepdims=0),
                node("Concat", "t k", "u", axis=0),
                node("Add", "x u"),
            ],
            {
                "nothing": np.zeros((0, 0), np.float32),
                "m": ints(-1),
                "e": ints(-9),
                "zero": ints(0),
                "one": ints(1),
                "k": normal(8),
            },
        ),
        3,
    ),
    "whole_numbers": (
        "fold_constants",
        Odd(
            [
                node("Range", "i j i", "r"),
                node("Slice", "r b e - m", "s"),
                node("Div", "s two", "d"),
                node("Sub", "d two", "t"),
                node("Equal", "t d", "q"),
                node("Cast", "q", "c", to=TensorProto.FLOAT),
                node("Cast", "t", "f", to=TensorProto.FLOAT),
                node("Expand", "f shape", "g"),
                node("ReduceProd", "shape", "p", keepdims=0),
                node("Cast", "p", "h", to=TensorProto.FLOAT),
                node("Add", "g c", "u"),
                node("Mul", "u h", "v"),
                node("Add", "x v"),
            ],
            {
                "i": np.int64(1),
                "j": np.int64(18),
                "b": ints(-1),
                "e": ints(-(2**63)),
                "m": ints(-2),
                "two": np.int64(-2),
                "shape": ints(8, 1),
            },
            inputs={"x": [2, 8, 9]},
        ),
        1,
    ),
    "a_small_constant_of_a_shape": (
        "fold_constants",
        Odd(
            [
                node(
                    "ConstantOfShape",
                    "s",
                    "k",
                    value=numpy_helper.from_array(np.array([2.5], np.float32)),
                ),
                node("Tile", "k r", "t"),
                node("Mul", "x t"),
            ],
            {"s": ints(1, 8), "r": ints(8, 1)},
        ),
        1,
    ),
    "constants_of_bodies": (
        "fold_constants",
        Odd(
            [
                node(
                    "If",
                    "when",
                    then_branch=helper.make_graph(
                        [
                            node("Add", "k1 k", "k2"),
                            node("Cast", "k2", "k3", to=TensorProto.DOUBLE),
                            node("Cast", "k3", "k4", to=TensorProto.FLOAT),
                            node("Mul", "x k4", "then"),
                        ],
                        "then",
                        [],
                        [helper.make_tensor_value_info("then", TensorProto.FLOAT, [3, 8])],
                        [numpy_helper.from_array(normal(8), "k1")],
                    ),
                    else_branch=helper.make_graph(
                        [node("Neg", "k", "k5"), node("Expand", "k5 size", "else")],
                        "else",
                        [],
                        [helper.make_tensor_value_info("else", TensorProto.FLOAT, [3, 8])],
                    ),
                )
            ],
            {"k": normal(8), "size": ints(3, 8), "when": np.array(True)},
            inputs={"x": [3, 8]},
        ),
        1,
    ),
    "parts_of_a_weight": (
        "fold_constants",
        Odd(
            [
                node("Split", "w", "a b c", axis=1, split=[4, 2, 4]),
                node("MatMul", "x a", "p"),
                node("MatMul", "x c", "q"),
                node("Add", "p q", "s"),
                node("MatMul", "x b", "r"),
                node("Concat", "s r", axis=1),
            ],
            {"w": normal(8, 10)},
            inputs={"x": [3, 8]},
            opset=11,
        ),
        5,
    ),
    "equal_parts_of_a_weight": (
        "fold_constants",
        Odd(
            [
                node("Split", "w", "a b", axis=-2),
                node("MatMul", "x a", "p"),
                node("MatMul", "x b", "q"),
                node("Add", "p q"),
            ],
            {"w": normal(16, 4)},
            inputs={"x": [3, 8]},
        ),
        3,
    ),
    "uneven_parts_of_a_weight": (
        "fold_constants",
        Odd(
            [
                node("Split", "w", "a b", axis=1, num_outputs=2),
                node("MatMul", "x a", "p"),
                node("MatMul", "x b", "q"),
                node("Concat", "p q", axis=1),
            ],
            {"w": normal(8, 5)},
            inputs={"x": [3, 8]},
            opset=18,
        ),
        3,
    ),
    "parts_of_lengths_that_are_an_input": (
        "fold_constants",
        Odd(
            [
                node("Split", "w lengths", "a b"),
                node("MatMul", "x a", "p"),
                node("Gemm", "p b", transB=1),
            ],
            {"w": normal(12, 8), "lengths": ints(8, 4)},
            inputs={"x": [3, 8]},
        ),
        2,
    ),
}

KEPT: dict[str, Odd] = {
    # Runtimes return NaN or 0.
    "relu_of_no_number": Odd(
        [node("Relu", "k", "a"), node("Mul", "x a")],
        {"k": np.array([1, np.nan, -1], np.float32)},
        inputs={"x": [2, 3]},
    ),
    "parts_of_a_weight_that_is_read": Odd(
        [
            node("Split", "w", "a b", axis=1),
            node("MatMul", "x a", "p"),
            node("MatMul", "x b", "q"),
            node("MatMul", "x w", "r"),
            node("Concat", "p q r", axis=1),
        ],
        {"w": normal(8, 4)},
        inputs={"x": [3, 8]},
    ),
    "a_constant_that_is_an_output": Odd([node("Neg", "k")], {"k": normal(3)}),
    "an_overridable_weight": Odd(
        [node("Transpose", "w", "a", perm=[1, 0]), node("MatMul", "x a")],
        {"w": normal(5, 8)},
        also_inputs=("w",),
    ),
    "a_large_constant_of_a_shape": Odd(
        [node("ConstantOfShape", "s", "k"), node("Add", "x k")],
        {"s": ints(64, 1024)},
        inputs={"x": [1, 1024]},
    ),
    "a_constant_that_only_repeats": Odd(
        [node("ConstantOfShape", "s", "k"), node("Add", "x k")],
        {"s": ints(32, 64)},
        inputs={"x": [1, 64]},
    ),
    "a_weight_also_read_untransposed": Odd(
        [node("Transpose", "w", "a"), node("MatMul", "x a", "b"), node("MatMul", "b w")],
        {"w": normal(8, 8)},
    ),
    "a_division_of_whole_numbers_by_zero": Odd(
        [
            node("Div", "k zero", "d"),
            node("Cast", "d", "f", to=TensorProto.FLOAT),
            node("Where", "c f x"),
        ],
        {"k": ints(1), "zero": ints(0), "c": np.array([False])},
    ),
}
