"""Quantized models that compute in float16 or bfloat16: `float_type`, and their conversion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_half_precision import FLOAT, HALF, array, converted, large, model, run, types, weight

import quantize_rs

RNG = np.random.default_rng(7)


def test_quantized_weights_get_scales_in_float16() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    data = model(nodes, [weight("w", 64, 64)], ["n", 64], opset=21)
    for options in ({"output_format": "matmul_nbits"}, {"block_size": 32}):
        small = quantize_rs.quantize(data, None, bits=4, allow_larger=True, **options).model
        assert small is not None
        report = converted(small)
        assert report.kept == ()
        floats = {dtype for dtype in types(report.model).values() if dtype in (FLOAT, HALF)}
        tensors = onnx.load_from_string(report.model or b"").graph.initializer
        assert all(tensor.data_type != FLOAT for tensor in tensors)
        assert HALF in floats
        x = RNG.normal(size=(5, 64)).astype(np.float32)
        assert oracle.sqnr(run(small, {"x": x}), run(report.model or b"", {"x": x})) > 55


def test_float32_scales_of_an_old_opset_are_the_reason() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    for opset, said in ((17, ["its scales are float32 in opset 17; convert"]), (19, [])):
        data = model(nodes, [weight("w", 64, 64)], ["n", 64], opset=opset)
        report = quantize_rs.quantize(data, None, float_type="float16", allow_larger=True)
        kept = [note for note in report.notes if note.startswith("float32: ")]
        assert len(kept) == len(said)
        assert all(text in note for text, note in zip(said, kept, strict=True))
    small = quantize_rs.quantize(data, None, allow_larger=True).model
    assert small is not None
    proto = onnx.load_from_string(small)
    for tensor in proto.graph.initializer:
        if tensor.name == "w_scale":
            scales = numpy_helper.to_array(tensor) * np.float32(1e-9)
            tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))
    (node,) = converted(proto.SerializeToString()).kept
    assert (node.op_type, node.code, node.value) == (
        "DequantizeLinear",
        "small_constant",
        "w_scale",
    )


@pytest.mark.parametrize("output_format", ["matmul_nbits", "qdq"])
@pytest.mark.parametrize("samples", [False, True])
def test_quantized_models_compute_in_float16(output_format: str, samples: bool) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "v", "bias"], ["y"], "second"),
    ]
    constants = [weight("w", 128, 64), weight("v", 64, 96), weight("bias", 96)]
    data = model(nodes, constants, ["n", 128], opset=21)
    x = RNG.normal(size=(16, 128)).astype(np.float32)
    options: dict[str, Any] = {"output_format": output_format, "bits": 4, "block_size": 32}
    if samples:
        options["calibration_data"] = x
    plain = quantize_rs.quantize(data, None, **options)
    report = quantize_rs.quantize(data, None, float_type="float16", **options)
    assert any("compute in float16" in note for note in report.notes)
    assert report.model is not None
    assert plain.model is not None
    onnx.checker.check_model(onnx.load_from_string(report.model))
    floats = [
        float_bytes(each, kind) for each, kind in ((plain.model, FLOAT), (report.model, HALF))
    ]
    assert floats[1] <= 0.6 * floats[0]
    assert float_bytes(report.model, FLOAT) == 0
    found = run(report.model, {"x": x})
    assert found[0].dtype == np.float32
    assert oracle.sqnr(run(plain.model, {"x": x}), found) > 50
    # Nothing is wrong that is not wrong in the float32 file.
    known = quantize_rs.validate(data, plain.model).problems
    assert quantize_rs.validate(data, report.model).problems == known


def float_bytes(data: bytes, dtype: int) -> int:
    tensors = onnx.load_from_string(data).graph.initializer
    return sum(len(t.raw_data) for t in tensors if t.data_type == dtype)


def test_large_values_of_a_quantized_model_stay_float32_with_samples() -> None:
    data, x = large(), RNG.normal(size=(64, 16)).astype(np.float32)
    report = quantize_rs.quantize(
        data, None, float_type="float16", calibration_data=x, allow_larger=True, min_elements=1
    )
    assert any("reaches" in note for note in report.notes)
    assert report.model is not None
    assert oracle.sqnr(run(data, {"x": x}), run(report.model, {"x": x})) > 25


@pytest.mark.parametrize("output_format", ["qdq", "matmul_nbits"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
def test_a_quantized_table_beyond_the_range_stays_float32(
    float_type: str, bits: int, output_format: str
) -> None:
    """Its scales are within the range, but not what they stand for."""
    largest = 1e6 if float_type == "float16" else 3.4e38
    table = RNG.normal(size=(64, 32)).astype(np.float32)
    table *= largest / np.abs(table).max()
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Mul", ["rows", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(table, "table"), array("c", 0.5)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data = bytes(made.SerializeToString())
    report = quantize_rs.quantize(
        data,
        None,
        float_type=float_type,
        bits=bits,
        block_size=32,
        output_format=output_format,
        include=["*"],
        allow_larger=True,
        check="none",
    )
    assert any("has magnitudes of up to" in note for note in report.notes)
    assert report.model is not None
    if float_type == "float16":
        rows = {"i": np.arange(64)}
        assert oracle.sqnr(run(data, rows), run(report.model, rows)) > (15 if bits == 4 else 35)


def test_quantized_activations_and_16_bit_floats_exclude_each_other() -> None:
    digits = quantize_rs.examples.digits()
    with pytest.raises(quantize_rs.OptionError, match="float_type"):
        quantize_rs.quantize_with_calibration(  # type: ignore[call-arg]
            digits.model, None, digits.calibration, float_type="float16"
        )
    with pytest.raises(quantize_rs.OptionError, match="float_type"):
        quantize_rs.quantize(digits.model, None, output_format="dynamic", float_type="float16")
    with pytest.raises(quantize_rs.OptionError, match="float_type is `half`"):
        quantize_rs.quantize(digits.model, None, float_type="half")


def test_the_command_and_files_take_the_type_without_an_output_format(
    digits: Path, tmp_path: Path
) -> None:
    expected = quantize_rs.quantize(digits, None, float_type="float16").model
    out, file = tmp_path / "out.onnx", tmp_path / "c.yaml"
    job = f"float_type: float16\nmodels:\n  - {{input: {digits}, output: {out}}}\n"
    file.write_text(job)
    for command in (["quantize", digits, "-o", out, "--float-type", "float16"], ["config", file]):
        line = [sys.executable, "-m", "quantize_rs", *map(str, command)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() == expected
        out.unlink()
