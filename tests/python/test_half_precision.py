"""Conversion to float16 and bfloat16: what is converted, what stays float32, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import oracle
import pytest
import rules
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

RNG = np.random.default_rng(5)
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16

Array = npt.NDArray[Any]


def array(name: str, values: npt.ArrayLike, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def weight(name: str, *shape: int, scale: float = 0.1) -> TensorProto:
    return array(name, RNG.normal(size=shape) * scale)


def model(
    nodes: list[onnx.NodeProto],
    constants: list[TensorProto],
    shape: list[Any],
    *,
    outputs: tuple[tuple[str, list[Any] | None], ...] = (("y", None),),
    opset: int = 17,
) -> bytes:
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", FLOAT, shape)],
            [helper.make_tensor_value_info(name, FLOAT, dims) for name, dims in outputs],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9,
    )
    made = onnx.shape_inference.infer_shapes(made)
    assert is_valid(made.SerializeToString())
    return bytes(made.SerializeToString())


def run(data: bytes, feeds: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


def converted(data: bytes, *args: Any, **options: Any) -> quantize_rs.results.HalfPrecisionReport:
    """Convert, and check that the result is well-formed and that a second call changes nothing."""
    report = quantize_rs.convert_float16(data, None, *args, **options)
    assert report.model is not None
    onnx.checker.check_model(onnx.load_from_string(report.model), full_check=True)
    again = quantize_rs.convert_float16(report.model, None, *args, **options)
    assert again.model == report.model
    assert again.casts == 0
    return report


def sqnr(report: quantize_rs.results.HalfPrecisionReport, data: bytes, x: Array) -> float:
    assert report.model is not None
    return float(oracle.sqnr(run(data, {"x": x}), run(report.model, {"x": x})))


def codes(report: quantize_rs.results.HalfPrecisionReport) -> dict[str, str]:
    return {kept.node: kept.code for kept in report.kept}


def types(data: bytes | None) -> dict[str, int]:
    assert data is not None
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(data)).graph
    infos = [*graph.value_info, *graph.input, *graph.output]
    found = {info.name: info.type.tensor_type.elem_type for info in infos}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize("name", sorted(rules.CASES))
def test_every_operator_runs_as_before(name: str) -> None:
    data = rules.model(name).SerializeToString()
    report = converted(data)
    assert report.model is not None
    expected, found = run(data, rules.feeds()), run(report.model, rules.feeds())
    assert oracle.sqnr(expected, found) > 50
    assert [value.dtype for value in found] == [value.dtype for value in expected]


# What these hold is checked where they are read: NaN, or weights that overflow in float32.
UGLY = {"external_data", "huge_weights"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(set(oracle.FIXTURES) - UGLY))
def test_every_fixture_converts_to_a_valid_model(name: str, dtype: str) -> None:
    data = oracle.model(name).read_bytes()
    convert = getattr(quantize_rs, f"convert_{dtype}")
    report = convert(data)
    assert convert(report.model).model == report.model
    # What the checker refuses before, it may refuse after.
    if is_valid(data):
        onnx.checker.check_model(onnx.load_from_string(report.model), full_check=True)


def is_valid(data: bytes) -> bool:
    try:
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def test_a_network_has_half_the_size_and_one_cast_at_each_end() -> None:
    digits = quantize_rs.examples.digits()
    report = quantize_rs.convert_float16(digits.model, None, digits.calibration)
    assert report.ratio > 1.9
    assert report.kept == ()
    assert report.casts == 2
    assert report.sqnr_db is not None
    assert report.sqnr_db > 60
    assert report.samples == 200
    assert "SQNR" in str(report)


def test_inputs_and_outputs_become_float16_where_that_is_asked_for() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    data = model(nodes, [weight("w", 8, 4)], ["n", 8])
    report = converted(data, keep_io=False)
    assert report.casts == 0
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    assert report.model is not None
    (found,) = run(report.model, {"x": x.astype(np.float16)})
    assert found.dtype == np.float16
    (expected,) = run(data, {"x": x})
    assert np.allclose(found, expected, atol=2e-3)


def large() -> bytes:
    """Make a network whose hidden values exceed 65,504 by far."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "grow"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["s"], "shrink"),
        helper.make_node("Tanh", ["s"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "u"], ["y"], "last"),
    ]
    constants = [
        weight("w", 16, 32, scale=5e4),
        weight("v", 32, 16, scale=1e-6),
        weight("u", 16, 4),
    ]
    return model(nodes, constants, ["n", 16])


