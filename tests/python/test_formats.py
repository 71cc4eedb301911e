"""Number formats of weights: what is written against numpy, and what ONNX Runtime runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

Floats = npt.NDArray[np.float32]

OPSET = 25
"""The first that knows all types of integers."""


class Case(NamedTuple):
    """A weight and the operator that reads it."""

    weight: Floats
    op_type: str = "MatMul"
    attributes: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    x: npt.NDArray[Any] | None = None


def model(case: Case, opset: int = OPSET) -> bytes:
    """The operator between `x` and `y`."""
    x = feeds(case)["x"]
    names = ["W", "x"] if case.op_type == "Gather" else ["x", "W"]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    rank = x.ndim + case.weight.ndim - 1 if case.op_type == "Gather" else x.ndim
    rank -= case.weight.ndim == 1  # a vector is multiplied away
    graph = helper.make_graph(
        [helper.make_node(case.op_type, names, ["y"], **case.attributes)],
        "formats",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(case.weight, "W")],
    )
    version = 13 if opset >= 25 else 10
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=version)
    return bytes(made.SerializeToString())


def feeds(case: Case) -> oracle.Feeds:
    """The input: rows of the length of the weight's rows."""
    if case.x is not None:
        return {"x": case.x}
    rng = np.random.default_rng(3)
    return {"x": rng.normal(size=(3, case.weight.shape[-2])).astype(np.float32)}


def floats(written: bytes, name: str = "W") -> Floats:
    """The weight of the file, dequantized by the reference implementation of ONNX."""
    found = onnx.load_from_string(written)
    nodes = {output: node for node in found.graph.node for output in node.output}
    constants = {tensor.name for tensor in found.graph.initializer}
    needed, waiting = [], [name]
    while waiting:
        made = waiting.pop()
        if made not in constants:
            needed.append(nodes[made])
            waiting.extend(part for part in nodes[made].input if part)
    graph = helper.make_graph(
        needed[::-1],
        "weight",
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        list(found.graph.initializer),
    )
    alone = helper.make_model(graph, opset_imports=found.opset_import, ir_version=found.ir_version)
    [value] = oracle.reference(alone.SerializeToString(), {})
    return np.asarray(value)


def constant(written: bytes, name: str) -> npt.NDArray[Any]:
    """A constant of the file."""
    graph = onnx.load_from_string(written).graph
    [tensor] = [tensor for tensor in graph.initializer if tensor.name == name]
    return np.asarray(numpy_helper.to_array(tensor))


def squared(x: Floats, y: Floats) -> float:
    """The sum of the squared differences."""
    return float(((x.astype(np.float64) - y.astype(np.float64)) ** 2).sum())


NARROW = {"int4": 8, "uint4": 8, "int2": 2, "uint2": 2}
"""The negative end of each narrow type, from its middle; the positive end is one less."""


@pytest.mark.parametrize("weights", NARROW)
def test_each_column_has_the_best_of_a_few_scales(weights: str) -> None:
    rng = np.random.default_rng(7)
    w = rng.normal(size=(96, 40)).astype(np.float32)
    report = quantize_rs.quantize(
        model(Case(w)), None, weights=weights, per_channel=True, symmetric=True
    )
    assert report.model is not None
    written = floats(report.model)
    scales = constant(report.model, "W_scale")
    below = NARROW[weights]
    for column, scale, found in zip(w.T, scales, written.T, strict=True):
        sign = 1 if -column.min() >= column.max() else -1
        far, near = -(sign * column).min(), (sign * column).max()
        tried = [max(far / below, near / up) for up in (below, below - 0.5, below - 1)]
        made = [
            np.clip(np.rint(column / s), -below, below - 1) * s
            for s in (np.float32(sign * scale) for scale in tried)
        ]
        errors = [squared(column, y) for y in made]
        assert np.sign(scale) == sign
        assert squared(column, found) == pytest.approx(min(errors), rel=1e-5)
        # The longer end represents all values of its sign.
        assert abs(scale) * below >= far * (1 - 1e-6)
    plain = quantize_rs.quantize(
        model(Case(w)), None, weights=weights, per_channel=True, symmetric=True, narrow_range=True
    )
    assert plain.model is not None
    gain = 10 * np.log10(squared(w, floats(plain.model)) / squared(w, written))
    # 0.6 to 1.6 dB for 4 bits and 2.8 to 5 dB for 2 are what a normal distribution promises.
    assert gain > (0.6 if below == 8 else 2.8)


