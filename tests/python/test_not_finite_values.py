"""Values that are NaN by design, and samples and operators that no engine can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import CalibrationError

SIZE = 16


def masked_attention() -> tuple[bytes, dict[str, Any]]:
    """Attention in which a wholly masked row is NaN, and IsNaN and Where make it 0."""
    rng = np.random.default_rng(0)
    constants = {name: rng.normal(0, 0.3, (SIZE, SIZE)) for name in ("wq", "wk", "wv", "wo")}
    constants["zero"] = np.array(0.0)
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("MatMul", ["x", "wk"], ["k"]),
        helper.make_node("MatMul", ["x", "wv"], ["v"]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("IsNaN", ["p"], ["n"]),
        helper.make_node("Where", ["n", "zero", "p"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["o"]),
        helper.make_node("MatMul", ["o", "wo"], ["y"]),
    ]
    inputs = {"x": ["b", 5, SIZE], "mask": ["b", 5, 5]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )
    mask = np.zeros((8, 5, 5), np.float32)
    mask[:, :, 3:] = mask[:, 4:] = -np.inf
    feeds = {"x": rng.normal(0, 1, (8, 5, SIZE)).astype(np.float32), "mask": mask}
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("target", ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"])
def test_what_is_nan_is_not_quantized_before_it_becomes_0(target: str) -> None:
    model, feeds = masked_attention()
    report = quantize_rs.quantize_with_calibration(model, None, feeds, target=target)
    assert report.model is not None
    expected, found = (oracle.ort(it, feeds) for it in (model, report.model))
    assert np.isfinite(found[0]).all()
    assert oracle.sqnr(expected, found) > 20
    (row,) = (value for value in report.values if value.name == "p")
    assert not row.quantized


def test_exclude_takes_the_name_of_a_value() -> None:
    model, feeds = masked_attention()
    report = quantize_rs.quantize_with_calibration(
        model, None, feeds, target="qnn", excluded_layers=["a"]
    )
    (row,) = (value for value in report.values if value.name == "a")
    assert row.why == "not quantized: excluded by `a`"


def operator_of_ones_own() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mine", ["a"], ["y"], domain="com.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIZE])],
        [numpy_helper.from_array(np.ones((SIZE, SIZE), np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("engine", ["auto", "tract", "onnxruntime"])
def test_the_advice_for_an_unknown_operator_can_help(engine: Any) -> None:
    samples = np.zeros((4, SIZE), np.float32)
    with pytest.raises(CalibrationError, match="give an engine object that runs the operator"):
        quantize_rs.quantize_with_calibration(operator_of_ones_own(), None, samples, engine=engine)
    # The other half of the advice.
    assert quantize_rs.quantize(operator_of_ones_own(), None).weights[0].quantized


def test_an_input_that_is_no_tensor_is_called_that() -> None:
    optional = helper.make_optional_type_proto(
        helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", SIZE])
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["there"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE]),
            helper.make_value_info("o", optional),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIZE]),
            helper.make_tensor_value_info("there", TensorProto.BOOL, []),
        ],
        [numpy_helper.from_array(np.ones((SIZE, SIZE), np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    samples = np.zeros((4, SIZE), np.float32)
    for data in (samples, {"x": samples}):
        with pytest.raises(CalibrationError, match="input `o` is declared as no tensor"):
            quantize_rs.quantize_with_calibration(model, None, data)


def masked_rows(dtype: Any, hidden: float = -np.inf) -> tuple[bytes, list[dict[str, Any]]]:
    """A table of rows of a causal mask, which holds -inf or such, beside a product."""
    rng = np.random.default_rng(1)
    mask = np.triu(np.full((SIZE, SIZE), hidden), 1).astype(dtype)
    weight = rng.normal(size=(SIZE, SIZE)).astype(dtype)
    nodes = [
        helper.make_node("Gather", ["mask", "rows"], ["bias"], "mask_rows"),
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Add", ["h", "bias"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", element, ["n", SIZE]),
            helper.make_tensor_value_info("rows", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", element, ["n", SIZE])],
        [numpy_helper.from_array(mask, "mask"), numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    x = rng.normal(size=(8, 4, SIZE)).astype(dtype)
    return model.SerializeToString(), [{"x": own, "rows": np.arange(4)} for own in x]


WARNING = "weights stay float because they are not finite: `mask` (element 1 is -inf)"


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("weights", ["float16", "bfloat16"])
def test_a_mask_beyond_16_bit_floats_stays_float32(weights: str) -> None:
    model, samples = masked_rows(np.float32, LOWEST)
    report = quantize_rs.quantize(model, None, weights=weights, allow_larger=True)
    warning = (
        f"weights stay float because {weights} does not hold their numbers: `mask` (element 1 is "
        "-3.4028235e38)"
    )
    assert warning in report.warnings
    assert {row.name for row in report.quantized} == {"w"}
    (row,) = (row for row in report.weights if row.name == "mask")
    assert row.why.startswith(f"not quantized: has numbers that {weights} does not hold: element 1")
    assert report.model is not None
    for own in samples:
        expected, found = (oracle.ort(it, own) for it in (model, report.model))
        assert oracle.sqnr(expected, found) > 35
    plan = quantize_rs.open(model).plan(weights=weights)
    ranking = quantize_rs.sensitivity(plan, samples)
    assert {layer.name for layer in ranking.layers} == {"w"}
    assert warning in ranking.notes
    # What was asked for by name cannot be done.
    with pytest.raises(
        quantize_rs.QuantizeError, match=rf"`mask`: holds 3.4028235e38, .*{weights}"
    ):
        quantize_rs.quantize(model, None, weights=weights, include=["mask"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("output_format", ["qdq", "matmul_nbits"])
def test_a_table_of_minus_infinity_stays_float_in_every_type(
    dtype: Any, output_format: str
) -> None:
    model, _ = masked_rows(dtype)
    report = quantize_rs.quantize(model, None, output_format=output_format, allow_larger=True)
    assert WARNING in report.warnings
    assert {row.name for row in report.quantized} == {"w"}


def test_analyses_leave_out_what_is_not_finite() -> None:
    model, samples = masked_rows(np.float32)
    ranking = quantize_rs.sensitivity(model, samples)
    assert {layer.name for layer in ranking.layers} == {"w"}
    assert WARNING in ranking.notes
    by_weight = quantize_rs.sensitivity(model, metric="weight")
    assert {layer.name for layer in by_weight.layers} == {"w"}
    assert WARNING in by_weight.notes
    mixed = quantize_rs.mixed_precision(model, samples, min_sqnr=20)
    assert {layer.name for layer in mixed.layers} == {"w"}
    found = quantize_rs.outliers(model)
    assert {weight.name for weight in found.weights} == {"w"}
    assert found.notes == ("`mask` is left out: element 1 is not finite",)


def test_minus_infinity_is_refused_where_there_is_no_mask(digits: Path, images: Path) -> None:
    quantized = quantize_rs.quantize(digits, None).model
    assert quantized is not None
    bad = np.load(images)
    bad[3, 0, 1, 1] = -np.inf
    calls: list[Callable[[], Any]] = [
        lambda: quantize_rs.compare(digits, quantized, bad, latency=False),
        lambda: quantize_rs.quantize(digits, None, calibration_data=bad),
        lambda: quantize_rs.quantize(digits, None, validation_data=bad),
        lambda: quantize_rs.quantize_with_calibration(digits, None, bad),
        lambda: quantize_rs.convert_float16(digits, None, bad),
        lambda: quantize_rs.layer_errors(digits, quantized, bad),
        lambda: quantize_rs.sensitivity(digits, bad),
    ]
    message = r"-infinity at \[0, 0, 1, 1\], samples must be finite"
    for call in calls:
        with pytest.raises(CalibrationError, match=message) as caught:
            call()
        assert (caught.value.value, caught.value.sample) == ("image", 3)


@pytest.mark.parametrize("read", ["Softmax(s)", "LogSoftmax(s)", "Sigmoid(s)"])
@pytest.mark.parametrize(("name", "finite"), [("p", 1.0), ("p", 0.0), ("attn_bias", 1.0)])
def test_masks_may_hold_minus_infinity(read: str, name: str, finite: float) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 16] x, float[n, 16] {name}) => (float[n, 16] y) {{
        h = MatMul(x, w)
        i = Identity({name})
        s = Add(h, i)
        y = {read}
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.1, (SIZE, SIZE)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    mask = (np.abs(rng.normal(0, 1, (8, SIZE))) * finite).astype(np.float32)
    mask[:, ::3] = -np.inf
    samples = {"x": rng.normal(0, 1, (8, SIZE)).astype(np.float32), name: mask}
    is_mask = name != "p" or finite == 0.0 or read != "Sigmoid(s)"
    source = model.SerializeToString()
    if is_mask:
        quantize_rs.compare(source, source, samples, latency=False)
        return
    with pytest.raises(CalibrationError, match="-infinity") as caught:
        quantize_rs.compare(source, source, samples, latency=False)
    assert caught.value.value == "p"


def test_the_warning_names_the_model_that_is_not_finite() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g(float[8, 16] x) => (float[8, 4] y) {
        a = Abs(x)
        b = MatMul(a, w)
        y = Log(b)
    }"""
    models = []
    for number in (0.0, 1.0):
        model = onnx.parser.parse_model(text)
        weight = np.full((SIZE, 4), number, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        models.append(model.SerializeToString())
    infinite, finite = models
    data = np.random.default_rng(0).standard_normal((1, 8, SIZE)).astype(np.float32)
    for first, second, said in (
        (infinite, finite, "`y`: the original has infinity or NaN where the quantized model has"),
        (finite, infinite, "`y`: infinity or NaN where the original has other values"),
    ):
        warnings = quantize_rs.compare(first, second, data, latency=False).warnings
        (warning,) = [warning for warning in warnings if "infinity" in warning]
        assert warning.startswith(said)


@pytest.mark.parametrize("target", ["x86", "qnn"])
def test_a_value_that_the_model_fills_with_nan_stays_float(target: str) -> None:
    """No sample changes it, and every operator of an accelerator computes on integers."""
    nan = numpy_helper.from_array(np.array([np.nan], np.float32))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Shape", ["h"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["missing"], value=nan),
        helper.make_node("IsNaN", ["h"], ["never"]),
        helper.make_node("Where", ["never", "missing", "h"], ["k"]),
        helper.make_node("MatMul", ["k", "v"], ["y"]),
    ]
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(0, 0.3, (SIZE, SIZE)).astype(np.float32) for name in "wv"}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": rng.normal(size=(4, SIZE)).astype(np.float32)} for _ in range(16)]
    report = quantize_rs.quantize_with_calibration(
        model.SerializeToString(), None, samples, target=target, allow_larger=True
    )
    assert {"w", "v"} <= {value.name for value in report.quantized}
    warned = [warning for warning in report.warnings if "`missing`" in warning]
    assert bool(warned) == (target == "qnn")
    assert all("stay float because they are not finite" in warning for warning in warned)
