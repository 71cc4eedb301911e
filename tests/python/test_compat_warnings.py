"""Warnings of a plan name what the caller of `compat` gave, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import helper

from quantize_rs.compat import onnxruntime as ours

RNG = np.random.default_rng(0)
UNSIGNED = ours.QuantType.QUInt8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"], "first"),
        helper.make_node("Conv", ["h", "w"], ["y"], "last"),
    ]
    weights = {"v": RNG.normal(size=(4, 3, 3, 3)), "w": RNG.normal(size=(4, 4, 3, 3))}
    path = tmp_path / "model.onnx"
    path.write_bytes(graphs.built(nodes, weights, ["N", 3, 8, 8]))
    return path


def quantized(model: Path, call: str, **options: Any) -> Any:
    out = model.with_name("o.onnx")
    if call == "static":
        samples = RNG.normal(size=(8, 3, 8, 8)).astype(np.float32)
        options["calibration_data_reader"] = samples
        options["activation_type"] = UNSIGNED
    function = ours.quantize_static if call == "static" else ours.quantize_dynamic
    report = function(model, out, per_channel=True, **options)
    tensors = {
        one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(out).graph.initializer
    }
    return report, tensors


@pytest.mark.parametrize("call", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_an_option_that_is_not_given_is_not_named(
    model: Path, caplog: pytest.LogCaptureFixture, call: str, kind: str
) -> None:
    report, _ = quantized(model, call, weight_type=ours.QuantType[kind])
    for text in (caplog.text, *report.warnings):
        assert "ymmetric" not in text


@pytest.mark.parametrize("call", ["static", "dynamic"])
def test_an_option_without_effect_has_its_name_in_onnxruntime(
    model: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    extra = {"WeightSymmetric": False}
    report, _ = quantized(model, call, weight_type=UNSIGNED, extra_options=extra)
    for said in ([record.getMessage() for record in caplog.records], report.warnings):
        [text] = [text for text in said if "ymmetric" in text]
        assert "zero points of" in text
        assert "are the middle of the type" in text
        assert "extra_options['WeightSymmetric']=False has no effect on them" in text
        assert "the format" not in text


def test_a_scale_for_each_channel_is_beside_the_middle_of_the_type(model: Path) -> None:
    _, tensors = quantized(model, "static", weight_type=UNSIGNED)
    assert tensors["w_zero_point"].tolist() == [128] * 4


@pytest.mark.parametrize(("kind", "symmetric"), [("QInt8", True), ("QUInt8", False)])
def test_the_type_of_one_weight_says_whether_it_is_symmetric(
    model: Path, kind: str, symmetric: bool
) -> None:
    # As in onnxruntime, whatever the type of the other weights is.
    entry = {"quant_type": ours.QuantType[kind], "symmetric": symmetric}
    extra = {"TensorQuantOverrides": {"w": [entry]}}
    report, _ = quantized(model, "static", weight_type=UNSIGNED, extra_options=extra)
    [row] = [value for value in report.weights if value.name == "w"]
    assert (row.qtype, row.symmetric) == (kind.removeprefix("Q").lower(), symmetric)
