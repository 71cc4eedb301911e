"""Ranges: kept, merged, compared, converted, and applied without a sample."""

from __future__ import annotations

import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Plan, Ranges, RangesDiff


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8", per_channel=True)


@pytest.fixture
def ranges(plan: Plan, images: Path) -> Ranges:
    return plan.calibrate(images)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "auto"])
def test_ranges_are_saved_and_loaded(plan: Plan, images: Path, method: str) -> None:
    whole = plan.calibrate(images, method=method)
    whole.save("ranges.json")
    assert Ranges.load("ranges.json") == whole
    assert hash(Ranges.load("ranges.json")) == hash(whole)
    assert list(Path.cwd().glob("*ranges*")) == [Path.cwd() / "ranges.json"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("values", {"min": -1e39, "max": 1e39}, "out of range at line 1 column"),
        ("values", {"min": None, "max": 3.0}, "finite"),
        ("values", {"min": 5.0, "max": -5.0}, "in ascending order"),
        ("method", "foo", "`foo`"),
    ],
)
def test_corrupt_ranges_are_refused(ranges: Ranges, key: str, value: object, message: str) -> None:
    ranges.save("ranges.json")
    document = json.loads(Path("ranges.json").read_text("utf-8"))
    if key == "values":
        name = next(iter(document["values"]))
        document["values"][name] = value
        message = message if "line" in message else f"{message}.*`{name}`"
    else:
        document[key] = value
    Path("broken.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(CalibrationError, match=message):
        Ranges.load("broken.json")


@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile", "entropy", "mse"])
def test_merged_shards_are_the_whole(digits: Path, images: Path, method: str) -> None:
    samples = np.load(images)
    model = quantize_rs.open(digits)
    plan = model.plan(activations="uint8", per_channel=True, weight_algorithm="nearest")
    whole = plan.calibrate(samples, method=method)
    parts = [plan.calibrate(samples[i : i + 60], method=method) for i in range(0, 200, 60)]
    merged = parts[0]
    for part in parts[1:]:
        merged = part.merge(merged)
    assert merged == whole
    assert plan.apply(whole).to_bytes() == plan.apply(merged).to_bytes()


def test_merged_ranges_round_weights_as_without_samples(plan: Plan, images: Path) -> None:
    samples = np.load(images)
    whole, half = plan.calibrate(samples), plan.calibrate(samples[:100])
    merged = half.merge(plan.calibrate(samples[100:]))
    assert merged.values == whole.values
    assert {row.rounded_by for row in plan.apply(whole).report.weights} != {None}
    assert {row.rounded_by for row in plan.apply(merged).report.weights} == {None}


def test_given_values_stay_with_another_method(plan: Plan, ranges: Ranges) -> None:
    given = ranges.with_values({"relu1_out": (0.0, 100.0)})
    found = given.using("entropy")
    assert found.values["relu1_out"] == given.values["relu1_out"]
    others = {name: ends for name, ends in found.values.items() if name != "relu1_out"}
    entropy = ranges.using("entropy").values
    assert others == {name: ends for name, ends in entropy.items() if name != "relu1_out"}
    then = ranges.using("entropy").with_values({"relu1_out": (0.0, 100.0)})
    assert plan.apply(found).to_bytes() == plan.apply(then).to_bytes()


def test_given_values_are_merged_if_they_are_the_same(plan: Plan, images: Path) -> None:
    samples = np.load(images)
    parts = [plan.calibrate(part, method="minmax") for part in (samples[:100], samples[100:])]
    one, two = (part.with_values({"relu1_out": (0.0, 9.0)}) for part in parts)
    assert one.merge(two).values["relu1_out"] == one.values["relu1_out"]
    for other in (parts[1], parts[1].with_values({"relu1_out": (0.0, 8.0)})):
        with pytest.raises(CalibrationError, match="the range of `relu1_out` was given, and not"):
            one.merge(other)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"weight_algorithm": "nearest"}, False),
        ({"rounding": "nearest"}, False),
        ({"weight_algorithm": "gptq"}, True),
        ({"rounding_effort": "best"}, True),
    ],
)
def test_rounded_weights_are_not_used_for_other_options(
    digits: Path, ranges: Ranges, options: dict[str, Any], warns: bool
) -> None:
    def quantized(**options: Any) -> quantize_rs.Report:
        return quantize_rs.quantize_with_calibration(digits, None, per_channel=True, **options)

    assert {row.rounded_by for row in quantized(ranges=ranges).weights} != {None}
    found = quantized(ranges=ranges, **options)
    assert {row.rounded_by for row in found.weights} == {None}
    if options.get("rounding") is None:
        assert found.model == quantized(ranges=ranges, weight_algorithm="nearest").model
    said = [text for text in found.warnings if "calibrate again with these options" in text]
    assert len(said) == warns, found.warnings
    if warns:
        assert "rounded with weight_algorithm=auto, rounding_effort=balanced" in said[0]
    same = quantized(ranges=ranges, weight_algorithm="descent")
    assert same.model == quantized(ranges=ranges).model


