"""The engine inside the wheel runs what the product writes, and its messages fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from odd import Array, node
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantize_rs
from quantize_rs import CalibrationError

rng = np.random.default_rng(11)

WEIGHTS: dict[str, Array] = {
    "table": rng.normal(0, 1, (50, 64)).astype(np.float32),
    "v": rng.normal(0, 0.1, (64, 96)).astype(np.float32),
    "b": rng.normal(0, 0.1, 96).astype(np.float32),
    "w": rng.normal(0, 0.1, (96, 32)).astype(np.float32),
}


def value(name: str, kind: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(weights: dict[str, Array] = WEIGHTS) -> bytes:
    """A lookup and two products."""
    nodes = [
        node("Gather", "table ids", "rows"),
        node("MatMul", "rows v", "product"),
        node("Add", "product b", "sum"),
        node("Relu", "sum", "bent"),
        node("MatMul", "bent w", "y"),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        nodes,
        "lookup",
        [value("ids", TensorProto.INT64, ["count"])],
        [value("y", TensorProto.FLOAT, ["count", 32])],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


IDS = rng.integers(0, 50, 40).astype(np.int64)

FORMATS: dict[str, dict[str, Any]] = {
    "int4": {"bits": 4, "per_channel": True},
    "int4_per_tensor": {"bits": 4, "per_channel": False, "symmetric": False},
    "int4_blocks": {"bits": 4, "block_size": 32},
    "uint4": {"weights": "uint4"},
    "int2": {"bits": 2, "block_size": 16},
    "int16": {"bits": 16},
    "float8": {"weights": "float8e4m3fn", "target": "generic"},
    "mxfp4": {"weights": "mxfp4", "target": "generic"},
    "nvfp4": {"weights": "nvfp4", "target": "generic"},
    "matmul_nbits_4": {"bits": 4, "output_format": "matmul_nbits"},
    "matmul_nbits_8": {"bits": 8, "output_format": "matmul_nbits"},
    "dynamic": {"output_format": "dynamic"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_runs_in_tract(name: str) -> None:
    # The bars are the errors of the weights alone: 3 dB per bit are lost in each of three layers.
    data = {"ids": IDS}
    made = quantize_rs.quantize(
        model(), None, calibration_data=data, engine="tract", **FORMATS[name]
    )
    assert made.model is not None
    assert made.output_check is not None
    assert made.output_check.failure is None
    assert made.output_check.engine == "tract"
    found = quantize_rs.compare(model(), made.model, data, engine="tract")
    assert found.outputs[0].sqnr_db > {"int2": 2, "dynamic": 30, "int16": 80}.get(name, 10)


@pytest.mark.parametrize("bits", [4, 8])
def test_tract_keeps_what_products_and_lookups_read_beside_their_weights(bits: int) -> None:
    """A bias, constant rows of a table, and a constant that is multiplied by a weight."""
    nodes = [
        node("Gemm", "x v b", "first"),
        node("Gather", "table rows", "looked"),
        node("MatMul", "looked v", "second"),
        node("MatMul", "fixed v", "third"),
        node("Sum", "first second third", "sum"),
        node("MatMul", "sum w", "y"),
    ]
    tensors = WEIGHTS | {"rows": IDS[:1], "fixed": rng.normal(0, 1, (1, 64)).astype(np.float32)}
    graph = helper.make_graph(
        nodes,
        "beside",
        [value("x", TensorProto.FLOAT, ["rows", 64])],
        [value("y", TensorProto.FLOAT, ["rows", 32])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    float_model = bytes(proto.SerializeToString())
    how: dict[str, Any] = {"output_format": "matmul_nbits", "bits": bits, "passes": False}
    made = quantize_rs.quantize(float_model, None, check="none", **how)
    assert made.model is not None
    found = {node.op_type for node in onnx.load_from_string(made.model).graph.node}
    assert {"MatMulNBits", "GatherBlockQuantized"} <= found
    data = {"x": rng.normal(0, 1, (8, 64)).astype(np.float32)}
    for engine in ("tract", "onnxruntime"):
        compared = quantize_rs.compare(float_model, made.model, data, engine=engine)
        assert compared.outputs[0].sqnr_db > (30 if bits == 8 else 8)


@pytest.mark.parametrize("name", ["int4", "int4_per_tensor", "int4_blocks", "uint4"])
def test_tract_computes_with_the_weights_of_the_file(name: str) -> None:
    made = quantize_rs.quantize(model(), None, exclude=["table"], check="none", **FORMATS[name])
    assert made.model is not None
    quantized = onnx.load_from_string(made.model)
    quantized.graph.output.extend([value(key, TensorProto.FLOAT, None) for key in ("v", "w")])
    restored = ReferenceEvaluator(quantized).run(["v", "w"], {"ids": IDS})
    exact = model({**WEIGHTS, "v": restored[0], "w": restored[1]})
    found = quantize_rs.compare(exact, made.model, {"ids": IDS}, engine="tract")
    assert found.outputs[0].sqnr_db > 120


def lstm(batch: int | str, state: int | None) -> bytes:
    """An LSTM whose initial state, a constant, fixes the batch size."""
    hidden, width = 6, 5
    tensors = {
        "w": rng.normal(0, 0.3, (1, 4 * hidden, width)).astype(np.float32),
        "r": rng.normal(0, 0.3, (1, 4 * hidden, hidden)).astype(np.float32),
        "v": rng.normal(0, 0.3, (hidden, 3)).astype(np.float32),
    }
    reads = "x w r"
    if state is not None:
        tensors["h"] = np.zeros((1, state, hidden), np.float32)
        reads = "x w r - - h h"
    axes = ["time", batch, width]
    nodes = [node("LSTM", reads, "states", hidden_size=hidden), node("MatMul", "states v", "y")]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [value("x", TensorProto.FLOAT, axes)],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
@pytest.mark.parametrize("declared", ["batch", 4])
def test_a_fixed_batch_names_the_input_and_how_to_batch(engine: str, declared: Any) -> None:
    fixed = lstm(declared, 4)
    calibrate = quantize_rs.quantize_with_calibration
    samples = [{"x": rng.normal(0, 1, (7, 1, 5)).astype(np.float32)} for _ in range(3)]
    with pytest.raises(CalibrationError, match="input `x`") as caught:
        calibrate(fixed, None, samples, engine=engine)
    text = str(caught.value)
    assert "takes 4 samples at a time along axis 1, this is 1" in text
    assert "join 4 of them along that axis" in text
    joined = [{"x": np.concatenate([one["x"] for one in samples] + [samples[0]["x"]], axis=1)}]
    assert calibrate(fixed, None, joined, engine=engine).samples == 1
    # Without a fixed state, any batch size does.
    assert calibrate(lstm("batch", None), None, samples, engine=engine).samples == 3
