"""The option `onnxruntime_names`: other names, the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest

import quantize_rs


def names(path: Path) -> set[str]:
    graph = onnx.load(path).graph
    outputs = {name for node in graph.node for name in node.output}
    return outputs | {tensor.name for tensor in graph.initializer}


@pytest.mark.parametrize("options", [{}, {"dedicated_qdq_pairs": True}])
def test_only_names_change(digits: Path, images: Path, options: dict[str, Any]) -> None:
    short, long = digits.with_name("short.onnx"), digits.with_name("long.onnx")
    for path, named in ((short, False), (long, True)):
        quantize_rs.quantize_with_calibration(
            digits, path, np.load(images)[:16], onnxruntime_names=named, check="none", **options
        )
    found = names(long)
    assert {"image_scale", "image_zero_point", "image_QuantizeLinear_Output"} <= found
    assert {"conv2.weight_quantized", "conv2.weight_scale", "conv2.bias_quantized"} <= found
    assert "image_QuantizeLinear_Output" not in names(short)
    oracle.check(long)
    assert quantize_rs.validate(digits, long).passed
    feeds = {"image": np.load(images)[:16]}
    one, other = (oracle.ort(path, feeds, optimized=False)[0] for path in (short, long))
    assert np.array_equal(one, other)


def test_a_long_name_is_repeated(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    name = "unicode_names"
    samples = [oracle.feeds(name, 8)]
    quantize_rs.quantize_with_calibration(
        oracle.model(name), out, samples, onnxruntime_names=True, check="none"
    )
    assert "Eingabe für/das Netz_scale" in names(out)
    oracle.session(out)


def test_a_value_that_a_subgraph_reads_keeps_its_names(tmp_path: Path) -> None:
    out, name = tmp_path / "out.onnx", "if_subgraph"
    samples = [oracle.feeds(name, 8)]
    quantize_rs.quantize_with_calibration(
        oracle.model(name), out, samples, onnxruntime_names=True, check="none"
    )
    feeds = oracle.feeds(name, 4)
    assert oracle.sqnr(oracle.ort(oracle.model(name), feeds), oracle.ort(out, feeds)) > 20
