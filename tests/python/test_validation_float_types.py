"""`validate` passes results of `float_type`, and finds what is wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from graphs import built
from onnx import ModelProto, TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import validate

FLOAT_TYPES = ["float16", "bfloat16"]
WAYS: list[dict[str, Any]] = [
    {},
    {"bits": 4, "block_size": 32},
    {"bits": 4, "output_format": "matmul_nbits"},
]
Change: TypeAlias = Callable[[ModelProto], None]


def normal(*shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 8


def written(model: bytes, float_type: str, **options: Any) -> ModelProto:
    report = quantize_rs.quantize(
        model, None, float_type=float_type, check="none", allow_larger=True, **options
    )
    assert report.model is not None
    return onnx.load_from_string(report.model)


def multiplied(bases: str, index: int, by: float) -> Change:
    """Multiply an element of the first constant that exists; its name may end in the type."""

    def change(made: ModelProto) -> None:
        constants: list[onnx.TensorProto] = []
        for base in bases.split():
            names = [base + suffix for suffix in ("", "_float16", "_bfloat16")]
            constants = constants or [it for it in made.graph.initializer if it.name in names]
        # Each that was read in both types, too.
        tensor = constants[-1]
        values = np.array(numpy_helper.to_array(tensor))
        values.flat[index] *= by
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return change


def rewired(op_type: str, value: str) -> Change:
    def change(made: ModelProto) -> None:
        next(it for it in made.graph.node if it.op_type == op_type).input[0] = value

    return change


def passes_unless(model: bytes, made: ModelProto, change: Change) -> None:
    found = validate(model, made)
    assert found.passed, str(found)
    change(made)
    assert not validate(model, made).passed


def normalized(operator: str) -> bytes:
    factors = {"gamma": 1 + normal(64, seed=1), "beta": normal(64, seed=2)}
    if operator == "RMSNormalization":
        del factors["beta"]
    nodes = [
        helper.make_node(operator, ["x", *factors], ["h"], "norm", axis=-1),
        helper.make_node("MatMul", ["h", "w"], ["y"], "product"),
    ]
    made = onnx.load_from_string(built(nodes, {"w": normal(64, 192), **factors}, ["n", 64]))
    made.opset_import[0].version = 23
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("float_type", FLOAT_TYPES)
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_factors_of_a_normalization_are_rounded(
    operator: str, options: dict[str, Any], float_type: str
) -> None:
    model = normalized(operator)
    made = written(model, float_type, **options)
    assert not any(weight.smoothed for weight in validate(model, made).weights)
    passes_unless(model, made, multiplied("gamma", 5, 1.5))


def test_factors_of_smoothing_are_rounded() -> None:
    model = normalized("LayerNormalization")
    sizes = np.exp(2 * np.random.default_rng(4).normal(size=64)).astype(np.float32)
    changed = onnx.load_from_string(model)
    gamma = next(it for it in changed.graph.initializer if it.name == "gamma")
    gamma.CopyFrom(numpy_helper.from_array(sizes, "gamma"))
    samples = [{"x": normal(4, 64, seed=seed)} for seed in range(16)]
    report = quantize_rs.quantize_with_calibration(
        changed, None, samples, weight_algorithm="nearest", check="none"
    )
    assert report.model is not None
    narrow = quantize_rs.convert_float16(report.model).model
    assert narrow is not None
    made = onnx.load_from_string(narrow)
    assert [weight.smoothed for weight in validate(changed, made).weights] == [True]
    passes_unless(changed.SerializeToString(), made, multiplied("gamma", 5, 1.1))


def masked() -> bytes:
    """The softmax of scores with a mask, which is clipped."""
    mask = np.triu(np.full((64, 64), np.finfo(np.float32).min, np.float32), 1)
    mask[0, 1] = -65504
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Add", ["h", "mask"], ["s"], "sum"),
        helper.make_node("Softmax", ["s"], ["y"], "softmax", axis=-1),
    ]
    return built(nodes, {"w": normal(64, 64), "mask": mask}, ["b", 64, 64])


def kept_mask() -> bytes:
    """The sum with a mask that float16 does not hold."""
    mask = np.triu(np.full((64, 64), np.finfo(np.float32).min, np.float32), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Add", ["h", "mask"], ["y"], "sum"),
    ]
    return built(nodes, {"w": normal(64, 64), "mask": mask}, ["b", 64, 64])


def weight_norm() -> bytes:
    """A weight that is computed of constants."""
    nodes = [
        helper.make_node("ReduceL2", ["v"], ["norm"], "norm", axes=[1, 2], keepdims=1),
        helper.make_node("Div", ["g", "norm"], ["by"], "quotient"),
        helper.make_node("Mul", ["v", "by"], ["w"], "weight"),
        helper.make_node("Conv", ["x", "w"], ["h"], "first", pads=[1, 1]),
        helper.make_node("Conv", ["h", "u"], ["y"], "second", pads=[1, 1]),
    ]
    constants = {"v": normal(16, 8, 3), "g": 1 + normal(16, 1, 1, seed=1)}
    return built(nodes, constants | {"u": normal(8, 16, 3, seed=2)}, ["b", 8, 20])


def function() -> bytes:
    """A call of a function without weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("activation", ["h"], ["y"], "call", domain="local"),
    ]
    made = onnx.load_from_string(built(nodes, {"w": normal(64, 64)}, ["n", 64]))
    opset = made.opset_import[0]
    body = [helper.make_node("Erf", ["a"], ["e"]), helper.make_node("Mul", ["a", "e"], ["b"])]
    made.functions.append(helper.make_function("local", "activation", ["a"], ["b"], body, [opset]))
    made.opset_import.append(helper.make_opsetid("local", 1))
    return bytes(made.SerializeToString())


