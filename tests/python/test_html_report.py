"""The HTML report: it is complete and self-contained, and names are escaped."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import oracle
import processor
import pytest

import quantize_rs
from quantize_rs import Report

NASTY = "</script><img src=x onerror=alert('&')><b>\u202e\x01"

BANDS = ("close", "fair", "coarse", "far")

VOID = {"meta", "input", "rect", "line", "link", "br", "img"}

# Sums saturate on processors without VNNI.
GRADES = ("good", "fair") if processor.SATURATES else ("good",)


class Page(HTMLParser):
    """The parts of a page, which must be well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or self._open[-1:] == ["svg"]:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self._open[-1:] != ["style"]:
            self.texts.append(data)
        if "td" in self._open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def having(self, tag: str, kind: str) -> int:
        """How many tags there are of a class."""
        return sum(
            found == tag and kind in (a.get("class") or "").split() for found, a in self.tags
        )

    def bars(self) -> int:
        """How many bars there are on a scale in decibels: their class is their band."""
        return sum(self.having("rect", band) for band in BANDS)


@pytest.fixture
def report(digits: Path, images: Path) -> Report:
    # Tract measures no time, which would make the evaluation depend on the machine.
    return quantize_rs.quantize_with_calibration(
        digits, "q.onnx", calibration_data=images, engine="tract"
    )


def test_the_html_report_holds_what_the_report_holds(report: Report) -> None:
    page = Page(report.html())
    rows = [row for row in page.rows if row]
    assert [row[0] for row in rows] == [value.name for value in report.values]
    for row, value in zip(rows, report.values, strict=True):
        assert row[-2] == value.role
        assert row[-1] == value.why.split(": ", 1)[1]
        if value.sqnr_db is not None:
            exact = math.isinf(value.sqnr_db)
            assert row[1] == ("exact" if exact else f"{value.sqnr_db:.1f} dB")
    for fact in ("digits_cnn.onnx", "q.onnx", f"{report.ratio:.2f}×", "200", "minmax", "uint8"):
        assert fact in page.text
    seen = [value for value in report.activations if value.range is not None]
    assert page.having("rect", "chosen") == len(seen) > 3
    assert page.bars() == len(report.weights)


def test_the_sizes_of_the_chart_add_up(report: Report) -> None:
    stored = [
        value["quantized"]["bytes"] for value in report.to_dict()["values"] if value["quantized"]
    ]
    stored = [found for found in stored if found is not None]
    proto = onnx.load("q.onnx")
    held = sum(
        len(onnx.numpy_helper.to_array(tensor).tobytes()) for tensor in proto.graph.initializer
    )
    counted = sum(found["elements"] + found["scales"] for found in stored)
    assert counted <= held
    assert counted > 0.97 * held  # the rest are scales of activations, and shapes


def test_the_html_report_loads_nothing_and_runs_its_own_script_only(report: Report) -> None:
    text = report.html()
    page = Page(text)
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "data", "action", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy, digest


def test_names_out_of_a_file_are_text() -> None:
    proto = onnx.load(oracle.model("conv2d_relu"))
    (weight,) = (node.input[1] for node in proto.graph.node if node.op_type == "Conv")
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace(weight, NASTY)
    for node in proto.graph.node:
        node.input[:] = [NASTY if name == weight else name for name in node.input]
        node.name = NASTY
    # No runtime loads such names.
    source = oracle.model("conv2d_relu").read_bytes()
    plain = quantize_rs.quantize(source, None, check="none")
    text = quantize_rs.quantize(proto, None, check="none").html()
    page = Page(text)
    assert "<img" not in text
    assert NASTY.replace("\x01", "\ufffd") in [row[0] for row in page.rows if row]
    ranking = quantize_rs.sensitivity(proto)
    assert "<img" not in ranking.html()
    assert NASTY.replace("\x01", "\ufffd") in [row[0] for row in Page(ranking.html()).rows if row]
    errors = quantize_rs.layer_errors(proto, proto, [oracle.feeds("conv2d_relu")], engine="tract")
    assert "<img" not in errors.html()
    # The tags equal those of the page of the model with plain names.
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in Page(plain.html()).tags]


