"""A cell of docs/runtimes.md: an operator, quantized in one way, in one operator set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidGraph,
)
from onnxruntime.capi.onnxruntime_pybind11_state import (
    NotImplemented as Unknown,
)

import quantize_rs

Array = npt.NDArray[Any]

OPSETS = (10, 13, 19, 21, 23, 24, 25, 26, 27)
"""Those in which DequantizeLinear changed, and the newest that ONNX Runtime 1.32 opens."""

REFUSALS = (Fail, InvalidGraph, Unknown)
"""What ONNX Runtime raises when it cannot open a model."""

INTEGERS = {
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
}
"""Operators that compute with integers, as optimized graphs have them."""


@dataclass(frozen=True)
class Way:
    """How weights, and perhaps activations, are quantized."""

    format: str
    weights: str
    scales: str
    activations: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What is asked for."""
        options: dict[str, Any] = {"weights": self.weights}
        if self.scales in ("channel", "row"):
            options |= {"per_channel": True, "symmetric": True}
        if self.scales == "tensor":
            options |= {"per_channel": False, "symmetric": False}
        if self.scales == "block" and self.weights not in LAYOUTS:
            options["block_size"] = 32
        if self.weights in RARE or self.activations in FLOATS_8:
            options["target"] = "generic"
        if self.activations is None:
            return options | {"output_format": self.format}
        return options | {"activations": self.activations}


FLOATS_8 = ("float8e4m3fn", "float8e5m2")
LAYOUTS = ("mxfp4", "mxfp8", "nvfp4")
RARE = ("float4e2m1", *LAYOUTS)
INTEGER_TYPES = ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16")


def ways() -> list[Way]:
    """Every way, weights alone first."""
    made = [
        Way("qdq", weights, scales)
        for weights in (*INTEGER_TYPES, *FLOATS_8, "float4e2m1")
        for scales in ("tensor", "channel", "block")
    ]
    made += [Way("qdq", weights, "none") for weights in ("float16", "bfloat16")]
    made += [Way("qdq", weights, "block") for weights in LAYOUTS]
    made += [Way("matmul_nbits", weights, "block") for weights in ("int2", "int4", "uint4", "int8")]
    made += [
        Way("dynamic", weights, scales)
        for weights in ("int8", "uint8")
        for scales in ("tensor", "channel")
    ]
    made += [
        Way("qdq", weights, scales, activations)
        for activations in ("uint8", "int8", "uint16", "int16")
        for weights in ("int8", "uint8")
        for scales in ("tensor", "channel")
    ]
    made += [
        Way("qdq", qtype, scales, qtype) for qtype in FLOATS_8 for scales in ("tensor", "channel")
    ]
    return made


NEAR = {"int2": 3, "int4": 12, "uint4": 12, "int8": 30}
"""The minimum SQNR of weights in blocks, in decibels."""

OPERATORS = ("MatMul", "Gemm", "Conv", "Gather")


def model(op_type: str, opset: int) -> bytes:
    """One operator with a weight; behind it what its integer kernels want, a Relu."""
    rng = np.random.default_rng(1)
    weight = {
        "MatMul": rng.normal(size=(64, 32)),
        "Gemm": rng.normal(size=(64, 32)),
        "Conv": rng.normal(size=(16, 64, 3, 3)),
        "Gather": rng.normal(size=(32, 64)),
    }[op_type].astype(np.float32)
    x = feeds(op_type)["x"]
    names = ["W", "x"] if op_type == "Gather" else ["x", "W"]
    inputs = [numpy_helper.from_array(weight, "W")]
    if op_type in ("Gemm", "Conv"):
        names.append("b")
        bias = rng.normal(size=weight.shape[0 if op_type == "Conv" else 1]).astype(np.float32)
        inputs.append(numpy_helper.from_array(bias, "b"))
    rank = 2 if op_type in ("MatMul", "Gemm", "Gather") else 4
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "cell",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        inputs,
    )
    opsets = [helper.make_opsetid("", opset)]
    ir = helper.find_min_ir_version_for(opsets)
    made = helper.make_model(graph, opset_imports=opsets, ir_version=ir)
    return bytes(made.SerializeToString())


def feeds(op_type: str) -> oracle.Feeds:
    """The inputs."""
    rng = np.random.default_rng(2)
    if op_type == "Gather":
        return {"x": np.array([3, 31, 0], np.int64)}
    shape = (1, 64, 8, 8) if op_type == "Conv" else (3, 64)
    return {"x": rng.normal(size=shape).astype(np.float32)}


def quantized(way: Way, op_type: str, opset: int) -> quantize_rs.Report:
    """The operator, quantized."""
    source = model(op_type, opset)
    if way.activations is None:
        return quantize_rs.quantize(source, None, **way.options)
    samples = [feeds(op_type)]
    return quantize_rs.quantize_with_calibration(
        source, None, samples, engine="onnxruntime", **way.options
    )


def known(written: bytes) -> bytes:
    """The same in an operator set whose DequantizeLinear `onnx.reference` knows."""
    if (quantize_rs.model_info(written).opset_version or 0) >= 19:
        return written
    newer = quantize_rs.convert_opset(written, opset=19).model
    assert newer is not None
    return newer


def outcome(way: Way, op_type: str, opset: int) -> str | None:
    """The result in ONNX Runtime; None if the way does not quantize the operator."""
    report = quantized(way, op_type, opset)
    if not any(value.role == "weight" and value.quantized for value in report.values):
        return None
    written = report.model
    assert written is not None
    inputs = feeds(op_type)
    try:
        plain = oracle.ort(written, inputs, optimized=False)
    except REFUSALS:
        return "does not load"
    try:
        optimized = oracle.ort(written, inputs)
    except REFUSALS:
        return "without optimizations only"
    if way.format == "matmul_nbits":  # not an operator of ONNX
        expected, least = oracle.reference(model(op_type, opset), inputs), (NEAR[way.weights],) * 2
    else:
        expected, least = oracle.reference(known(written), inputs), (60, 30)
    for found, floor, which in zip((plain, optimized), least, ("no", "all"), strict=True):
        if (decibels := oracle.sqnr(expected, found)) < floor:
            return f"wrong with {which} optimizations: {decibels:.0f} dB"
    kernels = oracle.kernels(written)
    if computes := sorted(INTEGERS & set(kernels)):
        return ", ".join(f"`{kernel}`" for kernel in computes)
    if kernels["DequantizeLinear"] or kernels["Cast"]:
        return "float, dequantized at inference"
    return "float"