def positions() -> bytes:
    """Whole numbers that are cast to the type of the angles that they are multiplied by."""
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], "whole", to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["whole", "axis"], ["rows"], "rows"),
        helper.make_node("Cast", ["rows"], ["position"], "cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["frequencies", "position"], ["angles"], "angles"),
        helper.make_node("Cos", ["angles"], ["cosine"], "cosine"),
        helper.make_node("MatMul", ["w", "cosine"], ["y"], "product"),
    ]
    axis = np.array([1], np.int64)
    constants = {"axis": axis, "frequencies": normal(1, 64, 1), "w": normal(64, 64, seed=1)}
    return built(nodes, constants, ["b", "s"])


MODELS: dict[str, tuple[Callable[[], bytes], Change]] = {
    "mask": (masked, multiplied("mask", 1, 0.5)),
    "large mask": (kept_mask, rewired("Add", "mask")),
    # Folded, and perhaps quantized.
    "weight norm": (weight_norm, multiplied("w w_scale", 7, 1.5)),
    "function": (function, rewired("Erf", "x")),
    "positions": (positions, rewired("Cos", "position")),
}


@pytest.mark.parametrize("float_type", FLOAT_TYPES)
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_what_16_bits_change_passes(name: str, options: dict[str, Any], float_type: str) -> None:
    make, change = MODELS[name]
    model = make()
    passes_unless(model, written(model, float_type, **options), change)


@pytest.mark.parametrize("float_type", FLOAT_TYPES)
def test_an_identity_may_write_an_output(float_type: str) -> None:
    """Nothing is quantized: the passes that run before quantization have changed nothing."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "product", alpha=0.5, beta=2.0),
        helper.make_node("Identity", ["h"], ["y"], "identity"),
    ]
    model = built(nodes, {"w": normal(64, 32), "b": normal(32, seed=1)}, ["n", 64])
    passes_unless(model, written(model, float_type, exclude=["w"]), multiplied("w", 3, 1.5))


@pytest.mark.parametrize("float_type", FLOAT_TYPES)
def test_a_table_of_a_mask_in_16_bits_is_clipped(float_type: str) -> None:
    """A mask that is cut out of a table, which is stored in 16 bits beside the other weight."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Shape", ["x"], ["to"], "length", start=1, end=2),
        helper.make_node("Slice", ["mask", "from", "to"], ["rows"], "rows"),
        helper.make_node("Add", ["h", "rows"], ["s"], "sum"),
        helper.make_node("Softmax", ["s"], ["y"], "softmax", axis=-1),
    ]
    mask = np.triu(np.full((64, 64), np.finfo(np.float32).min, np.float32), 1)
    constants = {"w": normal(64, 64), "mask": mask, "from": np.array([0], np.int64)}
    model = built(nodes, constants, ["b", "s", 64])
    made = written(model, float_type, bits=4, output_format="matmul_nbits")
    passes_unless(model, made, multiplied("mask", 1, 0.5))


def test_a_bias_beyond_the_middle_of_two_numbers_is_rounded_up() -> None:
    bias = normal(8)
    bias[2] = 0.002265931572765112
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "filter", pads=[1, 1])]
    model = built(nodes, {"w": normal(8, 8, 3, seed=1), "b": bias}, ["b", 8, 20])
    passes_unless(model, written(model, "bfloat16"), multiplied("b", 2, 1.1))


@pytest.mark.parametrize("options", WAYS[1:], ids=str)
@pytest.mark.parametrize("size", [1e-40, 1e-8, 1e-6, 1e-5])
def test_a_scale_may_be_too_small_for_float16(size: float, options: dict[str, Any]) -> None:
    weight = normal(64, 64)
    weight[:, 9] *= np.float32(size)
    model = built([helper.make_node("MatMul", ["x", "w"], ["y"], "p")], {"w": weight}, ["n", 64])
    made = written(model, "float16", **options)
    scale = next(it for it in made.graph.initializer if it.name == "w_scale")
    values = numpy_helper.to_array(scale)
    usual = int(np.argmax(np.abs(values) > 1e-3))
    passes_unless(model, made, multiplied("w_scale", usual, 0))
