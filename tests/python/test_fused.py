"""Models that ONNX Runtime's optimizer has written: operators of its own with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError, validate

Array: TypeAlias = Any  # numpy's, of any type and shape
F = np.float32
MICROSOFT = "com.microsoft"
WIDTH, LENGTH, WORDS = 32, 6, 50


def numbers(*shape: int, seed: int = 0) -> Array:
    """Make normal numbers, smaller where more of them are summed."""
    return np.random.default_rng(seed).normal(size=shape).astype(F) / F(np.sqrt(shape[0]))


def own(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """Make a node of ONNX Runtime's domain; `-` is an input that is left out."""
    read = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(
        op_type, read, outputs.split(), f"node of {outputs}", domain=MICROSOFT, **attributes
    )


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    feeds: dict[str, Array],
    outputs: str = "y",
    opset: int = 17,
) -> bytes:
    """Make a model whose inputs are as `feeds`; integers may have any shape."""
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [None] * value.ndim if value.dtype == np.int32 else value.shape,
        )
        for name, value in feeds.items()
    ]
    made = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, made, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


IMAGE = {"x": numbers(2, 4, 9, 9)}
ROWS = {"x": numbers(3, WIDTH, seed=1) * F(4)}
KERNEL = {"w": numbers(6, 4, 3, 3, seed=2), "c": numbers(6, seed=3)}
MATRIX = {"w": numbers(WIDTH, 8, seed=2), "c": numbers(8, seed=3)}
TURNED = {"w": numbers(8, WIDTH, seed=2) / F(2)}
PADS: dict[str, Any] = {"pads": [1, 1, 1, 1]}
Case: TypeAlias = tuple[onnx.NodeProto, dict[str, Array], dict[str, Array]]
CASES: dict[str, Case] = {
    "convolution": (own("FusedConv", "x w c", **PADS, activation="Relu"), KERNEL, IMAGE),
    "convolution without a function": (own("FusedConv", "x w", **PADS), KERNEL, IMAGE),
    "bounds": (
        own("FusedConv", "x w c", **PADS, activation="Clip", activation_params=[-0.3, 0.5]),
        KERNEL,
        IMAGE,
    ),
    "slope": (
        own("FusedConv", "x w c", **PADS, activation="LeakyRelu", activation_params=[0.3]),
        KERNEL,
        IMAGE,
    ),
    "sum": (
        own("FusedConv", "x w c z", **PADS, activation="Relu"),
        KERNEL,
        IMAGE | {"z": numbers(2, 6, 9, 9, seed=4)},
    ),
    "gemm": (own("FusedGemm", "x w c", activation="Relu"), MATRIX, ROWS),
    "gemm with attributes": (
        own("FusedGemm", "x w c", activation="LeakyRelu", activation_alpha=0.2, alpha=0.5),
        MATRIX,
        ROWS,
    ),
    "matmul": (own("FusedMatMul", "x w", alpha=0.3), MATRIX, ROWS),
    "turned": (own("FusedMatMul", "x w", alpha=0.5, transB=1), TURNED, ROWS),
    "both turned": (
        own("FusedMatMul", "x w", transA=1, transB=1),
        TURNED,
        {"x": numbers(WIDTH, 3, seed=1) * F(20)},
    ),
}


def quantized(
    model: bytes, samples: Any = None, **options: Any
) -> tuple[bytes, quantize_rs.Report]:
    """Quantize to bytes, with samples if there are any."""
    if samples is None:
        report = quantize_rs.quantize(model, None, **options)
    else:
        report = quantize_rs.quantize_with_calibration(model, None, samples, **options)
    assert report.model is not None
    return report.model, report


def domains(model: bytes) -> set[str]:
    """The operators of ONNX Runtime's domain in a model."""
    nodes = onnx.load_from_string(model).graph.node
    return {node.op_type for node in nodes if node.domain == MICROSOFT}