def test_values_over_the_range_stay_float32_with_the_reason() -> None:
    data, x = large(), RNG.normal(size=(64, 16)).astype(np.float32)
    report = converted(data, x)
    reasons = codes(report)
    assert reasons["grow"] in ("large_value", "large_constant")
    assert reasons["relu"] == "large_value"
    assert "shrink" in reasons
    assert "last" not in reasons
    relu = next(kept for kept in report.kept if kept.node == "relu")
    # The output of the node comes first; it lacks the negative numbers of its input.
    assert relu.value == "r"
    (found,) = run(with_output(data, relu.value), {"x": x})[1:]
    assert relu.magnitude == pytest.approx(float(np.abs(found).max()), rel=1e-6)
    assert report.sqnr_db is not None
    assert report.sqnr_db > 50
    assert sqnr(report, data, x) > 50


def with_output(data: bytes, name: str) -> bytes:
    made = onnx.load_from_string(data)
    made.graph.output.append(helper.make_tensor_value_info(name, FLOAT, None))
    return bytes(made.SerializeToString())


def test_a_constant_over_the_range_is_not_clipped_without_a_word() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["m"], "mul"),
        helper.make_node("Div", ["m", "c"], ["y"], "div"),
    ]
    data = model(nodes, [array("c", 1e6)], ["n", 4])
    report = converted(data)
    assert codes(report) == {"mul": "large_constant", "div": "large_constant"}
    assert sqnr(report, data, RNG.normal(size=(8, 4)).astype(np.float32)) > 100


SHAPE = helper.make_node("Shape", ["x"], ["s"], "shape")


def filled(value: float) -> list[onnx.NodeProto]:
    fill = helper.make_tensor("v", FLOAT, [1], [value])
    return [SHAPE, helper.make_node("ConstantOfShape", ["s"], ["z"], "fill", value=fill)]


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        (filled(1e5), [], "large_constant"),
        (filled(1e-9), [], "small_constant"),
        (
            [helper.make_node("Cast", ["whole"], ["z"], "cast", to=FLOAT)],
            [array("whole", 100_000, np.int64)],
            "large_constant",
        ),
        (
            [SHAPE, helper.make_node("Expand", ["tiny", "s"], ["z"], "expand")],
            [array("tiny", 1e-9)],
            "small_constant",
        ),
    ],
    ids=["filled", "filled with a tiny number", "cast", "repeated"],
)
def test_a_divisor_made_of_a_constant_is_not_rounded_without_a_word(
    nodes: list[onnx.NodeProto], constants: list[TensorProto], reason: str
) -> None:
    scale = 1e-7 if reason == "small_constant" else 500.0
    nodes = [
        *nodes,
        helper.make_node("Mul", ["x", "k"], ["a"], "mul"),
        helper.make_node("Div", ["a", "z"], ["y"], "div"),
    ]
    data = model(nodes, [array("k", scale), *constants], [2, 8])
    report = converted(data)
    assert codes(report)["div"] == reason
    assert sqnr(report, data, RNG.normal(size=(2, 8)).astype(np.float32)) > 40


def test_an_epsilon_that_would_become_zero_stays() -> None:
    # A layer normalization in single operators; half of the rows are constant.
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], "mean", axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["d"], "sub"),
        helper.make_node("Pow", ["d", "two"], ["p"], "pow"),
        helper.make_node("ReduceMean", ["p"], ["variance"], "variance", axes=[-1]),
        helper.make_node("Add", ["variance", "eps"], ["e"], "add"),
        helper.make_node("Sqrt", ["e"], ["s"], "sqrt"),
        helper.make_node("Div", ["d", "s"], ["n"], "div"),
        helper.make_node("MatMul", ["n", "w"], ["y"], "product"),
    ]
    data = model(nodes, [array("two", 2.0), array("eps", 1e-12), weight("w", 8, 4)], ["n", 8])
    x = RNG.normal(size=(16, 8)).astype(np.float32) * 300
    x[::2] = 3
    for samples in ((), (x,)):
        report = converted(data, *samples)
        reasons = codes(report)
        assert reasons["add"] in ("small_constant", "reads_large", "large_value")
        assert "product" not in reasons
        assert report.model is not None
        (expected,), (found,) = run(data, {"x": x}), run(report.model, {"x": x})
        assert np.isfinite(found).all()
        assert oracle.sqnr([expected[1::2]], [found[1::2]]) > 50