@pytest.mark.parametrize("weights", NARROW)
@pytest.mark.parametrize("positive", [False, True])
def test_a_weight_of_three_values_stays_exact(weights: str, positive: bool) -> None:
    rng = np.random.default_rng(8)
    w = (rng.integers(-1, 2, (64, 16)) * np.linspace(0.5, 2, 16)).astype(np.float32)
    if positive:
        w = np.abs(w)
    report = quantize_rs.quantize(
        model(Case(w)), None, weights=weights, per_channel=True, symmetric=True
    )
    assert report.model is not None
    np.testing.assert_allclose(floats(report.model), w, rtol=1e-6)


@pytest.mark.parametrize("weights", NARROW)
@pytest.mark.parametrize("optimized", [False, True])
def test_negative_scales_run(weights: str, optimized: bool) -> None:
    rng = np.random.default_rng(9)
    w = rng.normal(size=(64, 32)).astype(np.float32)
    w[0] = 5  # each column has its largest element above 0
    filters = rng.normal(size=(8, 4, 3, 3)).astype(np.float32)
    filters[:, 0, 0, 0] = 5
    image = rng.normal(size=(1, 4, 8, 8)).astype(np.float32)
    rows = np.array([3, 1, 60], np.int64)
    cases = [
        Case(w),
        Case(w, "Gemm"),
        Case(filters, "Conv", x=image),
        Case(w.T.copy(), "Gather", {"axis": 0}, rows % 32),
    ]
    for case in cases:
        written = quantize_rs.quantize(
            model(case), None, weights=weights, per_channel=True, symmetric=True, check="none"
        ).model
        assert written is not None
        assert (constant(written, "W_scale") < 0).all()
        expected = oracle.reference(model(case._replace(weight=floats(written))), feeds(case))
        found = oracle.ort(written, feeds(case), optimized=optimized)
        # With optimizations, MatMulNBits quantizes the rows of `x` to 8 bits.
        floor = 30 if optimized and case.op_type in ("MatMul", "Gemm") else 100
        assert oracle.sqnr(expected, found) > floor, case.op_type


@pytest.mark.parametrize("target", ["tensorrt", "openvino", "qnn", "generic"])
def test_scales_are_positive_without_a_search(target: str) -> None:
    w = np.abs(np.random.default_rng(4).normal(size=(32, 8))).astype(np.float32)
    for weights in NARROW:
        written = quantize_rs.quantize(
            model(Case(w)), None, weights=weights, symmetric=True, target=target
        ).model
        assert written is not None
        assert (constant(written, "W_scale") > 0).all()


@pytest.mark.parametrize(
    ("weights", "narrow", "lowest"),
    [("int8", None, -127), ("int8", False, -128), ("int4", None, -8), ("int4", True, -7)],
)
def test_narrow_range_says_whether_the_lowest_value_is_used(
    weights: str, narrow: bool | None, lowest: int
) -> None:
    w = np.linspace(-1, 0.5, 64, dtype=np.float32).reshape(16, 4)
    written = quantize_rs.quantize(
        model(Case(w)), None, weights=weights, symmetric=True, narrow_range=narrow
    ).model
    assert written is not None
    assert constant(written, "W_quantized").astype(np.int64).min() == lowest


