"""Every fixture is quantized correctly, or refused with a message that names the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest

import quantize_rs
from quantize_rs import CalibrationError, Report

# The minimum SQNR of the worst output with 8 bits, in decibels.
WEIGHTS, BOTH = 25.0, 20.0

# Models whose SQNR is lower with one scale per tensor, because the channels that matter are a tenth
# of the largest, or because errors cancel out in few sums only. `_only_rounding` checks that the
# loss comes from rounding the weights alone.
LOWER = {
    "conv_sigmoid": (20.0, 14.0),  # the large channels saturate, so the small ones matter
    "empty_optional_inputs": (17.0, 18.0),  # an LSTM, whose gates have rows of all sizes
    "gru": (24.0, BOTH),  # the same
    "scan_subgraph": (23.0, BOTH),  # a value is multiplied again in every iteration
    "infinite_constant": (20.0, BOTH),  # the probabilities are computed from five scores
    "matmul_vector": (23.0, BOTH),  # the output has two numbers
    "denormal_weights": (-1.0, -1.0),  # below the smallest scale that runtimes do not flush
}

# The same with one scale per tensor and rounding that keeps sums. One element, which is multiplied
# by a channel a hundred times larger than the others, is rounded to the farther integer here. Over
# many such models nothing is lost
# (`test_noise_through_channels_of_all_sizes_loses_nothing_by_it`).
KEEPING_SUMS = {"conv_depthwise": 16.0}

# The same without zero points: the probabilities are computed from five scores.
BY_DEFAULT = {"infinite_constant": 16.0}

# Models that cannot be calibrated, and a part of the error message.
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
@pytest.mark.parametrize("rounding", [None, "nearest"], ids=["usual", "nearest"])
@pytest.mark.parametrize("name", oracle.FIXTURES)
def test_weights(name: str, rounding: str | None, per_channel: bool, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    report = quantize_rs.quantize(
        oracle.model(name),
        target,
        per_channel=per_channel,
        symmetric=False,
        rounding=rounding,
        equalize=False,
    )
    floor = LOWER.get(name, (WEIGHTS, BOTH))[0]
    if rounding is None and not per_channel:
        floor = KEEPING_SUMS.get(name, floor)
    _evaluate(name, report, target, floor)
    _only_rounding(name, report, target)


@pytest.mark.parametrize("name", oracle.FIXTURES)
def test_weights_by_default(name: str, tmp_path: Path) -> None:
    """One scale and zero point per channel, and 16 bits for small weights."""
    target = tmp_path / "q.onnx"
    report = quantize_rs.quantize(oracle.model(name), target)
    _evaluate(name, report, target, BY_DEFAULT.get(name, LOWER.get(name, (WEIGHTS, BOTH))[0] - 2))
    for weight in report.weights:
        assert weight.symmetric in (None, weight.qtype == "float16"), weight
    if name in ("conv2d_relu", "mlp_relu", "lstm"):
        kinds = {(weight.qtype, weight.granularity) for weight in report.weights}
        assert kinds - {("float16", "per_tensor")} == {("int8", "per_axis")}


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", [n for n, said in oracle.FIXTURES.items() if said["inputs"]])
def test_activations(name: str, per_channel: bool, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    samples = [oracle.feeds(name)]
    try:
        report = quantize_rs.quantize_with_calibration(
            oracle.model(name),
            target,
            samples,
            per_channel=per_channel,
            symmetric=per_channel,
            method="minmax",  # the floors are those of the full range
            target="x86",  # and of weights of 8 bits on any processor
        )
    except CalibrationError as error:
        assert not target.exists()
        assert NOT_CALIBRATED[name] in str(error)
        return
    _evaluate(name, report, target, LOWER.get(name, (WEIGHTS, BOTH))[1])


def _evaluate(name: str, report: Report, target: Path, floor: float) -> None:
    said = oracle.FIXTURES[name]
    if said["checked"]:
        oracle.check(target)
    before, after = onnx.load(oracle.model(name)), onnx.load(target)
    # Before IR 4, constants stood among the inputs.
    constants = {tensor.name for tensor in before.graph.initializer if before.ir_version < 4}
    inputs_before = [info for info in before.graph.input if info.name not in constants]
    assert inputs_before == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    if not report.quantized:
        assert target.read_bytes() == oracle.model(name).read_bytes() or name == "external_data"
    if not said["runs"]:
        return
    inputs = oracle.feeds(name)
    expected = oracle.ort(oracle.model(name), inputs)
    for optimized in (name not in ORT_FAILS_OPTIMIZED or not report.samples, False):
        found = oracle.ort(target, inputs, optimized=optimized)
        if said["finite"]:
            assert oracle.sqnr(expected, found) > floor
    # onnx.reference supports DequantizeLinear from opset 19 on, and no strings as bytes.
    if said["finite"] and said["opset"] >= 19 and "many_types" not in name:
        assert oracle.sqnr(oracle.reference(target, inputs), found) > 60


def _only_rounding(name: str, report: Report, target: Path) -> None:
    """Check that the integers are close to the weights, and that the model computes with them."""
    # With one scale per tensor, uneven factors of a normalization are not folded.
    is_folded = any(step.name == "fold_batch_norm" for step in report.steps)
    skipped = [] if is_folded else ["fold_batch_norm"]
    before = onnx.load_from_string(oracle.prepared(oracle.model(name), *skipped))
    after = onnx.load(target)
    nodes = {node.output[0]: node for node in after.graph.node}
    constants = {tensor.name: tensor for tensor in after.graph.initializer}
    floats = {tensor.name: tensor for tensor in before.graph.initializer}
    for value in report.weights:
        if not value.quantized:
            continue
        made = nodes.get(value.name) or nodes[f"{value.name}_dequantized"]
        # Of another type, or shape.
        while made.op_type != "DequantizeLinear" and made.input[0] not in constants:
            made = nodes[made.input[0]]
        parts = [constants[part] for part in made.input]
        if value.qtype == "float16":
            back = onnx.numpy_helper.to_array(parts[0]).astype(np.float32)
            exact = onnx.numpy_helper.to_array(floats[value.name])
            np.testing.assert_array_equal(back, exact.astype(np.float16).astype(np.float32))
            _put(before.graph, value.name, back, after.graph)
            continue
        q, scale, zero = map(onnx.numpy_helper.to_array, parts)
        spread = [1] * q.ndim
        if value.axis is not None:
            spread[value.axis] = -1
        scale, zero = scale.astype(np.float32).reshape(spread), zero.reshape(spread)
        back = (q.astype(np.float32) - zero.astype(np.float32)) * scale
        if value.name in floats:
            exact = onnx.numpy_helper.to_array(floats[value.name])
            # Half a step, or a little more with rounding that keeps sums. The rounding of the zero
            # point shifts the ends by another half.
            far = np.abs(exact.astype(np.float64).reshape(q.shape) - back)
            assert (far <= scale.astype(np.float64) * 1.001).all()
            back = back.reshape(exact.shape).astype(exact.dtype)
        _put(before.graph, value.name, back, after.graph)
    if oracle.FIXTURES[name]["runs"] and oracle.FIXTURES[name]["finite"]:
        inputs = oracle.feeds(name)
        ideal = oracle.ort(before.SerializeToString(), inputs, optimized=False)
        found = oracle.ort(target, inputs, optimized=False)
        # The last bits of sums in another order; of float16, its last bit is at 66 dB.
        assert oracle.sqnr(ideal, found) > (100 if "fp16" not in name else 66)


def _put(graph: onnx.GraphProto, name: str, back: npt.NDArray[Any], after: onnx.GraphProto) -> None:
    """Replace a weight by its dequantized values where the quantized model reads those."""
    restored = f"{name}_dequantized"
    reads = {node.output[0]: node.input for node in after.node if restored in node.input}
    if reads:  # the float weight is kept for other consumers
        for node in graph.node:
            for index, read in enumerate(reads.get(node.output[0], [])):
                node.input[index] = read
        name = restored
    for tensor in [tensor for tensor in graph.initializer if tensor.name == name]:
        graph.initializer.remove(tensor)
    for node in [node for node in graph.node if list(node.output) == [name]]:
        graph.node.remove(node)
    for body in _bodies(graph):  # the weight may be inside a subgraph
        for tensor in [tensor for tensor in body.initializer if tensor.name == name]:
            body.initializer.remove(tensor)
    graph.initializer.append(onnx.numpy_helper.from_array(back, name))


def _bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
                yield from _bodies(attribute.g)


def test_floors_are_worth_something() -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    assert oracle.sqnr([x], [x]) == np.inf
    assert oracle.sqnr([x], [-x]) < 0
