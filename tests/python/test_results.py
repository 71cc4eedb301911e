"""Results: frozen, true, and the same as text, JSON, dict and table."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest

import quantize_rs
from quantize_rs import Model, ModelInfo, Plan, Quantized, Ranges, Report
from quantize_rs._results import notebook


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8", per_channel=True, symmetric=True)


@pytest.fixture
def ranges(plan: Plan, images: Path) -> Ranges:
    return plan.calibrate(images)


@pytest.fixture
def report(plan: Plan, ranges: Ranges) -> Report:
    return plan.apply(ranges).save("q.onnx")


def test_everything_is_frozen(digits: Path, plan: Plan, ranges: Ranges, report: Report) -> None:
    model = quantize_rs.open(digits)
    things: list[Any] = [model, model.info, model.info.input_specs[0], plan, plan.values[0]]
    things += [ranges, plan.apply(ranges), report, report.values[0], report.seconds]
    for thing in things:
        for name in (dataclasses.fields(thing)[0].name, "something_else"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(thing, name, 3)


def test_reports_add_up(digits: Path, report: Report) -> None:
    assert report.input == str(digits)
    assert report.output == "q.onnx"
    assert report.bytes_before == digits.stat().st_size
    assert report.bytes_after == Path("q.onnx").stat().st_size
    assert report.ratio == report.bytes_before / report.bytes_after
    assert (report.engine, report.method, report.samples) == ("tract", "minmax", 200)
    assert report.seconds.calibrate > 0
    assert report.seconds.apply > 0
    assert report.seconds.save > 0
    assert all(value.quantized for value in report.weights)
    assert set(report.quantized) <= set(report.values)
    assert {value.name for value in report.activations} >= {"image", "logits"}


def test_rows_say_what_is_in_the_file(report: Report) -> None:
    proto = onnx.load("q.onnx")
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    nodes = {node.output[0]: node for node in proto.graph.node}
    for value in report.weights:
        q, scale, *zero = (constants[name] for name in nodes[value.name].input)
        assert value.shape == q.shape
        assert value.scale == (scale.min(), scale.max())
        assert value.granularity == "per_axis"
        assert value.sqnr_db is not None
        assert value.sqnr_db > 35
        assert value.max_abs_error is not None
        if value.name.startswith(
            "fc"
        ):  # beside quantized activations, matrices are left to nearest
            assert value.rounded_by is None
        else:
            assert value.rounded_by in {"nearest", "scales", "gptq", "descent"}
            assert value.rounding_gain_db is not None
            assert value.rounding_gain_db >= 0
        # An integer that makes good the errors of others is not the nearest, but on its side.
        assert value.max_abs_error < scale.max() * 127
        assert not any(points.any() for points in zero)  # symmetric: no zero points, or only zeros
    image = next(value for value in report.values if value.name == "image")
    assert image.range == (0.0, 1.0)
    assert image.qtype == "uint8"
    assert image.zero_point == 0
    assert image.scale == (np.float32(1 / 255),) * 2


def test_an_exact_weight_has_an_infinite_sqnr() -> None:
    report = quantize_rs.quantize(oracle.model("constant_weight"), None, symmetric=True)
    errors = [value.sqnr_db for value in report.weights if value.quantized]
    assert errors
    assert all(error == math.inf or error > 100 for error in errors if error is not None)


def test_json_is_json_and_the_dict_is_the_same(
    digits: Path, plan: Plan, ranges: Ranges, report: Report
) -> None:
    info = quantize_rs.model_info(digits)
    for thing in (info, plan, ranges, report):
        assert json.loads(thing.to_json()) == thing.to_dict()
    assert report.to_dict()["ratio"] == report.ratio
    assert len(report.to_dict()["values"]) == len(report.values) == len(plan)
    assert "model" not in quantize_rs.quantize(digits, None).to_dict()


def test_a_report_has_every_field_that_its_json_has(report: Report) -> None:
    """A field that only one side has is forgotten, but for the options and an earlier name."""
    names = {field.name for field in dataclasses.fields(report)} - {"_outcome", "model"}
    renamed = {"accuracy_control": "verified"}
    expected = {renamed.get(name, name) for name in names} | {"config"}
    assert set(report.to_dict()) == expected


def test_plans_are_tables(plan: Plan) -> None:
    table = str(plan).splitlines()
    assert table[0].split()[:2] == ["value", "type"]
    *rows, count, rounding = table[1:]
    for value, line in zip(plan, rows, strict=True):
        assert line.startswith(value.name)
        assert value.kind in line
        assert value.why.split(": ", 1)[1] in line
    assert count == f"{sum(v.quantized for v in plan)} of {len(plan)} values are quantized"
    assert "weights are rounded with samples" in rounding


def test_plans_and_reports_agree(plan: Plan, report: Report) -> None:
    for planned, done in zip(plan, report.values, strict=True):
        for field in dataclasses.fields(planned):
            assert getattr(planned, field.name) == getattr(done, field.name)


def test_reprs_are_short_and_true(digits: Path, plan: Plan, ranges: Ranges, report: Report) -> None:
    model = quantize_rs.open(digits)
    quantized = plan.apply(ranges)
    things: dict[type, Any] = {
        Model: model,
        ModelInfo: model.info,
        Plan: plan,
        Ranges: ranges,
        Quantized: quantized,
        Report: report,
    }
    for kind, thing in things.items():
        assert repr(thing).startswith(f"<{kind.__name__}")
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 300
    assert str(report.bytes_after) in repr(report)
    assert str(model.info.bytes) in repr(model)
    assert "200 samples" in repr(ranges)
    assert repr(quantize_rs.open(digits.read_bytes())).endswith(f"{model.info.bytes} bytes>")


def test_text_for_the_terminal(report: Report) -> None:
    text = str(report)
    assert str(report.bytes_before) in text
    assert all(value.name in text for value in report.weights)


def test_tables_for_notebooks_escape_names() -> None:
    nasty = "<script>alert('&')</script>"
    proto = onnx.load(oracle.model("conv2d_relu"))
    proto.graph.name = nasty
    (weight,) = (n.input[1] for n in proto.graph.node if n.op_type == "Conv")
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace(weight, nasty)
    for node in proto.graph.node:
        node.input[:] = [nasty if name == weight else name for name in node.input]
    model = quantize_rs.open(proto)
    plan = model.plan(activations="uint8")
    ranges = plan.calibrate([oracle.feeds("conv2d_relu")])
    quantized = plan.apply(ranges)
    samples = [oracle.feeds("conv2d_relu")]
    made = quantized.to_bytes()
    things: list[Any] = [
        model,
        model.info,
        plan,
        ranges,
        quantized,
        quantized.report,
        quantize_rs.sensitivity(proto),
        quantize_rs.compare(proto, made, samples, latency=False),
        quantize_rs.layer_errors(proto, made, samples),
        plan.compare_methods(samples * 2),
        quantize_rs.prune(proto, threshold=0.1),
        quantize_rs.optimize(proto),
    ]
    for thing in things:
        table = thing._repr_html_()
        assert table.startswith("<table>"), thing
        assert "<script>" not in table
    assert "&lt;script&gt;" in plan._repr_html_()
    assert "&lt;script&gt;" in quantize_rs.sensitivity(proto)._repr_html_()


def test_every_result_has_a_form_for_notebooks(digits: Path) -> None:
    results = [
        thing
        for name in quantize_rs.results.__all__
        if hasattr(thing := getattr(quantize_rs.results, name), "to_json")
    ]
    assert len(results) > 10
    assert all(hasattr(thing, "_repr_html_") for thing in results)
    converted = quantize_rs.convert_opset(digits, opset=21)
    assert converted._repr_html_().startswith("<pre>")
    assert str(converted) in converted._repr_html_()


def test_a_long_table_has_an_end() -> None:
    table = notebook.table("numbers", ["n", "square"], ([n, n * n] for n in range(1000)))
    assert table.count("<tr>") == 1 + notebook.ROWS + 1
    assert f"and {1000 - notebook.ROWS} more" in table
    assert "<tfoot>" not in notebook.table("numbers", ["n"], ([n] for n in range(notebook.ROWS)))


def test_results_survive_a_process_boundary(digits: Path, report: Report) -> None:
    for thing in (report, quantize_rs.model_info(digits)):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_values_of_a_plan_can_be_found_by_what_they_are(plan: Plan) -> None:
    assert [value.name for value in plan if value.role == "input"] == ["image"]
    kept = [value for value in plan if not value.quantized]
    assert all(value.why and value.source is None for value in kept)
    biases = [value for value in plan if value.qtype == "int32"]
    assert biases
    assert all(value.source and "×" in value.source for value in biases)


def test_the_command_of_a_result_is_the_call(digits: Path, images: Path) -> None:
    small = digits.with_name("q.onnx")
    quantize_rs.quantize(digits, small)
    models, noise = f"{str(digits)!r}, {str(small)!r}", "num_samples=4, seed=9"
    run: dict[str, Any] = {"num_samples": 4, "seed": 9}
    found: Any = quantize_rs.compare(
        digits, small, "random", latency=False, engine="tract", threads=1, **run
    )
    options = f"latency=False, engine='tract', {noise}, threads=1"
    assert found.origin.command == f"quantize_rs.compare({models}, 'random', {options})"
    found = quantize_rs.compare(
        digits, small, images, np.zeros(200, int), metric="top5", runs=2, limit=None
    )
    options = "labels=<ndarray of shape (200,)>, metric='top5', runs=2"
    assert found.origin.command == f"quantize_rs.compare({models}, {str(images)!r}, {options})"
    found = quantize_rs.layer_errors(digits, small, "random", engine="tract", **run)
    options = f"engine='tract', {noise}"
    assert found.origin.command == f"quantize_rs.layer_errors({models}, 'random', {options})"
    found = quantize_rs.sensitivity(
        digits, data="random", metric="mse", all_but_one=True, excluded_layers=["conv1"], **run
    )
    options = f"metric='mse', all_but_one=True, exclude=['conv1'], {noise}"
    assert found.origin.command == (
        f"quantize_rs.sensitivity({str(digits)!r}, 'random', {options})"
    )
    found = quantize_rs.sensitivity(digits, per_channel=True)
    assert found.origin.command == f"quantize_rs.sensitivity({str(digits)!r}, per_channel=True)"
    found = quantize_rs.sensitivity(digits, images, "sqnr", limit=2)
    assert found.origin.command.endswith(f"({str(digits)!r}, {str(images)!r}, limit=2)")
