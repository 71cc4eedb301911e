"""Passes from float to float: each does its work, and what the model computes stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from graphs import built
from odd import normal
from onnx import TensorProto, helper, numpy_helper
from pass_cases import DONE, KEPT

import quantize_rs
from quantize_rs import OptionError

README = Path(__file__).resolve().parents[2] / "README_PYTHON.md"


def optimized(
    model: bytes | Path, **options: Any
) -> tuple[onnx.ModelProto, quantize_rs.OptimizationReport]:
    report = quantize_rs.optimize(model, **options)
    assert report.model is not None
    return onnx.load_from_string(report.model), report


def equal(before: bytes, after: bytes, feeds: oracle.Feeds, *, exactly: bool) -> None:
    for optimize in (False, True):
        expected = oracle.ort(before, feeds, optimized=optimize)
        found = oracle.ort(after, feeds, optimized=optimize)
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
    oracle.check(proto.SerializeToString())
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


def test_nothing_is_left_to_compute_in_a_body() -> None:
    proto, _ = optimized(DONE["constants_of_bodies"][1].model())
    bodies = {a.name: a.g for a in proto.graph.node[0].attribute}
    assert [made.op_type for made in bodies["then_branch"].node] == ["Constant", "Mul"]
    assert not bodies["then_branch"].initializer
    assert [made.op_type for made in bodies["else_branch"].node] == ["Constant"]


def test_before_planning_channels_stay_as_even_as_they_were() -> None:
    for name, folds in (("one_factor_and_conv", True), ("factors_and_padded_conv", False)):
        report = quantize_rs.quantize(DONE[name][1].model(), None)
        assert ("fold_batch_norm_forward" in [step.name for step in report.steps]) == folds


def test_a_product_is_what_it_was_for_options() -> None:
    model = DONE["matmul_and_norm"][1].model()
    for options in ({"op_types": ["MatMul"]}, {"layer_bits": {"MatMul": 8}}):
        report = quantize_rs.quantize(model, None, **options)
        assert "fold_batch_norm" in [step.name for step in report.steps]
        assert [value.quantized for value in report.weights] == [True]


def test_a_weight_keeps_its_name_when_a_norm_is_folded() -> None:
    proto, report = optimized(DONE["conv_and_norm"][1].model())
    assert {tensor.name for tensor in proto.graph.initializer} == {"w", "w_bias"}
    assert "relative rounding error of at most" in report.steps[0].did[0]


@pytest.mark.parametrize("name", oracle.FIXTURES)
def test_fixtures_compute_what_they_did(name: str) -> None:
    said = oracle.FIXTURES[name]
    proto, _ = optimized(oracle.model(name))
    after = proto.SerializeToString()
    assert quantize_rs.optimize(after).steps == ()
    if said["checked"]:
        oracle.check(after)
    before = onnx.load(oracle.model(name))
    constants = {tensor.name for tensor in before.graph.initializer if before.ir_version < 4}
    inputs = [value for value in before.graph.input if value.name not in constants]
    assert inputs == [value for value in proto.graph.input if value.name not in constants]
    assert list(before.graph.output) == list(proto.graph.output)
    if said["runs"] and said["finite"]:
        feeds = oracle.feeds(name)
        for way in (True, False):
            expected = oracle.ort(oracle.model(name), feeds, optimized=way)
            found = oracle.ort(after, feeds, optimized=way)
            assert oracle.sqnr(expected, found) > 120  # dB: the last bits of float32


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
    # Tried in test_functions, test_half_floats, test_fused, test_weights_alone_speed,
    # test_equalize and test_initializer_inputs.
    elsewhere = {"inline_functions", "widen_floats", "split_fused", "subtract_bias", "equalize"}
    elsewhere.add("remove_weight_inputs")
    assert set(passes) == {wanted for wanted, _, _ in DONE.values()} | elsewhere
    text = README.read_text("utf-8")
    assert all(f"| `{name}` |" in text for name in passes)
    assert all(f'``"{name}"``' in (quantize_rs.optimize.__doc__ or "") for name in passes)


@pytest.mark.parametrize(
    "options",
    [
        {"excluded_layers": ["norm"]},
        {"excluded_layers": ["BatchNormalization"]},
        {"excluded_layers": ["re:nor."]},
    ],
    ids=str,
)
def test_what_was_folded_away_can_still_be_named(options: dict[str, Any]) -> None:
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
    report = quantize_rs.quantize(model, None, **options)
    (text,) = options["excluded_layers"]
    assert any(text in warning and "folded" in warning for warning in report.warnings)
    assert [value.quantized for value in report.weights] == [True]
    report = quantize_rs.quantize(model, None, optimize=False, **options)
    assert not any("folded" in warning for warning in report.warnings)
    with pytest.raises(OptionError, match="nrom"):
        quantize_rs.quantize(model, None, excluded_layers=["nrom"])


def test_a_squeeze_of_an_empty_list_of_axes_stays() -> None:
    """ONNX Runtime reads it as all axes of length 1."""
    nodes = [
        helper.make_node("Squeeze", ["x", "axes"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Expand", ["one", "s"], ["ones"]),
        helper.make_node("Add", ["b", "ones"], ["y"]),
    ]
    constants: dict[str, Any] = {"axes": np.zeros(0, np.int64), "one": np.ones(1, np.float32)}
    model = built(nodes, constants, [1, 3, 1])
    made, _ = optimized(model)
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    (expected,), (found,) = (oracle.ort(it, {"x": x}) for it in (model, made.SerializeToString()))
    np.testing.assert_array_equal(found, expected)
    assert "Squeeze" in [node.op_type for node in made.graph.node]


def test_values_of_a_loop_differ_between_iterations() -> None:
    """What the last iteration made is longer than what it got, and what it got is an output."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Concat", ["c", "x"], ["longer"], axis=0),
            helper.make_node("Identity", ["c"], ["seen"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("c", TensorProto.FLOAT, None),
        ],
        [
            info("on", TensorProto.BOOL, []),
            info("longer", TensorProto.FLOAT, None),
            info("seen", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["count", "", "start"], ["last", "all"], body=body),
        helper.make_node("Squeeze", ["all", "first"], ["before"]),
        helper.make_node("Shape", ["last"], ["s"]),
        helper.make_node("Expand", ["before", "s"], ["wide"]),
        helper.make_node("Neg", ["wide"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "count": np.array(1, np.int64),
        "first": np.zeros(1, np.int64),
        "start": np.ones((1, 4), np.float32),
    }
    model = built(nodes, constants, [1, 4])
    made, _ = optimized(model)
    x = np.ones((1, 4), np.float32)
    (expected,), (found,) = (oracle.ort(it, {"x": x}) for it in (model, made.SerializeToString()))
    assert found.shape == expected.shape == (2, 4)


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
def test_the_far_end_of_a_slice_with_a_negative_step_is_left_to_the_runtime(end: int) -> None:
    """ONNX Runtime reads it as the end in the direction of the step."""
    nodes = [
        helper.make_node("Slice", ["k", "start", "end", "axis", "step"], ["part"]),
        helper.make_node("Mul", ["x", "part"], ["y"]),
    ]
    numbers = {"start": [4], "end": [end], "axis": [1], "step": [-3]}
    constants: dict[str, Any] = {name: np.array(it, np.int64) for name, it in numbers.items()}
    model = built(nodes, constants | {"k": normal(2, 6)}, [2, 1])
    made, _ = optimized(model)
    x = np.ones((2, 1), np.float32)
    (expected,), (found,) = (oracle.ort(it, {"x": x}) for it in (model, made.SerializeToString()))
    np.testing.assert_array_equal(found, expected)
