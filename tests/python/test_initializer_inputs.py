"""Initializers that are inputs too: constants where all are, and replaceable where some are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from odd import Odd, ints, node, normal
from onnx import ModelProto, TensorProto, helper, numpy_helper

import quantize_rs

PASS = "remove_weight_inputs"
rng = np.random.default_rng(5)
WEIGHTS = {"w1": rng.standard_normal((64, 96)) / 8, "w2": rng.standard_normal((96, 48)) / 10}


def model(weights: dict[str, np.ndarray], inputs: tuple[str, ...], ir_version: int) -> ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    floats = {name: value.astype(np.float32) for name, value in weights.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            info("x", TensorProto.FLOAT, ["n", 64]),
            *(info(name, TensorProto.FLOAT, list(floats[name].shape)) for name in inputs),
        ],
        [info("y", TensorProto.FLOAT, ["n", 48])],
        [numpy_helper.from_array(value, name) for name, value in floats.items()],
    )
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "listed.onnx"
    onnx.save(model(WEIGHTS, ("w1", "w2"), 7), path)
    return path


def inputs(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path).graph.input]


def test_initializers_that_are_all_inputs_are_quantized(listed: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    report = quantize_rs.quantize(listed, out)
    assert [step.name for step in report.steps] == [PASS]
    assert len(report.quantized) == 2
    assert inputs(out) == ["x"]
    session = onnxruntime.InferenceSession(out)
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert session.get_overridable_initializers() == []
    assert quantize_rs.validate(listed, out).passed


def test_they_are_calibrated_and_converted(listed: Path, tmp_path: Path) -> None:
    samples = rng.standard_normal((32, 64)).astype(np.float32)
    out = tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(listed, out, samples)
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert (
        quantize_rs.compare(listed, out, samples, latency=False, engine="tract").sqnr_db or 0
    ) > 30
    half = tmp_path / "half.onnx"
    quantize_rs.convert_float16(listed, half)
    assert inputs(half) == ["x"]
    assert half.stat().st_size < 0.6 * listed.stat().st_size


@pytest.mark.parametrize(
    "inputs_too",
    [pytest.param(("w1",), id="some"), pytest.param((), id="none")],
)
def test_what_a_caller_may_replace_stays(tmp_path: Path, inputs_too: tuple[str, ...]) -> None:
    path, out = tmp_path / "some.onnx", tmp_path / "q.onnx"
    onnx.save(model(WEIGHTS, inputs_too, 7), path)
    report = quantize_rs.quantize(path, out)
    assert PASS not in [step.name for step in report.steps]
    assert inputs(out) == ["x", *inputs_too]
    assert len(report.quantized) == 2 - len(inputs_too)


def test_the_pass_can_be_left_out(listed: Path, tmp_path: Path) -> None:
    plan = quantize_rs.open(listed).plan(optimize=[])
    assert not any(value.qtype == "int8" for value in plan.values)
    kept = quantize_rs.optimize(listed, tmp_path / "o.onnx", skip=[PASS])
    assert PASS not in [step.name for step in kept.steps]
    assert inputs(tmp_path / "o.onnx") == ["x", "w1", "w2"]


def test_inputs_of_the_first_versions_are_constants_anyway(tmp_path: Path) -> None:
    path, out = tmp_path / "old.onnx", tmp_path / "q.onnx"
    onnx.save(model(WEIGHTS, ("w1", "w2"), 3), path)
    report = quantize_rs.quantize(path, out)
    assert PASS not in [step.name for step in report.steps]
    assert len(report.quantized) == 2


def dropped_rows() -> Odd:
    """The whole of a weight in its default, and a part of longer ones."""
    cut = {"b": ints(0), "e": ints(5), "a": ints(0), "k": normal(4)}
    return Odd(
        [node("Slice", "w b e a", "p"), node("Add", "p k", "q"), node("MatMul", "q x")],
        cut | {"w": normal(5, 4)},
        inputs={"x": [4, 2]},
        also_inputs=("w",),
    )


def resized() -> Odd:
    return Odd(
        [node("Resize", "x - - s", "a", axes=[2, 3]), node("Add", "a k")],
        {"s": ints(4, 4), "k": normal(1)},
        inputs={"x": [1, 2, 8, 8]},
        opset=18,
        also_inputs=("s",),
    )


@pytest.mark.parametrize(
    ("case", "given"),
    [
        pytest.param(dropped_rows(), {"w": normal(8, 4)}, id="rows"),
        pytest.param(resized(), {"s": ints(16, 16)}, id="sizes"),
    ],
)
def test_no_pass_relies_on_a_default(case: Odd, given: dict[str, np.ndarray]) -> None:
    made = onnx.load_from_string(case.model())
    for value in [*made.graph.input, *made.graph.output]:
        if value.name in (*given, "y") and given.keys() != {"s"}:
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    if "s" in given:
        del made.graph.output[0].type.tensor_type.shape.dim[:]
        made.graph.output[0].type.tensor_type.ClearField("shape")
    model = made.SerializeToString()
    feeds = case.feeds() | given
    for result in (quantize_rs.optimize(model).model, quantize_rs.quantize(model, None).model):
        assert result is not None
        (expected,), (found,) = oracle.ort(model, feeds), oracle.ort(result, feeds)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_a_padding_value_that_may_be_replaced_is_not_lost(output_format: str) -> None:
    case = Odd(
        [
            node("Conv", "x w", "a"),
            node("Pad", "a p v", "b"),
            node("Conv", "b w2"),
        ],
        {
            "w": normal(4, 3, 1, 1),
            "w2": normal(2, 4, 1, 1),
            "p": ints(0, 0, 1, 1, 0, 0, 1, 1),
            "v": np.float32(0),
        },
        inputs={"x": [1, 3, 6, 6]},
        also_inputs=("v",),
    )
    model, feeds = case.model(), case.feeds()
    result = quantize_rs.quantize_with_calibration(
        model, None, feeds, output_format=output_format, check="none"
    ).model
    assert result is not None
    feeds["v"] = np.array(2, np.float32)
    (expected,), (found,) = oracle.ort(model, feeds), oracle.ort(result, feeds)
    assert oracle.sqnr([expected], [found]) > 25