def weights(report: quantize_rs.Report) -> tuple[int, int]:
    """How many weights are quantized, and how many there are."""
    rows = [row for row in report.values if row.role == "weight"]
    return sum(row.quantized for row in rows), len(rows)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [9, 17])
def test_fused_operators_are_split(case: str, opset: int) -> None:
    node, constants, feeds = CASES[case]
    constants = {name: value for name, value in constants.items() if name in node.input}
    model = model_of([node], constants, feeds, opset=opset)
    split = quantize_rs.optimize(model, passes=["split_fused"])
    assert split.model is not None
    assert domains(split.model) == set()
    expected = oracle.ort(model, feeds)
    assert oracle.sqnr(expected, oracle.ort(split.model, feeds)) > 120
    assert quantize_rs.optimize(split.model, passes=["split_fused"]).steps == ()
    ways: list[tuple[Any, dict[str, Any]]] = [
        (None, {}),
        (None, {"output_format": "dynamic"}),
        ([feeds], {}),
    ]
    for samples, options in ways:
        written, report = quantized(model, samples, **options)
        assert weights(report) == (1, 1)
        found = oracle.ort(written, feeds)
        assert oracle.sqnr(expected, found) > 25
        assert validate(model, written)


def test_a_product_of_activations_stays_fused() -> None:
    feeds = {"x": numbers(2, 3, 8), "z": numbers(2, 5, 8, seed=1)}
    model = model_of([own("FusedMatMul", "x z", alpha=0.3, transB=1)], {}, feeds)
    assert quantize_rs.optimize(model, passes=["split_fused"]).steps == ()


def test_what_onnxruntime_saves_is_split(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "c"], ["h"], **PADS),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    plain = model_of(nodes, KERNEL, IMAGE)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
    saved = (tmp_path / "saved.onnx").read_bytes()
    assert domains(saved) == {"FusedConv"}
    written, report = quantized(saved, [IMAGE] * 4)
    assert weights(report) == (1, 1)
    assert "QLinearConv" in oracle.kernels(written)


X = {"x": numbers(2, LENGTH, WIDTH, seed=1) * F(2)}
QKV = {"w": numbers(WIDTH, 3 * WIDTH, seed=2), "b": numbers(3 * WIDTH, seed=3)}
SEEN = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
HEADS: dict[str, Any] = {"num_heads": 4}
ATTENTION: dict[str, Case] = {
    "plain": (own("Attention", "x w b", **HEADS), QKV, X),
    "no bias": (own("Attention", "x w", **HEADS), QKV, X),
    "causal": (own("Attention", "x w b", **HEADS, unidirectional=1, scale=0.1), QKV, X),
    "mask": (own("Attention", "x w b m", **HEADS), QKV, X | {"m": SEEN}),
    "added": (
        own("Attention", "x w b - - a", **HEADS),
        QKV,
        X | {"a": numbers(2, 4, LENGTH, LENGTH, seed=5)},
    ),
    "narrow values": (
        own("Attention", "x w b", **HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 16]),
        {"w": numbers(WIDTH, 80, seed=2), "b": numbers(80, seed=3)},
        X,
    ),
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("opset", [12, 18])
def test_the_matrix_of_an_attention_becomes_a_product(case: str, opset: int) -> None:
    node, constants, feeds = ATTENTION[case]
    constants = {name: value for name, value in constants.items() if name in node.input}
    model = model_of([node], constants, feeds, opset=opset)
    expected = oracle.ort(model, feeds)
    split = quantize_rs.optimize(model, passes=["split_fused"]).model
    assert split is not None
    assert domains(split) == {"MultiHeadAttention"}
    assert oracle.sqnr(expected, oracle.ort(split, feeds)) > 100
    for samples, options, kernel in (
        (None, {"output_format": "matmul_nbits", "bits": 8}, "MatMulNBits"),
        ([feeds] * 4, {}, "MatMulIntegerToFloat"),
    ):
        written, report = quantized(model, samples, **options)
        assert weights(report) == (1, 1)
        assert kernel in oracle.kernels(written)
        assert oracle.sqnr(expected, oracle.ort(written, feeds)) > 25
        assert validate(model, written)


