"""Models of float16 and bfloat16 compute on integers like those of float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import oracle
import pytest
from half_models import (
    HALF,
    RNG,
    SINGLE,
    autocast,
    chosen_branch,
    equal_when_rounded,
    exported_block,
    foreign,
    given_bias,
    guarded_mask,
    halves,
    image_net,
    looked_up,
    made,
    node,
    old_initializers,
    plain_net,
    read_twice,
    rest,
    rounded_positions,
    samples,
    single,
    value,
)
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantize_rs

BOTH, ONE = ("tract", "onnxruntime"), ("onnxruntime",)
CASES: dict[Callable[[], ModelProto], tuple[dict[str, int], tuple[str, ...]]] = {
    image_net: ({"QLinearConv": 2, "QGemm": 1, "QLinearAdd": 1}, BOTH),
    exported_block: ({"MatMulIntegerToFloat": 2}, BOTH),
    autocast: ({"MatMulIntegerToFloat": 2}, BOTH),
    chosen_branch: ({"MatMulIntegerToFloat": 1}, ONE),
    foreign: ({"MatMulIntegerToFloat": 2}, ONE),
    read_twice: ({"QGemm": 1}, BOTH),
    looked_up: ({"MatMulIntegerToFloat": 1}, ONE),
    old_initializers: ({"QLinearConv": 1}, BOTH),
    given_bias: ({"QGemm": 1}, BOTH),
}
"""Models, the kernels on integers that ONNX Runtime has of them, and what runs them."""

RUNS = [
    pytest.param(build, kernels, engine, id=f"{build.__name__}-{engine}")
    for build, (kernels, engines) in CASES.items()
    for engine in engines
]


@pytest.fixture(autouse=True)
def numbers_of_its_own() -> None:
    """Reset the random numbers, so that tests do not depend on their order."""
    RNG.bit_generator.state = np.random.default_rng(1611).bit_generator.state


def types(model: ModelProto) -> list[tuple[str, int]]:
    return [(end.name, end.type.tensor_type.elem_type) for end in model.graph.output]


def near(
    model: ModelProto,
    quantized: Path,
    least: float = 30,
    feeds: dict[str, np.ndarray] | None = None,
) -> None:
    """Outputs are of the types they were of, and near what they were."""
    feeds = feeds or samples(model, 1)[0]
    wanted, found = oracle.ort(model.SerializeToString(), feeds), oracle.ort(quantized, feeds)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        assert oracle.sqnr([one], [other]) > least


@pytest.mark.parametrize(("build", "kernels", "engine"), RUNS)
def test_products_of_float16_run_on_integers(
    build: Callable[[], ModelProto], kernels: dict[str, int], engine: str, tmp_path: Path
) -> None:
    model, out = build(), tmp_path / "q.onnx"
    given = samples(model, 16)
    report = quantize_rs.quantize_with_calibration(
        model, out, given, engine=engine, method="minmax"
    )
    assert "widen_floats" in [step.name for step in report.steps]
    oracle.check(out)
    assert types(onnx.load(out)) == types(model)
    found = oracle.kernels(out)
    assert {kernel: found[kernel] for kernel in kernels} == kernels
    # A calibration sample: with so few samples, other values exceed the ranges.
    near(model, out, feeds=given[0])
    validation = quantize_rs.validate(model, out)
    assert validation, validation


@pytest.mark.parametrize("options", [{}, {"excluded_layers": ["w2"]}], ids=str)
def test_what_comes_of_float16_is_what_comes_of_float32(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """This includes smoothing, corrected biases, and options by the name of a weight."""
    model = plain_net()
    twin, given = single(model), samples(model, 32)
    wide = [{name: array.astype(np.float32) for name, array in sample.items()} for sample in given]
    # Which samples are held back follows from their bytes.
    options = {"weight_algorithm": "nearest"} | options
    ours = quantize_rs.quantize_with_calibration(model, tmp_path / "h.onnx", given, **options)
    theirs = quantize_rs.quantize_with_calibration(twin, tmp_path / "s.onnx", wide, **options)
    assert ours.corrected_biases == theirs.corrected_biases > 0
    smoothed = "smoothed 1 values"
    assert smoothed in " ".join(theirs.notes)
    assert smoothed in " ".join(ours.notes)
    x = samples(model, 1)[0]
    expected = oracle.ort(tmp_path / "s.onnx", {"x": x["x"].astype(np.float32)})
    found = [array.astype(np.float32) for array in oracle.ort(tmp_path / "h.onnx", x)]
    # One rounding to float16, which is what comes out.
    assert oracle.sqnr(expected, found) > 60


def test_what_stays_float_takes_two_bytes_as_before(tmp_path: Path) -> None:
    model, out = image_net(), tmp_path / "q.onnx"
    report = quantize_rs.quantize_with_calibration(
        model, out, samples(model, 16), excluded_layers=["n_c2"]
    )
    near(model, out)
    quantized = onnx.load(out)
    stored = {tensor.name: tensor.data_type for tensor in quantized.graph.initializer}
    assert stored["w2_float16"] == HALF
    # 16 x 16 x 3 x 3 elements of 2 bytes, and vectors of 16 channels.
    assert 4608 <= report.sizes.kept < 4608 + 300


def test_weights_alone_stay_beside_float16(tmp_path: Path) -> None:
    model = image_net()
    for out, optimize in [("w.onnx", True), ("none.onnx", False)]:
        report = quantize_rs.quantize(model, tmp_path / out, optimize=optimize)
        assert "widen_floats" not in [step.name for step in report.steps]
        near(model, tmp_path / out)


def test_a_model_of_which_nothing_runs_on_integers_stays_float16(tmp_path: Path) -> None:
    """A recurrent operator has weights, but no value that calibration observes."""
    nodes = [node("LSTM", "x w r b", "y", hidden_size=8)]
    constants = {"w": halves(1, 32, 6), "r": halves(1, 32, 8), "b": halves(1, 64)}
    model = made(nodes, constants, [value("x", [5, 2, 6])], [value("y", [5, 1, 2, 8])])
    report = quantize_rs.quantize_with_calibration(
        model, tmp_path / "q.onnx", samples(model, 16), engine="onnxruntime"
    )
    assert not report.steps
    assert "no operator of the model can run on integers" in " ".join(report.warnings)


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [(np.float16, "the pass widen_floats converts it"), (np.float64, "export it as float32")],
)
def test_half_floats_that_stay_give_a_warning(dtype: Any, advice: str, tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = RNG.normal(size=(32, 48)).astype(dtype)
    ends = [value("x", ["N", 32], kind)], [value("y", ["N", 48], kind)]
    model = made([node("MatMul", "x w", "y")], {"w": weight}, *ends)
    report = quantize_rs.quantize_with_calibration(
        model, tmp_path / "q.onnx", samples(model, 16), optimize=False
    )
    warning = " ".join(report.warnings)
    assert f"computes in {np.dtype(dtype)}" in warning
    assert advice in warning


@pytest.mark.parametrize("build", [image_net, exported_block])
def test_dynamic_products_of_float16(build: Callable[[], ModelProto], tmp_path: Path) -> None:
    model, out = build(), tmp_path / "q.onnx"
    quantize_rs.quantize(model, out, output_format="dynamic")
    found = oracle.kernels(out)
    assert found["DynamicQuantizeLinear"] + found["DynamicQuantizeMatMul"] >= 1, found
    near(model, out)


def test_optimizing_leaves_float16_alone_unless_asked(tmp_path: Path) -> None:
    model = exported_block()
    for passes in (None, ["widen_floats"]):
        quantize_rs.optimize(model, tmp_path / "o.onnx", passes=passes)
        oracle.check(tmp_path / "o.onnx")
        near(model, tmp_path / "o.onnx", 55)
        nodes = onnx.load(tmp_path / "o.onnx").graph.node
        assert (nodes[0].op_type == "Cast") == (passes is not None)


def test_a_cast_that_widening_leaves_idle_is_no_fault() -> None:
    """The cast becomes redundant only after `widen_floats`; the passes of a plan remove it."""
    nodes = [node("MatMul", "x w", "m"), node("Cast", "m", "c", to=SINGLE), node("Neg", "c", "y")]
    ends = [value("x", ["N", 32])], [value("y", ["N", 32], SINGLE)]
    model = made(nodes, {"w": halves(32, 32)}, *ends)
    widened = quantize_rs.optimize(model, None, passes=["widen_floats"]).model
    assert widened is not None
    found = quantize_rs.validate(model, widened)
    assert found, found


@pytest.mark.parametrize("build", [image_net, exported_block])
def test_what_is_widened_and_no_more_is_no_fault(build: Callable[[], ModelProto]) -> None:
    model = build()
    widened = quantize_rs.optimize(model, None, passes=["widen_floats"]).model
    assert widened is not None
    found = quantize_rs.validate(model, widened)
    assert not found.problems, found
    only = quantize_rs.quantize_with_calibration(
        model, None, samples(model, 16), optimize=["widen_floats"]
    )
    assert only.model is not None
    assert quantize_rs.validate(model, only.model)


def test_bfloat16_is_widened_too(tmp_path: Path) -> None:
    """ONNX Runtime has no bfloat16 products, but it runs the result."""
    nodes = [
        node("Cast", "x", "x16", to=TensorProto.BFLOAT16),
        node("MatMul", "x16 w", "m"),
        node("Cast", "m", "y", to=SINGLE),
    ]
    weight = RNG.normal(size=(32, 48)).astype(ml_dtypes.bfloat16)
    ends = [value("x", ["N", 32], SINGLE)], [value("y", ["N", 48], SINGLE)]
    model = made(nodes, {"w": weight}, *ends)
    quantize_rs.quantize_with_calibration(model, tmp_path / "q.onnx", samples(model, 64))
    (x,) = samples(model, 1)
    (found,) = oracle.ort(tmp_path / "q.onnx", x)
    assert oracle.sqnr([x["x"] @ weight.astype(np.float32)], [found]) > 30
    assert oracle.kernels(tmp_path / "q.onnx")["MatMulIntegerToFloat"] == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_factors_of_a_product_of_16_bits_are_in_its_weight(dtype: Any, tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Cast", "x", "x16", to=kind),
        node("Gemm", "x16 w b", "m", alpha=0.3, beta=1.7),
        node("Cast", "m", "y", to=SINGLE),
    ]
    weight, bias = halves(32, 48).astype(dtype), halves(48).astype(dtype)
    ends = [value("x", ["N", 32], SINGLE)], [value("y", ["N", 48], SINGLE)]
    model = made(nodes, {"w": weight, "b": bias}, *ends)
    quantize_rs.quantize_with_calibration(model, tmp_path / "q.onnx", samples(model, 64))
    (x,) = samples(model, 1)
    (found,) = oracle.ort(tmp_path / "q.onnx", x)
    expected = 0.3 * (x["x"] @ weight.astype(np.float32)) + 1.7 * bias.astype(np.float32)
    assert oracle.sqnr([expected], [found]) > 30
    assert oracle.kernels(tmp_path / "q.onnx")["QGemm"] == 1


def test_methods_are_evaluated_by_outputs_of_float16() -> None:
    model = exported_block()
    plan = quantize_rs.open(model).plan(activations="uint8")
    found = plan.compare_methods(samples(model, 64))
    assert all(row.sqnr_db is not None for row in found.rows)


def test_values_of_float16_have_errors_of_their_own(tmp_path: Path) -> None:
    model, given = exported_block(), samples(exported_block(), 16)
    quantize_rs.quantize_with_calibration(model, tmp_path / "q.onnx", given)
    found = quantize_rs.layer_errors(model, tmp_path / "q.onnx", given)
    named = {value.name for value in found.values}
    assert {"m1", "h", "m2", "l"} <= named
    assert found.samples == 32


def test_a_weight_that_the_caller_may_replace_is_left_alone() -> None:
    inputs = [value("x", ["N", 32]), value("w", [32, 8])]
    outputs = [value("y", ["N", 8])]
    model = made([node("MatMul", "x w", "y")], {"w": halves(32, 8)}, inputs, outputs)
    only = [{"x": sample["x"]} for sample in samples(model, 16)]
    report = quantize_rs.quantize_with_calibration(model, None, only)
    assert not report.quantized
    assert not report.steps


def test_a_weight_that_is_cast_too_is_stored_once(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Cast", "w", "w32", to=SINGLE),
        node("Cast", "x", "x32", to=SINGLE),
        node("MatMul", "x32 w32", "z"),
        node("Cast", "z", "z16", to=HALF),
        node("Add", "h z16", "y"),
    ]
    ends = [value("x", ["N", 32])], [value("y", ["N", 32])]
    model, out = made(nodes, {"w": halves(32, 32)}, *ends), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16))
    near(model, out)
    graph = onnx.load(out).graph
    read = {name for node in graph.node for name in node.input}
    assert all(tensor.name in read for tensor in graph.initializer)
    sizes = [np.prod(tensor.dims) for tensor in graph.initializer]
    assert sizes.count(32 * 32) == 1


@pytest.mark.parametrize("build", [chosen_branch, read_twice])
def test_what_others_know_keeps_the_name_that_options_mean(
    build: Callable[[], ModelProto],
) -> None:
    model = build()
    name = "w2" if build is chosen_branch else "w"
    report = quantize_rs.quantize_with_calibration(
        model, None, samples(model, 16), excluded_layers=[name], engine="onnxruntime"
    )
    names = (name, f"{name}_float32")
    assert not [value.name for value in report.weights if value.name in names and value.qtype]
    assert not any("folded away" in said for said in report.warnings)


def test_what_is_rounded_between_two_products_is_not(tmp_path: Path) -> None:
    """Casts to float16 and back, which autocast leaves where nothing computes in float16."""
    nodes = [
        node("MatMul", "x w1", "m"),
        node("Relu", "m", "r"),
        node("Cast", "r", "r16", to=HALF),
        node("Cast", "r16", "r32", to=SINGLE),
        node("MatMul", "r32 w2", "y"),
    ]
    weights = {name: halves(32, 32).astype(np.float32) for name in ("w1", "w2")}
    ends = [value("x", ["N", 32], SINGLE)], [value("y", ["N", 32], SINGLE)]
    model, out = made(nodes, weights, *ends), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16))
    near(model, out)
    kernels = oracle.kernels(out)
    assert kernels["QLinearMatMul"] + kernels["MatMulIntegerToFloat"] == 2
    assert not kernels["Cast"]


MASKS = {
    "Where": [node("Where", "masked large none", "mask")],
    "ConstantOfShape": [
        node(
            "ConstantOfShape",
            "shape",
            "all",
            value=numpy_helper.from_array(np.array([-1e9], np.float32)),
        ),
        node("Where", "masked all none", "mask"),
    ],
    "Mul": [node("Cast", "masked", "m", to=SINGLE), node("Mul", "m large", "mask")],
    "Clip": [node("Cast", "masked", "m", to=SINGLE), node("Clip", "m none most", "mask")],
}
"""Ways to compute a mask; for `Clip`, the large number is only a limit."""


@pytest.mark.parametrize("way", MASKS)
def test_a_mask_that_float16_cannot_hold_is_rounded(way: str) -> None:
    nodes = [
        *MASKS[way],
        node("Cast", "mask", "mask16", to=HALF),
        node("MatMul", "x w", "h"),
        node("Add", "h mask16", "y"),
    ]
    constants = {
        "w": halves(32, 32),
        "large": np.float32(-1e9),
        "none": np.float32(0),
        "most": np.float32(3e38),
        "shape": np.array([1, 32]),
    }
    ends = [value("x", [2, 32]), value("masked", [2, 32], TensorProto.BOOL)]
    model = made(nodes, constants, ends, [value("y", [2, 32])])
    widened = quantize_rs.optimize(model, None, passes=["widen_floats"]).model
    assert widened is not None
    casts = [
        each.input[0]
        for each in onnx.load_from_string(widened).graph.node
        if each.op_type == "Cast"
    ]
    assert ("mask" in casts) == (way != "Clip")
    (sample,) = samples(model, 1)
    sample["masked"][:, ::3] = True
    with np.errstate(over="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, sample)
        (found,) = ReferenceEvaluator(onnx.load_from_string(widened)).run(None, sample)
    assert np.array_equal(np.isinf(expected), np.isinf(found))


def test_bits_that_are_read_as_others_stay_16() -> None:
    """As float32, the value would have more bits."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("BitCast", "h", "y", to=TensorProto.INT16),
    ]
    ends = [value("x", ["N", 32])], [value("y", ["N", 8], TensorProto.INT16)]
    model = made(nodes, {"w": halves(32, 8)}, *ends, opset=26)
    widened = quantize_rs.optimize(model, None, passes=["widen_floats"]).model
    assert widened is not None
    graph = onnx.load_from_string(widened).graph
    (bits,) = [each for each in graph.node if each.op_type == "BitCast"]
    (before,) = [each for each in graph.node if bits.input[0] in each.output]
    assert (before.op_type, before.attribute[0].i) == ("Cast", HALF)
    oracle.check(widened)