@pytest.mark.parametrize("other", [{"bits": 4}, {"weights": "uint8"}, {"per_channel": False}])
def test_rounded_weights_are_not_used_for_other_types(
    digits: Path, images: Path, other: dict[str, Any]
) -> None:
    found = quantize_rs.open(digits).plan(activations="uint8").calibrate(images, limit=16)
    warnings = quantize_rs.open(digits).plan(**other).apply(found).report.warnings
    said = [text for text in warnings if "for another type, symmetry or granularity" in text]
    assert len(said) == 1
    same = quantize_rs.open(digits).plan(activations="uint8").apply(found).report.warnings
    assert not [text for text in same if "without samples" in text]


def test_a_memory_limit_without_moments_is_refused(digits: Path, ranges: Ranges) -> None:
    with pytest.raises(OptionError, match="no second moments") as refused:
        quantize_rs.quantize_with_calibration(digits, None, ranges=ranges, memory_limit=1000)
    assert refused.value.option == "memory_limit"


def test_what_does_not_belong_together_is_not_merged(plan: Plan, images: Path) -> None:
    ranges = plan.calibrate(images)
    chosen = plan.calibrate(images, method="auto")
    with pytest.raises(CalibrationError, match="auto"):
        chosen.merge(chosen)
    with pytest.raises(CalibrationError, match="different"):
        ranges.merge(plan.calibrate(images, method="mse"))
    other = quantize_rs.open(oracle.model("conv2d_relu")).plan(activations="uint8")
    with pytest.raises(CalibrationError, match="different"):
        ranges.merge(other.calibrate([oracle.feeds("conv2d_relu")]))


@pytest.mark.parametrize("form", ["ranges", "text", "path"])
@pytest.mark.parametrize("method", ["minmax", "auto"])
def test_quantizing_with_ranges_is_quantizing_with_their_samples(
    digits: Path, images: Path, form: str, method: str
) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8", symmetric=True)
    ranges = plan.calibrate(images, method=method)
    ranges.save("ranges.json")
    given: Any = {"ranges": ranges, "text": "ranges.json", "path": Path("ranges.json")}[form]
    direct = quantize_rs.quantize_with_calibration(
        digits, None, images, symmetric=True, method=method, check="none"
    )
    begun = time.perf_counter()
    found = quantize_rs.quantize_with_calibration(digits, None, symmetric=True, ranges=given)
    took = time.perf_counter() - begun
    assert found.model == direct.model
    assert (found.samples, found.engine, found.method) == (200, direct.engine, method)
    assert found.notes == direct.notes
    assert took < 0.5  # unoptimised; no sample is run


def test_ranges_and_samples_contradict_each_other(
    digits: Path, images: Path, ranges: Ranges
) -> None:
    for options in ({"calibration_data": images}, {"calibration_data": "random"}):
        with pytest.raises(OptionError, match="ranges") as caught:
            quantize_rs.quantize_with_calibration(digits, "q.onnx", ranges=ranges, **options)
        assert caught.value.option == "ranges"
    with pytest.raises(OptionError, match=r"Ranges\.using") as caught:
        quantize_rs.quantize_with_calibration(digits, "q.onnx", ranges=ranges, method="mse")
    assert caught.value.option == "method"
    with pytest.raises(FileNotFoundError):
        quantize_rs.quantize_with_calibration(digits, "q.onnx", ranges="none.json")
    assert not Path("q.onnx").exists()


