"""Positions that an attention mask marks as padding have no part in measured errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import oracle
import pytest
from onnx import numpy_helper

import quantize_rs

Array = npt.NDArray[Any]
WIDTH, CLASSES = 16, 5


def model(change: float = 0.0, mask: str = "attention_mask") -> bytes:
    """Scores of each token; `change` is added to the embedding of token 0, which pads."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g(int64[N, s] input_ids, int64[N, s] {mask}) => (float[N, s, {CLASSES}] scores) {{
            e = Gather (words, input_ids)
            m = Cast <to = 1> ({mask})
            u = Unsqueeze (m, axes)
            h = Relu (e)
            scores = MatMul (h, w)
        }}"""
    )
    rng = np.random.default_rng(0)
    words = rng.standard_normal((30, WIDTH)).astype(np.float32)
    words[0] += change
    weights: dict[str, Array] = {
        "words": words,
        "w": rng.standard_normal((WIDTH, CLASSES)).astype(np.float32),
        "axes": np.array([2]),
    }
    made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return bytes(made.SerializeToString())


def samples(count: int = 6, mask: str = "attention_mask") -> list[dict[str, Array]]:
    """Sentences of different lengths; token 0 fills them up to eight tokens."""
    rng = np.random.default_rng(1)
    found = []
    for size in rng.integers(2, 8, count):
        ids = np.zeros((1, 8), np.int64)
        ids[0, :size] = rng.integers(1, 30, size)
        found.append({"input_ids": ids, mask: (np.arange(8) < size).astype(np.int64)[None]})
    return found


def oracle_outputs(of: bytes) -> list[Array]:
    """The scores of the tokens that are no padding, in ONNX Runtime."""
    session = oracle.session(of)
    found = []
    for sample in samples():
        (scores,) = session.run(None, sample)
        found.append(scores[0][sample["attention_mask"][0] == 1])
    return found


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
def test_compare_leaves_padding_out(engine: str) -> None:
    found = quantize_rs.compare(model(), model(9.0), samples(), engine=engine)
    assert found.outputs[0].sqnr_db == np.inf
    assert found.outputs[0].top1_agreement == 1
    shown = quantize_rs.compare(
        model(mask="mask"), model(9.0, "mask"), samples(mask="mask"), engine=engine
    )
    assert shown.outputs[0].sqnr_db < 0
    assert (shown.outputs[0].top1_agreement or 0) < 1


def test_compare_has_the_error_of_the_tokens() -> None:
    quantized = quantize_rs.quantize(model(), None, min_elements=0).model
    assert quantized is not None
    found = quantize_rs.compare(model(), quantized, samples(), engine="onnxruntime").outputs[0]
    sessions = [oracle_outputs(one) for one in (model(), quantized)]
    wanted, got = (np.concatenate(part) for part in sessions)
    noise = np.sum((wanted - got).astype(np.float64) ** 2)
    signal = np.sum(wanted.astype(np.float64) ** 2)
    assert found.sqnr_db == pytest.approx(10 * np.log10(signal / noise), abs=1e-3)
    assert found.top1_agreement == np.mean(wanted.argmax(-1) == got.argmax(-1))


def test_labels_are_those_of_all_rows() -> None:
    rows = 6 * 8
    labels = np.zeros(rows, np.int64)
    found = quantize_rs.compare(model(), model(9.0), samples(), labels=labels, engine="tract")
    assert found.accuracy is not None


def test_layer_errors_and_sensitivity_leave_padding_out() -> None:
    changed = model(9.0)
    values = quantize_rs.layer_errors(model(), changed, samples(), engine="tract").values
    assert {row.name: row.accumulated.sqnr_db for row in values}["scores"] == np.inf
    # Token 0 alone is rounded badly: it makes the scale of all others large.
    loud = model(1000.0)
    plain = quantize_rs.sensitivity(loud, samples(), engine="tract", weights="int8")
    hidden = quantize_rs.sensitivity(
        model(1000.0, "mask"), samples(mask="mask"), engine="tract", weights="int8"
    )
    by_name = [{row.name: row.outputs[0].sqnr_db for row in one.layers} for one in (plain, hidden)]
    assert by_name[0]["words"] < by_name[1]["words"] - 5


@pytest.mark.parametrize(("metric", "best"), [("cosine", 1), ("kl", 0), ("mae", 0)])
def test_metrics_against_the_original_leave_padding_out(metric: str, best: float) -> None:
    found = quantize_rs.compare(model(), model(9.0), samples(), metric=metric, engine="tract")
    assert found.accuracy is not None
    assert found.accuracy.quantized == pytest.approx(best)
    shown = quantize_rs.compare(
        model(mask="mask"), model(9.0, "mask"), samples(mask="mask"), metric=metric, engine="tract"
    )
    assert shown.accuracy is not None
    assert abs(shown.accuracy.quantized - best) > 0.01


def test_metrics_of_samples_get_all_rows() -> None:
    shapes: set[tuple[int, ...]] = set()

    def seen(outputs: list[dict[str, Array]], samples: list[dict[str, Array]]) -> float:
        shapes.update(output["scores"].shape for output in outputs)
        return float(len(samples))

    quantize_rs.compare(model(), model(9.0), samples(), metric=seen, engine="tract")
    assert shapes == {(1, 8, CLASSES)}
