"""Mixtures of experts of ONNX Runtime: `MoE`, and `QMoE` with integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import helper, numpy_helper
from test_fused import Array, domains, model_of, numbers, own, quantized, weights

import quantize_rs
from quantize_rs import validate

F = np.float32
TOKENS, EXPERTS, HIDDEN, INNER = 10, 4, 64, 96
FEEDS = {"x": numbers(TOKENS, HIDDEN, seed=1) * F(3)}
NORMALIZED: dict[str, Any] = {"normalize_routing_weights": 1}
SWIGLU: dict[str, Any] = {
    "swiglu_fusion": 1,
    "activation_alpha": 1.7,
    "activation_beta": 1.0,
    "swiglu_limit": 0.7,
}
CASES: dict[str, dict[str, Any]] = {
    "relu": {},
    "normalized": {"activation_type": "silu", **NORMALIZED},
    "gelu": {"activation_type": "gelu"},
    "identity": {"activation_type": "identity", "k": 1},
    "swiglu": {"activation_type": "swiglu", **SWIGLU},
}


def experts(
    hidden: int = HIDDEN,
    inner: int = INNER,
    *,
    biases: bool = True,
    third: bool = False,
    extra: tuple[onnx.NodeProto, ...] = (),
    **attributes: Any,
) -> bytes:
    """Make a router and a mixture of experts."""
    double = 2 if attributes.get("activation_type") == "swiglu" else 1
    constants = {
        "router": numbers(hidden, EXPERTS, seed=2),
        "one": numbers(EXPERTS, inner * double, hidden, seed=3) / F(4),
        "other": numbers(EXPERTS, hidden, inner, seed=4) / F(4),
    }
    read = "x scores one - other"
    if biases:
        constants |= {"b": numbers(EXPERTS, inner * double, seed=5) / F(8)}
        constants |= {"c": numbers(EXPERTS, hidden, seed=6) / F(8)}
        read = "x scores one b other c"
    if third:
        constants["gate"] = numbers(EXPERTS, inner, hidden, seed=7) / F(4)
        read += " gate" if biases else " - gate"
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["scores"]),
        own("MoE", read, **({"k": 2} | attributes)),
        *extra,
    ]
    outputs = "y " + " ".join(node.output[0] for node in extra)
    return model_of(nodes, constants, {"x": numbers(TOKENS, hidden)}, outputs.strip())


def tensors(model: bytes) -> dict[str, Array]:
    """The constants of a model."""
    graph = onnx.load_from_string(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def mixture(model: bytes) -> tuple[onnx.NodeProto, dict[str, Any]]:
    """The `QMoE` of a model, and its attributes."""
    nodes = [n for n in onnx.load_from_string(model).graph.node if n.op_type == "QMoE"]
    (node,) = nodes
    return node, {found.name: helper.get_attribute_value(found) for found in node.attribute}


def unpacked(packed: Array, bits: int) -> Array:
    """The numbers in bytes, the lowest bits first."""
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def dequantized(model: bytes, original: bytes) -> bytes:
    """The float model with the numbers that the integers of `QMoE` stand for."""
    node, said = mixture(model)
    found = tensors(model)
    restored: dict[str, Array] = {}
    bits = said["expert_weight_bits"]
    for name, place, points in (("one", 2, 11), ("other", 5, 12)):
        codes = unpacked(found[node.input[place]], bits).astype(F)
        scale = found[node.input[place + 1]]
        block = said.get("block_size", codes.shape[-1])
        if "block_size" not in said:
            assert scale.ndim == 2
            scale = scale[..., None]
        zero: Any = 1 << bits - 1
        if len(node.input) > points and node.input[points]:
            zero = unpacked(found[node.input[points]], bits)[..., : scale.shape[-1], None]
        groups = codes.reshape(*scale.shape, block)
        restored[name] = ((groups - zero) * scale[..., None]).reshape(codes.shape).astype(F)
    loaded = onnx.load_from_string(original)
    for tensor in loaded.graph.initializer:
        if tensor.name in restored:
            tensor.CopyFrom(numpy_helper.from_array(restored[tensor.name], tensor.name))
        elif f"{tensor.name}_quantized" in found:
            # The matrix of the router.
            tensor.name += "_unused"
    return bytes(loaded.SerializeToString())


ONLY = {"include": ["MoE"]}


def off_by(model: bytes, other: bytes, feeds: dict[str, Array]) -> float:
    """The largest difference of two models, as a part of the largest number."""
    (a,), (b,) = oracle.ort(model, feeds), oracle.ort(other, feeds)
    return float(abs(a - b).max() / abs(b).max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_experts_are_stored_in_blocks(case: str, bits: int) -> None:
    model = experts(**CASES[case])
    written, report = quantized(model, output_format="matmul_nbits", bits=bits, **ONLY)
    assert domains(written) == {"QMoE"}
    quantized_ = {row.name for row in report.values if row.quantized and row.role == "weight"}
    assert quantized_ == {"one", "other"}
    _, said = mixture(written)
    assert said["expert_weight_bits"] == bits
    assert said["block_size"] == 32
    assert said["weights_prepacked"] == 0
    # With 2 and 8 bits ONNX Runtime quantizes what it multiplies to 8 bits.
    most = 1e-5 if bits == 4 else 0.03
    assert off_by(written, dequantized(written, model), FEEDS) < most
    expected = oracle.ort(model, FEEDS)
    least = {2: 2, 4: 16, 8: 35}[bits]
    assert oracle.sqnr(expected, oracle.ort(written, FEEDS)) > least
    found = validate(model, written)
    assert found, str(found)
    assert {row.name for row in found.weights} == {"one", "other"}


@pytest.mark.parametrize("options", [{"symmetric": True}, {"block_size": 16}, {"bits": 8}], ids=str)
def test_options_of_blocks(options: dict[str, Any]) -> None:
    model = experts()
    given = {"bits": 4, **ONLY} | options
    written, _ = quantized(model, output_format="matmul_nbits", **given)
    node, said = mixture(written)
    assert said["block_size"] == options.get("block_size", 32)
    assert (len(node.input) > 11 and bool(node.input[11])) == ("symmetric" not in options)
    most = 1e-5 if given["bits"] == 4 else 0.03
    assert off_by(written, dequantized(written, model), FEEDS) < most
    assert validate(model, written)


@pytest.mark.parametrize(
    ("hidden", "inner", "block"), [(64, 128, 32), (48, 32, 16), (40, 72, None), (32, 32, 32)]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_divide_both_weights_or_are_rows(
    hidden: int, inner: int, block: int | None, bits: int
) -> None:
    model = experts(hidden, inner, biases=False)
    feeds = {"x": numbers(TOKENS, hidden, seed=1) * F(3)}
    written, report = quantized(model, output_format="matmul_nbits", bits=bits, **ONLY)
    _, said = mixture(written)
    assert said.get("block_size") == block
    most = 1e-5 if bits == 4 or block is None else 0.03
    assert off_by(written, dequantized(written, model), feeds) < most
    assert weights(report)[0] == 2
    assert validate(model, written)


def test_the_router_is_quantized_where_an_option_names_it() -> None:
    model = experts()
    options: dict[str, Any] = {"output_format": "matmul_nbits", "bits": 4}
    written, report = quantized(model, **options)
    assert domains(written) == {"QMoE"}
    assert weights(report) == (2, 3)
    (router,) = (row for row in report.weights if not row.quantized)
    assert router.name == "router"
    assert "its products choose what node `node of y` (MoE) takes" in router.why
    named, report = quantized(model, layer_bits={"router": 4}, **options)
    assert domains(named) == {"QMoE", "MatMulNBits"}
    assert weights(report) == (3, 3)
    wanted = oracle.ort(model, FEEDS)
    assert oracle.sqnr(wanted, oracle.ort(written, FEEDS)) > 10
    assert oracle.sqnr(wanted, oracle.ort(written, FEEDS)) >= oracle.sqnr(
        wanted, oracle.ort(named, FEEDS)
    )
    assert validate(model, written)
    assert validate(model, named)


@pytest.mark.parametrize("large", [False, True], ids=["router", "classes"])
def test_a_small_product_before_a_top_k_stays_float(large: bool) -> None:
    """As mixtures are exported node by node; a large one makes scores of classes."""
    width = 256 if large else 4
    nodes = [
        helper.make_node("MatMul", ["x", "body"], ["h"]),
        helper.make_node("MatMul", ["h", "router"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"]),
        helper.make_node("TopK", ["shares", "two"], ["y", "chosen"]),
    ]
    constants = {
        "body": numbers(256, 512, seed=1),
        "router": numbers(512, width, seed=2),
        "two": np.array([2]),
    }
    model = model_of(nodes, constants, {"x": numbers(TOKENS, 256)}, "y")
    report = quantize_rs.quantize(model, None, bits=4, allow_larger=True)
    stays = {row.name for row in report.weights if not row.quantized}
    assert stays == (set() if large else {"router"})


def test_a_sequence_and_an_accuracy_level() -> None:
    model = onnx.load_from_string(experts(**NORMALIZED))
    shape = model.graph.input[0].type.tensor_type.shape
    del shape.dim[:]
    for length in (2, 5, HIDDEN):
        shape.dim.add().dim_value = length
    model.graph.node.insert(
        1,
        helper.make_node("Reshape", ["scores", "rows"], ["flat"]),
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([10, EXPERTS]), "rows"))
    model.graph.node[2].input[1] = "flat"
    data = bytes(model.SerializeToString())
    feeds = {"x": FEEDS["x"].reshape(2, 5, HIDDEN)}
    options = {"output_format": "matmul_nbits", "bits": 4, "accuracy_level": 4}
    written, _ = quantized(data, **options, **ONLY)
    assert mixture(written)[1]["accuracy_level"] == 4
    assert oracle.sqnr(oracle.ort(data, feeds), oracle.ort(written, feeds)) > 16
    assert validate(data, written)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "third": ({"third": True}, "fc3"),
    "fusion": ({"activation_type": "swiglu", "swiglu_fusion": 2}, "swiglu_fusion is 2"),
    "mixer": ({"use_sparse_mixer": 1}, "use_sparse_mixer"),
    "function": ({"activation_type": "relu2"}, "relu2"),
    "odd rows": ({"hidden": 20, "inner": 30}, "no multiple of 8"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_qmoe_lacks_is_the_reason_in_the_plan(case: str) -> None:
    arguments, why = UNFIT[case]
    model = experts(**arguments)
    written, report = quantized(model, output_format="matmul_nbits", bits=4)
    assert "QMoE" not in domains(written)
    rows = {row.name: row for row in report.values if row.role == "weight"}
    assert not rows["one"].quantized
    assert why in rows["one"].why
    assert not rows["other"].quantized


def test_a_single_weight_stays_float() -> None:
    model = experts()
    for options in ({"exclude": ["other"]}, {"layer_bits": {"other": 8}}):
        written, report = quantized(model, output_format="matmul_nbits", bits=4, **options)
        assert "MoE" in domains(written)
        (row,) = [row for row in report.values if row.name == "one"]
        assert "the other weight" in row.why
        assert oracle.sqnr(oracle.ort(model, FEEDS), oracle.ort(written, FEEDS)) > 10


def test_a_weight_with_another_reader_stays_float() -> None:
    sum_ = helper.make_node("ReduceSum", ["one"], ["z"], keepdims=0)
    model = experts(extra=(sum_,))
    written, report = quantized(model, output_format="matmul_nbits", bits=4, **ONLY)
    assert domains(written) == {"MoE"}
    (row,) = [row for row in report.values if row.name == "one"]
    assert not row.quantized
    assert oracle.sqnr(oracle.ort(model, FEEDS), oracle.ort(written, FEEDS)) > 100


@pytest.mark.parametrize("options", [{}, {"bits": 4, "block_size": 32}], ids=str)
def test_qdq_has_a_scale_for_each_row_of_each_expert(options: dict[str, Any]) -> None:
    model = experts()
    written, report = quantized(model, **options, **ONLY)
    assert domains(written) == {"MoE"}
    stored = tensors(written)
    blocks = HIDDEN // 32 if options else 1
    assert stored["one_scale"].size == EXPERTS * INNER * blocks
    assert weights(report)[0] == 2
    expected = oracle.ort(model, FEEDS)
    least = 16 if options else 35
    for optimized in (False, True):
        found = oracle.ort(written, FEEDS, optimized=optimized)
        assert oracle.sqnr(expected, found) > least
    assert validate(model, written)


def test_experts_that_are_dequantized_get_a_warning() -> None:
    model = experts(256, 128)
    said = "dequantized at every inference"
    _, report = quantized(model, **ONLY)
    (warning,) = [warning for warning in report.warnings if said in warning]
    assert "`one`" in warning
    assert "matmul_nbits" in warning
    _, report = quantized(model, output_format="matmul_nbits", bits=8, **ONLY)
    assert not [warning for warning in report.warnings if "accuracy_level" in warning]


def test_a_model_with_integers_passes_through() -> None:
    written, _ = quantized(experts(), output_format="matmul_nbits", bits=4, **ONLY)
    expected = oracle.ort(written, FEEDS)
    assert quantize_rs.open(written).info.quantized
    for options in ({}, {"output_format": "matmul_nbits", "bits": 4}):
        again, _ = quantized(written, **options)
        assert "QMoE" in domains(again)
        assert mixture(again)[0].SerializeToString() == mixture(written)[0].SerializeToString()
        assert oracle.sqnr(expected, oracle.ort(again, FEEDS)) > 10
        assert validate(written, again)


def test_float16_experts() -> None:
    loaded = onnx.load_from_string(experts(**NORMALIZED))
    for tensor in loaded.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in [*loaded.graph.input, *loaded.graph.output]:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    model = bytes(loaded.SerializeToString())
    feeds = {"x": FEEDS["x"].astype(np.float16)}
    written, _ = quantized(model, output_format="matmul_nbits", bits=4, **ONLY)
    node, _ = mixture(written)
    assert tensors(written)[node.input[3]].dtype == np.float16
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(written, feeds)) > 15
    assert validate(model, written)


def changed(written: bytes, change: Any) -> bytes:
    """The model after a change of its `QMoE`."""
    model = onnx.load_from_string(written)
    (node,) = [node for node in model.graph.node if node.op_type == "QMoE"]
    change(node)
    return bytes(model.SerializeToString())


def test_validate_finds_faults() -> None:
    model = experts()
    written, _ = quantized(model, output_format="matmul_nbits", bits=4, **ONLY)
    assert validate(model, written)

    def experts_of(count: int) -> Any:
        def change(node: onnx.NodeProto) -> None:
            next(found for found in node.attribute if found.name == "k").i = count

        return change

    def exchange(one: int, other: int) -> Any:
        def change(node: onnx.NodeProto) -> None:
            node.input[one], node.input[other] = node.input[other], node.input[one]

        return change

    def without_factors(node: onnx.NodeProto) -> None:
        del node.input[14]

    assert "k differs" in str(validate(model, changed(written, experts_of(1))))
    assert not validate(model, changed(written, exchange(4, 7)))
    assert not validate(model, changed(written, exchange(3, 6)))
    assert "factors" in str(validate(model, changed(written, without_factors)))
    assert "factors" in str(validate(experts(**NORMALIZED), written))


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_experts_of_fewer_bits_than_their_type_have_a_zero_point(bits: int) -> None:
    model = experts()
    written, _ = quantized(model, output_format="matmul_nbits", bits=bits, symmetric=True, **ONLY)
    expected = oracle.ort(model, FEEDS)
    assert oracle.sqnr(expected, oracle.ort(written, FEEDS)) > {3: 8, 5: 20, 6: 26}[bits]
    assert validate(model, written)


def test_rows_without_blocks_take_no_grid_of_fewer_bits() -> None:
    """They would need a zero point, which only blocks have."""
    model = experts(40, 72, biases=False)
    report = quantize_rs.quantize(model, None, output_format="matmul_nbits", bits=3)
    rows = {row.name: row for row in report.weights}
    for name in ("one", "other"):
        assert not rows[name].quantized
        assert "no block divides its rows" in rows[name].why


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
def test_what_is_cast_around_experts_passes(case: str, float_type: str) -> None:
    model = experts(**CASES[case])
    report = quantize_rs.quantize(
        model, None, output_format="matmul_nbits", bits=4, float_type=float_type, include=["MoE"]
    )
    assert report.model is not None
    found = validate(model, report.model)
    assert found, str(found)


def test_both_weights_of_a_mixture_are_measured_together() -> None:
    model = experts()
    samples = [{"x": numbers(TOKENS, HIDDEN, seed=seed) * F(3)} for seed in range(4)]
    nbits: dict[str, Any] = {"output_format": "matmul_nbits", "engine": "onnxruntime"}
    plan = quantize_rs.open(model).plan(bits=4, output_format="matmul_nbits", block_size=32)
    ranking = quantize_rs.sensitivity(plan, samples, engine="onnxruntime")
    assert {layer.name for layer in ranking.layers} == {"one"}
    (row,) = (layer for layer in ranking.layers if layer.name == "one")
    assert row.elements == 2 * EXPERTS * INNER * HIDDEN
    written, _ = quantized(model, output_format="matmul_nbits", bits=4, **ONLY)
    # All samples count alike.
    expected, got = (
        np.stack([oracle.ort(each, sample)[0] for sample in samples]) for each in (model, written)
    )
    assert row.score == pytest.approx(oracle.sqnr([expected], [got]), abs=0.01)
    by_weight = quantize_rs.sensitivity(plan, metric="weight")
    assert {layer.name for layer in by_weight.layers} == {"one", "other"}

    for data, goal in ((samples, {"min_sqnr": 12}), (None, {"target_size": 0.2})):
        engine = nbits if data else {"output_format": "matmul_nbits"}
        found = quantize_rs.mixed_precision(model, data, bits=(8, 4), **goal, **engine)
        bits = found.layer_bits
        assert set(bits) == {"router", "one", "other"}
        assert bits["one"] == bits["other"] != "float32"
        written, report = quantized(model, output_format="matmul_nbits", layer_bits=bits)
        assert "QMoE" in domains(written)
        assert report.bytes_after == found.bytes_after
        sizes = {layer.name: layer.bytes for layer in found.layers}
        elements = EXPERTS * INNER * HIDDEN
        assert all(elements / 2 < sizes[name] < 2 * elements for name in ("one", "other"))
    named: dict[str, Any] = {"layer_bits": {"router": 4}, "allow_larger": True, **nbits}
    kept = quantize_rs.quantize(model, None, bits=4, calibration_data=samples, min_sqnr=16, **named)
    assert kept.accuracy_control is not None
    assert [layer.name for layer in kept.accuracy_control.float_layers] == ["router"]
    assert kept.model is not None
    assert domains(kept.model) == {"QMoE"}
