"""LSTMs that multiply integers: `DynamicQuantizeLSTM` of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import oracle
import processor
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantize_rs
from quantize_rs import errors

Array: TypeAlias = Any  # numpy's, of any type and shape
INPUT, HIDDEN, STEPS, BATCH = 48, 40, 7, 3
F = np.float32


def normal(*shape: int, seed: int = 0, scale: float = 0.1) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(F)


def lstm(
    directions: int = 2, *, opset: int = 17, more: dict[str, Array] | None = None, **attributes: Any
) -> tuple[bytes, dict[str, Array]]:
    """Make a model of one LSTM and what it is fed with; `more` are inputs from the bias on."""
    gates = 4 * HIDDEN
    # Rows of very different magnitudes, for which one scale is too coarse.
    recurrence = normal(directions, gates, HIDDEN, seed=1) * np.geomspace(0.1, 1, gates)[:, None]
    constants = {"w": normal(directions, gates, INPUT), "r": recurrence.astype(F)}
    order = ["b", "lengths", "h", "c", "p"]
    more = {"b": normal(directions, 2 * gates, seed=2)} if more is None else more
    inputs = ["x", "w", "r", *(name if name in more else "" for name in order)]
    if directions == 2:
        attributes = {"direction": "bidirectional"} | attributes
    node = helper.make_node(
        "LSTM", inputs, ["y", "last", "cell"], "lstm", hidden_size=HIDDEN, **attributes
    )
    tensors = constants | more
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, None])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString()), {"x": normal(STEPS, BATCH, INPUT, seed=3, scale=1)}


def quantized(model: bytes, **options: Any) -> quantize_rs.Report:
    asked: dict[str, Any] = {"output_format": "dynamic", "dynamic_lstm": True}
    return quantize_rs.quantize(model, None, **(asked | options))


def decibels(model: bytes, found: bytes | None, feeds: dict[str, Array]) -> float:
    assert found is not None
    return oracle.sqnr(oracle.ort(model, feeds), oracle.ort(found, feeds))


CASES: dict[str, dict[str, Any]] = {
    "forward": {"directions": 1},
    "reverse": {"directions": 1, "direction": "reverse"},
    "both": {},
    "opset 7": {"opset": 7},
    "opset 22": {"opset": 22},
    "no bias": {"more": {}},
    "lengths and a start": {
        "more": {
            "b": normal(2, 8 * HIDDEN, seed=2),
            "lengths": np.array([7, 2, 5], np.int32),
            "h": normal(2, BATCH, HIDDEN, seed=5),
            "c": normal(2, BATCH, HIDDEN, seed=6),
        }
    },
    "peepholes": {"more": {"b": normal(2, 8 * HIDDEN), "p": normal(2, 3 * HIDDEN, seed=4)}},
    "clipped": {"clip": 0.5},
    "other functions": {"activations": ["HardSigmoid", "Relu", "Tanh"] * 2},
    "one gate for two": {"input_forget": 1},
}


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_lstms_of_integers_come_near_those_of_floats(
    case: str, per_channel: bool, weights: str
) -> None:
    model, feeds = lstm(**CASES[case])
    report = quantized(model, per_channel=per_channel, weights=weights)
    assert report.model is not None
    written = onnx.load_from_string(report.model)
    (node,) = written.graph.node
    assert (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM")
    directions = CASES[case].get("directions", 2)
    shapes = {t.name: list(t.dims) for t in written.graph.initializer}
    assert shapes["w_quantized"] == [directions, INPUT, 4 * HIDDEN]
    scales = [directions, 4 * HIDDEN] if per_channel else [directions]
    assert [shapes[node.input[at]] for at in range(8, 12)] == [scales] * 4
    assert decibels(model, report.model, feeds) > (32 if per_channel else 28)
    assert {value.name for value in report.weights if value.quantized} == {"w", "r"}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
def test_they_come_as_near_as_those_of_onnxruntime(
    directions: int, per_channel: bool, tmp_path: Path
) -> None:
    model, feeds = lstm(directions)
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(model)
    quantize_dynamic(before, after, per_channel=per_channel, weight_type=QuantType.QInt8)
    peer = decibels(model, after.read_bytes(), feeds)
    ours = quantized(model, per_channel=per_channel, target="x86")
    assert decibels(model, ours.model, feeds) >= peer


def test_every_direction_has_a_scale_of_its_own() -> None:
    model, feeds = lstm(2)
    loaded = onnx.load_from_string(model)
    weight = next(t for t in loaded.graph.initializer if t.name == "w")
    values = numpy_helper.to_array(weight) * np.array([1, 100], F)[:, None, None]
    weight.CopyFrom(numpy_helper.from_array(values, "w"))
    model = loaded.SerializeToString()
    found = quantized(model, per_channel=False).model
    assert found is not None
    (scale,) = (
        numpy_helper.to_array(t)
        for t in onnx.load_from_string(found).graph.initializer
        if t.name == "w_scale"
    )
    np.testing.assert_allclose(scale[1] / scale[0], 100, rtol=0.5)
    # One scale for both would leave the first with 1 % of its steps.
    whole, near = oracle.ort(model, feeds)[0], oracle.ort(found, feeds)[0]
    assert oracle.sqnr([whole[:, 0]], [near[:, 0]]) > 28


def operators(model: bytes | None) -> list[str]:
    assert model is not None
    return [node.op_type for node in onnx.load_from_string(model).graph.node]


def test_without_being_asked_for_weights_alone_are_quantized() -> None:
    model, _ = lstm()
    found = quantize_rs.quantize(model, None, output_format="dynamic").model
    assert "LSTM" in operators(found)
    assert "DynamicQuantizeLSTM" not in operators(found)


def test_what_the_operator_cannot_do_is_said() -> None:
    batch_first, _ = lstm(1, opset=17, layout=1, more={})
    report = quantized(batch_first)
    assert "LSTM" in operators(report.model)
    assert any("its layout is 1" in text for text in report.warnings)
    model, feeds = lstm()
    report = quantized(model, excluded_layers=["r"])
    assert "LSTM" in operators(report.model)
    assert any(
        "`lstm` (LSTM) computes in float" in text and "R stays float" in text
        for text in report.warnings
    )
    assert decibels(model, report.model, feeds) > 30


def test_a_weight_of_two_lstms_keeps_them_in_float() -> None:
    model, _ = lstm(1, more={})
    loaded = onnx.load_from_string(model)
    twin = onnx.NodeProto.FromString(loaded.graph.node[0].SerializeToString())
    twin.name, twin.output[:] = "twin", ["y2", "last2", "cell2"]
    loaded.graph.node.append(twin)
    loaded.graph.output.append(helper.make_tensor_value_info("y2", TensorProto.FLOAT, None))
    report = quantized(loaded.SerializeToString())
    assert operators(report.model).count("LSTM") == 2
    assert any("others read W too" in text for text in report.warnings)


def test_validate_reads_their_integers_back(tmp_path: Path) -> None:
    for per_channel in (False, True):
        model, _ = lstm()
        found = quantized(model, per_channel=per_channel).model
        assert found is not None
        before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
        before.write_bytes(model)
        after.write_bytes(found)
        result = quantize_rs.validate(before, after)
        assert result.passed
        assert {weight.name for weight in result.weights} == {"w", "r"}
        loaded = onnx.load(after)
        integers = next(t for t in loaded.graph.initializer if t.name == "r_quantized")
        integers.raw_data = bytes([integers.raw_data[0] ^ 0x40]) + integers.raw_data[1:]
        onnx.save(loaded, after)
        assert not quantize_rs.validate(before, after).passed


def test_other_formats_refuse_the_option() -> None:
    model, _ = lstm()
    for name in ("qdq", "matmul_nbits"):
        expected = "has no effect without output_format=dynamic"
        with pytest.raises(errors.OptionError, match=expected) as refused:
            quantized(model, output_format=name, **({"bits": 4} if name != "qdq" else {}))
        assert refused.value.option == "dynamic_lstm"


@pytest.mark.parametrize("inside", [False, True], ids=["constants outside", "constants inside"])
def test_lstms_of_branches_multiply_integers_too(*, inside: bool) -> None:
    gates = 4 * HIDDEN
    shapes = {"w": (1, gates, INPUT), "r": (1, gates, HIDDEN), "b": (1, 2 * gates)}

    def branch(name: str, seed: int) -> tuple[onnx.GraphProto, list[onnx.TensorProto]]:
        tensors = [
            numpy_helper.from_array(normal(*shape, seed=seed + index), f"{name}_{key}")
            for index, (key, shape) in enumerate(shapes.items())
        ]
        read, output = ("x", f"{name}_y") if name == "then" else (f"{name}_x", f"{name}_y")
        nodes = [helper.make_node("Relu", ["x"], [read])] if read != "x" else []
        names = [tensor.name for tensor in tensors]
        nodes.append(helper.make_node("LSTM", [read, *names], [output], name, hidden_size=HIDDEN))
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, name, [], outputs, tensors if inside else [])
        return graph, [] if inside else tensors

    (then, outside), (other, more) = branch("then", 0), branch("else", 10)
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, INPUT]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        outside + more,
    )
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model = bytes(proto.SerializeToString())
    report = quantized(model)
    assert report.model is not None
    assert processor.others(report.warnings) == []
    (branches,) = onnx.load_from_string(report.model).graph.node
    kinds = [[node.op_type for node in body.g.node] for body in branches.attribute]
    assert sorted(kinds) == [["DynamicQuantizeLSTM"], ["Relu", "DynamicQuantizeLSTM"]]
    assert len(report.model) < 0.3 * len(model)
    assert quantize_rs.validate(model, report.model)
    for which in (True, False):
        feeds = {"x": normal(STEPS, BATCH, INPUT, seed=3, scale=1), "c": np.array(which)}
        assert decibels(model, report.model, feeds) > 35


@pytest.mark.parametrize(
    ("operator", "options", "expected"),
    [
        ("LSTM", {}, "dynamic_lstm"),
        ("LSTM", {"bits": 4}, "dynamic_lstm"),
        ("LSTM", {"output_format": "dynamic"}, "dynamic_lstm"),
        ("LSTM", {"target": "openvino"}, "leave them float with exclude"),
        ("GRU", {}, "leave them float with exclude"),
        ("GRU", {"output_format": "dynamic"}, "leave them float with exclude"),
    ],
)
def test_a_slow_recurrent_model_names_what_helps(
    operator: str, options: dict[str, Any], expected: str
) -> None:
    """One step of many weights: dequantizing them takes longer than the step."""
    gates, size = {"LSTM": 4, "GRU": 3}[operator], 512
    node = helper.make_node(operator, ["x", "w", "r"], ["y"], "cell", hidden_size=size)
    tensors = {"w": normal(1, gates * size, size), "r": normal(1, gates * size, size, seed=1)}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    feeds = {"x": normal(1, 1, size, seed=3, scale=1)}
    with pytest.raises(errors.AccuracyCriteriaError, match="it takes") as caught:
        quantize_rs.quantize(model, None, verify=feeds, require_faster=True, **options)
    said = str(caught.value)
    assert "are dequantized at every inference" in said
    assert expected in said
    assert "calibrate" not in said
    assert ("dynamic_lstm" in said) == (expected == "dynamic_lstm")
