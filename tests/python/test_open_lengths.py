"""Static quantization of a softmax over an axis whose length the model leaves open."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import oracle
import pytest

import quantize_rs

WIDTH, HEADS, VOCABULARY = 64, 4, 300


def attention(length: int | str, *, guarded: bool = False) -> onnx.ModelProto:
    """One layer of attention between an embedding and a head."""
    rng, node = np.random.default_rng(0), onnx.helper.make_node

    def noise(*shape: int, scale: float) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    table = noise(VOCABULARY, WIDTH, scale=1) + noise(WIDTH, scale=2)
    constants: dict[str, npt.NDArray[Any]] = {
        "table": table,
        "wq": noise(WIDTH, WIDTH, scale=0.05),
        "wk": noise(WIDTH, WIDTH, scale=0.05),
        "wv": noise(WIDTH, WIDTH, scale=0.1),
        "wo": noise(WIDTH, WIDTH, scale=0.5),
        "heads": np.array([0, 0, HEADS, WIDTH // HEADS]),
        "joined": np.array([0, 0, WIDTH]),
        "root": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "zero": np.array(0, np.float32),
    }
    nodes = [node("Gather", ["table", "ids"], ["x"])]
    for part in "qkv":
        order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", ["x", f"w{part}"], [part]),
            node("Reshape", [part, "heads"], [f"{part}_heads"]),
            node("Transpose", [f"{part}_heads"], [f"{part}_t"], perm=order),
        ]
    nodes += [
        node("MatMul", ["q_t", "k_t"], ["products"]),
        node("Mul", ["products", "root"], ["scores"]),
        node("Softmax", ["scores"], ["raw" if guarded else "p"], axis=-1),
    ]
    if guarded:
        nodes += [node("IsNaN", ["raw"], ["nan"]), node("Where", ["nan", "zero", "raw"], ["p"])]
    nodes += [
        node("MatMul", ["p", "v_t"], ["context"], "context"),
        node("Transpose", ["context"], ["context_t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["context_t", "joined"], ["rows"]),
        node("MatMul", ["rows", "wo"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "attention",
        [info("ids", onnx.TensorProto.INT64, [1, length])],
        [info("y", 1, [1, length, WIDTH])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def ids(count: int, length: int) -> list[dict[str, npt.NDArray[Any]]]:
    rng = np.random.default_rng(length)
    return [{"ids": rng.integers(0, VOCABULARY, (1, length))} for _ in range(count)]


def quantized(model: onnx.ModelProto, **options: Any) -> quantize_rs.Report:
    return quantize_rs.quantize_with_calibration(
        model, None, ids(32, 64), method="minmax", engine="tract", **options
    )


@pytest.mark.parametrize("guarded", [False, True])
def test_probabilities_over_an_open_length_stay_float(*, guarded: bool) -> None:
    """In a shorter text they are larger than in any sample, and would be clipped."""
    model = attention("length", guarded=guarded)
    report = quantized(model)
    (why,) = (value.why for value in report.values if value.name == "p")
    assert "a length that the model leaves open" in why
    assert report.model is not None
    exact = model.SerializeToString()
    for length in (5, 64):
        pairs = [(oracle.ort(exact, x)[0], oracle.ort(report.model, x)[0]) for x in ids(8, length)]
        signal = sum(float(np.square(one).sum()) for one, _ in pairs)
        noise = sum(float(np.square(one - other).sum()) for one, other in pairs)
        assert 10 * np.log10(signal / noise) > 25


def test_they_are_quantized_where_their_range_holds() -> None:
    def is_quantized(report: quantize_rs.Report) -> bool:
        (found,) = (value.quantized for value in report.values if value.name == "p")
        return bool(found)

    assert is_quantized(quantized(attention(64)))
    assert is_quantized(quantized(attention("length"), activations="uint16"))
    # A text of one token has the probability 1.
    samples = ids(32, 64) + ids(8, 1)
    assert is_quantized(quantize_rs.quantize_with_calibration(attention("length"), None, samples))


def test_for_an_accelerator_there_is_a_warning() -> None:
    report = quantized(attention("length"), target="qnn")
    assert any("`p`" in warning and "fix the lengths" in warning for warning in report.warnings)