def test_a_mask_is_clipped_and_reported() -> None:
    nodes = [
        helper.make_node("Softmax", ["z"], ["y"], "softmax", axis=-1),
        helper.make_node("Add", ["x", "m"], ["z"], "add"),
        helper.make_node("Where", ["hidden", "low", "zero"], ["m"], "where"),
    ]
    hidden = np.zeros((4, 6), dtype=bool)
    hidden[:, 4:] = True
    hidden[0] = True
    low = float(np.finfo(np.float32).min)
    constants = [array("hidden", hidden, bool), array("low", low), array("zero", 0.0)]
    data = model(nodes[::-1], constants, [4, 6])
    report = converted(data)
    assert report.kept == ()
    assert len(report.clipped) == 1
    assert "`m`" in report.clipped[0]
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    assert report.model is not None
    (expected,), (found,) = run(data, {"x": x}), run(report.model, {"x": x})
    # The first row is masked as a whole: float32 and float16 both give finite numbers.
    assert np.isfinite(found).all()
    assert np.allclose(found[1:], expected[1:], atol=2e-3)


def test_positions_and_sizes_stay_exact() -> None:
    # The size of the output is computed from that of the input, in float32.
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "two", "four"], ["size"]),
        helper.make_node("Cast", ["size"], ["f"], "cast", to=FLOAT),
        helper.make_node("Mul", ["f", "factor"], ["g"], "mul"),
        helper.make_node("Floor", ["g"], ["h"], "floor"),
        helper.make_node("Cast", ["h"], ["sizes2"], to=TensorProto.INT64),
        helper.make_node("Slice", ["shape", "none", "two"], ["first"]),
        helper.make_node("Concat", ["first", "sizes2"], ["sizes"], axis=0),
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Resize", ["r", "", "", "sizes"], ["y"], "resize", mode="nearest"),
    ]
    constants = [
        array("none", [0], np.int64),
        array("two", [2], np.int64),
        array("four", [4], np.int64),
        array("factor", [1.0, 0.99951]),
    ]
    data = model(nodes, constants, [1, 1, "h", "w"])
    report = converted(data)
    assert codes(report)["mul"] == "whole_numbers"
    assert codes(report)["floor"] == "whole_numbers"
    x = RNG.normal(size=(1, 1, 2, 4099)).astype(np.float32)
    assert report.model is not None
    (expected,), (found,) = run(data, {"x": x}), run(report.model, {"x": x})
    assert found.shape == expected.shape
    assert np.allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("opset", [10, 17])
def test_the_scales_of_a_resize_stay_float32(opset: int) -> None:
    inputs = ["r", "scales"] if opset < 11 else ["r", "", "scales"]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Resize", inputs, ["y"], "resize", mode="nearest"),
    ]
    data = model(nodes, [array("scales", [1, 1, 2, 2])], [1, 1, 4, 4], opset=opset)
    report = converted(data)
    assert report.kept == ()
    assert types(report.model)["scales"] == FLOAT
    assert sqnr(report, data, RNG.normal(size=(1, 1, 4, 4)).astype(np.float32)) > 60


def test_a_constant_that_is_read_in_both_types_is_stored_in_both() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
    ]
    data = model(nodes, [weight("w", 6, 6)], ["n", 6])
    report = converted(data, exclude=["second"])
    assert codes(report) == {"second": "excluded"}
    found = types(report.model)
    assert (found["w"], found["w_float16"]) == (FLOAT, HALF)
    assert sqnr(report, data, RNG.normal(size=(5, 6)).astype(np.float32)) > 60


def test_chains_of_casts_disappear() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Cast", ["h"], ["a"], "down", to=HALF),
        helper.make_node("Cast", ["a"], ["b"], "up", to=FLOAT),
        helper.make_node("Cast", ["b"], ["c"], "same", to=FLOAT),
        helper.make_node("MatMul", ["c", "w"], ["y"], "second"),
    ]
    data = model(nodes, [weight("w", 6, 6)], ["n", 6])
    report = converted(data)
    assert report.model is not None
    left = [node.op_type for node in onnx.load_from_string(report.model).graph.node]
    assert sorted(left) == ["Cast", "Cast", "MatMul", "MatMul"]
    assert sqnr(report, data, RNG.normal(size=(5, 6)).astype(np.float32)) > 55


def branch(name: str, op_type: str, inputs: list[str], constants: list[Any]) -> onnx.GraphProto:
    node = helper.make_node(op_type, inputs, [f"{name}_out"], f"{name}_node")
    output = helper.make_tensor_value_info(f"{name}_out", FLOAT, None)
    return helper.make_graph([node], name, [], [output], constants)


