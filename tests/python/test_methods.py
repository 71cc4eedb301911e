"""The calibration methods: how ranges follow from the observed values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from onnx import helper, numpy_helper

import quantize_rs
from quantize_rs import CalibrationError, MethodComparison, OptionError, Plan, Ranges

FINDERS = ["minmax", "moving_average", "percentile", "percentile:99.9", "entropy", "mse"]


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8", per_channel=True)


@pytest.fixture
def comparison(plan: Plan, images: Path) -> MethodComparison:
    return plan.compare_methods(images)


@pytest.mark.parametrize("method", [*FINDERS, "auto"])
def test_every_method_gives_a_model_that_still_reads_digits(
    digits: Path, images: Path, method: str
) -> None:
    test = np.load(digits.with_name("test.npz"))
    report = quantize_rs.quantize_with_calibration(
        digits, None, images, per_channel=True, method=method
    )
    assert report.method == method
    assert report.model is not None
    oracle.check(report.model)
    found = oracle.ort(report.model, {"image": test["images"]})[0].argmax(1)
    # The float model gets 394 of 397 right; the mean of extremes clips too much to be exact.
    assert (found == test["labels"]).sum() >= (385 if method == "moving_average" else 393)


def test_no_two_methods_find_the_same(plan: Plan, images: Path) -> None:
    seen = plan.calibrate(images)
    found = [seen.using(method).values for method in FINDERS]
    for number, values in enumerate(found):
        assert all(values != other for other in found[:number]), FINDERS[number]
    for method, values in zip(FINDERS, found, strict=True):
        # Room for values beyond those of these samples.
        room = 2 if method == "mse" else 1
        for name, (low, high) in values.items():
            assert seen.values[name][0] * room <= low <= high <= seen.values[name][1] * room


@pytest.mark.parametrize("method", FINDERS)
def test_another_method_needs_no_other_run(plan: Plan, images: Path, method: str) -> None:
    assert plan.calibrate(images).using(method) == plan.calibrate(images, method=method)


@pytest.mark.parametrize("method", [*FINDERS, "auto"])
def test_threads_order_and_batches_change_no_method(plan: Plan, images: Path, method: str) -> None:
    # As many as `auto` needs for its evaluation.
    samples = np.load(images)[:128]
    expected = plan.calibrate(samples, method=method, threads=1)
    shuffled = np.random.default_rng(3).permutation(samples)
    batches = (shuffled[i : i + 24] for i in range(0, 128, 24))
    for found in (
        plan.calibrate(samples, method=method, threads=2),
        plan.calibrate(shuffled, method=method, threads=7),
        plan.calibrate(batches, method=method),
    ):
        assert found == expected


@pytest.mark.parametrize("method", ["entropie", "minmax:3", "percentile:101", "percentile:x", ""])
def test_a_method_that_is_none_is_an_option_error(plan: Plan, images: Path, method: str) -> None:
    with pytest.raises(OptionError, match="method") as caught:
        plan.calibrate(images, method=method)
    assert caught.value.option == "method"
    assert ("a number above 50" if method.startswith("percentile:") else "auto") in str(
        caught.value
    )
    with pytest.raises(OptionError, match="method"):
        plan.calibrate(images).using(method)


def test_auto_says_what_it_chose(plan: Plan, images: Path) -> None:
    ranges = plan.calibrate(images, method="auto")
    assert ranges.method == "auto"
    assert ranges.chosen.keys() == ranges.values.keys()
    assert set(ranges.chosen.values()) <= set(FINDERS)
    seen = plan.calibrate(images)
    for name, method in ranges.chosen.items():
        assert ranges.values[name] == seen.using(method).values[name]
    report = plan.apply(ranges).report
    methods = {value.name: value.method for value in report.values if value.method}
    assert methods == ranges.chosen
    assert list(report.notes)[: len(ranges.notes)] == list(ranges.notes)
    with pytest.raises(CalibrationError, match="auto"):
        ranges.using("auto")
    assert ranges.using("minmax") == seen


@pytest.mark.parametrize(("count", "method"), [(1, "minmax"), (2, "mse"), (127, "mse")])
def test_auto_evaluates_nothing_on_few_samples_with_a_note(
    plan: Plan, images: Path, count: int, method: str
) -> None:
    done = []
    found = plan.calibrate(
        images, method="auto", limit=count, progress=lambda now, _: done.append(now)
    )
    assert max(done) == count, "no sample is run again"
    seen = plan.calibrate(images, limit=count)
    assert {method} <= set(found.chosen.values()) <= ({method} if count == 1 else {method, "mse:2"})
    assert all(
        found.values[name] == seen.using(chosen).values[name]
        for name, chosen in found.chosen.items()
    )
    assert any(
        f"takes `{method}`" in note and "fewer than 128 samples" in note for note in found.notes
    )


def test_auto_leaves_room_for_new_values_where_16_bits_allow_it(digits: Path, images: Path) -> None:
    """The few samples that methods are evaluated on seldom show what others clip."""
    model = quantize_rs.open(digits)
    wide = model.plan(activations="uint16").calibrate(images, method="auto")
    assert set(wide.chosen.values()) == {"mse", "mse:2"}
    assert any("with 16 bits it costs nothing" in note for note in wide.notes)
    plan = model.plan(activations="uint8", activation_types={"relu1_out": "uint16"})
    some = plan.calibrate(images, method="auto")
    seen = plan.calibrate(images)
    assert some.chosen["relu1_out"] == "mse"
    assert "minmax" in some.chosen.values()
    for name, method in some.chosen.items():
        assert some.values[name] == seen.using(method).values[name]
    assert any("`mse` for 16-bit values" in note for note in some.notes)


def test_on_few_samples_clipping_counts_twice_at_inputs_of_convolutions() -> None:
    rng = np.random.default_rng(5)
    kernel = numpy_helper.from_array(rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32), "k")
    matrix = numpy_helper.from_array(rng.normal(0, 0.3, (8, 8)).astype(np.float32), "m")
    nodes = [
        helper.make_node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["rows", "m"], ["p"]),
    ]
    shapes = {"image": [1, 8, 16, 16], "rows": [1, 32, 8]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in "cp"]
    graph = helper.make_graph(nodes, "both", inputs, outputs, [kernel, matrix])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = {
        name: rng.laplace(0, 1, (20, *shape[1:])).astype(np.float32)
        for name, shape in shapes.items()
    }
    plan = quantize_rs.open(model).plan(activations="uint8", include=["*"])
    found = plan.calibrate(samples, method="auto")
    assert (found.chosen["image"], found.chosen["rows"]) == ("mse:2", "mse")
    seen = plan.calibrate(samples)
    once = seen.using("mse").values["image"]
    assert found.values["image"] == seen.using("mse:2").values["image"] != once
    assert found.values["image"][1] > once[1]
    assert any("and `mse:2` for the inputs of convolutions (1)" in note for note in found.notes)


def test_the_value_whose_scale_an_input_of_a_convolution_has_counts_clipping_twice() -> None:
    rng = np.random.default_rng(6)
    kernels = {name: rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32) for name in "kl"}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "l"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info("x", 1, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", 1, [1, 8, 6, 6])],
        [numpy_helper.from_array(value, name) for name, value in kernels.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = {"x": rng.laplace(0, 1, (20, 8, 16, 16)).astype(np.float32)}
    plan = quantize_rs.open(model).plan(activations="uint8", include=["*"])
    found = plan.calibrate(samples, method="auto")
    assert found.chosen["r"] == "mse:2"
    assert "p" not in found.values


def test_auto_evaluates_nothing_on_one_repeated_sample(plan: Plan, images: Path) -> None:
    found = plan.calibrate(np.repeat(np.load(images)[:1], 130, axis=0), method="auto")
    assert set(found.chosen.values()) == {"minmax"}
    assert any("equal samples count once" in note for note in found.notes)


@pytest.mark.parametrize(("count", "chosen"), [(511, {"mse"}), (512, {"mse", "entropy"})])
def test_auto_evaluates_single_values_on_many_samples(count: int, chosen: set[str]) -> None:
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(0, 0.3, (32, 24)).astype(np.float32) for name in "vw"}
    weights["one"] = np.ones(24, np.float32)
    nodes = [
        helper.make_node("MatMul", ["a", "v"], ["p"]),
        helper.make_node("MatMul", ["b", "w"], ["q"]),
        helper.make_node("LayerNormalization", ["p", "one"], ["n"]),
    ]
    inputs = [helper.make_tensor_value_info(name, 1, [1, 64, 32]) for name in "ab"]
    outputs = [helper.make_tensor_value_info(name, 1, [1, 64, 24]) for name in "nq"]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "two", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = {name: rng.normal(0, 1, (count, 64, 32)).astype(np.float32) for name in "ab"}
    # In `a`, one row in 64 has large values; in `b`, every row has one large value.
    samples["a"][:, 0] *= 30
    loud = rng.choice([-1, 1], (count, 64)) * np.exp(rng.uniform(3, 4, (count, 64)))
    samples["b"][..., 3] = loud
    found = quantize_rs.open(model).plan(activations="uint8").calibrate(samples, method="auto")
    assert set(found.chosen.values()) == chosen
    assert found.chosen["b"] == "mse"


def test_a_choice_that_means_nothing_is_said(plan: Plan, images: Path) -> None:
    # Every pixel is one of 17 shades: there is no tail to cut.
    assert plan.calibrate(images).notes == plan.calibrate(images).using("minmax").notes
    report = plan.apply(plan.calibrate(images, method="mse")).report
    assert any("`image`" in note and "minmax" in note for note in report.notes)
    assert all(note in str(report) for note in report.notes)


def test_auto_is_no_worse_than_any_method_on_new_images(
    digits: Path, plan: Plan, images: Path, comparison: MethodComparison
) -> None:
    test = {"image": np.load(digits.with_name("test.npz"))["images"]}
    expected = oracle.ort(digits, test)

    def decibels(ranges: Ranges) -> float:
        return oracle.sqnr(expected, oracle.ort(plan.apply(ranges).to_bytes(), test))

    auto = decibels(plan.calibrate(images, method="auto"))
    for method, ranges in comparison.ranges.items():
        assert auto >= decibels(ranges) - 0.1, method


def test_a_comparison_tells_methods_apart(comparison: MethodComparison) -> None:
    rows = {row.method: row for row in comparison.rows}
    assert rows.keys() == {"minmax", "moving_average", "percentile", "entropy", "mse", "auto"}
    decibels = {name: row.sqnr_db for name, row in rows.items()}
    assert all(found is not None and 15 < found < 80 for found in decibels.values())
    assert (decibels[comparison.best] or 0) >= (decibels["minmax"] or 0)
    assert len(set(decibels.values())) > 3


def test_a_comparison_has_the_ranges_of_every_method(
    plan: Plan, images: Path, comparison: MethodComparison
) -> None:
    assert list(comparison.ranges) == [row.method for row in comparison.rows]
    for method, ranges in comparison.ranges.items():
        if method != "auto":
            assert ranges.values == plan.calibrate(images, method=method).values
            assert (ranges.method, ranges.samples) == (method, 200)
    assert comparison.samples == 200
    assert 0 < comparison.held_back < 200
    # Of small models, all that are held back.
    assert comparison.evaluated == min(comparison.held_back, 128)
    assert comparison.engine == plan.calibrate(images).engine
    assert plan.apply(comparison.ranges[comparison.best]).to_bytes()


def test_a_comparison_is_the_same_as_text_json_dict_and_table(comparison: MethodComparison) -> None:
    assert json.loads(comparison.to_json()) == comparison.to_dict()
    assert [row["method"] for row in comparison.to_dict()["methods"]] == list(comparison.ranges)
    table = str(comparison).splitlines()
    for row, line in zip(comparison.rows, table[1:], strict=False):
        assert line.startswith(row.method)
    assert repr(comparison).startswith("<MethodComparison of 6 methods: ")
    assert comparison.best in repr(comparison)
    assert comparison._repr_html_().startswith("<table>")
    for name in ("_comparison", "something_else"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(comparison, name, 3)


def test_threads_and_order_change_no_comparison(plan: Plan, images: Path) -> None:
    samples = np.load(images)
    one = plan.compare_methods(samples, threads=1)
    other = plan.compare_methods(samples[::-1], threads=2)
    assert one.to_dict() == other.to_dict()
    assert one.ranges == other.ranges


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
def test_a_method_is_evaluated_by_its_quantized_model(
    digits: Path, images: Path, engine: str
) -> None:
    """A single sample is not held back: the methods are evaluated on the calibration sample."""
    sample = np.load(images)[:1]
    # Sums of 7-bit weights do not saturate: the result is the same on any processor.
    plan = quantize_rs.open(digits).plan(activations="uint8", per_channel=True, target="x86-avx2")
    comparison = plan.compare_methods(sample, engine=engine)
    expected = oracle.ort(digits, {"image": sample})
    for row in comparison.rows:
        made = plan.apply(comparison.ranges[row.method]).to_bytes()
        found = oracle.sqnr(expected, oracle.ort(made, {"image": sample}))
        # tract computes what is dequantized in float, ONNX Runtime in integers.
        assert row.sqnr_db == pytest.approx(found, abs=0.01 if engine == "onnxruntime" else 1.5)


def test_methods_that_hardly_differ_are_not_tried_layer_by_layer(plan: Plan, images: Path) -> None:
    rng = np.random.default_rng(6)
    weight = numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, [1, s]) for n, s in (("x", 16), ("y", 8)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "one", [x], [y], [weight])
    opsets = [helper.make_opsetid("", 17)]
    one = quantize_rs.open(helper.make_model(graph, opset_imports=opsets, ir_version=8)).plan(
        activations="uint8"
    )
    even = rng.uniform(-1, 1, (400, 16)).astype(np.float32)

    def runs(plan: Plan, samples: npt.NDArray[np.float32]) -> tuple[MethodComparison, int]:
        """The comparison, and how many samples were run in addition to those of calibration."""
        calls: list[tuple[int, int | None]] = []
        comparison = plan.compare_methods(
            samples, progress=lambda done, total: calls.append((done, total))
        )
        assert calls[-1][0] == calls[-1][1], "all announced samples were run"
        return comparison, calls[-1][0] - comparison.samples

    def by_model(comparison: MethodComparison) -> int:
        return comparison.evaluated * sum(row.same_as is None for row in comparison.rows)

    comparison, extra = runs(one, even)
    assert comparison.rows[-1].same_as == comparison.best
    assert extra == by_model(comparison)
    comparison, extra = runs(plan, np.load(images))
    assert extra == 8 + by_model(comparison)


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_a_few_loud_rows_do_not_decide_about_all_others(opset: int) -> None:
    rng = np.random.default_rng(7)
    weight = numpy_helper.from_array(rng.normal(0, 0.3, (16, 24)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", 1, [1, 64, 16])
    y = helper.make_tensor_value_info("y", 7, [1, 64, 1])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        # The product itself is the only float value to evaluate.
        helper.make_node("ArgMax", ["p"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(nodes, "rows", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    plan = quantize_rs.open(model).plan(activations="uint8")
    samples = rng.normal(0, 1, (128, 64, 16)).astype(np.float32)
    assert plan.calibrate(samples, method="auto").values["x"] == pytest.approx((-4.6, 4.6), abs=1)
    samples[:, 0] *= 100
    wide = plan.calibrate(samples).values["x"]
    assert wide[1] > 200
    chosen = plan.calibrate(samples, method="auto")
    # One row in 64 of each sample is clipped; the steps of the other 63 are five times finer.
    assert chosen.chosen["x"] == "entropy"
    assert chosen.values["x"][1] < wide[1] / 2


def test_a_matmul_by_a_vector_has_no_rows_to_evaluate() -> None:
    weight = numpy_helper.from_array(np.linspace(-1, 1, 16, dtype=np.float32), "w")
    x = helper.make_tensor_value_info("x", 1, [16])
    y = helper.make_tensor_value_info("y", 1, [])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "dot", [x], [y], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = np.random.default_rng(3).normal(0, 1, (130, 16)).astype(np.float32)
    plan = quantize_rs.open(model).plan(activations="uint8")
    samples[::7] *= 30
    comparison = plan.compare_methods(list(samples), engine="onnxruntime")
    assert set(comparison.ranges["auto"].values) <= {"x", "y"}


def test_auto_needs_no_engine_that_runs_the_result(digits: Path, images: Path) -> None:
    # tract has no operators on integers, which 200 samples would be compared with.
    for options in ({"output_format": "qoperator"}, {"activation_types": {"Gemm": "uint16"}}):
        report = quantize_rs.quantize_with_calibration(
            digits, None, np.load(images)[:200], engine="tract", check="none", **options
        )
        (note,) = (text for text in report.notes if "`auto` takes" in text)
        assert note.endswith("tract does not run the quantized model")


@pytest.mark.parametrize("seed", range(6))
def test_single_rows_show_what_is_rare_to_enough_samples(seed: int) -> None:
    """Of 512 rows, 16 seldom have one of the few in which a channel is far larger."""
    rng = np.random.default_rng(seed)
    spread = np.exp(0.7 * rng.standard_normal(64))
    weights = {
        "w1": rng.standard_normal((64, 64)) / 8 * spread,
        "w2": rng.normal(0, 0.125, (64, 32)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rare",
        [helper.make_tensor_value_info("x", 1, ["n", 64])],
        [helper.make_tensor_value_info("y", 1, ["n", 32])],
        [numpy_helper.from_array(it.astype(np.float32), name) for name, it in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = rng.standard_normal((512, 64)).astype(np.float32)
    fresh = rng.standard_normal((2000, 64)).astype(np.float32)
    found = {}
    for method in ("auto", "minmax"):
        made = quantize_rs.quantize_with_calibration(
            model, None, list(samples[:, None]), method=method, engine="tract", check="none"
        )
        assert made.model is not None
        found[method] = (
            quantize_rs.compare(model, made.model, fresh, latency=False, engine="tract").sqnr_db
            or 0.0
        )
    assert found["auto"] > found["minmax"] - 1, found
