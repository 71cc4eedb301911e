"""What onnxruntime.quantization 1.31 gets wrong on small models, and the layer in its place right.

Where a case is one model and some calls, it is a row of `CASES`.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import graphs
import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper
from readers import Reader

from quantize_rs import OptionError, QuantizeError
from quantize_rs.compat import onnxruntime as ours

QOPERATOR = {"quant_format": ours.QuantFormat.QOperator}
CHANNEL = {"per_channel": True}
U8 = {"activation_type": ours.QuantType.QUInt8}


def static(model: Any, out: Path, samples: Any, **options: Any) -> Any:
    return ours.quantize_static(model, out, samples, **(U8 | options))


def dynamic(model: Any, out: Path, _: Any, **options: Any) -> Any:
    return ours.quantize_dynamic(model, out, **options)


class Case(NamedTuple):
    """A fixture, the calls, and the SQNR that each result has at least."""

    fixture: str
    calls: list[tuple[Any, dict[str, Any]]]
    floor: float


CASES = {
    "a factor of the bias, and of the product, of a Gemm": Case(
        "gemm_transa_alpha_beta", [(static, {}), (static, QOPERATOR)], 30
    ),
    "a bias that two convolutions share": Case(
        "shared_bias_two_convs", [(static, QOPERATOR), (static, QOPERATOR | CHANNEL)], 25
    ),
    "scales per channel of a weight with three axes": Case(
        "matmul_3d_weight",
        [(dynamic, CHANNEL), (static, CHANNEL), (static, CHANNEL | QOPERATOR)],
        30,
    ),
    "scales per channel in opset 10": Case("opset10_conv", [(static, CHANNEL)], 30),
    "scales per channel in opset 11": Case("opset11_conv_relu", [(static, CHANNEL)], 30),
    "scales per channel in opset 12": Case("opset12", [(static, CHANNEL)], 25),
    "float16": Case("fp16_model", [(dynamic, {}), (static, {}), (static, QOPERATOR)], 30),
    "a weight of bfloat16": Case("bf16_weights", [(dynamic, {}), (static, {})], 30),
    "a body that reads a value of the main graph": Case(
        "if_subgraph", [(static, QOPERATOR), (dynamic, {})], 25
    ),
    "subgraphs together with operators on integers": Case(
        "if_subgraph", [(static, QOPERATOR | {"extra_options": {"EnableSubgraph": True}})], 25
    ),
    "a weight in a Constant node": Case("weight_constant_node", [(static, {}), (dynamic, {})], 30),
    "a weight behind a Transpose": Case("weight_transpose", [(static, {}), (dynamic, {})], 30),
    "a weight in a local function": Case("local_function", [(static, {}), (dynamic, {})], 30),
    "groups, a bias and scales per channel of a ConvTranspose": Case(
        "conv_transpose_group2", [(static, CHANNEL)], 40
    ),
    "blocks beside weights of one and of four axes": Case(
        "maxpool_flatten_gemm", [(static, {"extra_options": {"BlockSize": 16}})], 30
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_result_runs_and_is_near_the_float_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, out = oracle.model(case.fixture), tmp_path / "out.onnx"
    samples = [oracle.feeds(case.fixture, 64)]
    feeds = oracle.feeds(case.fixture, 16)
    exact = oracle.ort(model, feeds)
    for call, options in case.calls:
        report = call(model, out, samples, **options)
        assert report.quantized, options
        found = oracle.sqnr(exact, oracle.ort(out, feeds))
        assert case.floor <= found < np.inf, options


def test_no_intermediate_output_is_dropped(digits: Path, images: Path) -> None:
    out = digits.with_name("o.onnx")
    static(digits, out, Reader(images, 5))
    same = out.read_bytes()
    for most in (1, 2, 4):
        extra = {"CalibMaxIntermediateOutputs": most}
        static(digits, out, Reader(images, 5), extra_options=extra)
        assert out.read_bytes() == same


def test_entropy_cuts_ranges_and_the_order_of_samples_does_not_matter(
    digits: Path, images: Path
) -> None:
    samples = [{"image": image[None]} for image in np.load(images)[:40]]

    def ranges(method: Any, order: slice) -> dict[str, Any]:
        out = digits.with_name("o.onnx")
        report = static(digits, out, samples[order], calibrate_method=method)
        return {value.name: value.range for value in report.activations if value.range}

    method = ours.CalibrationMethod
    first = ranges(method.Entropy, slice(None))
    assert first == ranges(method.Entropy, slice(None, None, -1))
    assert first != ranges(method.MinMax, slice(None))


def test_a_model_in_memory_is_not_changed(digits: Path, images: Path) -> None:
    proto = onnx.load(digits)
    before = proto.SerializeToString()
    out, other = digits.with_name("o.onnx"), digits.with_name("other.onnx")
    static(proto, out, Reader(images))
    static(proto, other, Reader(images))
    assert proto.SerializeToString() == before
    assert out.read_bytes() == other.read_bytes()


def masked(masking: float) -> bytes:
    """Make attention with a mask that is 0, or the given number for the last values."""
    rng = np.random.default_rng(1)
    mask = np.zeros((1, 8), np.float32)
    mask[:, 6:] = masking
    weights = {name: rng.normal(size=(32, 32)) / 6 for name in ("q", "k", "v", "o")}

    def node(op_type: str, inputs: str, output: str, **how: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs.split(), [output], output, **how)

    nodes = [
        *(node("MatMul", f"x {name}", f"{name}_out") for name in "qkv"),
        node("Transpose", "k_out", "keys", perm=[0, 2, 1]),
        node("MatMul", "q_out keys", "scores"),
        node("Add", "scores mask", "masked"),
        node("Softmax", "masked", "shares", axis=-1),
        node("MatMul", "shares v_out", "mixed"),
        node("MatMul", "mixed o", "y"),
    ]
    return graphs.built(nodes, weights | {"mask": mask}, [1, 8, 32])


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
@pytest.mark.parametrize("masking", [-1e4, float(np.finfo(np.float32).min), -np.inf])
def test_a_mask_does_not_widen_ranges(tmp_path: Path, method: str, masking: float) -> None:
    model, out = tmp_path / "masked.onnx", tmp_path / "out.onnx"
    model.write_bytes(masked(masking))
    rng = np.random.default_rng(2)
    samples = [{"x": rng.normal(size=(1, 8, 32)).astype(np.float32)} for _ in range(8)]
    calibrate_method = ours.CalibrationMethod[method]
    static(model, out, samples[:4], calibrate_method=calibrate_method, per_channel=True)
    for feeds in samples[4:]:
        assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(out, feeds)) > 20


def test_attention_of_onnx_itself_is_not_taken_for_that_of_microsoft(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((rng.normal(size=(32, 32)) / 6).astype(np.float32), name)
        for name in "qkv"
    ]
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}_out"], name) for name in "qkv"]
    inputs = ["q_out", "k_out", "v_out"]
    nodes.append(helper.make_node("Attention", inputs, ["y"], q_num_heads=2, kv_num_heads=2))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 32]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 23)]
    model, out = helper.make_model(graph, opset_imports=opset, ir_version=11), tmp_path / "o.onnx"
    ours.quantize_dynamic(model, out)
    found = onnx.load(out)
    assert [node.op_type for node in found.graph.node].count("Attention") == 1
    assert not any(node.op_type == "QAttention" for node in found.graph.node)
    feeds = {"x": rng.normal(size=(1, 8, 32)).astype(np.float32)}
    assert oracle.sqnr(oracle.ort(model.SerializeToString(), feeds), oracle.ort(out, feeds)) > 25


@pytest.mark.parametrize("kind", ["QInt4", "QUInt4", "QInt16", "QUInt16"])
@pytest.mark.parametrize("call", ["dynamic", "QOperator"])
def test_a_type_without_operator_is_refused_or_its_result_loads(
    digits: Path, images: Path, kind: str, call: str
) -> None:
    out = digits.with_name("o.onnx")
    options: dict[str, Any] = {"weight_type": ours.QuantType[kind]}
    try:
        if call == "dynamic":
            ours.quantize_dynamic(digits, out, **options)
        else:
            static(digits, out, Reader(images), **QOPERATOR, **options)
    except QuantizeError as error:
        assert kind[1:].lower() in str(error)
        assert not out.exists()
        return
    feeds = {"image": np.load(images)[:16]}
    assert oracle.sqnr(oracle.ort(digits, feeds), oracle.ort(out, feeds)) > 10


def test_every_override_counts(digits: Path, images: Path) -> None:
    out = digits.with_name("o.onnx")
    int4 = {"quant_type": ours.QuantType.QInt4}
    overrides: dict[str, Any] = {
        "conv1.weight": [{"quant_type": ours.QuantType.QInt8}],
        "fc1.weight": [int4],
    }
    extra = {"TensorQuantOverrides": overrides}
    report = static(digits, out, Reader(images), extra_options=extra)
    types = {value.name: value.qtype for value in report.weights}
    assert (types["conv1.weight"], types["fc1.weight"]) == ("int8", "int4")
    oracle.session(out)
    overrides["fc2.weight"] = [int4, {"quant_typ": ours.QuantType.QInt4}]
    with pytest.raises(OptionError, match="'quant_typ'"):
        static(digits, out, Reader(images), extra_options=extra)


def test_where_has_its_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    weights = {name: rng.normal(size=(8, 8, 3, 3)) / 8 for name in ("w0", "w1", "w2")}
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "a", pads=pads),
        helper.make_node("Conv", ["x", "w1"], ["b"], "b", pads=pads),
        helper.make_node("Greater", ["a", "b"], ["larger"], "larger"),
        helper.make_node("Where", ["larger", "a", "b"], ["c"], "c"),
        helper.make_node("Conv", ["c", "w2"], ["y"], "y", pads=pads),
    ]
    model, out = tmp_path / "where.onnx", tmp_path / "out.onnx"
    model.write_bytes(graphs.built(nodes, weights, [1, 8, 6, 6]))
    samples = [{"x": rng.normal(size=(1, 8, 6, 6)).astype(np.float32)} for _ in range(4)]
    for forced in (False, True):
        extra = {"ForceQuantizeNoInputCheck": forced}
        static(model, out, samples, **QOPERATOR, extra_options=extra)
        exact, found = (oracle.ort(path, samples[0]) for path in (model, out))
        assert oracle.sqnr(exact, found) > 20


def test_a_node_with_a_subgraph_keeps_its_domain(tmp_path: Path) -> None:
    """Such as a search of Microsoft's domain, whose decoder is a subgraph."""
    rng = np.random.default_rng(5)
    weight = numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), "w")
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
        [weight],
    )
    node = helper.make_node("Search", ["x"], ["y"], "search", domain="com.example", body=body)
    node.doc_string = "as it was"
    first = helper.make_node("MatMul", ["given", "first"], ["x"], "first")
    ends = [
        helper.make_tensor_value_info("given", TensorProto.FLOAT, ["n", 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    other = numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), "first")
    graph = helper.make_graph([first, node], "g", ends[:1], ends[1:], [other])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model, out = helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "o.onnx"
    ours.quantize_dynamic(model, out, extra_options={"EnableSubgraph": True})
    [kept] = [node for node in onnx.load(out).graph.node if node.op_type == "Search"]
    assert (kept.domain, kept.name, kept.doc_string) == ("com.example", "search", "as it was")


def test_a_gemm_is_quantized_in_blocks(digits: Path) -> None:
    quantizer = ours.MatMulNBitsQuantizer(digits, block_size=32)
    quantizer.process()
    out = digits.with_name("o.onnx")
    assert quantizer.model.save_model_to_file(out).ratio > 1.5
    operators = [node.op_type for node in onnx.load(out).graph.node]
    assert operators.count("MatMulNBits") == 2
    assert "Gemm" not in operators


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_samples_have_shapes_of_their_own(tmp_path: Path, method: str) -> None:
    model, out = oracle.model("dynamic_shape"), tmp_path / "out.onnx"
    rng = np.random.default_rng(6)
    sizes = [(12, 12), (20, 9), (7, 31)]
    samples = [{"x": rng.normal(size=(1, 3, *size)).astype(np.float32)} for size in sizes]
    report = static(model, out, samples, calibrate_method=ours.CalibrationMethod[method])
    assert report.samples == 3
    assert oracle.sqnr(oracle.ort(model, samples[1]), oracle.ort(out, samples[1])) > 20


def test_a_cache_of_another_model_is_refused(digits: Path, images: Path) -> None:
    cache, out = digits.with_name("cache.json"), digits.with_name("o.onnx")
    static(digits, out, Reader(images), calibration_cache_path=cache)
    other = onnx.load(digits)
    [weight] = [tensor for tensor in other.graph.initializer if tensor.name == "conv1.weight"]
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    with pytest.raises(QuantizeError, match="another model"):
        static(other, out, None, calibration_cache_path=cache)


def test_nothing_is_written_beside_a_model_or_into_the_working_directory(
    digits: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    before = sorted(digits.parent.iterdir())
    digits.parent.chmod(0o500)
    try:
        static(digits, tmp_path / "static.onnx", Reader(images))
        ours.quantize_dynamic(digits, tmp_path / "dynamic.onnx")
        ours.quant_pre_process(digits, tmp_path / "prepared.onnx")
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(digits.read_bytes()[:-1000])
        with pytest.raises(QuantizeError):
            ours.quant_pre_process(broken, tmp_path / "never.onnx")
    finally:
        digits.parent.chmod(0o700)
    assert sorted(digits.parent.iterdir()) == before
    assert not list(work.iterdir())
    assert not (tmp_path / "never.onnx").exists()


def test_options_are_read_and_unknown_names_are_said(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    given: dict[str, Any] = {"EnableSubgraph": True}
    with caplog.at_level(logging.WARNING, "quantize_rs"):
        ours.quantize_dynamic(digits, out, extra_options=given, nodes_to_exclude=["konv"])
    assert given == {"EnableSubgraph": True}
    assert "no node 'konv'" in caplog.text
    with pytest.raises(OptionError, match="MatMulConstOnly"):
        ours.quantize_dynamic(digits, out, extra_options={"MatMulConstOnly": True})
    with pytest.raises(OptionError, match="Konv"):
        static(digits, out, Reader(images), op_types_to_quantize=["Konv"])


def test_an_import_leaves_the_root_logger_alone() -> None:
    package = ours.__name__
    lines = [
        "import logging",
        f"import {package}, {package}.matmul_nbits_quantizer, {package}.shape_inference",
        "root = logging.getLogger()",
        "print(root.level, root.handlers)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.stdout == f"{logging.WARNING} []\n", done.stderr


@pytest.mark.parametrize("call", ["dynamic", "static"])
def test_a_weight_with_nan_stays_float(digits: Path, images: Path, call: str) -> None:
    model, out = onnx.load(digits), digits.with_name("o.onnx")
    [weight] = [tensor for tensor in model.graph.initializer if tensor.name == "fc1.weight"]
    values = numpy_helper.to_array(weight).copy()
    values[0, 0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    try:
        report = (
            ours.quantize_dynamic(model, out)
            if call == "dynamic"
            else static(model, out, Reader(images))
        )
    except QuantizeError as error:
        assert "fc1.weight" in str(error) or "NaN" in str(error)
        return
    quantized = {value.name for value in report.weights if value.quantized}
    assert "fc1.weight" not in quantized
    assert quantized


def test_a_graph_of_thousands_of_nodes(tmp_path: Path) -> None:
    """One pass over the graph for each step: with a pass for each node this takes minutes."""
    rng = np.random.default_rng(7)
    groups, width = 1000, 8
    weights, nodes, x = {}, [], "x"
    for at in range(groups):
        weights[f"w{at}"] = np.linalg.qr(rng.normal(size=(width, width)))[0]
        weights[f"b{at}"] = rng.normal(size=width) / 10
        last = "y" if at + 1 == groups else f"r{at}"
        nodes += [
            helper.make_node("MatMul", [x, f"w{at}"], [f"m{at}"], f"m{at}"),
            helper.make_node("Add", [f"m{at}", f"b{at}"], [f"a{at}"], f"a{at}"),
            helper.make_node("Relu", [f"a{at}"], [last], f"n{at}"),
        ]
        x = last
    model = tmp_path / "many.onnx"
    model.write_bytes(graphs.built(nodes, weights, ["n", width]))
    samples = [{"x": rng.normal(size=(4, width)).astype(np.float32)} for _ in range(2)]
    report = ours.quantize_dynamic(model, tmp_path / "dynamic.onnx")
    assert sum(value.quantized for value in report.weights) == groups
    report = static(model, tmp_path / "static.onnx", samples)
    assert sum(value.quantized for value in report.weights) >= groups