def test_branches_are_converted() -> None:
    # One branch holds a weight of its own, the other reads one of the main graph.
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        helper.make_node("Greater", ["m", "limit"], ["large"], "greater"),
        helper.make_node(
            "If",
            ["large"],
            ["y"],
            "if",
            then_branch=branch("then", "MatMul", ["r", "own"], [weight("own", 4, 3)]),
            else_branch=branch("else", "MatMul", ["r", "w"], []),
        ),
    ]
    data = model(nodes, [weight("w", 4, 3), array("limit", 1.0)], ["n", 4])
    report = converted(data)
    assert report.kept == ()
    assert types(report.model)["w"] == HALF
    for factor in (0.1, 100):
        x = (RNG.normal(size=(5, 4)) * factor).astype(np.float32)
        assert sqnr(report, data, x) > 60


def test_what_a_loop_passes_on_stays_float32() -> None:
    # The state counts beyond 2,048, where float16 can no longer add 1.
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "one"], ["next"], "count"),
            helper.make_node("MatMul", ["r", "w"], ["scanned"], "product"),
            helper.make_node("Identity", ["cond_in"], ["cond_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("cond_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
            helper.make_tensor_value_info("scanned", FLOAT, None),
        ],
        [array("one", 1.0)],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Loop", ["trips", "", "start"], ["y", "z"], "loop", body=body),
    ]
    constants = [array("trips", 3000, np.int64), array("start", 0.0), weight("w", 4, 1)]
    data = model(nodes, constants, [1, 4], outputs=(("y", []), ("z", ["i", 1, 1])))
    report = converted(data)
    assert codes(report) == {"count": "carried"}
    assert types(report.model)["w"] == HALF
    assert report.model is not None
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    (count, products), (count_half, products_half) = (
        run(data, {"x": x}),
        run(report.model, {"x": x}),
    )
    assert count_half == count == 3000
    assert np.allclose(products, products_half, atol=2e-3)


@pytest.mark.parametrize("opset", [8, 17])
def test_a_scan_of_either_opset_is_converted(opset: int) -> None:
    # Before opset 9, a Scan has one input more than its body, and scans each sample of a batch.
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["next"], "sum"),
            helper.make_node("Identity", ["next"], ["row_out"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, FLOAT, [3]) for name in ("state", "row")],
        [helper.make_tensor_value_info(name, FLOAT, [3]) for name in ("next", "row_out")],
    )
    batch = [2] if opset < 9 else []
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node(
            "Scan",
            [*([""] if opset < 9 else []), "start", "r"],
            ["y", "z"],
            "scan",
            body=body,
            num_scan_inputs=1,
        ),
    ]
    shapes = (("y", [*batch, 3]), ("z", [*batch, 5, 3]))
    start = array("start", np.zeros([*batch, 3]))
    data = model(nodes, [start], [*batch, 5, 3], outputs=shapes, opset=opset)
    report = converted(data)
    assert sqnr(report, data, RNG.normal(size=[*batch, 5, 3]).astype(np.float32)) > 50


def test_local_functions_are_converted() -> None:
    function = helper.make_function(
        "local",
        "Dense",
        ["a", "b"],
        ["c"],
        [helper.make_node("MatMul", ["a", "b"], ["m"]), helper.make_node("Relu", ["m"], ["c"])],
        [helper.make_opsetid("", 17)],
    )
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Dense", ["x", "w"], ["y"], "dense", domain="local")],
            "g",
            [helper.make_tensor_value_info("x", FLOAT, ["n", 6])],
            [helper.make_tensor_value_info("y", FLOAT, ["n", 3])],
            [weight("w", 6, 3)],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        functions=[function],
        ir_version=9,
    )
    data = made.SerializeToString()
    report = converted(data)
    assert report.kept == ()
    assert types(report.model)["w"] == HALF
    assert sqnr(report, data, RNG.normal(size=(5, 6)).astype(np.float32)) > 60


def test_external_data_is_read_and_written(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    made = onnx.load_from_string(model(nodes, [weight("w", 64, 64)], ["n", 64]))
    path, out = tmp_path / "m.onnx", tmp_path / "half.onnx"
    whole = made.SerializeToString()
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    before = (tmp_path / "m.data").read_bytes()
    report = quantize_rs.convert_float16(path, out)
    assert report.output == str(out)
    assert (tmp_path / "m.data").read_bytes() == before
    x = RNG.normal(size=(5, 64)).astype(np.float32)
    assert oracle.sqnr(run(whole, {"x": x}), run(out.read_bytes(), {"x": x})) > 60


def test_unknown_operators_stay_float32() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Mystery", ["r"], ["m"], "mystery", domain="nowhere"),
        helper.make_node("Relu", ["m"], ["y"], "last"),
    ]
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", FLOAT, ["n", 4])],
            [helper.make_tensor_value_info("y", FLOAT, ["n", 4])],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)],
        ir_version=9,
    )
    report = quantize_rs.convert_float16(made)
    assert codes(report)["mystery"] in ("operator", "unknown_type")
    assert report.model is not None
    found = {node.name: node for node in onnx.load_from_string(report.model).graph.node}
    assert found["mystery"].input[0] != found["relu"].output[0]