def test_an_attention_that_cannot_be_split_reads_a_dequantized_matrix() -> None:
    # A mask of one axis may hold starts and ends, which MultiHeadAttention does not take.
    mask = {"m": np.array([4, 6], np.int32)}
    model = model_of([own("Attention", "x w b m", **HEADS)], QKV, X | mask)
    written, report = quantized(model)
    assert weights(report) == (1, 1)
    assert domains(written) == {"Attention"}
    assert oracle.sqnr(oracle.ort(model, X | mask), oracle.ort(written, X | mask)) > 30
    assert validate(model, written)
    _, report = quantized(model, output_format="matmul_nbits", bits=4)
    assert weights(report) == (0, 1)


EMBEDDING = {
    "words": numbers(WORDS, WIDTH, seed=4) * F(5),
    "places": numbers(16, WIDTH, seed=5) * F(3),
    "kinds": numbers(2, WIDTH, seed=6),
    "gamma": np.linspace(0.5, 2, WIDTH, dtype=F),
    "beta": numbers(WIDTH, seed=7),
}
IDS = {
    "ids": np.random.default_rng(1).integers(0, WORDS, (2, LENGTH)).astype(np.int32),
    "kind": np.random.default_rng(2).integers(0, 2, (2, LENGTH)).astype(np.int32),
}
PLACES = {"at": np.array([[5, 4, 3, 2, 1, 0], [0, 1, 2, 15, 4, 5]], np.int32)}


def transformer() -> tuple[bytes, dict[str, Array]]:
    """Make one block of BERT as the optimizer of ONNX Runtime writes it."""
    wide = 4 * WIDTH
    constants = (
        QKV
        | EMBEDDING
        | {
            "o": numbers(WIDTH, WIDTH, seed=7),
            "u": numbers(WIDTH, wide, seed=8),
            "d": numbers(wide, WIDTH, seed=9),
            "ub": numbers(wide, seed=10),
        }
    )
    nodes = [
        own("EmbedLayerNormalization", "ids kind words places kinds gamma beta mask", "e seen"),
        own("Attention", "e w b seen", "a", **HEADS),
        helper.make_node("MatMul", ["a", "o"], ["ao"]),
        own("SkipLayerNormalization", "ao e gamma beta", "s"),
        helper.make_node("MatMul", ["s", "u"], ["su"]),
        own("BiasGelu", "su ub", "g"),
        helper.make_node("MatMul", ["g", "d"], ["gd"]),
        own("SkipLayerNormalization", "gd s gamma beta"),
    ]
    feeds = IDS | {"mask": SEEN}
    return model_of(nodes, constants, feeds), feeds


def test_all_weights_of_an_optimized_transformer_are_quantized() -> None:
    model, feeds = transformer()
    expected = oracle.ort(model, feeds)
    for samples, options in (
        (None, {}),
        (None, {"output_format": "dynamic"}),
        ([feeds] * 4, {}),
    ):
        written, report = quantized(model, samples, **options)
        assert weights(report) == (7, 7)
        assert len(written) < 0.45 * len(model)
        for optimized in (False, True):
            found = oracle.ort(written, feeds, optimized=optimized)
            assert oracle.sqnr(expected, found) > 25
        assert validate(model, written)


EMBEDDINGS: dict[str, tuple[str, str, dict[str, Array]]] = {
    "mask": ("ids kind words places kinds gamma beta mask", "y seen", IDS | {"mask": SEEN}),
    "no mask": ("ids kind words places kinds gamma beta", "y unread", IDS),
    "positions": ("ids kind words places kinds gamma beta - at", "y unread", IDS | PLACES),
    "sum": ("ids kind words places kinds gamma beta mask", "y seen sum", IDS | {"mask": SEEN}),
}