def marked(name: str, sample: dict[str, np.ndarray]) -> None:
    """Set values of a sample that float16 rounds to another number."""
    if name == "guarded_mask":
        sample["masked"][:] = False
        sample["masked"][:, 2] = True
    if name == "equal_when_rounded":
        sample["x"][:, ::3] = 0.1
    if name == "rounded_positions":
        sample["at"] += 1001


@pytest.mark.parametrize("optimize", [True, ["widen_floats"]], ids=str)
@pytest.mark.parametrize("build", [guarded_mask, equal_when_rounded, rounded_positions, rest])
def test_what_a_rounding_makes_another_number_is_rounded(
    build: Callable[[], ModelProto], optimize: Any, tmp_path: Path
) -> None:
    """-1e9 becomes -inf, values become equal, positions change, and a remainder is used.

    Results are compared with the reference evaluator, because ONNX Runtime 1.32 leaves such
    roundings out of the float model too.
    """
    model, out = build(), tmp_path / "q.onnx"
    given = samples(model, 16)
    for sample in given:
        marked(build.__name__, sample)
    quantize_rs.quantize_with_calibration(
        model, out, given, optimize=optimize, engine="onnxruntime", method="minmax"
    )
    kernels = oracle.kernels(out)
    assert kernels["QLinearMatMul"] + kernels["MatMulIntegerToFloat"] >= 1
    with np.errstate(over="ignore", invalid="ignore"):
        expected = ReferenceEvaluator(model).run(None, given[0])
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(out, given[0], optimized=optimized)) > 30


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "SimplifiedLayerNormalization"])
def test_products_behind_operators_of_onnx_runtime(operator: str, tmp_path: Path) -> None:
    """Their output types are known, although the file does not declare them."""
    runtime = {
        "MultiHeadAttention": helper.make_node(
            "MultiHeadAttention", ["x"] * 3, ["h"], domain="com.microsoft", num_heads=4
        ),
        "SimplifiedLayerNormalization": node("SimplifiedLayerNormalization", "x gain", "h"),
    }
    constants = {"w": halves(32, 32), "gain": 1 + halves(32, scale=0.1)}
    if operator == "MultiHeadAttention":
        del constants["gain"]
    shape = ["N", 5, 32]
    graph = helper.make_graph(
        [runtime[operator], node("MatMul", "h w", "y")],
        "half",
        [value("x", shape)],
        [value("y", shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model, out = helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16), engine="onnxruntime")
    assert oracle.kernels(out)["MatMulIntegerToFloat"] == 1
    near(model, out)


@pytest.mark.parametrize("inputs", ["x c", "c x"])
def test_a_sparse_constant_is_not_looked_at(inputs: str, tmp_path: Path) -> None:
    """ONNX Runtime does not return it as a dense tensor."""
    numbers = numpy_helper.from_array(np.arange(1, 65, dtype=np.float32) / 64, "numbers")
    places = numpy_helper.from_array(np.arange(64) * 7, "places")
    sparse = helper.make_sparse_tensor(numbers, places, [32, 32])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        node("MatMul", inputs, "h"),
        node("MatMul", "h w", "y"),
    ]
    ends = [value("x", [32, 32], SINGLE)], [value("y", [32, 32], SINGLE)]
    model, out = made(nodes, {"w": RNG.normal(size=(32, 32)).astype(np.float32)}, *ends), tmp_path
    given = samples(model, 8)
    quantize_rs.quantize_with_calibration(model, out / "q.onnx", given, engine="onnxruntime")
    near(model, out / "q.onnx")
    assert oracle.kernels(out / "q.onnx")["MatMulIntegerToFloat"] == 1