def test_operators_that_lose_most_stay_float32_by_measurement() -> None:
    # A large number is added and subtracted again: the last digits of the others are lost.
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Add", ["h", "large"], ["a"], "add"),
        helper.make_node("Sub", ["a", "large"], ["s"], "sub"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "w"], ["y"], "last"),
    ]
    data = model(nodes, [weight("w", 32, 32), array("large", 500.0)], ["n", 32])
    x = RNG.normal(size=(64, 32)).astype(np.float32)
    plain = quantize_rs.convert_float16(data, None, x, enough_sqnr=0)
    report = converted(data, x)
    assert plain.sqnr_db is not None
    assert report.sqnr_db is not None
    assert plain.sqnr_db < 45
    assert report.sqnr_db > 60
    # ONNX Runtime skips roundings between nodes on CPUs; the reference implementation does not.
    rounded = oracle.reference(plain.model or b"", {"x": x})
    assert oracle.sqnr(run(data, {"x": x}), rounded) == pytest.approx(plain.sqnr_db, abs=2)
    assert codes(report) == {"add": "measured", "sub": "measured"}
    assert "nearer" in report.kept[0].why


def test_a_wrong_name_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    digits = quantize_rs.examples.digits()
    with pytest.raises(quantize_rs.OptionError, match="exclude"):
        quantize_rs.convert_float16(digits.model, out, exclude=["nothing_of_this_name"])
    assert not out.exists()


def test_the_command_writes_the_same_file(tmp_path: Path) -> None:
    digits = quantize_rs.examples.digits()
    out = tmp_path / "half.onnx"
    command = [sys.executable, "-m", "quantize_rs", "float16", str(digits.model), "-o", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "compute in float16" in said.stdout
    assert out.read_bytes() == quantize_rs.convert_float16(digits.model).model


def test_a_limit_that_is_no_number_is_refused(digits: Path, images: Path) -> None:
    for data in (None, images):
        with pytest.raises(quantize_rs.OptionError, match="enough_sqnr is NaN, expected decibels"):
            quantize_rs.convert_float16(digits, None, data, enough_sqnr=float("nan"))


def test_sparse_constants_are_not_measured() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "sparse"], ["y"], "second"),
    ]
    made = onnx.load_from_string(
        model(nodes, [weight("w", 8, 8), weight("sparse", 8, 8)], ["n", 8])
    )
    del made.graph.initializer[1]
    values = array("sparse", [1.0, 2.0, -1.0])
    places = array("places", [[0, 1], [3, 2], [5, 5]], np.int64)
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [8, 8]))
    data = made.SerializeToString()
    x = RNG.normal(size=(16, 8)).astype(np.float32)
    for convert in (quantize_rs.convert_float16, quantize_rs.convert_bfloat16):
        assert convert(data, None, x).samples > 0
    report = quantize_rs.quantize(
        data, None, float_type="float16", calibration_data=x, allow_larger=True
    )
    assert report.model is not None
    assert oracle.sqnr(run(data, {"x": x}), run(report.model, {"x": x})) > 30


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomUniform"])
def test_random_numbers_that_no_cpu_makes_in_16_bits_are_cast(operator: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node(operator, [], ["noise"], "noise", shape=[1, 8], seed=1.0),
        helper.make_node("Mul", ["noise", "zero"], ["nothing"]),
        helper.make_node("Add", ["h", "nothing"], ["y"]),
    ]
    data = model(nodes, [weight("w", 8, 8), array("zero", 0.0)], ["n", 8])
    report = quantize_rs.convert_float16(data, None)
    assert [node.node for node in report.kept] == ["noise"]
    x = RNG.normal(size=(16, 8)).astype(np.float32)
    assert sqnr(report, data, x) > 60


PERMS = [[1, 0, 2], [1, 2, 0], [1, 2, 0, 3], [1, 2, 3, 0], [0, 2, 1], [2, 0, 1], [2, 1, 0]]
LOADS = "import sys, onnxruntime as o; o.InferenceSession(sys.argv[1])"


