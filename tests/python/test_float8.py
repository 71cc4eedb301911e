"""Floats of 8 bits against ml_dtypes, onnx.reference and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError, kernels

E4M3FN, E5M2 = "float8e4m3fn", "float8e5m2"

# The type of ml_dtypes, its number in ONNX, its largest number.
FORMATS: dict[str, tuple[Any, int, float]] = {
    E4M3FN: (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN, 448.0),
    E5M2: (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2, 57344.0),
}

# Errors are at most half a step of a mantissa of 3 or 2 bits. That is 31.5 and 25.5 dB for values
# spread evenly between two powers of two, and half a decibel more or less for others.
FLOOR = {E4M3FN: 30.5, E5M2: 24.5}


def _codes(x: npt.ArrayLike, scale: float, dtype: str) -> npt.NDArray[np.uint8]:
    """The definition: the quotient in float32, clipped, and cast as ml_dtypes casts."""
    kind, _, largest = FORMATS[dtype]
    with np.errstate(over="ignore"):
        steps = np.asarray(x, np.float32) / np.float32(scale)
    codes: npt.NDArray[np.uint8] = np.clip(steps, -largest, largest).astype(kind).view(np.uint8)
    return codes


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_code_means_what_ml_dtypes_says(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(FORMATS[dtype][0]).astype(np.float32)
    found = kernels.dequantize_linear(codes, 1.0, dtype=dtype)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    finite = np.isfinite(expected)
    back = kernels.quantize_linear(expected[finite], 1.0, dtype=dtype)
    np.testing.assert_array_equal(back, codes[finite])


@pytest.mark.parametrize("dtype", FORMATS)
def test_ties_and_their_neighbours_go_where_ml_dtypes_sends_them(dtype: str) -> None:
    values = np.arange(256, dtype=np.uint8).view(FORMATS[dtype][0]).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    ties = (values[1:] + values[:-1]) / 2
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    x = np.concatenate([values, ties, up, down]).astype(np.float32)
    np.testing.assert_array_equal(kernels.quantize_linear(x, 1.0, dtype=dtype), _codes(x, 1, dtype))


@given(
    st.sampled_from([E4M3FN, E5M2]),
    st.lists(st.floats(width=32, allow_nan=False), max_size=70),
    st.floats(2.0**-60, 2.0**60, width=32) | st.sampled_from([0.1, 1.0]),
)
def test_random_numbers_are_cast_as_ml_dtypes_casts(
    dtype: str, x: list[float], scale: float
) -> None:
    found = kernels.quantize_linear(x, scale, dtype=dtype)
    np.testing.assert_array_equal(found, _codes(x, scale, dtype))
    back = kernels.dequantize_linear(found, scale, dtype=dtype)
    with np.errstate(over="ignore", under="ignore"):
        expected = found.view(FORMATS[dtype][0]).astype(np.float32) * np.float32(scale)
    np.testing.assert_array_equal(back.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_nodes_of_onnx_give_the_same_bytes(dtype: str) -> None:
    x = np.random.default_rng(0).normal(0, 3, 5000).astype(np.float32)
    scale = np.float32(np.abs(x).max() / FORMATS[dtype][2])
    assert kernels.scale_zero_point(float(x.min()), float(x.max()), dtype) == (scale, 0)
    number = FORMATS[dtype][1]
    zero = helper.make_tensor("zero", number, [], b"\0", raw=True)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5000])],
        [
            helper.make_tensor_value_info("q", number, [5000]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [5000]),
        ],
        [numpy_helper.from_array(scale, "scale"), zero],
    )
    opset = helper.make_opsetid("", 19)
    pair = helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
    codes = kernels.quantize_linear(x, scale, dtype=dtype)
    by_reference, floats = oracle.reference(pair, {"x": x})
    np.testing.assert_array_equal(by_reference.view(np.uint8), codes)
    found = kernels.dequantize_linear(codes, scale, dtype=dtype)
    np.testing.assert_array_equal(found, floats)
    (by_ort,) = oracle.session(pair).run(["y"], {"x": x})
    np.testing.assert_array_equal(by_ort, found)


def _products() -> onnx.ModelProto:
    """Two matrix products with a bias and a Relu between them, opset 19."""
    rng = np.random.default_rng(1)
    constants = {
        "w1": rng.normal(0, 0.2, (32, 48)),
        "b1": rng.normal(0, 0.1, (48,)),
        "w2": rng.normal(0, 0.2, (48, 16)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["product"], name="first"),
        helper.make_node("Add", ["product", "b1"], ["sum"], name="add"),
        helper.make_node("Relu", ["sum"], ["hidden"], name="relu"),
        helper.make_node("MatMul", ["hidden", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array(c.astype(np.float32), name) for name, c in constants.items()],
    )
    opset = helper.make_opsetid("", 19)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def _integers(model: bytes) -> dict[str, npt.NDArray[Any]]:
    graph = onnx.load_from_string(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_weights_alone_are_those_of_numpy(dtype: str, per_channel: bool) -> None:
    source = _products()
    report = quantize_rs.quantize(source, None, weights=dtype, per_channel=per_channel)
    model = report.model
    assert model is not None
    oracle.check(model)
    assert {value.qtype for value in report.quantized} == {dtype}
    found = _integers(model)
    kind, _, largest = FORMATS[dtype]
    for row in report.quantized:
        assert row.sqnr_db is not None
        assert row.sqnr_db > FLOOR[dtype]
        assert row.kind.startswith(f"{dtype} symmetric")
        weight = _integers(source.SerializeToString())[row.name]
        most = np.abs(weight).max(axis=0) if per_channel else np.abs(weight).max()
        scale = (most.astype(np.float64) / largest).astype(np.float32)
        np.testing.assert_array_equal(found[f"{row.name}_scale"], scale)
        codes = np.clip(weight / scale, -largest, largest).astype(kind)
        np.testing.assert_array_equal(
            found[f"{row.name}_quantized"].view(np.uint8), codes.view(np.uint8)
        )
    feeds = {"x": np.random.default_rng(2).normal(0, 1, (64, 32)).astype(np.float32)}
    exact = oracle.ort(source.SerializeToString(), feeds)
    for output in (oracle.ort(model, feeds), oracle.ort(model, feeds, optimized=False)):
        assert oracle.sqnr(exact, output) > FLOOR[dtype] - 4  # two products, one after the other
        assert oracle.sqnr(oracle.reference(model, feeds), output) > 100


def _run(model: bytes, feeds: oracle.Feeds) -> oracle.Outputs:
    """The outputs of ONNX Runtime with basic optimizations.

    With more, version 1.31 fuses nodes for which it has no kernels, and removes a Relu before
    QuantizeLinear although the type has negative values.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: oracle.Outputs = session.run(None, feeds)
    return outputs


