"""Logarithms: what they read is not quantized, since a small value has a large one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

TARGETS = ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"]

Array = npt.NDArray[np.float32]


def sounds(count: int, seed: int) -> Array:
    """Tones whose loudness varies by a factor of 100, as that of speech does."""
    rng = np.random.default_rng(seed)
    time = np.arange(512) / 16000
    tones = np.sin(2 * np.pi * rng.uniform(200, 6000, (count, 4, 1)) * time)
    loudness = 10 ** rng.uniform(-2, 0, (count, 4, 1))
    return np.asarray((tones * loudness).sum(axis=1, keepdims=True), np.float32)


def spectral(function: str) -> bytes:
    """A network on the logarithm of a spectrum that a convolution computes."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.outer(np.arange(1, 33) / 64, np.arange(64))
    basis = np.concatenate([np.cos(angle), np.sin(angle)])[:, None] * np.hanning(64)
    constants = {
        "basis": basis,
        "filters": rng.uniform(0, 1, (24, 64, 1)) ** 6,
        "least": np.float32(1e-8),
        "w": rng.normal(0, 0.3, (32, 24, 3)),
        "head": rng.normal(0, 0.3, (32, 8)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "basis"], ["parts"], "spectrum", strides=[16]),
        helper.make_node("Mul", ["parts", "parts"], ["power"], "power"),
        helper.make_node("Conv", ["power", "filters"], ["bands"], "bands"),
        helper.make_node("Max", ["bands", "least"], ["floored"]),
        helper.make_node(function, ["floored"], ["loud"]),
        helper.make_node("Conv", ["loud", "w"], ["v"], "learned"),
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("MatMul", ["mean", "head"], ["y"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_logarithm_reads_stays_float(target: str) -> None:
    source = spectral("Log")
    report = quantize_rs.quantize_with_calibration(source, None, sounds(64, 1), target=target)
    found = {value.name: value for value in report.values}
    assert not any(found[name].quantized for name in ("x", "parts", "power", "bands"))
    assert "a logarithm follows" in found["x"].why
    assert found["loud"].quantized
    assert [found[name].quantized for name in ("basis", "filters", "w")] == [True] * 3
    assert report.model is not None
    held_out = {"x": sounds(64, 2)}
    expected = oracle.ort(source, held_out)
    for optimized in (True, False):
        result = oracle.ort(report.model, held_out, optimized=optimized)
        assert oracle.sqnr(expected, result) > 27


def test_without_a_logarithm_the_same_nodes_compute_on_integers() -> None:
    report = quantize_rs.quantize_with_calibration(spectral("Abs"), None, sounds(64, 1))
    found = {value.name: value for value in report.values}
    assert found["x"].quantized
    assert found["power"].quantized


def test_an_activation_function_ends_the_search() -> None:
    """A network whose last operator is a logarithm, as in a hand-written log-softmax."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(0, 0.2, (32, 32)), "v": rng.normal(0, 0.2, (32, 10))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["classes"]),
        helper.make_node("Log", ["classes"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = rng.normal(0, 1, (64, 32)).astype(np.float32)
    report = quantize_rs.quantize_with_calibration(model, None, data)
    found = {value.name: value for value in report.values}
    assert found["x"].quantized
    assert found["b"].quantized
