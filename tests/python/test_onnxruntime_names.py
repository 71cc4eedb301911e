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


def test_pairs_of_the_model_keep_their_names() -> None:
    """As models that were trained with quantization have them."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 16] x) => (float[n, 16] y) {
        xq = QuantizeLinear(x, xs, z)
        xd = DequantizeLinear(xq, xs, z)
        wq = QuantizeLinear(w, s, z)
        wd = DequantizeLinear(wq, s, z)
        h = MatMul(xd, wd)
        hq = QuantizeLinear(h, hs, z)
        hd = DequantizeLinear(hq, hs, z)
        y = MatMul(hd, v)
    }""")
    rng = np.random.default_rng(3)
    constants = {"s": 0.01, "xs": 0.03, "hs": 0.04, "w": None, "v": None}
    for name, value in constants.items():
        array = rng.normal(size=(16, 16)) / 4 if value is None else np.array(value)
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int8), "z"))
    samples = [{"x": rng.normal(size=(4, 16)).astype(np.float32)} for _ in range(4)]
    for samples_or_none in (None, samples):
        results = []
        for named in (False, True):
            if samples_or_none is None:
                report = quantize_rs.quantize(
                    model, None, onnxruntime_names=named, allow_larger=True
                )
            else:
                report = quantize_rs.quantize_with_calibration(
                    model, None, samples, onnxruntime_names=named, allow_larger=True
                )
            assert report.model is not None
            results.append(oracle.ort(report.model, samples[0], optimized=False)[0])
            made = onnx.load_from_string(report.model).graph
            assert {"xq", "xd", "hq", "hd"} <= {node.output[0] for node in made.node}
        assert np.array_equal(*results)


def test_a_name_that_a_subgraph_has_is_not_given_again() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 64] x, bool c) => (float[n, 16] y) {
        h = MatMul(x, w)
        y = If (c) <
            then_branch = t() => (float[n, 16] p) { w_scale = Neg(h) p = Abs(w_scale) },
            else_branch = e() => (float[n, 16] r) { r = Neg(h) }
        >
    }""")
    weight = np.random.default_rng(4).normal(size=(64, 16)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    report = quantize_rs.quantize(model, None, onnxruntime_names=True, allow_larger=True)
    assert report.model is not None
    names = {it.name for it in onnx.load_from_string(report.model).graph.initializer}
    assert {"w_quantized", "w_zero_point"} < names
    assert "w_scale" not in names
    x = np.ones((2, 64), np.float32)
    feeds = {"x": x, "c": np.array(True)}
    assert (
        oracle.sqnr(oracle.ort(model.SerializeToString(), feeds), oracle.ort(report.model, feeds))
        > 30
    )


def test_a_weight_in_blocks_that_a_body_reads_keeps_its_names() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[1, 32] x) => (float[1, 32] y)
    <int64 count = {3}, bool go = {1}> {
        h = MatMul(x, w)
        y = Loop (count, go, h) <
            body = b(int64 i, bool c, float[1, 32] s) => (bool d, float[1, 32] t) {
                d = Identity(c)
                m = MatMul(s, w)
                t = Tanh(m)
            }
        >
    }""")
    weight = np.random.default_rng(4).normal(size=(32, 32)).astype(np.float32) / 6
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    options: dict[str, Any] = {"bits": 4, "output_format": "matmul_nbits", "allow_larger": True}
    x = {"x": np.linspace(-1, 1, 32, dtype=np.float32)[None]}
    results = []
    for named in (False, True):
        made = quantize_rs.quantize(model, None, onnxruntime_names=named, check="none", **options)
        assert made.model is not None
        results.append(oracle.ort(made.model, x)[0])
    assert np.array_equal(*results)