HALVES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("weights", HALVES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_floats_of_16_bits_are_cast(weights: str, per_channel: bool) -> None:
    rng = np.random.default_rng(11)
    w = (rng.normal(size=(64, 32)) * 10.0 ** rng.integers(-9, 4, (64, 32))).astype(np.float32)
    case = Case(w)
    report = quantize_rs.quantize(model(case), None, weights=weights, per_channel=per_channel)
    written = report.model
    assert written is not None
    oracle.check(written)
    expected = w.astype(HALVES[weights]).astype(np.float32)
    np.testing.assert_array_equal(floats(written), expected)
    graph = onnx.load_from_string(written).graph
    assert [node.op_type for node in graph.node] == ["Cast", "MatMul"]
    assert [tensor.name for tensor in graph.initializer] == [f"W_{weights}"]
    assert report.ratio > 1.8
    [value] = [value for value in report.values if value.role == "weight"]
    noise = 10 * np.log10((w.astype(np.float64) ** 2).sum() / squared(w, expected))
    assert value.sqnr_db == pytest.approx(noise, abs=1e-6)
    for optimized in (False, True):
        found = oracle.ort(written, feeds(case), optimized=optimized)
        same = oracle.ort(model(case._replace(weight=expected)), feeds(case), optimized=optimized)
        assert oracle.sqnr(same, found) > 120


@pytest.mark.parametrize("name", ["fp16", "half", "bf16"])
def test_floats_of_16_bits_have_short_names(name: str) -> None:
    report = quantize_rs.quantize(model(Case(np.ones((4, 4), np.float32))), None, weights=name)
    [value] = [value for value in report.values if value.role == "weight"]
    assert value.qtype in HALVES


def test_what_float16_cannot_hold_stays_float32_or_is_refused_by_name() -> None:
    w = np.full((4, 4), 65504, np.float32)
    assert quantize_rs.quantize(model(Case(w)), None, weights="float16").model is not None
    w[2, 1] = -65505
    report = quantize_rs.quantize(model(Case(w)), None, weights="float16")
    (value,) = (value for value in report.values if value.role == "weight")
    assert value.why == (
        "not quantized: has numbers that float16 does not hold: element 9 is -65505.0"
    )
    assert any("float16 does not hold their numbers: `W`" in text for text in report.warnings)
    with pytest.raises(
        quantize_rs.QuantizeError, match=r"`W`.*65505.*the largest number of float16 is 65504"
    ):
        quantize_rs.quantize(model(Case(w)), None, weights="float16", include=["W"])
    assert quantize_rs.quantize(model(Case(w)), None, weights="bfloat16").model is not None


def test_bfloat16_raises_the_opset_to_13_and_float16_does_not() -> None:
    case = Case(np.ones((4, 4), np.float32))
    for weights, opset, found in (("float16", 7, 7), ("bfloat16", 12, 13), ("bfloat16", 17, 17)):
        written = quantize_rs.quantize(model(case, opset), None, weights=weights).model
        assert written is not None
        assert [entry.version for entry in onnx.load_from_string(written).opset_import] == [found]


def _layers() -> bytes:
    """Three products, one after the other, and a Gemm."""
    rng = np.random.default_rng(12)
    names = ["enc/0/w", "enc/1/w", "dec/w", "head"]
    ops = ["MatMul", "MatMul", "MatMul", "Gemm"]
    graph = helper.make_graph(
        [
            helper.make_node(op, [f"x{i}", name], [f"x{i + 1}"], name=f"node{i}")
            for i, (op, name) in enumerate(zip(ops, names, strict=True))
        ],
        "layers",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, (2, 16))],
        [helper.make_tensor_value_info("x4", TensorProto.FLOAT, (2, 16))],
        [
            numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), name)
            for name in names
        ],
    )
    opsets = [helper.make_opsetid("", 25)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=13)
    return bytes(made.SerializeToString())


TYPES = ["int2", "uint4", "int8", "float8e5m2", "uint16", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("of_name", TYPES)
def test_a_name_takes_precedence_over_a_pattern_an_operator_and_the_default(of_name: str) -> None:
    others = [name for name in TYPES if name not in (of_name, "float32")]
    for pattern in ("enc/*", r"re:enc/[01]/w"):
        report = quantize_rs.quantize(
            _layers(),
            None,
            weights=others[2],
            layer_bits={"MatMul": others[1], pattern: others[0], "enc/1/w": of_name},
        )
        found = {value.name: value.qtype for value in report.values if value.role == "weight"}
        assert found == {
            "enc/0/w": others[0],
            "enc/1/w": None if of_name == "float32" else of_name,
            "dec/w": others[1],
            "head": others[2],
        }
        assert report.model is not None
        inputs = {"x0": np.ones((2, 16), np.float32)}
        expected = oracle.reference(report.model, inputs)
        assert oracle.sqnr(expected, oracle.ort(report.model, inputs, optimized=False)) > 90


def test_an_operator_or_a_pattern_can_be_left_float() -> None:
    cases: list[tuple[dict[str, int | str], int]] = [
        ({"MatMul": "float32"}, 3),
        ({"*/w": "fp32", "dec/w": 8}, 2),
    ]
    for layers, kept in cases:
        report = quantize_rs.quantize(_layers(), None, layer_bits=layers)
        reasons = [v.why for v in report.values if v.role == "weight" and v.qtype is None]
        assert len(reasons) == kept
        assert all("excluded by" in why for why in reasons)


def test_what_has_the_type_that_is_asked_for_stays() -> None:
    w = np.random.default_rng(13).normal(size=(8, 4)).astype(np.float16)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "halves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, (2, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (2, 4))],
        [numpy_helper.from_array(w, "W")],
    )
    opsets = [helper.make_opsetid("", 21)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    report = quantize_rs.quantize(made, None, weights="float16")
    [value] = [value for value in report.values if value.role == "weight"]
    assert value.why == "not quantized: is float16 already"
    written = quantize_rs.quantize(made, None, weights="bfloat16").model
    assert written is not None
    expected = w.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float16)
    np.testing.assert_array_equal(floats(written), expected)
    oracle.ort(written, {"x": np.ones((2, 8), np.float16)})


