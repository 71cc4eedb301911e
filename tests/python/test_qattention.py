"""`Attention` of ONNX Runtime on integers: `QAttention`, static and dynamic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import helper
from test_fused import (
    HEADS,
    LENGTH,
    QKV,
    SEEN,
    WIDTH,
    Array,
    X,
    domains,
    model_of,
    numbers,
    own,
    quantized,
    transformer,
    weights,
)

import quantize_rs
from quantize_rs import validate
from quantize_rs.compat import onnxruntime as compat

PAST = {"p": numbers(2, 2, 4, 3, WIDTH // 4, seed=6)}
ENDS = {"m": np.array([4, 6], np.int32)}
SPANS = {"m": np.array([6, 6, 2, 0], np.int32)}
CASES: dict[str, tuple[onnx.NodeProto, dict[str, Array]]] = {
    "plain": (own("Attention", "x w b", **HEADS), X),
    "causal": (own("Attention", "x w b", **HEADS, unidirectional=1, scale=0.1), X),
    "mask": (own("Attention", "x w b m", **HEADS, mask_filter_value=-50.0), X | {"m": SEEN}),
    "mask of ends": (own("Attention", "x w b m", **HEADS), X | ENDS),
    "mask of spans": (own("Attention", "x w b m", **HEADS), X | SPANS),
    "past": (own("Attention", "x w b - p", "y n", **HEADS, unidirectional=1), X | PAST),
    "attributes that say nothing": (
        own("Attention", "x w b", **HEADS, do_rotary=0, qkv_hidden_sizes=[WIDTH] * 3),
        X,
    ),
}
WAYS: dict[str, dict[str, Any]] = {
    "static": {"output_format": "qoperator"},
    "dynamic": {"output_format": "dynamic"},
}
UNFIT: dict[str, tuple[onnx.NodeProto, dict[str, Array], dict[str, Array], str]] = {
    "added": (
        own("Attention", "x w b m - a", **HEADS),
        QKV,
        X | ENDS | {"a": numbers(2, 4, LENGTH, LENGTH, seed=5)},
        "attention_bias",
    ),
    "no bias": (own("Attention", "x w - m", **HEADS), {"w": QKV["w"]}, X | ENDS, "no bias"),
    "narrow values": (
        own("Attention", "x w b m", **HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 16]),
        {"w": numbers(WIDTH, 80, seed=2), "b": numbers(80, seed=3)},
        X | ENDS,
        "one size",
    ),
}


def samples_of(way: str, feeds: dict[str, Array]) -> Any:
    """Samples where a way of quantizing needs them."""
    return [feeds] * 4 if way == "static" else None


def unfused(written: bytes) -> bytes:
    """The same numbers with a float `Attention`: both of its operands are dequantized before it."""
    model = onnx.load_from_string(written)
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "QAttention":
            nodes.append(node)
            continue
        x, w, b, x_scale, w_scale, mask, x_zero, w_zero, past = [*node.input, *[""] * 9][:9]
        for name, scale, zero in ((x, x_scale, x_zero), (w, w_scale, w_zero)):
            # DequantizeLinear has as many zero points as scales; one for all of them is 0.
            read = [name, scale, zero][: 3 if ranks.get(scale, 0) <= ranks.get(zero, 0) else 2]
            nodes.append(helper.make_node("DequantizeLinear", read, [f"{name}_float"], axis=1))
        read = [f"{x}_float", f"{w}_float", b, mask, past]
        while not read[-1]:
            read.pop()
        float_node = helper.make_node("Attention", read, node.output, domain=node.domain)
        float_node.attribute.extend(node.attribute)
        nodes.append(float_node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def off_by(model: bytes, other: bytes, feeds: dict[str, Array]) -> float:
    """The largest difference of two models, as a part of the largest number."""
    pairs = zip(oracle.ort(model, feeds), oracle.ort(other, feeds), strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


def outputs_of(node: onnx.NodeProto) -> str:
    """The names of the outputs of a node."""
    return " ".join(node.output)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"per_channel": False, "weights": "uint8"}], ids=str)
def test_an_attention_runs_on_integers(case: str, way: str, options: dict[str, Any]) -> None:
    node, feeds = CASES[case]
    model = model_of([node], QKV, feeds, outputs_of(node), opset=13)
    written, report = quantized(model, samples_of(way, feeds), **WAYS[way], **options)
    assert domains(written) == {"QAttention"}
    assert weights(report) == (1, 1)
    assert oracle.kernels(written)["QAttention"] == 1
    # The same integers, scales and zero points in float.
    assert off_by(written, unfused(written), feeds) < 1e-5
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(written, feeds)) > 25
    found = validate(model, written)
    assert found, str(found)
    assert len(found.weights) == 1


@pytest.mark.parametrize("way", WAYS)
def test_weights_have_the_error_of_the_split_form(way: str) -> None:
    model = model_of([CASES["plain"][0]], QKV, X)
    expected = oracle.ort(model, X)
    written, _ = quantized(model, samples_of(way, X), **WAYS[way])
    split, _ = quantized(model, samples_of(way, X))
    one, other = (oracle.sqnr(expected, oracle.ort(found, X)) for found in (written, split))
    assert other is not None
    if way == "static":
        assert abs(one - other) < 0.5
    assert len(written) < len(split) if way == "static" else one > 30


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("way", WAYS)
def test_what_qattention_lacks_is_the_reason_in_the_plan(case: str, way: str) -> None:
    node, constants, feeds, why = UNFIT[case]
    model = model_of([node], constants, feeds)
    written, report = quantized(model, samples_of(way, feeds), **WAYS[way])
    # The mask of one axis keeps it from being split; the weight is dequantized.
    assert domains(written) == {"Attention"}
    (row,) = [row for row in report.values if row.name == "x"]
    assert not row.quantized
    assert why in row.why
    assert weights(report) == (1, 1)
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(written, feeds)) > 30
    assert validate(model, written)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("static", {"activations": "int8"}),
        ("static", {"output_format": "qdq"}),
        ("static", {"target": "generic"}),
        ("dynamic", {"target": "generic"}),
    ],
    ids=str,
)
def test_other_formats_and_targets_split_it(way: str, options: dict[str, Any]) -> None:
    model = model_of([CASES["plain"][0]], QKV, X)
    written, report = quantized(model, samples_of(way, X), **(WAYS[way] | options))
    assert "QAttention" not in domains(written)
    assert "MultiHeadAttention" in domains(written)
    assert weights(report) == (1, 1)
    assert validate(model, written)


def test_qdq_says_which_formats_have_it() -> None:
    model = model_of([CASES["mask of ends"][0]], QKV, X | ENDS)
    _, report = quantized(model, [X | ENDS] * 4)
    (row,) = [row for row in report.values if row.name == "x"]
    assert "qoperator" in row.why


@pytest.mark.parametrize("way", WAYS)
def test_an_excluded_attention_stays_float(way: str) -> None:
    model, feeds = transformer()
    for options in ({"exclude": ["Attention"]}, {"op_types": ["MatMul"]}):
        written, report = quantized(model, samples_of(way, feeds), **WAYS[way], **options)
        assert "Attention" in domains(written)
        assert {row.name for row in report.values if row.quantized} & {"w", "b"} == set()
        assert not [said for said in report.warnings if "Attention" in said]
        assert validate(model, written)


@pytest.mark.parametrize("way", WAYS)
def test_all_weights_of_a_transformer_are_quantized(way: str) -> None:
    model, feeds = transformer()
    written, report = quantized(model, samples_of(way, feeds), **WAYS[way])
    assert "QAttention" in domains(written)
    assert weights(report) == (7, 7)
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(written, feeds)) > 25
    assert validate(model, written)


@pytest.mark.parametrize("way", WAYS)
def test_two_nodes_share_a_weight_and_an_input(way: str) -> None:
    nodes = [
        own("Attention", "x w b", "a", **HEADS),
        own("Attention", "x w b", "c", **HEADS, unidirectional=1),
        helper.make_node("MatMul", ["x", "w"], ["d"]),
        helper.make_node("Concat", ["a", "c", "d"], ["y"], axis=-1),
    ]
    model = model_of(nodes, QKV, X)
    written, _ = quantized(model, samples_of(way, X), **WAYS[way])
    made = onnx.load_from_string(written).graph
    (stored,) = [tensor for tensor in made.initializer if len(tensor.dims) == 2]
    assert stored.data_type == onnx.TensorProto.INT8
    assert sum(node.op_type == "QAttention" for node in made.node) == 2
    assert oracle.sqnr(oracle.ort(model, X), oracle.ort(written, X)) > 25
    assert validate(model, written)


def test_an_attention_in_a_branch_runs_on_integers() -> None:
    def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
        info = helper.make_tensor_value_info("y_", onnx.TensorProto.FLOAT, None)
        return helper.make_graph(nodes, "branch", [], [info])

    then = branch(own("Attention", "x w b", "y_", **HEADS))
    other = branch(helper.make_node("Neg", ["x"], ["y_"]))
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    feeds = X | {"c": np.array(True)}
    model = model_of([node], QKV, feeds)
    written, report = quantized(model, output_format="dynamic")
    assert weights(report) == (1, 1)
    assert b"QAttention" in written
    for chosen in (True, False):
        given = feeds | {"c": np.array(chosen)}
        assert oracle.sqnr(oracle.ort(model, given), oracle.ort(written, given)) > 25
    assert validate(model, written)


@pytest.mark.parametrize("way", WAYS)
def test_a_loud_channel_before_it_is_smoothed(way: str) -> None:
    gamma, loud = np.ones(WIDTH, np.float32), QKV["w"].copy()
    gamma[5] = 60
    loud[5] /= 60
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["l"], axis=-1),
        own("Attention", "l w b", **HEADS),
    ]
    model = model_of(nodes, QKV | {"w": loud, "g": gamma}, X)
    expected = oracle.ort(model, X)

    def decibels(**options: Any) -> float:
        written, _ = quantized(model, samples_of(way, X), **WAYS[way], **options)
        assert "QAttention" in domains(written)
        assert validate(model, written)
        return oracle.sqnr(expected, oracle.ort(written, X))

    assert decibels() > 30
    assert decibels(smooth=False) < 20


def faulty(written: bytes, input_: int, name: str) -> bytes:
    """The model, with another name at an input of its `QAttention`."""
    model = onnx.load_from_string(written)
    (node,) = [node for node in model.graph.node if node.op_type == "QAttention"]
    node.input[input_] = name
    return bytes(model.SerializeToString())


def test_validate_finds_faults() -> None:
    node, feeds = CASES["past"]
    model = model_of([node], QKV, feeds, outputs_of(node))
    for way, options in WAYS.items():
        written, _ = quantized(model, samples_of(way, feeds), **options)
        (made,) = [
            node
            for node in onnx.load_from_string(written).graph.node
            if node.op_type == "QAttention"
        ]
        assert validate(model, written)
        other = validate(model, faulty(written, 4, made.input[3]))
        assert not other or other.not_compared
        assert not validate(model, faulty(written, 2, made.input[4]))
        assert not validate(model, faulty(written, 8, ""))
    # The scale of the weight stands where that of the input belongs.
    found = validate(model, faulty(written, 3, made.input[4]))
    assert "does not read the scale" in str(found)
    changed = onnx.load_from_string(written)
    for node in changed.graph.node:
        if node.op_type == "QAttention":
            next(found for found in node.attribute if found.name == "num_heads").i = 8
    assert "attributes" in str(validate(model, bytes(changed.SerializeToString())))


class Reader(compat.CalibrationDataReader):
    """Samples in the form that `onnxruntime.quantization` takes."""

    def __init__(self, samples: list[dict[str, Array]]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> Any:
        return next(self.samples, None)


def test_compat_writes_what_onnxruntime_writes(tmp_path: Path) -> None:
    from onnxruntime import quantization as theirs

    model = model_of([CASES["plain"][0]], QKV, X)
    source, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    source.write_bytes(model)
    expected = oracle.ort(model, X)

    def decibels() -> float:
        assert domains(out.read_bytes()) == {"QAttention"}
        return oracle.sqnr(expected, oracle.ort(out, X))

    theirs.quantize_dynamic(source, out, per_channel=True)
    least = decibels() - 1
    compat.quantize_dynamic(source, out, per_channel=True)
    assert decibels() > least
    # The static form of onnxruntime leaves the operator float.
    compat.quantize_static(
        source,
        out,
        Reader([X] * 4),
        quant_format=compat.QuantFormat.QOperator,
        activation_type=compat.QuantType.QUInt8,
        per_channel=True,
    )
    assert decibels() > least


def test_information_about_a_model_counts_it_as_quantized() -> None:
    written, _ = quantized(model_of([CASES["plain"][0]], QKV, X), output_format="dynamic")
    assert quantize_rs.open(written).info.quantized
