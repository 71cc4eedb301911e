"""Figures show the values of the results, and drawing has no side effects."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import quantize_rs
from quantize_rs import Comparison, LayerErrors, OptionError, Ranges, Report, Sensitivity

# Mathematics to matplotlib, and markup to an SVG; none of it well formed.
NASTY = "$\\frac{<script>&$\x01"


@pytest.fixture
def report(digits: Path, images: Path) -> Report:
    return quantize_rs.quantize_with_calibration(digits, "q.onnx", images)


@pytest.fixture
def ranges(digits: Path, images: Path) -> Ranges:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    return plan.calibrate(images, method="percentile:99")


@pytest.fixture
def compared(report: Report, digits: Path, images: Path) -> Comparison:
    labels = np.zeros(8, np.int64)
    return quantize_rs.compare(digits, report.output or "", np.load(images)[:8], labels, runs=3)


@pytest.fixture
def errors(report: Report, digits: Path, images: Path) -> LayerErrors:
    return quantize_rs.layer_errors(digits, report.output or "", images, limit=4)


@pytest.fixture
def sensitive(digits: Path, images: Path) -> Sensitivity:
    return quantize_rs.sensitivity(digits, images, limit=4)


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def lengths(axes: Axes) -> list[float]:
    return [bar.get_width() for bar in bars(axes)]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_sizes_fall_from_before_to_after_and_the_worst_weight_is_the_first(report: Report) -> None:
    sizes, (waterfall, errors) = report.sizes, report.plot().axes
    assert sizes.before == sizes.floats + sizes.kept + sizes.rest_before == report.bytes_before
    after = sizes.integers + sizes.scales + sizes.kept + sizes.rest_after
    assert sizes.after == after == report.bytes_after
    assert (names(waterfall)[0], names(waterfall)[-1]) == ("Before", "After")
    assert len(names(waterfall)) == 6
    # Three parts before, four after, a step each between.
    assert len(waterfall.patches) == 3 + 4 + 4
    assert sum(lengths(waterfall)[:3]) == sizes.before
    assert sum(lengths(waterfall)[-4:]) == sizes.after
    assert texts(waterfall)[0] == f"{sizes.before / 1e3:.2f} kB"
    lost = sorted((value.sqnr_db or math.nan, value.name) for value in report.weights)
    assert names(errors) == [name for _, name in lost]
    assert lengths(errors) == [db for db, _ in lost]
    assert texts(errors) == [f"{db:.1f} dB" for db, _ in lost]


def test_a_report_of_floats_has_sizes_only(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None, min_elements=10**9)
    assert len(report.plot().axes) == 1


def test_a_range_is_drawn_over_what_was_seen(ranges: Ranges) -> None:
    (axes,) = ranges.plot("relu4_out").axes
    low, high = ranges.values["relu4_out"]
    band, *seen = bars(axes)
    assert band.get_x() == low
    assert band.get_width() == pytest.approx(high - low)
    assert len(seen) == 48
    assert sum(bar.get_height() for bar in seen) == 200 * 32
    assert "% outside" in axes.get_xlabel()
    assert seen[0].get_x() == low < high < seen[-1].get_x() + seen[-1].get_width()
    assert axes.get_title(loc="left") == "relu4_out"


def test_the_ranges_that_cut_the_most_are_the_first(ranges: Ranges) -> None:
    axes = ranges.plot().axes
    drawn = [place for place in axes if place.axison]
    assert len(drawn) == min(len(ranges.values), 12)
    outside = [float(a.get_xlabel().partition(", ")[2].split(" ")[0] or 0) for a in drawn]
    assert outside == sorted(outside, reverse=True)
    assert outside[0] > 0


def test_ranges_that_another_tool_found_are_drawn_alone(ranges: Ranges, digits: Path) -> None:
    ranges.save_tensorrt_cache("cache")
    bare = Ranges.load_tensorrt_cache("cache", digits)
    (axes,) = bare.plot("relu4_out").axes
    assert len(axes.patches) == 1


def test_an_unknown_value_is_refused(ranges: Ranges) -> None:
    with pytest.raises(OptionError, match="did you mean `relu4_out`") as caught:
        ranges.plot("relu4")
    assert caught.value.option == "value"


def test_the_most_sensitive_layer_is_the_first(sensitive: Sensitivity) -> None:
    (axes,) = sensitive.plot().axes
    assert names(axes) == [layer.name for layer in sensitive.layers]
    assert lengths(axes) == [layer.score for layer in sensitive.layers]
    assert axes.get_xlabel() == "SQNR of the worst output (dB)"


def test_every_metric_has_a_chart(digits: Path, images: Path) -> None:
    for metric in ("sqnr", "cosine", "max_abs", "mse", "top1", "weight"):
        found = quantize_rs.sensitivity(digits, images, metric, limit=2)
        assert lengths(found.plot().axes[0]) == [layer.score for layer in found.layers]


@pytest.mark.parametrize(
    ("metric", "scores", "said"),
    [
        ("sqnr", [math.nan, -math.inf, 3.0, math.inf], ["NaN", "all error", "3.0 dB", "exact"]),
        ("max_abs", [math.nan, 0.0, 3.0, math.inf], ["NaN", "0", "3", "infinite"]),
        ("mse", [math.nan, 0.0, 3.0, math.inf], ["NaN", "0", "3", "infinite"]),
    ],
)
def test_non_finite_numbers_are_shown_as_words(
    sensitive: Sensitivity, metric: str, scores: list[float], said: list[str]
) -> None:
    layers = zip(sensitive.layers, scores, strict=False)
    found = dataclasses.replace(
        sensitive,
        metric=metric,
        layers=tuple(dataclasses.replace(layer, score=score) for layer, score in layers),
    )
    (axes,) = found.plot().axes
    assert texts(axes) == said
    assert lengths(axes) == [0, 0, 3, 3]


def test_the_heat_map_has_a_cell_for_each_error(errors: LayerErrors) -> None:
    axes, colours = errors.plot().axes
    own, accumulated = axes.images[0].get_array()  # type: ignore[misc]
    assert own.tolist() == [value.own.sqnr_db for value in errors.values]
    assert accumulated.tolist() == [value.accumulated.sqnr_db for value in errors.values]
    assert names(axes) == ["own", "accumulated"]
    along = [label.get_text() for label in axes.get_xticklabels()]
    assert along == [value.name for value in errors.values]
    assert colours.get_ylabel() == "SQNR (dB)"
    assert len(texts(axes)) == 2 * len(errors.values)
    empty = dataclasses.replace(errors, values=())
    assert texts(empty.plot().axes[0]) == ["no value in common"]


def test_errors_that_are_none_or_all_have_a_cell_too(errors: LayerErrors) -> None:
    def off(value: quantize_rs.LayerError, db: float) -> quantize_rs.LayerError:
        error = dataclasses.replace(value.own, sqnr_db=db)
        return dataclasses.replace(value, own=error, accumulated=error)

    values = zip(errors.values, [math.inf, math.nan, -math.inf, 20.0], strict=False)
    odd = dataclasses.replace(errors, values=tuple(off(*pair) for pair in values))
    axes = odd.plot(path="odd.png").axes[0]
    assert texts(axes)[:4] == ["=", "×", "×", "20"]


def test_both_models_stand_side_by_side(compared: Comparison) -> None:
    size, latency, accuracy, outputs = compared.plot().axes
    assert lengths(size) == [compared.bytes_original, compared.bytes_quantized]
    assert compared.speed is not None
    medians = [compared.speed.original.median_ms, compared.speed.quantized.median_ms]
    assert lengths(latency) == medians
    late = np.asarray(latency.lines[0].get_xdata())
    assert late.tolist() == [compared.speed.original.p95_ms, compared.speed.quantized.p95_ms]
    assert compared.accuracy is not None
    assert lengths(accuracy) == [compared.accuracy.original, compared.accuracy.quantized]
    assert lengths(outputs) == [compared.sqnr_db]
    assert names(outputs) == ["logits"]
    bare = dataclasses.replace(compared, speed=None, accuracy=None)
    assert len(bare.plot().axes) == 2


def test_a_bar_chart_shows_every_method(digits: Path, images: Path) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    found = plan.compare_methods(images, limit=40)
    (axes,) = found.plot().axes
    assert names(axes) == [row.method for row in found.rows]
    assert lengths(axes) == [row.sqnr_db for row in found.rows]
    assert found.best in axes.get_title(loc="left")


def test_figures_are_written_and_pyplot_knows_nothing(
    report: Report, ranges: Ranges, sensitive: Sensitivity, errors: LayerErrors
) -> None:
    for thing in (report, ranges, sensitive, errors):
        name = type(thing).__name__
        figure = thing.plot(path=f"{name}.png")
        assert isinstance(figure, Figure)
        assert Path(f"{name}.png").read_bytes().startswith(b"\x89PNG")
        thing.plot(path=Path(f"{name}.SVG"))
        assert ElementTree.parse(f"{name}.SVG").getroot().tag.endswith("svg")
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert "matplotlib.pyplot" not in sys.modules
    assert not list(Path().glob(".*"))


def test_a_place_that_cannot_be_written_is_refused(report: Report) -> None:
    with pytest.raises(OptionError, match=r"`report\.txt`, expected a name in \.png") as caught:
        report.plot(path="report.txt")
    assert caught.value.option == "path"
    with pytest.raises(FileNotFoundError):
        report.plot(path="none/report.png")


def test_names_out_of_a_file_are_text(digits: Path, images: Path) -> None:
    proto = onnx.load(digits)
    old = proto.graph.initializer[0].name
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace(old, NASTY + "x" * 100)
    for node in proto.graph.node:
        node.input[:] = [NASTY + "x" * 100 if name == old else name for name in node.input]
        node.output[:] = [NASTY if name == "conv1_out" else name for name in node.output]
        node.input[:] = [NASTY if name == "conv1_out" else name for name in node.input]
    report = quantize_rs.quantize_with_calibration(proto, "nasty.onnx", images)
    report.plot(path="report.svg")
    errors = quantize_rs.layer_errors(proto, "nasty.onnx", images, limit=2)
    errors.plot(path="errors.svg")
    for name in ("report.svg", "errors.svg"):
        ElementTree.parse(name)
    assert any(
        label.get_text() == NASTY.replace("\x01", "\ufffd")
        for label in errors.plot().axes[0].get_xticklabels()
    )


def test_without_matplotlib_the_error_says_what_to_install(digits: Path) -> None:
    programme = f"""
import sys
sys.modules["matplotlib"] = None
import quantize_rs
report = quantize_rs.quantize({str(digits)!r}, None)
assert not any(name.startswith("matplotlib.") for name in sys.modules)
try:
    report.plot()
except quantize_rs.MissingPackageError as error:
    assert error.name == "matplotlib"
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", programme], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'pip install "quantization-rs[plot]"' in done.stdout
