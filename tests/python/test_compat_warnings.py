"""Warnings of a plan name what the caller of `compat` gave, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import helper

from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime._choices import in_their_words

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


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def test_what_a_warning_proposes_can_be_done(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    report, _ = quantized(model, "dynamic")
    assert "ConvInteger" in operators(model.with_name("o.onnx"))
    advice = 'nodes_to_exclude=["Conv"]'
    [same] = [text for text in report.warnings if advice in text]
    assert same in caplog.messages
    assert same in str(report)
    assert same in report.to_dict()["warnings"]
    assert same in json.loads(report.to_json())["warnings"]
    caplog.clear()
    report, _ = quantized(model, "dynamic", nodes_to_exclude=["Conv"])
    assert "ConvInteger" not in operators(model.with_name("o.onnx"))
    assert "nodes_to_exclude" not in caplog.text + "".join(report.warnings)


@pytest.mark.parametrize("call", ["static", "dynamic"])
@pytest.mark.parametrize("named", [["Conv"], ["fir*", "re:la.t"], ["first", "last"]])
def test_nodes_are_named_by_name_pattern_and_type(
    model: Path, caplog: pytest.LogCaptureFixture, call: str, named: list[str]
) -> None:
    report, _ = quantized(model, call, nodes_to_quantize=named)
    assert all(value.quantized for value in report.weights)
    report, _ = quantized(model, call, nodes_to_exclude=named)
    assert not any(value.quantized for value in report.weights)
    assert "has no node" not in caplog.text
    quantized(model, call, nodes_to_exclude=["Gather"])
    assert "nodes_to_exclude: the model has no node 'Gather'" in caplog.text


def test_a_reason_that_names_types_has_the_name_of_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.onnx"
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "last"),
    ]
    weights = {"v": RNG.normal(size=(4, 3, 3, 3)), "w": RNG.normal(size=(6, 4))}
    path.write_bytes(graphs.built(nodes, weights, ["N", 3, 8, 8]))
    extra = {"TensorQuantOverrides": {"w": [{"quant_type": UNSIGNED}]}}
    quantized(path, "static", op_types_to_quantize=["Conv"], extra_options=extra)
    [said] = [text for text in caplog.messages if "TensorQuantOverrides" in text]
    assert said.endswith("read by MatMul, not one of op_types_to_quantize")


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        (
            "use target x86-avx2 for processors like this one, and target x86 for others",
            "use reduce_range=True for processors like this one",
        ),
        (
            'use output_format="dynamic" or "matmul_nbits", or leave it float with exclude',
            "use quantize_dynamic or MatMulNBitsQuantizer, or leave it float with nodes_to_exclude",
        ),
        (
            'lowest SQNR: exclude=["w"] keeps it float',
            'lowest SQNR: nodes_to_exclude=["w"] keeps it float',
        ),
    ],
)
def test_a_warning_names_what_onnxruntime_has(native: str, expected: str) -> None:
    assert in_their_words(native) == expected