@pytest.mark.parametrize("perm", PERMS)
def test_a_transposed_batch_before_a_product_loads(perm: list[int], tmp_path: Path) -> None:
    """ONNX Runtime 1.32 crashes where such a Transpose has 16 bits."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "t", perm=perm),
        helper.make_node("MatMul", ["t", "w"], ["y"], "product"),
    ]
    shape: list[Any] = [3, 4, 5, 6][: len(perm)]
    shape[perm[-1]] = 48
    report = converted(model(nodes, [weight("w", 48, 10)], shape))
    rotates = perm[:-2] == list(range(1, len(perm) - 1))
    assert codes(report) == ({"t": "crashes"} if rotates else {})
    assert report.model is not None
    (tmp_path / "m.onnx").write_bytes(report.model)
    # A process of its own: a crash would end this one.
    subprocess.run([sys.executable, "-c", LOADS, str(tmp_path / "m.onnx")], check=True)


@pytest.mark.parametrize("kind", ["residual", "stored in 16 bits", "copied", "computed", "cast"])
def test_a_transposed_batch_loads_whoever_else_reads_it(kind: str, tmp_path: Path) -> None:
    """ONNX Runtime 1.32 crashes once it has folded what computes the other factor."""
    factor, read = "w", "t"
    constants = [weight("w", 48, 48)]
    nodes = [helper.make_node("Transpose", ["x"], ["t"], "t", perm=[1, 0, 2])]
    if kind == "stored in 16 bits":
        constants = [array("h", RNG.normal(size=(48, 48)), np.float16)]
        nodes.append(helper.make_node("Cast", ["h"], ["w"], to=FLOAT))
    elif kind == "copied":
        nodes.append(helper.make_node("Identity", ["w"], ["copy"]))
        factor = "copy"
    elif kind == "computed":
        constants.append(array("half", 0.5))
        nodes.append(helper.make_node("Mul", ["w", "half"], ["scaled"]))
        factor = "scaled"
    elif kind == "cast":
        nodes.append(helper.make_node("Cast", ["t"], ["double"], to=TensorProto.DOUBLE))
        nodes.append(helper.make_node("Cast", ["double"], ["single"], to=FLOAT))
        read = "single"
    nodes.append(helper.make_node("MatMul", [read, factor], ["h1"], "product"))
    nodes.append(helper.make_node("Add", ["h1", read], ["y"], "residual"))
    report = converted(model(nodes, constants, [3, 4, 48]))
    assert codes(report).get("t") == "crashes"
    assert report.model is not None
    (tmp_path / "m.onnx").write_bytes(report.model)
    subprocess.run([sys.executable, "-c", LOADS, str(tmp_path / "m.onnx")], check=True)


@pytest.mark.parametrize("length", [8, 40, 128])
def test_buckets_of_distances_are_those_of_float32(length: int) -> None:
    """The number of a bucket follows from the logarithm of a distance, as in T5."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "axis0"], ["row"]),
        helper.make_node("Unsqueeze", ["places", "axis1"], ["column"]),
        helper.make_node("Sub", ["row", "column"], ["signed"]),
        helper.make_node("Abs", ["signed"], ["distance"]),
        helper.make_node("Max", ["distance", "one"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["float"], to=FLOAT),
        helper.make_node("Div", ["float", "eight"], ["ratio"], "ratio"),
        helper.make_node("Log", ["ratio"], ["log"], "log"),
        helper.make_node("Div", ["log", "log16"], ["part"], "part"),
        helper.make_node("Mul", ["part", "eight"], ["bucket"], "bucket"),
        helper.make_node("Cast", ["bucket"], ["number"], to=TensorProto.INT64),
        helper.make_node("Clip", ["number", "zero", "fifteen"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["bias"]),
        helper.make_node("Squeeze", ["bias", "axis2"], ["added"]),
        helper.make_node("MatMul", ["x", "w"], ["q"], "product"),
        helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Add", ["scores", "added"], ["y"]),
    ]
    integers: dict[str, Any] = {
        "zero": 0,
        "one": 1,
        "fifteen": 15,
        "axis0": [0],
        "axis1": [1],
        "axis2": [2],
    }
    constants = [array(name, value, np.int64) for name, value in integers.items()]
    constants += [array("eight", 8.0), array("log16", np.log(16.0))]
    constants += [weight("table", 16, 1, scale=3), weight("w", 32, 32)]
    data = model(nodes, constants, [1, "t", 32])
    report = converted(data)
    whole = {name for name, code in codes(report).items() if code == "whole_numbers"}
    assert whole == {"ratio", "log", "part", "bucket"}
    x = RNG.normal(size=(1, length, 32)).astype(np.float32)
    assert sqnr(report, data, x) > 60


def snake(kind: str) -> bytes:
    """Convolutions with the activation x + sin(x)^2, or x + x^2."""
    nodes, constants, x = [], [array("two", 2.0)], "x"
    for at in range(3):
        inner = [f"c{at}", f"s{at}"][kind == "sine"]
        nodes += [
            helper.make_node("Conv", [x, f"w{at}"], [f"c{at}"], f"conv{at}", pads=[3, 3]),
            helper.make_node("Sin", [f"c{at}"], [f"s{at}"], f"sine{at}"),
            helper.make_node("Pow", [inner, "two"], [f"p{at}"], f"power{at}"),
            helper.make_node("Mul", [f"p{at}", f"s{at}"], [f"m{at}"], f"mul{at}"),
            helper.make_node("Add", [f"c{at}", f"m{at}"], ["y" if at == 2 else f"y{at}"]),
        ]
        constants.append(weight(f"w{at}", 64, 64, 7))
        x = f"y{at}"
    return model(nodes, constants, [1, 64, 20])


def test_the_square_of_a_sine_is_not_large() -> None:
    report = converted(snake("sine"))
    assert codes(report) == {}
    assert report.ratio > 1.8
    assert not any("not clearly smaller" in warning for warning in report.warnings)


def test_a_file_that_is_hardly_smaller_is_warned_about() -> None:
    report = quantize_rs.convert_float16(snake("square"), None, exclude=["conv0"])
    assert codes(report)["power1"] == "reads_large"
    assert any("nodes stay float32" in warning for warning in report.warnings)


def test_a_state_of_zeros_is_validated() -> None:
    """As Keras begins a recurrent layer: a ConstantOfShape without an element of its own."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"], "state"),
        helper.make_node("Add", ["x", "zeros"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    made = model(nodes, [weight("w", 32, 32)], ["n", 32])
    report = converted(made)
    assert report.model is not None
    assert quantize_rs.validate(made, report.model)
    wrong = onnx.load_from_string(report.model)
    (state,) = (node for node in wrong.graph.node if node.op_type == "ConstantOfShape")
    state.attribute[0].t.CopyFrom(numpy_helper.from_array(np.ones(1, np.float16)))
    assert not quantize_rs.validate(made, wrong)


def test_a_branch_that_reads_an_input_is_validated() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", f"w_{name}"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("If", ["c"], ["i"], then_branch=branch("a"), else_branch=branch("b")),
        helper.make_node("Add", ["m", "i"], ["y"]),
    ]
    yes = numpy_helper.from_array(np.array(True), "c")
    weights = [weight(name, 32, 32) for name in ("w", "w_a", "w_b")]
    made = onnx.load_from_string(model(nodes, [yes, *weights], ["n", 32]))
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    report = quantize_rs.convert_float16(made, None)
    assert report.model is not None
    assert quantize_rs.validate(made, report.model)


def test_what_a_runtime_evaluates_in_advance_is_constant() -> None:
    """ONNX Runtime has few kernels for float16 to do so, and moved this Transpose elsewhere."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "two"], ["channels"]),
        helper.make_node("Concat", ["sides", "channels"], ["grid"], axis=0),
        helper.make_node("Reshape", ["positions", "grid"], ["table"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["turned"], ["cast"], to=FLOAT),
        helper.make_node("Resize", ["cast", "", "", "small"], ["r"], "resize", mode="cubic"),
        helper.make_node("Transpose", ["r"], ["back"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["back", "rows"], ["embedding"]),
        helper.make_node("Add", ["x", "embedding"], ["y"], "add"),
    ]
    numbers = {"two": [2], "sides": [1, 8, 8], "small": [1, 4, 5, 5], "rows": [1, 25, 4]}
    constants = [array(name, values, np.int64) for name, values in numbers.items()]
    data = model(nodes, [*constants, weight("positions", 1, 64, 4)], [1, 25, 4])
    report = converted(data)
    assert report.model is not None
    left = [node.op_type for node in onnx.load_from_string(report.model).graph.node]
    assert "Gather" not in left
    assert left.count("Transpose") < 2
    assert quantize_rs.validate(data, report.model)
    assert sqnr(report, data, RNG.normal(size=(1, 25, 4)).astype(np.float32)) > 55


def test_a_node_that_was_evaluated_may_be_excluded() -> None:
    nodes = [
        helper.make_node("Neg", ["w"], ["v"], "negated"),
        helper.make_node("MatMul", ["x", "v"], ["y"], "product"),
    ]
    data = model(nodes, [weight("w", 6, 6)], ["n", 6])
    report = quantize_rs.convert_float16(data, None, exclude=["negated"])
    assert report.kept == ()


def test_a_large_constant_that_stays_float32_is_not_stored_again() -> None:
    """An output of the model is one of its weights."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    data = model(nodes, [weight("w", 64, 64)], ["n", 64], outputs=(("y", None), ("w", [64, 64])))
    report = converted(data)
    assert report.model is not None
    assert len(report.model) < len(data) + 400
    assert any("is larger" in it and "outputs of the model" in it for it in report.warnings)
    assert quantize_rs.validate(data, report.model)
    assert sqnr(report, data, RNG.normal(size=(5, 64)).astype(np.float32)) > 55


def test_a_larger_file_names_its_cause() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    replaceable = onnx.load_from_string(model(nodes, [weight("w", 64, 64)], ["n", 64]))
    replaceable.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [64, 64]))
    (warning,) = converted(replaceable.SerializeToString()).warnings
    assert "is larger" in warning
    assert "1 constants stay float32 because they are inputs of the model" in warning
    nodes = [helper.make_node("Cast", ["w"], ["wide"], to=FLOAT), *nodes]
    nodes[1] = helper.make_node("MatMul", ["x", "wide"], ["y"], "product")
    narrow = model(nodes, [array("w", RNG.normal(size=(256, 256)), np.float16)], ["n", 256])
    report = converted(narrow)
    assert any("its weights are float16 already" in warning for warning in report.warnings)
    assert report.model is not None
    assert quantize_rs.validate(narrow, report.model)
    wrong = onnx.load_from_string(report.model)
    (tensor,) = wrong.graph.initializer
    tensor.CopyFrom(array(tensor.name, 2 * numpy_helper.to_array(tensor), np.float16))
    assert not quantize_rs.validate(narrow, wrong)


def whole_numbers(node: onnx.NodeProto, *constants: TensorProto) -> bytes:
    """A model in which a node reads the whole numbers `f`, and makes `r`."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Cast", ["i"], ["f"], "positions", to=FLOAT),
        node,
        helper.make_node("Cast", ["r"], ["y"], "result", to=FLOAT),
    ]
    return model(nodes, list(constants), [4])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Equal", ["f", "k"], ["r"], "it"),
        helper.make_node("Greater", ["f", "k"], ["r"], "it"),
        helper.make_node("Less", ["f", "k"], ["r"], "it"),
        helper.make_node("ArgMax", ["f"], ["r"], "it"),
        helper.make_node("ReduceMax", ["f"], ["r"], "it"),
        helper.make_node("Sum", ["f", "f"], ["r"], "it"),
        helper.make_node("CumSum", ["f", "axis"], ["r"], "it"),
    ],
    ids=lambda node: node.op_type,
)
def test_what_depends_on_the_last_digit_of_whole_numbers_stays_float32(
    node: onnx.NodeProto,
) -> None:
    constants = [array("k", 4097.0), array("axis", 0, np.int64)]
    data = whole_numbers(node, *(held for held in constants if held.name in node.input))
    report = converted(data)
    assert codes(report)["it"] == "whole_numbers"
    assert report.model is not None
    x = np.array([4095, 4097, 4098, 4096], np.float32)
    # ONNX Runtime removes pairs of casts, which would hide an error.
    expected = oracle.reference(data, {"x": x})
    np.testing.assert_array_equal(oracle.reference(report.model, {"x": x})[0], expected[0])