def _in_blocks(w: Floats, axis: int, size: int, levels: int) -> Floats:
    """Symmetric blocks along an axis, the last of which may be short, as numpy makes them."""
    rows = np.moveaxis(w, axis, -1)
    out = np.empty_like(rows)
    for start in range(0, rows.shape[-1], size):
        block = rows[..., start : start + size]
        scale = np.abs(block).max(-1, keepdims=True) / np.float32(levels)
        scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
        out[..., start : start + size] = np.clip(np.rint(block / scale), -levels, levels) * scale
    return np.moveaxis(out, -1, axis)


def _random(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


# A weight, and the shape and axis in which its blocks lie.
BLOCKED: dict[str, tuple[Case, tuple[int, ...], int]] = {
    "matmul": (Case(_random(100, 12)), (100, 12), 0),
    "batched": (Case(_random(2, 40, 12), x=_random(2, 3, 40)), (2, 40, 12), 1),
    "batched_short": (Case(_random(4, 10, 12), x=_random(4, 3, 10)), (40, 12), 0),
    "vector": (Case(_random(70), x=_random(3, 70)), (70,), 0),
    "gemm": (Case(_random(12, 50), "Gemm", {"transB": 1}, _random(3, 50)), (12, 50), 1),
    "gather": (Case(_random(20, 50), "Gather", {}, np.array([[3, 19]])), (20, 50), 1),
    "gather_3d": (Case(_random(20, 5, 8), "Gather", {}, np.array([3, 19])), (20, 40), 1),
    "conv": (Case(_random(8, 3, 3, 3), "Conv", {}, _random(1, 3, 8, 8)), (8, 27), 1),
    "conv_wide": (Case(_random(8, 32, 3, 3), "Conv", {}, _random(1, 32, 8, 8)), (8, 32, 3, 3), 1),
    "conv_1d": (Case(_random(6, 20, 3), "Conv", {}, _random(1, 20, 9)), (6, 60), 1),
    "transposed": (
        Case(_random(20, 4, 3, 3), "ConvTranspose", {}, _random(1, 20, 6, 6)),
        (20, 4, 3, 3),
        0,
    ),
}


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("weights", ["int4", "int8", "int16"])
def test_weights_of_every_shape_are_cut_into_blocks(name: str, weights: str) -> None:
    case, shape, axis = BLOCKED[name]
    levels = {"int4": 7, "int8": 127, "int16": 32767}[weights]
    report = quantize_rs.quantize(
        model(case),
        None,
        weights=weights,
        symmetric=True,
        block_size=16,
        narrow_range=True,
        weight_method="minmax",
    )
    written = report.model
    assert written is not None
    oracle.check(written)
    expected = _in_blocks(case.weight.reshape(shape), axis, 16, levels)
    found = floats(written)
    assert found.shape == case.weight.shape
    # Scales are rounded once, here and there in another order.
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-5, atol=1e-7)
    scales = list(shape)
    scales[axis] = -(-scales[axis] // 16)
    assert constant(written, "W_scale").shape == tuple(scales)
    same = oracle.reference(model(case._replace(weight=found)), feeds(case))
    assert oracle.sqnr(same, oracle.ort(written, feeds(case), optimized=False)) > 100
    # With optimizations, MatMulNBits quantizes its input to 8 bits.
    assert oracle.sqnr(same, oracle.ort(written, feeds(case))) > 30


def test_a_block_of_few_elements_is_not_cut() -> None:
    case = Case(_random(3, 4, 3, 3), "ConvTranspose", {}, _random(1, 3, 6, 6))
    written = quantize_rs.quantize(model(case), None, block_size=32).model
    assert written is not None
    assert constant(written, "W_scale").shape == (4,)
