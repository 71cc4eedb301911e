"""Passes from float to float: each does its work, and what the model computes stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError

README = Path(__file__).resolve().parents[2] / "README_PYTHON.md"

Array = npt.NDArray[Any]

rng = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return rng.normal(0, 1, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclasses.dataclass
class Odd:
    """A model with one thing in it that a pass is for."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    inputs: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: {"x": [2, 3, 8, 8]})
    outputs: tuple[str, ...] = ("y",)
    opset: int = 17
    dtype: Any = np.float32
    also_inputs: tuple[str, ...] = ()
    rounds: bool = False
    """Whether weights are rounded anew, so that outputs are equal to the last bits only."""

    def model(self) -> bytes:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info(k, kind, v) for k, v in self.inputs.items()]
        for name in self.also_inputs:
            array = self.constants[name]
            kind_of = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind_of, array.shape))
        graph = helper.make_graph(
            self.nodes,
            "odd",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("custom", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        # Outputs have the types that they are found to have.
        known = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(known.graph.output)
        found: bytes = model.SerializeToString()
        return found

    def feeds(self) -> judge.Feeds:
        shapes = {k: [d if isinstance(d, int) else 5 for d in v] for k, v in self.inputs.items()}
        return {name: normal(*shape).astype(self.dtype) for name, shape in shapes.items()}


def node(op_type: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; inputs are separated by blanks, `-` is one left out."""
    read = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, read, output.split(), name=f"a_{output}", **attributes)


def relu(value: str = "a", output: str = "y") -> onnx.NodeProto:
    return node("Relu", value, output)


def idle(op_type: str, read: str, constants: dict[str, Array], **rest: Any) -> Odd:
    """A node that changes nothing, before one that does."""
    odd = {key: rest.pop(key) for key in ("inputs", "opset", "dtype") if key in rest}
    return Odd([node(op_type, read, "a", **rest), node("Neg", "a")], constants, **odd)


BN = {"s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}


def normalized(first: onnx.NodeProto, constants: dict[str, Array], **rest: Any) -> Odd:
    bn = node("BatchNormalization", "a s b m v", "c", epsilon=1e-3)
    return Odd([first, bn, relu("c")], BN | constants, rounds=True, **rest)


def after(op_type: str, inputs: str, constant: Array, **rest: Any) -> Odd:
    """A convolution, and a constant after it."""
    conv = node("Conv", "x w bias", "a")
    constants = {"w": normal(4, 3, 3, 3), "bias": normal(4), "k": constant}
    return Odd([conv, node(op_type, inputs, "c"), relu("c")], constants, rounds=True, **rest)


def branch(name: str, value: str) -> onnx.GraphProto:
    """A body that reads a value from outside."""
    return helper.make_graph(
        [node("Neg" if name == "then" else "Abs", value, name)],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8, 8])],
    )


def choice(value: str) -> onnx.NodeProto:
    then, other = branch("then", value), branch("else", value)
    return node("If", "when", then_branch=then, else_branch=other)


YES = {"when": np.array(True)}

# What a pass has to take out: its name, the model, and how many nodes are left.
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
    "resize_that_names_its_axes": (
        "resize_all_axes",
        Odd(
            [node("Resize", "x - k", axes=[2, 3], mode="nearest")],
            {"k": np.array([2, 2], np.float32)},
            opset=18,
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
    "a_node_that_nobody_reads": ("dead", Odd([relu("x"), node("Exp", "x", "a")]), 1),
    "a_constant_that_nobody_reads": ("dead", Odd([relu("x")], {"w": normal(8)}), 1),
}

# What no pass may touch.
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
    "a_constant_that_is_an_output": Odd([node("Neg", "k")], {"k": normal(3)}),
    "an_overridable_weight": Odd(
        [node("Transpose", "w", "a", perm=[1, 0]), node("MatMul", "x a")],
        {"w": normal(5, 8)},
        also_inputs=("w",),
    ),
    "overridable_factors": Odd(
        [node("Conv", "x w", "a"), node("Mul", "a k")],
        {"w": normal(4, 3, 3, 3), "k": normal(4, 1, 1)},
        also_inputs=("k",),
    ),
    "equal_constants_one_overridable": Odd(
        [node("Add", "x k1", "a"), node("Add", "a k2")],
        {"k1": normal(8), "k2": normal(8)},
        also_inputs=("k2",),
    ),
    "a_large_constant_of_a_shape": Odd(
        [node("ConstantOfShape", "s", "k"), node("Add", "x k")],
        {"s": ints(64, 1024)},
        inputs={"x": [1, 1024]},
    ),
    "a_weight_also_read_untransposed": Odd(
        [node("Transpose", "w", "a"), node("MatMul", "x a", "b"), node("MatMul", "b w")],
        {"w": normal(8, 8)},
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
    "a_division_of_whole_numbers_by_zero": Odd(
        [
            node("Div", "k zero", "d"),
            node("Cast", "d", "f", to=TensorProto.FLOAT),
            node("Where", "c f x"),
        ],
        {"k": ints(1), "zero": ints(0), "c": np.array([False])},
    ),
}


def optimized(
    model: bytes | Path, **options: Any
) -> tuple[onnx.ModelProto, quantize_rs.OptimizationReport]:
    report = quantize_rs.optimize(model, **options)
    assert report.model is not None
    return onnx.load_from_string(report.model), report


def equal(before: bytes, after: bytes, feeds: judge.Feeds, *, exactly: bool) -> None:
    for optimize in (False, True):
        expected = judge.ort(before, feeds, optimized=optimize)
        found = judge.ort(after, feeds, optimized=optimize)
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype
            # Not optimized, nothing is rounded anew.
            if exactly and not optimize:
                np.testing.assert_array_equal(one, other)
                np.testing.assert_array_equal(np.signbit(one), np.signbit(other))
            else:  # 24 bits of each number, a few of them lost in sums of up to 54 products
                np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", DONE)
def test_a_pass_does_its_work(name: str) -> None:
    wanted, odd, left = DONE[name]
    model = odd.model()
    proto, report = optimized(model)
    assert wanted in [step.name for step in report.steps]
    assert all(step.did for step in report.steps)
    assert len(proto.graph.node) == left == report.nodes_after
    judge.check(proto.SerializeToString())
    before = onnx.load_from_string(model)
    assert list(before.graph.input) == list(proto.graph.input)
    assert list(before.graph.output) == list(proto.graph.output)
    read = {name for node in proto.graph.node for name in node.input}
    if "body" not in name and "bodies" not in name:
        assert {tensor.name for tensor in proto.graph.initializer} <= read
    equal(model, proto.SerializeToString(), odd.feeds(), exactly=not odd.rounds)


@pytest.mark.parametrize("name", DONE)
def test_a_second_run_changes_nothing(name: str) -> None:
    first, _ = optimized(DONE[name][1].model())
    second, report = optimized(first.SerializeToString())
    assert report.steps == ()
    assert second.SerializeToString() == first.SerializeToString()


@pytest.mark.parametrize("name", DONE)
def test_a_pass_that_is_skipped_does_nothing(name: str) -> None:
    wanted, odd, _ = DONE[name]
    _, report = optimized(odd.model(), skip=[wanted])
    assert wanted not in [step.name for step in report.steps]
    _, report = optimized(odd.model(), passes=[wanted])
    assert [step.name for step in report.steps] == [wanted]
    after, report = optimized(odd.model(), passes=[])
    assert report.steps == ()
    assert after.SerializeToString() == odd.model()


@pytest.mark.parametrize("name", KEPT)
def test_what_is_needed_stays(name: str) -> None:
    model = KEPT[name].model()
    after, report = optimized(model)
    assert report.steps == (), report
    assert after.SerializeToString() == model


def test_a_weight_keeps_its_name_when_it_is_transposed() -> None:
    proto, _ = optimized(DONE["transposed_weight"][1].model())
    assert [(tensor.name, list(tensor.dims)) for tensor in proto.graph.initializer] == [
        ("w", [8, 5])
    ]


def test_a_weight_keeps_its_name_when_a_norm_is_folded() -> None:
    proto, report = optimized(DONE["conv_and_norm"][1].model())
    assert {tensor.name for tensor in proto.graph.initializer} == {"w", "w_bias"}
    assert "e-8 of themselves" in report.steps[0].did[0]


@pytest.mark.parametrize("name", judge.FIXTURES)
def test_fixtures_compute_what_they_did(name: str) -> None:
    said = judge.FIXTURES[name]
    proto, _ = optimized(judge.model(name))
    after = proto.SerializeToString()
    assert quantize_rs.optimize(after).steps == ()
    if said["checked"]:
        judge.check(after)
    before = onnx.load(judge.model(name))
    constants = {tensor.name for tensor in before.graph.initializer if before.ir_version < 4}
    inputs = [value for value in before.graph.input if value.name not in constants]
    assert inputs == [value for value in proto.graph.input if value.name not in constants]
    assert list(before.graph.output) == list(proto.graph.output)
    if said["runs"] and said["finite"]:
        feeds = judge.feeds(name)
        for way in (True, False):
            expected = judge.ort(judge.model(name), feeds, optimized=way)
            found = judge.ort(after, feeds, optimized=way)
            assert judge.sqnr(expected, found) > 120  # dB: the last bits of float32


def test_files_and_memory(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    target = folder / "simple.onnx"
    report = quantize_rs.optimize(digits, target)
    assert report.model is None
    assert report.output == str(target)
    assert report.bytes_after == target.stat().st_size
    assert [path.name for path in folder.iterdir()] == ["simple.onnx"]
    assert quantize_rs.optimize(onnx.load(digits)).model is not None
    assert set(report.to_dict()) == {
        "input",
        "output",
        "bytes_before",
        "bytes_after",
        "nodes_before",
        "nodes_after",
        "steps",
        "seconds",
    }
    assert str(report).startswith(f"{report.nodes_before} -> {report.nodes_after} nodes")


def test_an_unknown_pass_is_refused(digits: Path, tmp_path: Path) -> None:
    call: Callable[..., Any] = quantize_rs.optimize
    for option in ("passes", "skip"):
        with pytest.raises(OptionError, match="fold_constants") as caught:
            call(digits, tmp_path / "simple.onnx", **{option: ["fold"]})
        assert caught.value.option == option
    with pytest.raises(OptionError):
        call(digits, passes="dead")
    assert not (tmp_path / "simple.onnx").exists()


def test_every_pass_is_tried_and_written_down() -> None:
    with pytest.raises(OptionError) as caught:
        quantize_rs.optimize(DONE["identity"][1].model(), passes=["none"])
    passes = str(caught.value).rsplit("of ", 1)[1].split(", ")
    # Functions are tried in test_functions.py.
    assert set(passes) == {wanted for wanted, _, _ in DONE.values()} | {"inline_functions"}
    text = README.read_text("utf-8")
    assert all(f"| `{name}` |" in text for name in passes)
    assert all(f'``"{name}"``' in (quantize_rs.optimize.__doc__ or "") for name in passes)


@pytest.mark.parametrize(
    "wishes",
    [
        {"excluded_layers": ["norm"]},
        {"excluded_layers": ["BatchNormalization"]},
        {"excluded_layers": ["re:nor."]},
    ],
    ids=str,
)
def test_what_was_folded_away_can_still_be_named(wishes: dict[str, Any]) -> None:
    statistics = {name: np.abs(normal(6)) + 0.1 for name in ("scale", "bias", "mean", "var")}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("BatchNormalization", ["c", *statistics], ["y"], name="norm"),
        ],
        "folded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(array, name)
            for name, array in {"w": normal(6, 4, 3, 3), **statistics}.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = quantize_rs.quantize(model, None, **wishes)
    (text,) = wishes["excluded_layers"]
    assert any(text in warning and "folded" in warning for warning in report.warnings)
    assert [value.quantized for value in report.weights] == [True]
    report = quantize_rs.quantize(model, None, optimize=False, **wishes)
    assert not any("folded" in warning for warning in report.warnings)
    with pytest.raises(OptionError, match="nrom"):
        quantize_rs.quantize(model, None, excluded_layers=["nrom"])