def test_ranges_of_another_model_are_refused(ranges: Ranges) -> None:
    with pytest.raises(CalibrationError, match="another model"):
        quantize_rs.quantize_with_calibration(oracle.model("mlp_relu"), None, ranges=ranges)


def test_a_model_of_other_attributes_is_another(ranges: Ranges, digits: Path) -> None:
    model = onnx.load(digits)
    attribute = next(a for node in model.graph.node for a in node.attribute if a.name == "pads")
    attribute.ints[0] += 1
    plan = quantize_rs.open(model).plan(activations="uint8", per_channel=True)
    with pytest.raises(CalibrationError, match="another model"):
        plan.apply(ranges)


@pytest.mark.parametrize("method", ["minmax", "entropy", "mse", "auto"])
def test_ranges_fit_themselves_to_the_types_of_a_plan(
    digits: Path, images: Path, method: str
) -> None:
    # A symmetric grid clips at other values than one with a zero point.
    model = quantize_rs.open(digits)
    symmetric = model.plan(activations="int8", activation_symmetric=True)
    free = model.plan(activations="uint8")
    found = symmetric.calibrate(images, method=method)
    report = free.apply(found).report
    chosen = found.chosen or dict.fromkeys(found.values, method)
    wanted = {name: free.calibrate(images, method=name).values for name in chosen.values()}
    known = [value for value in report.activations if value.name in found.values]
    rows = {value.name: value.range for value in known if value.quantized}
    assert rows
    for name, limits in rows.items():
        assert limits == pytest.approx(wanted[chosen[name]][name]), name


def test_warnings_about_the_samples_are_kept(plan: Plan, images: Path) -> None:
    few = plan.calibrate(np.load(images)[:9])
    few.save("ranges.json")
    report = plan.apply(Ranges.load("ranges.json")).report
    assert any("9 samples" in warning for warning in report.warnings)


def test_differences_are_reported(ranges: Ranges) -> None:
    same = ranges.diff(ranges)
    assert not same
    assert str(same) == "no difference"
    other = ranges.using("mse")
    diff = ranges.diff(other)
    assert diff
    assert isinstance(diff, RangesDiff)
    assert (diff.only_first, diff.only_second) == ((), ())
    changed = {name for name, ends in ranges.values.items() if other.values[name] != ends}
    assert {found.name for found in diff.differences} == changed
    parts = [found.part for found in diff.differences]
    assert parts == sorted(parts, reverse=True)
    assert all(0 < part <= 1 for part in parts)
    for found in diff.differences:
        assert found.first == ranges.values[found.name]
        assert found.second == other.values[found.name]
        assert found.name in str(diff)
        assert found.name in diff._repr_html_()
    assert json.loads(diff.to_json()) == diff.to_dict()
    assert repr(diff) == f"<RangesDiff: {len(changed)} values differ, 0 are in one of them only>"
    with pytest.raises((AttributeError, TypeError)):
        diff.differences = ()  # type: ignore[misc]


def test_a_file_stands_for_the_ranges_in_it(digits: Path, plan: Plan, images: Path) -> None:
    pixels = np.load(images)
    first, second = plan.calibrate(pixels[:30]), plan.calibrate(pixels[30:])
    first.save("first.json")
    second.save("second.json")
    assert plan.apply("first.json").to_bytes() == plan.apply(first).to_bytes()
    assert first.diff(Path("second.json")) == first.diff(second)
    whole = first.merge(second)
    assert first.merge("second.json") == first.merge([second]) == whole
    assert Ranges.merge(["first.json", "second.json"]) == whole
    assert Ranges.merge("first.json", "second.json") == whole
    of_file = quantize_rs.sensitivity(plan, pixels[:4], ranges="first.json")
    assert of_file.layers == quantize_rs.sensitivity(plan, pixels[:4], ranges=first).layers
    made = [quantize_rs.insert_fake_quant(digits, ranges=r).model for r in (first, "first.json")]
    assert made[0] == made[1]
    with pytest.raises(OptionError, match=r"would overwrite 'first\.json'"):
        quantize_rs.insert_fake_quant(digits, "first.json", ranges="first.json")


