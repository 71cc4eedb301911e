"""Metrics of the caller's, and the ready ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import pytest
from onnx import helper
from sklearn.metrics import top_k_accuracy_score

import quantize_rs
from quantize_rs import OptionError, metrics

RNG = np.random.default_rng(13)
DATA = RNG.normal(size=(24, 16)).astype(np.float32)
LABELS = RNG.integers(0, 10, size=24)


def classifier() -> bytes:
    sizes = [16, 64, 64, 64, 10]
    weights, nodes, value = {}, [], "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        weights[f"w{index}"] = RNG.normal(size=(rows, columns)) / np.sqrt(rows / 2)
        made = "y" if last else f"h{index}"
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [made], f"layer{index}"))
        if not last:
            value = f"r{index}"
            nodes.append(helper.make_node("Relu", [made], [value], value))
    return graphs.built(nodes, weights, ["n", 16])


MODEL = classifier()


def quantized(**options: Any) -> bytes:
    model = quantize_rs.quantize(MODEL, None, bits=2, allow_larger=True, **options).model
    assert model is not None
    return model


def compared(metric: metrics.MetricLike, **options: Any) -> quantize_rs.results.Accuracy:
    found = quantize_rs.compare(
        MODEL, quantized(), DATA, metric=metric, latency=False, **options
    ).accuracy
    assert found is not None
    return found


def outputs_of(model: bytes) -> list[dict[str, Any]]:
    kept: list[list[dict[str, Any]]] = []

    def keep(outputs: list[dict[str, Any]], _: object) -> float:
        kept.append(outputs)
        return 0.0

    quantize_rs.compare(MODEL, model, DATA, metric=keep, latency=False)
    return kept[1]


def test_a_function_sees_outputs_and_samples_of_both_models() -> None:
    seen = []

    def bias(outputs: list[dict[str, Any]], samples: list[dict[str, Any]]) -> float:
        seen.append((outputs, samples))
        return float(np.mean([output["y"].mean() for output in outputs]))

    found = compared(bias)
    assert found.metric == "bias"
    assert found.drop == pytest.approx(found.original - found.quantized)
    (outputs, samples), (others, _) = seen
    assert len(outputs) == len(samples) == 24
    assert all(
        np.array_equal(sample["x"], row[None]) for sample, row in zip(samples, DATA, strict=True)
    )
    assert outputs[0]["y"].shape == (1, 10)
    assert outputs[0]["y"].dtype == np.float32
    assert not np.array_equal(outputs[0]["y"], others[0]["y"])


def test_a_lower_score_may_be_better() -> None:
    def size(outputs: list[dict[str, Any]], _: object) -> float:
        return float(np.square([output["y"] for output in outputs]).sum())

    higher = compared(size)
    lower = compared(metrics.Metric(size, "size", higher_is_better=False))
    assert lower.metric == "size"
    assert higher.drop == pytest.approx(-lower.drop)
    size.higher_is_better = False  # type: ignore[attr-defined]
    assert compared(size).drop == lower.drop


def test_named_metrics_equal_those_of_other_libraries() -> None:
    outputs = {"float": outputs_of(MODEL), "quantized": outputs_of(quantized())}
    rows = {name: np.concatenate([o["y"] for o in each]) for name, each in outputs.items()}
    for count in (1, 3, 5):
        found = compared(f"top{count}", labels=LABELS)
        assert found.metric == f"top-{count} accuracy"
        expected = [
            top_k_accuracy_score(LABELS, rows[name], k=count, labels=range(10))
            for name in ("float", "quantized")
        ]
        assert [found.original, found.quantized] == pytest.approx(expected)
    found = compared("perplexity", labels=LABELS)
    for name, score in (("float", found.original), ("quantized", found.quantized)):
        scores = rows[name].astype(np.float64)
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert score == pytest.approx(np.exp(-np.log(chances[np.arange(24), LABELS]).mean()))
    assert found.drop == pytest.approx(found.quantized - found.original)
    found = compared("mae")
    assert found.original == 0
    assert found.quantized == pytest.approx(
        np.abs(rows["float"] - rows["quantized"]).mean(), rel=1e-5
    )
    found = compared("cosine")
    assert found.original == pytest.approx(1)
    assert 0.5 < found.quantized < 1
    found = compared("kl")
    assert found.original == 0
    assert found.quantized > 0


def test_a_rank_below_1_is_refused() -> None:
    with pytest.raises(OptionError, match="k is 0"):
        metrics.top_k(LABELS, 0)


def test_negative_labels_are_left_out_of_the_perplexity() -> None:
    some = np.where(np.arange(24) < 12, LABELS, -100)
    outputs = [{"y": RNG.normal(size=(24, 10)).astype(np.float32)}]
    half = metrics.perplexity(some).function(outputs, [])
    whole = metrics.perplexity(LABELS[:12]).function([{"y": outputs[0]["y"][:12]}], [])
    assert half == pytest.approx(whole)


def test_masked_logits_have_no_part_in_the_differences() -> None:
    for mask in (-np.inf, -1e9):
        rows = np.array([[0, mask, 1], [2, 1, mask]], np.float32)
        same, others = [{"y": rows}], [{"y": np.where(rows > -1e8, 3 - rows, rows)}]
        shown = [{"y": np.array([[0, 1], [2, 1]], np.float32)}]
        swapped = [{"y": 3 - shown[0]["y"]}]
        for metric in (metrics.kl_divergence(), metrics.cosine()):
            assert metric.function(same, same) == pytest.approx(float(metric.name == "cosine"))
            wanted = metric.function(swapped, shown)
            assert metric.function(others, same) == pytest.approx(wanted)
        assert metrics.mean_absolute_error().function(same, same) == 0
        assert metrics.mean_absolute_error().function(others, same) == 1


@pytest.mark.parametrize("metric", [metrics.top_k, metrics.perplexity])
def test_labels_that_are_no_classes_are_refused(metric: Any) -> None:
    outputs = [{"y": RNG.normal(size=(3, 4)).astype(np.float32)}]
    with pytest.raises(OptionError, match="label 4 of row 1 is no class: the output has 4"):
        metric([0, 4, 1]).function(outputs, [])
    with pytest.raises(OptionError, match="every label is negative"):
        metric([-100, -1, -1]).function(outputs, [])
    first = [{"y": outputs[0]["y"][:1]}]
    wanted = metric([2]).function(first, [])
    assert metric([2, -100, -1]).function(outputs, []) == pytest.approx(wanted)


def test_word_error_rate() -> None:
    spoken = np.full((1, 6, 4), -1.0, np.float32)
    for step, token in enumerate([1, 1, 0, 2, 2, 3]):
        spoken[0, step, token] = 1
    score = metrics.word_error_rate([[1, 2, 3]]).function
    assert score([{"y": spoken}], []) == 0
    assert metrics.word_error_rate([[1, 3, 3, 3]]).function([{"y": spoken}], []) == 0.5
    words = metrics.word_error_rate([["the", "cat"]], lambda _: ["a", "cat", "sat"])
    assert words.function([{"y": spoken}], []) == 1
    with pytest.raises(OptionError, match="references are 2, expected 1"):
        metrics.word_error_rate([[1], [2]]).function([{"y": spoken}], [])


def test_mean_average_precision() -> None:
    truths = [[("cat", (0, 0, 10, 10)), ("cat", (20, 20, 30, 30))], [("dog", (0, 0, 4, 4))]]
    found: list[list[Any]] = [
        [
            ("cat", 0.9, (0, 0, 10, 9)),
            ("cat", 0.8, (50, 50, 60, 60)),
            ("cat", 0.7, (20, 20, 30, 31)),
            ("cat", 0.6, (0, 0, 10, 10)),
        ],
        [("dog", 0.5, (1, 1, 4, 4)), ("cat", 0.1, (0, 0, 1, 1))],
    ]
    outputs = [{"y": np.array([index])} for index in range(2)]
    metric = metrics.mean_average_precision(truths, lambda output: found[int(output["y"][0])])
    # Cats: precision 1 at recall 1/2, 2/3 at recall 1; the dog: 1.
    assert metric.function(outputs, []) == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    strict = metrics.mean_average_precision(
        truths, lambda output: found[int(output["y"][0])], iou=0.95
    )
    assert strict.function(outputs, []) == pytest.approx((1 / 4 / 2 + 0) / 2)


def test_accuracy_control_leaves_layers_in_float_for_a_metric() -> None:
    options: dict[str, Any] = {"bits": 2, "allow_larger": True, "validation_data": DATA}
    loose = quantize_rs.quantize(MODEL, None, metric="mae", max_accuracy_drop=9.0, **options)
    assert loose.accuracy_control is not None
    assert not loose.accuracy_control.float_layers
    assert loose.accuracy_control.accuracy is not None
    most = loose.accuracy_control.accuracy.quantized / 2
    report = quantize_rs.quantize(MODEL, None, metric="mae", max_accuracy_drop=most, **options)
    control = report.accuracy_control
    assert control is not None
    assert control.float_layers
    assert control.accuracy is not None
    assert control.accuracy.metric == "mean absolute error"
    assert control.accuracy.drop <= most
    assert "mean absolute error" in str(report)
    with pytest.raises(quantize_rs.errors.AccuracyCriteriaError, match="mean absolute error is"):
        quantize_rs.quantize(
            MODEL, None, metric="mae", max_accuracy_drop=most, fall_back=False, **options
        )


def test_a_metric_alone_is_measured(tmp_path: Path) -> None:
    report = quantize_rs.quantize(
        MODEL, None, bits=2, allow_larger=True, validation_data=DATA, labels=LABELS, metric="top5"
    )
    assert report.accuracy_control is not None
    found = report.accuracy_control.accuracy
    assert found is not None
    assert found.metric == "top-5 accuracy"
    report.save_html(tmp_path / "report.html")
    assert "top-5 accuracy" in (tmp_path / "report.html").read_text("utf-8")


def test_an_exception_of_a_metric_is_raised_unchanged() -> None:
    class Stop(Exception):
        pass

    def broken(_: object, __: object) -> float:
        raise Stop("here")

    with pytest.raises(Stop, match="here"):
        compared(broken)
    with pytest.raises(Stop, match="here"):
        quantize_rs.quantize(MODEL, None, validation_data=DATA, metric=broken, allow_larger=True)


@pytest.mark.parametrize(
    ("metric", "options", "said"),
    [
        ("top5", {}, "needs labels"),
        ("top0", {"labels": LABELS}, "expected top1, top5"),
        ("accuracy", {}, "expected top1, top5"),
        (3, {}, "metric is of type int"),
        (lambda _, __: "good", {}, "returned a str, expected a number"),
        ("top5", {"labels": LABELS[:3]}, "labels are 3, expected 24"),
        ("perplexity", {"labels": LABELS, "scores": "z"}, "expected a float output"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    metric: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        compared(metric, **options)


def test_a_score_that_is_not_a_number_misses_the_criterion() -> None:
    found = compared(lambda _, __: math.inf)
    assert math.isnan(found.original)
    assert math.isnan(found.drop)
    scores = iter([1.0, math.nan])
    with pytest.raises(quantize_rs.errors.AccuracyCriteriaError, match="score that is not finite"):
        quantize_rs.quantize(
            MODEL,
            None,
            validation_data=DATA,
            metric=lambda _, __: next(scores),
            max_accuracy_drop=0.5,
            fall_back=False,
            allow_larger=True,
        )


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_metric_without_a_score_of_the_float_model_decides_nothing(score: float) -> None:
    def mine(_: object, __: object) -> float:
        return score

    said = f"metric 'mine' is {score} for the float model, expected a finite number"
    criterion: dict[str, Any] = {"metric": mine, "max_accuracy_drop": 0.5}
    calls: list[Callable[[], object]] = [
        lambda: quantize_rs.quantize(MODEL, None, validation_data=DATA, **criterion),
        lambda: quantize_rs.mixed_precision(MODEL, DATA, **criterion),
        lambda: quantize_rs.sensitivity(MODEL, DATA, mine),
    ]
    for call in calls:
        with pytest.raises(OptionError, match=said) as caught:
            call()
        assert caught.value.option == "metric"


def test_layers_are_ranked_by_a_metric() -> None:
    options: dict[str, Any] = {"weights": "int2", "activations": None, "threads": 2}
    kl = quantize_rs.sensitivity(MODEL, DATA, "kl", **options)
    assert kl.metric == "KL divergence"
    assert "KL divergence" in str(kl)
    scores = [layer.score for layer in kl.layers]
    assert scores == sorted(scores, reverse=True)
    for layer in kl.layers:
        # The same as quantizing that layer alone.
        others = [other.name for other in kl.layers if other.name != layer.name]
        alone = quantize_rs.quantize(
            MODEL, None, weights="int2", exclude=others, allow_larger=True, layer_bits={"*": 2}
        ).model
        assert alone is not None
        found = quantize_rs.compare(MODEL, alone, DATA, metric="kl", latency=False).accuracy
        assert found is not None
        assert layer.accuracy is not None
        assert layer.accuracy.quantized == pytest.approx(found.quantized, rel=1e-5)
        assert layer.score == pytest.approx(found.drop, rel=1e-5)
    reported = quantize_rs.quantize(MODEL, None, bits=8).html(sensitivity=kl)
    assert "loss in KL divergence" in reported

    def broken(_outputs: object, _samples: object) -> float:
        raise RuntimeError("no score")

    with pytest.raises(RuntimeError, match="no score"):
        quantize_rs.sensitivity(MODEL, DATA, broken, **options)
    with pytest.raises(OptionError, match="metric of your own"):
        quantize_rs.sensitivity(MODEL, DATA, "kl", resume="known.json", **options)
    with pytest.raises(OptionError, match="labels"):
        quantize_rs.sensitivity(MODEL, DATA, "cosine", labels=[0], **options)
    with pytest.raises(OptionError, match="expected top1"):
        quantize_rs.sensitivity(MODEL, DATA, "nonsense", **options)


def test_layers_are_ranked_by_the_accuracy_with_labels_and_else_by_the_agreement() -> None:
    options: dict[str, Any] = {"activations": None}
    accuracy = quantize_rs.sensitivity(MODEL, DATA, "top1", labels=LABELS, scores="y", **options)
    agreement = quantize_rs.sensitivity(MODEL, DATA, "top1", **options)
    # The loss of accuracy, and not the agreement: the random labels are rarely the classes.
    named = quantize_rs.sensitivity(MODEL, DATA, metrics.top_k(LABELS, 1), **options)
    assert [(layer.name, layer.score) for layer in accuracy.layers] == [
        (layer.name, layer.score) for layer in named.layers
    ]
    assert accuracy.metric == named.metric != agreement.metric
    assert all(layer.accuracy is None for layer in agreement.layers)
    with pytest.raises(OptionError, match="scores has no effect with metric='top1'"):
        quantize_rs.sensitivity(MODEL, DATA, "top1", scores="y", **options)


def test_bits_are_chosen_by_a_metric() -> None:
    found = quantize_rs.mixed_precision(
        MODEL, DATA, max_accuracy_drop=0.02, metric="kl", bits=(8, 4, 2)
    )
    assert found.accuracy is not None
    assert found.accuracy.metric == "KL divergence"
    assert 0 <= found.accuracy.drop <= 0.02
    assert "KL divergence" in str(found)
    fewer = quantize_rs.mixed_precision(MODEL, DATA, max_accuracy_drop=0.2, metric="kl")
    assert fewer.bytes_after < found.bytes_after < found.bytes_before
    made = quantize_rs.quantize(MODEL, None, layer_bits=found.layer_bits, allow_larger=True).model
    assert made is not None
    again = quantize_rs.compare(MODEL, made, DATA, metric="kl", latency=False).accuracy
    assert again is not None
    assert again.drop == pytest.approx(found.accuracy.drop, rel=1e-5)
    by_size = quantize_rs.mixed_precision(
        MODEL, DATA, target_size=0.3, metric="top1", labels=LABELS
    )
    assert by_size.accuracy is not None
    assert by_size.bytes_after <= 0.3 * by_size.bytes_before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_accuracy_drop": 0.1}, "needs a metric"),
        ({"max_accuracy_drop": -1, "metric": "kl"}, "expected a number from 0 on"),
        ({"max_accuracy_drop": 0.1, "metric": "kl", "min_sqnr": 20}, "a goal of its own"),
        ({"target_size": 0.5, "labels": [1]}, "labels"),
    ],
)
def test_goals_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        quantize_rs.mixed_precision(MODEL, DATA, **options)


def test_a_loss_that_no_layer_keeps_is_an_accuracy_error() -> None:
    with pytest.raises(quantize_rs.AccuracyCriteriaError, match="max_accuracy_drop is 0"):
        quantize_rs.mixed_precision(
            MODEL, DATA, max_accuracy_drop=0, metric="kl", bits=(2,), engine="tract"
        )


def test_the_sentence_names_the_metric() -> None:
    digits = quantize_rs.examples.digits()
    found = quantize_rs.compare(
        digits.model, digits.model, digits.calibration, metric="mae", engine="tract", limit=2
    )
    sentence = found.assessment.sentence
    assert "a score of 0.00000 instead of 0.00000 (mean absolute error)" in sentence


def test_labels_may_be_arrays_of_different_lengths() -> None:
    rows = [row.tolist() for row in np.split(np.asarray(LABELS), [3, 9, 10])]
    for labels in (rows, [np.asarray(row) for row in rows], tuple(rows)):
        found = compared("perplexity", labels=labels)
        assert found == compared("perplexity", labels=LABELS)
        assert compared(metrics.perplexity(labels)) == found
        assert compared(metrics.top_k(labels, 3)) == compared("top3", labels=LABELS)


@pytest.mark.parametrize(
    "labels", [[[0, 1], [0.5]], [0.5], ["cat"], [None], [[1], {}], {1: 2}], ids=str
)
def test_labels_that_are_no_whole_numbers_are_refused(labels: Any) -> None:
    for metric in (metrics.perplexity, metrics.top_k):
        with pytest.raises(OptionError, match="labels are of"):
            metric(labels)