def test_weights_alone_have_no_histograms(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None)
    page = Page(report.html())
    assert not page.having("rect", "chosen")
    assert "in memory" in page.text


def test_a_model_of_thousands_of_values_has_an_html_report_of_bounded_length() -> None:
    count = 3000
    nodes = [onnx.helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    ends = [
        onnx.helper.make_tensor_value_info(f"v{i}", onnx.TensorProto.FLOAT, [2]) for i in (0, count)
    ]
    graph = onnx.helper.make_graph(nodes, "long", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    report = quantize_rs.quantize(model, None)
    page = Page(report.html())
    assert len([row for row in page.rows if row]) == 2000
    assert f"of {len(report.values)} rows" in re.sub(r"\s+", " ", page.text)


def test_the_html_report_is_written_completely_or_not_at_all(
    report: Report, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    report.save_html(path)
    assert path.read_text(encoding="utf-8") == report.html()
    with pytest.raises(FileNotFoundError):
        report.save_html(tmp_path / "none" / "report.html")
    with pytest.raises(IsADirectoryError):
        report.save_html(tmp_path)
    assert list(tmp_path.glob(".*")) == []


def test_an_html_report_has_a_section_for_each_result(
    digits: Path, images: Path, report: Report
) -> None:
    labels = np.zeros(8, np.int64)
    samples = np.load(images)[:8]
    compared = quantize_rs.compare(digits, "q.onnx", samples, labels, runs=3)
    errors = quantize_rs.layer_errors(digits, "q.onnx", samples)
    ranking = quantize_rs.sensitivity(digits, samples)
    whole = Page(report.html(comparison=compared, sensitivity=ranking, layer_errors=errors))
    parts = [compared, ranking, errors]
    counts = [len(compared.outputs), len(ranking.layers), len(errors.values)]
    for part, count in zip(parts, counts, strict=True):
        page = Page(part.html())
        rows = [row for row in page.rows if row]
        assert len(rows) == count
        assert [row for row in whole.rows if row in rows] == rows
        assert page.having("rect", "chosen") == 0
    assert len([row for row in whole.rows if row]) == sum(counts) + len(report.values)
    page = Page(ranking.html())
    assert page.bars() == len(ranking.layers)
    assert [row[0] for row in page.rows if row] == [layer.name for layer in ranking.layers]
    assert f"{ranking.layers[0].score:.1f} dB" in page.text
    page = Page(errors.html())
    # Two strips with a cell for each value.
    assert page.having("rect", "cell") == 2 * len(errors.values)
    assert f"{errors.values[0].name}: {errors.values[0].own.sqnr_db:.1f} dB" in "".join(page.texts)
    page = Page(compared.html())
    assert compared.speed is not None
    for fact in (f"{compared.ratio:.2f}×", f"{compared.speed.speedup:.2f}×", "onnxruntime"):
        assert fact in page.text
    errors.save_html("errors.html")
    assert Path("errors.html").read_text(encoding="utf-8") == errors.html()


def test_non_finite_numbers_are_shown_as_words() -> None:
    proto = onnx.load(oracle.model("constant_weight"))
    report = quantize_rs.quantize(proto, None, symmetric=True)
    assert report.model is not None
    errors = quantize_rs.layer_errors(proto, proto, [oracle.feeds("constant_weight")])
    assert {value.own.sqnr_db for value in errors.values} == {math.inf}
    page = Page(errors.html())
    assert all(row[1] == row[2] == "exact" for row in page.rows if row)
    ranking = quantize_rs.sensitivity(proto, [oracle.feeds("constant_weight")])
    rows = [row for row in Page(ranking.html()).rows if row]
    for row, layer in zip(rows, ranking.layers, strict=True):
        exact = math.isinf(layer.score)
        assert row[1] == ("exact" if exact else f"{layer.score:.1f} dB")


def test_suggestions_follow_from_the_report(digits: Path, images: Path) -> None:
    def suggested(**options: object) -> str:
        report = quantize_rs.quantize(digits, None, **options)  # type: ignore[arg-type]
        page = Page(report.html())
        assert all(text in page.text for text in report.suggestions)
        assert all(f"next: {text}" in str(report) for text in report.suggestions)
        return "\n".join(report.suggestions)

    assert "per_channel=True" in suggested(bits=4, per_channel=False)
    assert "per_channel=True" not in suggested(bits=4)
    assert "insert_fake_quant" in suggested(bits=2)
    assert suggested() == ""
    for count, part in ((20, "warnings"), (50, "suggestions")):
        samples = np.load(images)[:count]
        few = quantize_rs.quantize_with_calibration(digits, None, calibration_data=samples)
        said = f"only {count} samples: give at least 128, as varied as production inputs"
        assert [said in few.warnings, said in few.suggestions].count(True) == 1
        assert said in getattr(few, part)


def test_every_page_begins_with_an_evaluation_and_where_it_comes_from(
    digits: Path, images: Path, report: Report
) -> None:
    samples = np.load(images)
    compared = quantize_rs.compare(digits, "q.onnx", samples, latency=False)
    ranking = quantize_rs.sensitivity(digits, images, limit=8)
    errors = quantize_rs.layer_errors(digits, "q.onnx", samples, limit=8)
    for found, call, given in (
        (report, "quantize_with_calibration", str(images)),
        (compared, "compare", f"ndarray of shape {samples.shape}"),
        (ranking, "sensitivity", str(images)),
        (errors, "layer_errors", f"ndarray of shape {samples.shape}"),
    ):
        text = found.html()
        page = Page(text)
        assert sum(page.having("p", grade) for grade in GRADES) == 1
        assert "signal-to-quantization-noise ratio (SQNR)" in page.text
        assert text.index('class="evaluation') < text.index("What to do next") < text.index("made")
        for fact in (digits.name, given, f"quantize_rs.{call}(", quantize_rs.__version__):
            assert fact in page.text, fact
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page.text)
        assert [page.texts.count(db) > 0 for db in ("10", "20", "30")] == [True] * 3
    assert "q.onnx" in Page(compared.html()).text
    assert report.assessment.sentence.startswith("3.66 times smaller (226.81 kB to 62.05 kB)")
    grade = report.assessment.grade
    assert grade in GRADES
    assert repr(report).startswith(f"<Report: {grade},")
    assert report.origin.samples == str(images)
    assert compared.origin.models == (str(digits), "q.onnx")
    first, second = str(report).splitlines()[:2]
    assert first.startswith(f"{grade}: 3.66 times smaller")
    assert second.startswith("next: measure accuracy and speed")


def test_what_is_not_quantized_is_said(report: Report) -> None:
    page = Page(report.html())
    others = [value for value in report.activations if not value.quantized]
    assert len(others) == 5
    text = " ".join(page.text.split())
    assert "4 activations fused into node … (Relu) : conv1_out, conv2_out" in text
    assert "1 activation is an output of the model : logits" in text
    assert "; the other 5: 4 fused into node … (Relu), 1 is an output of the model" in str(report)


def test_a_poor_result_is_red_and_says_what_to_do(digits: Path, images: Path) -> None:
    poor = quantize_rs.quantize(
        digits, None, bits=2, per_channel=False, calibration_data=images, weight_method="minmax"
    )
    page = Page(poor.html())
    assert page.having("p", "poor") == 1
    assert "far from the float model (less than 10 dB)" in page.text
    assert "find the layers that cause the error: quantize_rs.layer_errors(" in page.text
    met = quantize_rs.quantize(digits, None, calibration_data=images, min_sqnr=20)
    assert met.assessment.sentence.endswith("; required: SQNR of 20 dB or more, which is met.")


def test_long_tables_and_charts_are_folded_and_no_column_repeats_another(digits: Path) -> None:
    ranking = quantize_rs.sensitivity(digits)
    heads = re.findall(r'<button type="button">(.*?)</button>', ranking.html())
    # The score is the error of the weight.
    assert heads == ["layer", "score", "operator", "type after", "elements", "nodes"]
    text = quantize_rs.quantize(digits, None).html()
    assert re.search(r"<details><summary><h2>All values \(\d+\)", text)
    assert "<details open><summary><h2>All layers (5)" in ranking.html()
