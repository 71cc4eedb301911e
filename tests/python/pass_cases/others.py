"""Cases of the other passes."""

from __future__ import annotations

import numpy as np
from odd import YES, Odd, choice, node, normal, relu
from onnx import TensorProto, helper, numpy_helper

DONE: dict[str, tuple[str, Odd, int]] = {
    "resize_that_names_its_axes": (
        "resize_all_axes",
        Odd(
            [node("Resize", "x - k", axes=[2, 3], mode="nearest")],
            {"k": np.array([2, 2], np.float32)},
            opset=18,
        ),
        1,
    ),
    "pad_that_names_its_axes": (
        "pad_all_axes",
        Odd(
            [node("Pad", "x pads - axes", mode="reflect")],
            {"pads": np.array([1, 2, 0, 1]), "axes": np.array([-1, 1])},
            opset=18,
        ),
        1,
    ),
    "a_weight_that_a_body_carries": (
        "lift_carried",
        Odd(
            [
                node(
                    "Scan",
                    "x w many",
                    "y last",
                    num_scan_inputs=1,
                    body=helper.make_graph(
                        [
                            node("Add", "h one", "sum"),
                            node("MatMul", "sum v", "h_out"),
                            node("Identity", "v", "v_out"),
                        ],
                        "body",
                        [
                            helper.make_tensor_value_info("h", TensorProto.FLOAT, [3, 8]),
                            helper.make_tensor_value_info("v", TensorProto.FLOAT, [8, 8]),
                            helper.make_tensor_value_info("one", TensorProto.FLOAT, [3, 8]),
                        ],
                        [
                            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, [3, 8]),
                            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, [8, 8]),
                        ],
                    ),
                )
            ],
            {"w": normal(8, 8) / 3, "many": normal(2, 3, 8)},
            inputs={"x": [3, 8]},
        ),
        1,
    ),
    "weights_in_a_body": (
        "lift_weights",
        Odd(
            [
                node(
                    "If",
                    "when",
                    then_branch=helper.make_graph(
                        [node("MatMul", "x v", "then")],
                        "then",
                        [],
                        [helper.make_tensor_value_info("then", TensorProto.FLOAT, [3, 4])],
                        [numpy_helper.from_array(normal(8, 4), "v")],
                    ),
                    else_branch=helper.make_graph(
                        [node("MatMul", "x u", "else")],
                        "else",
                        [],
                        [helper.make_tensor_value_info("else", TensorProto.FLOAT, [3, 4])],
                        [numpy_helper.from_array(normal(8, 4), "u")],
                    ),
                )
            ],
            YES,
            inputs={"x": [3, 8]},
        ),
        1,
    ),
    "a_weight_that_is_quantized": (
        "store_integers",
        Odd(
            [
                node("QuantizeLinear", "w s z", "q"),
                node("DequantizeLinear", "q s z", "d"),
                node("MatMul", "x d"),
            ],
            {"w": normal(8, 4), "s": np.float32(0.05), "z": np.uint8(128)},
        ),
        2,
    ),
    "a_zero_point_behind_an_identity": (
        "store_integers",
        Odd(
            [
                node("Identity", "z", "same"),
                node("QuantizeLinear", "w s same", "q"),
                node("DequantizeLinear", "q s z", "d"),
                node("MatMul", "x d"),
            ],
            {"w": normal(8, 4), "s": np.float32(0.05), "z": np.uint8(128)},
        ),
        2,
    ),
    "factors_of_a_gemm": (
        "fold_gemm_factors",
        Odd(
            [node("Gemm", "x w k", alpha=0.3, beta=-1.7, transB=1)],
            {"w": normal(4, 8), "k": normal(1, 4)},
            inputs={"x": [3, 8]},
            rounds=True,
        ),
        1,
    ),
    "factors_that_are_powers_of_two": (
        "fold_gemm_factors",
        Odd(
            [node("Gemm", "x w k", "a", alpha=0.5, beta=2.0), node("Max", "a k")],
            {"w": normal(8, 4), "k": normal(4)},
            inputs={"x": [3, 8]},
        ),
        2,
    ),
    "a_bias_of_one_element": (
        "fold_gemm_factors",
        Odd(
            [node("Gemm", "x w k", "a", beta=0.5), node("Gemm", "a u k", transB=1)],
            {"w": normal(8, 4), "u": normal(5, 4), "k": normal(1)},
            inputs={"x": [3, 8]},
        ),
        2,
    ),
    "a_factor_of_nothing": (
        "fold_gemm_factors",
        Odd([node("Gemm", "x w", beta=3.0)], {"w": normal(8, 4)}, inputs={"x": [3, 8]}),
        1,
    ),
    "a_factor_that_is_zero": (
        "fold_gemm_factors",
        Odd(
            [node("Gemm", "x w k", beta=0.0)],
            {"w": normal(8, 4), "k": normal(4)},
            inputs={"x": [3, 8]},
        ),
        1,
    ),
    "equal_weights": (
        "merge_duplicates",
        Odd(
            [node("MatMul", "x w1", "a"), node("MatMul", "a w2")],
            {"w1": np.eye(8, dtype=np.float32), "w2": np.eye(8, dtype=np.float32)},
        ),
        2,
    ),
    "equal_constants_read_by_bodies": (
        "merge_duplicates",
        Odd(
            [node("Add", "x k1", "a"), choice("k2"), node("Add", "y a", "z")],
            YES | {name: np.full((2, 3, 8, 8), 2.5, np.float32) for name in ("k1", "k2")},
            outputs=("z",),
        ),
        3,
    ),
    "a_node_without_consumers": ("dead", Odd([relu("x"), node("Exp", "x", "a")]), 1),
    "a_constant_without_consumers": ("dead", Odd([relu("x")], {"w": normal(8)}), 1),
}

KEPT: dict[str, Odd] = {
    "factors_of_a_bias_that_varies": Odd(
        [node("Gemm", "x w k", alpha=0.5, beta=2.0)],
        {"w": normal(8, 4)},
        inputs={"x": [3, 8], "k": [4]},
    ),
    "factors_of_a_weight_with_two_readers": Odd(
        [node("Gemm", "x w", "a", alpha=0.5), node("Gemm", "a w", alpha=0.25)],
        {"w": normal(8, 8)},
        inputs={"x": [3, 8]},
    ),
    "a_factor_that_leaves_the_range": Odd(
        [node("Gemm", "x w", alpha=1e30)],
        {"w": normal(8, 4) * np.float32(1e20)},
        inputs={"x": [3, 8]},
    ),
    "equal_constants_one_overridable": Odd(
        [node("Add", "x k1", "a"), node("Add", "a k2")],
        {"k1": normal(8), "k2": normal(8)},
        also_inputs=("k2",),
    ),
}