def test_values_that_only_one_has_are_reported(digits: Path, images: Path, ranges: Ranges) -> None:
    some = quantize_rs.open(digits).plan(activations="uint8", op_types=["Gemm"]).calibrate(images)
    diff = ranges.diff(some)
    assert set(diff.only_first) == ranges.values.keys() - some.values.keys()
    assert set(diff.only_second) == some.values.keys() - ranges.values.keys()
    assert diff.only_first
    assert all(f"{name}: only in the first" in str(diff) for name in diff.only_first)


def test_tensorrt_reads_what_is_written(ranges: Ranges) -> None:
    ranges.using("entropy").save_tensorrt_cache("calibration.cache")
    head, *lines = Path("calibration.cache").read_text("utf-8").splitlines()
    assert head == "TRT-8601-EntropyCalibration2"
    scales = {}
    for line in lines:
        name, digits = line.rsplit(": ", 1)
        assert re.fullmatch("[0-9a-f]{8}", digits)
        (scales[name],) = struct.unpack(">f", bytes.fromhex(digits))
    values = ranges.using("entropy").values
    assert scales.keys() == values.keys()
    for name, (low, high) in values.items():
        assert scales[name] == pytest.approx(max(-low, high) / 127, rel=1e-6)
    ranges.save_tensorrt_cache("other.cache", version="10300")
    for version in ("", "86 01", "86\n01"):
        with pytest.raises(OptionError, match="version is"):
            ranges.save_tensorrt_cache("none.cache", version=version)
    assert not Path("none.cache").exists()
    assert Path("other.cache").read_text("utf-8").startswith("TRT-10300-MinMaxCalibration\n")
    ranges.save_tensorrt_cache("other.cache", version=8602)
    assert Path("other.cache").read_text("utf-8").startswith("TRT-8602-MinMaxCalibration\n")


def test_a_cache_of_tensorrt_has_no_scale_for_an_attention_mask(digits: Path) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    rng = np.random.default_rng(2)
    images = rng.random((40, 1, 8, 8), np.float32)
    images[::2, :, 0] -= 1e4
    ranges = plan.calibrate(images)
    ranges.save_tensorrt_cache("masked.cache")
    names = [line.rsplit(": ", 1)[0] for line in Path("masked.cache").read_text().splitlines()[1:]]
    assert set(ranges.values) - set(names) >= {"image"}
    # One number far below the others is an outlier, and in the range.
    images = rng.random((40, 1, 8, 8), np.float32)
    images[3, 0, 2, 2] = -5000.0
    outlier = plan.calibrate(images, method="minmax")
    assert outlier.values["image"][0] == -5000.0
    outlier.save_tensorrt_cache("outlier.cache")
    assert "\nimage: " in Path("outlier.cache").read_text()


@pytest.mark.parametrize("form", ["model", "plan", "path", "bytes"])
def test_a_cache_of_tensorrt_becomes_ranges(digits: Path, images: Path, form: str) -> None:
    model = quantize_rs.open(digits)
    plan = model.plan(target="tensorrt")
    ranges = plan.calibrate(images)
    ranges.save_tensorrt_cache("calibration.cache")
    given: Any = {"model": model, "plan": plan, "path": digits, "bytes": digits.read_bytes()}[form]
    found = Ranges.load_tensorrt_cache("calibration.cache", given)
    assert (found.samples, found.method) == (0, "minmax")
    for name, (low, high) in ranges.values.items():
        absmax = max(-low, high)
        assert found.values[name] == pytest.approx((-absmax, absmax), rel=1e-6)
    report = plan.apply(found).report
    assert sum(value.quantized for value in report.activations) > 3
    with pytest.raises(CalibrationError, match="statistics"):
        found.using("mse")


def test_a_cache_of_another_model_is_refused(ranges: Ranges) -> None:
    ranges.save_tensorrt_cache("calibration.cache")
    other = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g(float[2] x) => (float[2] y) { y = Relu(x) }""")
    with pytest.raises(CalibrationError, match="none of the values of the cache"):
        Ranges.load_tensorrt_cache("calibration.cache", other)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "line 1"), ("image: 3c010204\n", "line 1"), ("TRT-8601-MinMaxCalibration\nx 3\n", "2")],
)
def test_what_is_no_cache_is_a_calibration_error(digits: Path, text: str, message: str) -> None:
    Path("calibration.cache").write_text(text, "utf-8")
    with pytest.raises(CalibrationError, match=message):
        Ranges.load_tensorrt_cache("calibration.cache", digits)
