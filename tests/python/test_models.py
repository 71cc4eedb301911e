"""Every fixture, through the front door: refused by name, or right."""

from __future__ import annotations

from pathlib import Path

import judge
import numpy as np
import onnx
import pytest

import quantize_rs
from quantize_rs import CalibrationError, ModelError, Report

# What 8 bits give at the worst output, in decibels.
WEIGHTS, BOTH = 25.0, 20.0

# Where one scale for a whole tensor gives less, because the channels that matter are a tenth of the
# largest, or because there are few sums for errors to cancel in. That no more is lost than 8 bits
# of these weights cost is what `_only_rounding` sees.
LOWER = {
    "conv_sigmoid": (20.0, 14.0),  # the large channels saturate, the small ones decide
    "empty_optional_inputs": (23.0, BOTH),  # an LSTM in float; two convolutions before it
    "infinite_constant": (20.0, BOTH),  # five scores make the probabilities
    "matmul_vector": (23.0, BOTH),  # two numbers come out
    "denormal_weights": (-1.0, -1.0),  # below the smallest scale that runtimes do not flush
}

# What cannot be calibrated, and what the error names.
NOT_CALIBRATED = {
    "bf16_weights": "bfloat16",
    "custom_domain": "Sparkle",
    "huge_weights": "NaN or infinite",
    "local_function": "DenseLeaky",
    "loop_subgraph": "Loop",
    "many_types": "element type",
    "many_types_ir13": "element type",
    "sequence_values": "SequenceConstruct",
    "sparse_initializer": "sparse",
}

# The transpose optimizer of ONNX Runtime 1.31 permutes the scales of a Resize as if it had no
# `axes`, when it moves convolutions of integers to NHWC; the model is right without it.
ORT_FAILS_OPTIMIZED = {"opset18"}


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", judge.FIXTURES)
def test_weights(name: str, per_channel: bool, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    try:
        report = quantize_rs.quantize(judge.model(name), target, per_channel=per_channel)
    except ModelError as error:
        assert not target.exists()
        assert _may_be_refused(name, per_channel, error), error
        return
    _judge(name, report, target, LOWER.get(name, (WEIGHTS, BOTH))[0])
    _only_rounding(name, report, target)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", [n for n, said in judge.FIXTURES.items() if said["inputs"]])
def test_activations(name: str, per_channel: bool, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    samples = [judge.feeds(name)]
    try:
        report = quantize_rs.quantize_with_calibration(
            judge.model(name), target, samples, per_channel=per_channel, symmetric=per_channel
        )
    except (ModelError, CalibrationError) as error:
        assert not target.exists()
        if isinstance(error, CalibrationError):
            assert NOT_CALIBRATED[name] in str(error)
        else:
            assert _may_be_refused(name, per_channel, error), error
        return
    _judge(name, report, target, LOWER.get(name, (WEIGHTS, BOTH))[1])


def _may_be_refused(name: str, per_channel: bool, error: ModelError) -> bool:
    """A model whose opset is too old for scales per channel, or for any."""
    needed = 13 if per_channel else 10
    opset: int = judge.FIXTURES[name]["opset"]
    return opset < needed and f"opset {needed}" in str(error)


def _judge(name: str, report: Report, target: Path, floor: float) -> None:
    said = judge.FIXTURES[name]
    if said["checked"]:
        judge.check(target)
    before, after = onnx.load(judge.model(name)), onnx.load(target)
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    if not report.quantized:
        assert target.read_bytes() == judge.model(name).read_bytes() or name == "external_data"
    if not said["runs"]:
        return
    inputs = judge.feeds(name)
    expected = judge.ort(judge.model(name), inputs)
    for optimized in (name not in ORT_FAILS_OPTIMIZED or not report.samples, False):
        found = judge.ort(target, inputs, optimized=optimized)
        if said["finite"]:
            assert judge.sqnr(expected, found) > floor
    # ONNX's own plain definition knows DequantizeLinear from opset 19 on, and no strings in bytes.
    if said["finite"] and said["opset"] >= 19 and "many_types" not in name:
        assert judge.sqnr(judge.reference(target, inputs), found) > 60


def _only_rounding(name: str, report: Report, target: Path) -> None:
    """The integers are the nearest there are, and the model computes with what they stand for."""
    before, after = onnx.load(judge.model(name)), onnx.load(target)
    nodes = {node.output[0]: node for node in after.graph.node}
    constants = {tensor.name: tensor for tensor in after.graph.initializer}
    floats = {tensor.name: tensor for tensor in before.graph.initializer}
    for value in report.weights:
        if not value.quantized:
            continue
        parts = [constants[part] for part in nodes[value.name].input]
        q, scale, zero = map(onnx.numpy_helper.to_array, parts)
        spread = [1] * q.ndim
        if value.axis is not None:
            spread[value.axis] = -1
        scale, zero = scale.reshape(spread), zero.reshape(spread)
        back = (q.astype(np.float32) - zero.astype(np.float32)) * scale
        if value.name in floats:
            exact = onnx.numpy_helper.to_array(floats[value.name]).astype(np.float64)
            # Half a step; a zero point that is rounded moves the ends by another half.
            assert (np.abs(exact - back) <= scale.astype(np.float64) * 1.001).all()
            before.graph.initializer.remove(floats[value.name])
        for node in before.graph.node:  # or whatever made the weight
            if list(node.output) == [value.name]:
                before.graph.node.remove(node)
        before.graph.initializer.append(onnx.numpy_helper.from_array(back, value.name))
    if judge.FIXTURES[name]["runs"] and judge.FIXTURES[name]["finite"]:
        inputs = judge.feeds(name)
        ideal = judge.ort(before.SerializeToString(), inputs, optimized=False)
        found = judge.ort(target, inputs, optimized=False)
        assert judge.sqnr(ideal, found) > 100  # dB: the last bits of sums in another order


def test_floors_are_worth_something() -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    assert judge.sqnr([x], [x]) == np.inf
    assert judge.sqnr([x], [-x]) < 0