@pytest.mark.parametrize("target", ["generic", "tensorrt"])
@pytest.mark.parametrize(
    ("activations", "weights"), [(E4M3FN, E4M3FN), (E4M3FN, "int8"), (E5M2, E4M3FN)]
)
def test_activations_are_quantized_and_run(target: str, activations: str, weights: str) -> None:
    source = _products()
    x = np.random.default_rng(3).normal(0, 1, (64, 32)).astype(np.float32)

    def quantized() -> quantize_rs.Report:
        return quantize_rs.quantize_with_calibration(
            source, None, x, activations=activations, weights=weights, target=target
        )

    if target == "tensorrt" and (activations, weights) != (E4M3FN, E4M3FN):
        option = "weights" if activations == E4M3FN else "activations"
        with pytest.raises(OptionError, match="for target tensorrt") as caught:
            quantized()
        assert caught.value.option == option
        return
    report = quantized()
    model = report.model
    assert model is not None
    oracle.check(model)
    kinds = {value.qtype for value in report.activations if value.quantized}
    assert kinds == {activations}
    assert {value.qtype for value in report.weights if value.quantized} == {weights}
    assert not any(c.dtype == np.int32 for c in _integers(model).values()), "a bias"
    assert any("ORT_ENABLE_BASIC" in said for said in report.warnings) == (target == "generic")
    feeds = {"x": x}
    plain = oracle.ort(model, feeds, optimized=False)
    # Four quantizations in a row, each of which adds an error.
    floor = FLOOR[E5M2 if E5M2 in (activations, weights) else E4M3FN] - 6
    assert oracle.sqnr(oracle.ort(source.SerializeToString(), feeds), plain) > floor
    # A sum halfway between two codes may round either way.
    assert oracle.sqnr(oracle.reference(model, feeds), plain) > 40
    assert oracle.sqnr(plain, _run(model, feeds)) > 40


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse", "auto"])
def test_the_digits_network_keeps_its_accuracy(digits: Path, images: Path, method: str) -> None:
    options: dict[str, Any] = {"activations": "float8", "weights": "float8", "target": "generic"}
    test = np.load(digits.with_name("test.npz"))
    feed, labels = {"image": test["images"]}, test["labels"]
    expected = oracle.ort(digits, feed)
    report = quantize_rs.quantize_with_calibration(digits, None, images, method=method, **options)
    assert [step.name for step in report.steps] == ["opset 17 → 19"]
    assert {value.qtype for value in report.quantized} == {E4M3FN}
    assert report.corrected_biases > 0
    model = report.model
    assert model is not None
    oracle.check(model)
    for found in (_run(model, feed), oracle.ort(model, feed, optimized=False)):
        # Ten quantizations in a row; as measured (24.8 to 24.9), less one decibel.
        assert oracle.sqnr(expected, found) > 23.8
        assert (found[0].argmax(1) == labels).sum() >= 390


def test_a_model_of_an_older_opset_is_converted(digits: Path) -> None:
    for options in ({"weights": "float8"}, {"layer_bits": {"*": E5M2}}):
        report = quantize_rs.quantize(digits, None, **options)
        assert quantize_rs.model_info(report.model or b"").opset_version == 19


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"activations": "float8"}, "activations"),
        ({"target": "x86", "activations": "float8"}, "activations"),
        ({"target": "arm", "activations": "float8"}, "activations"),
        ({"target": "x86-avx2", "activations": "float8"}, "activations"),
        ({"target": "openvino", "activations": "float8"}, "activations"),
        ({"target": "qnn", "activations": "float8"}, "activations"),
        ({"target": "tensorrt", "activations": "float8e5m2"}, "activations"),
        ({"target": "tensorrt", "activations": "float8"}, "weights"),
        ({"activations": "uint8", "weights": "float8"}, "weights"),
        ({"activations": "uint8", "layer_bits": {"first": "float8"}}, "layer_bits"),
    ],
)
def test_what_a_runtime_does_not_take_is_refused(options: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        quantize_rs.quantize_with_calibration(_products(), None, "random", **options)
    assert caught.value.option == option