@pytest.mark.parametrize("case", EMBEDDINGS)
@pytest.mark.parametrize("opset", [11, 17])
def test_tables_of_an_embedding_are_looked_up(case: str, opset: int) -> None:
    inputs, outputs, feeds = EMBEDDINGS[case]
    node = own("EmbedLayerNormalization", inputs, outputs, epsilon=1e-5)
    nodes, read = [node], "y"
    if "seen" in outputs:
        nodes.append(helper.make_node("Cast", ["seen"], ["count"], to=TensorProto.FLOAT))
        read += " count"
    if "sum" in outputs.split():
        read += " sum"
    model = model_of(nodes, EMBEDDING, feeds, read, opset)
    expected = oracle.ort(model, feeds)
    split = quantize_rs.optimize(model, passes=["split_fused"]).model
    assert split is not None
    assert domains(split) == {"SkipLayerNormalization"}
    assert oracle.sqnr(expected, oracle.ort(split, feeds)) > 100
    for options in ({}, {"output_format": "dynamic"}):
        written, report = quantized(model, **options)
        assert weights(report) == (3, 3)
        assert oracle.sqnr(expected, oracle.ort(written, feeds)) > 30
        assert validate(model, written)
        # As dynamic, rows are taken from the integers.
        tables = {f"{name}_quantized" for name in ("words", "places", "kinds")}
        taken = [
            node.input[0]
            for node in onnx.load_from_string(written).graph.node
            if node.op_type == "Gather"
        ]
        assert bool(options) == (tables <= set(taken))


def test_an_embedding_without_segments_is_not_split() -> None:
    node = own("EmbedLayerNormalization", "ids - words places - gamma beta", "y unread")
    constants = {name: value for name, value in EMBEDDING.items() if name != "kinds"}
    feeds = {"ids": IDS["ids"]}
    model = model_of([node], constants, feeds)
    written, report = quantized(model)
    assert weights(report) == (2, 2)
    assert domains(written) == {"EmbedLayerNormalization"}
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(written, feeds)) > 30
    # Such operators can be named by type.
    _, report = quantized(model, op_types=["EmbedLayerNormalization"])
    assert weights(report) == (2, 2)
    _, report = quantized(model, op_types=["MatMul"])
    assert weights(report) == (0, 2)


def test_options_that_name_an_operator_that_was_split_get_a_warning() -> None:
    model, _ = transformer()
    _, report = quantized(model, op_types=["Attention", "MatMul"])
    assert any("op_types names `Attention`" in said for said in report.warnings)
    _, report = quantized(model, exclude=["Attention"])
    assert any("exclude names `Attention`" in said for said in report.warnings)
    with pytest.raises(OptionError, match="Attention"):
        quantized(model, op_types=["Atention"])


def test_large_constants_count_as_weights_wherever_they_are_read() -> None:
    """Otherwise a report says that all weights are quantized while most of a file is float."""
    constants = {"w": numbers(64, 64), "added": numbers(64, 64, seed=1), "c": numbers(64, seed=2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "added"], ["s"]),
        helper.make_node("Add", ["s", "c"], ["y"]),
    ]
    feeds = {"x": numbers(64, 64, seed=3)}
    _, report = quantized(model_of(nodes, constants, feeds))
    assert weights(report) == (1, 2)
    (kept,) = [row for row in report.values if row.role == "weight" and not row.quantized]
    assert kept.name == "added"
    assert "Add" in kept.why
    assert "1 of 2 weights quantized" in str(report)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_whose_addend_is_one_number_runs_on_integers(
    shape: tuple[int, ...], turned: int
) -> None:
    w = numbers(8, WIDTH) if turned else numbers(WIDTH, 8)
    constants = {"w": w, "c": np.full(shape, 0.3, F)}
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], transB=turned, beta=0.5)
    model = model_of([node], constants, ROWS)
    written, report = quantized(model, [ROWS] * 4)
    assert weights(report) == (1, 1)
    assert "QGemm" in oracle.kernels(written)
    assert oracle.sqnr(oracle.reference(model, ROWS), oracle.ort(written, ROWS)) > 30
