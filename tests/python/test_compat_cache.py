"""`calibration_cache_path`: one file serves calls with other options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphs
import numpy as np
import pytest
from onnx import helper
from readers import Reader

import quantize_rs
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.errors import CalibrationError

Options = dict[str, Any]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"nodes_to_exclude": ["conv1"]}, {}),
        ({}, {"nodes_to_exclude": ["conv2"]}),
        ({}, {"extra_options": {"ActivationSymmetric": True}}),
        ({"op_types_to_quantize": ["Conv"]}, {}),
        ({"activation_type": ours.QuantType.QUInt8}, {"per_channel": True}),
        ({}, {"extra_options": {"ForceQuantizeNoInputCheck": True}}),
        ({}, {"extra_options": {"DedicatedQDQPair": True}}),
    ],
)
def test_a_cache_serves_other_options_without_samples(
    digits: Path, images: Path, tmp_path: Path, first: Options, then: Options
) -> None:
    cache, out, anew = tmp_path / "c.json", tmp_path / "o.onnx", tmp_path / "anew.onnx"
    ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache, **first)
    ours.quantize_static(digits, out, None, calibration_cache_path=cache, **then)
    ours.quantize_static(
        digits, anew, Reader(images), calibration_cache_path=tmp_path / "anew.json", **then
    )
    assert out.read_bytes() == anew.read_bytes()


def test_a_cache_that_lacks_a_value_is_written_anew(
    digits: Path, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, out = tmp_path / "c.json", tmp_path / "o.onnx"
    less = quantize_rs.open(digits).plan(activations="int8", op_types=["Gemm"])
    less.calibrate(images, limit=4).save(cache)
    with pytest.raises(CalibrationError, match="lack a value"):
        ours.quantize_static(digits, out, None, calibration_cache_path=cache)
    report = ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache)
    assert report.samples == 40
    assert "is written anew" in caplog.text
    caplog.clear()
    assert ours.quantize_static(digits, out, None, calibration_cache_path=cache).samples == 40
    assert "anew" not in caplog.text


def test_a_cache_of_another_model_is_not_replaced(
    digits: Path, images: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "c.json"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = graphs.built(nodes, {"w": np.ones((64, 64))}, ["n", 64])
    other = quantize_rs.open(model).plan(activations="int8", allow_larger=True)
    other.calibrate("random", num_samples=2).save(cache)
    kept = cache.read_bytes()
    with pytest.raises(CalibrationError, match="another model"):
        ours.quantize_static(
            digits, tmp_path / "o.onnx", Reader(images), calibration_cache_path=cache
        )
    assert cache.read_bytes() == kept