@pytest.mark.parametrize("op_type", ["CumSum", "ReduceSum"])
def test_many_flags_are_counted_in_float32(op_type: str) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["flags"]),
        helper.make_node("Cast", ["flags"], ["ones"], to=FLOAT),
        helper.make_node("Unsqueeze", ["ones", "axis"], ["row"]),
        helper.make_node(op_type, ["row", "last"], ["y"], "count"),
    ]
    last = array("last", 1 if op_type == "CumSum" else [1], np.int64)
    data = model(nodes, [array("zero", 0.0), array("axis", [0], np.int64), last], [3000])
    report = converted(data, np.ones((2, 3000), np.float32))
    assert codes(report)["count"] == "whole_numbers"


@pytest.mark.parametrize("op_type", ["EyeLike", "RandomNormalLike", "RandomUniformLike"])
def test_tensors_like_one_of_integers_stay_float32(op_type: str) -> None:
    """ONNX Runtime makes none of 16 bits."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node(op_type, ["i"], ["made"], "made", dtype=FLOAT),
        helper.make_node("MatMul", ["made", "w"], ["y"]),
    ]
    data = model(nodes, [weight("w", 4, 4)], [4, 4])
    report = converted(data)
    assert report.model is not None
    (found,) = run(report.model, {"x": np.ones((4, 4), np.float32)})
    assert np.isfinite(found).all()
