"""How the scales of weights are chosen: by their range, or by the least squared error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantize_rs
from quantize_rs import errors

DEPTH, WIDTH = 80, 6
WEIGHT = np.random.default_rng(3).standard_normal((DEPTH, WIDTH)).astype(np.float32)


def model() -> onnx.ModelProto:
    """Make a product with the weight: its output for the identity is the weight itself."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def written(**options: Any) -> bytes:
    """The quantized file."""
    found = quantize_rs.quantize(model(), None, check="none", **options).model
    assert found is not None
    return found


def error(**options: Any) -> float:
    """The mean squared error of the dequantized weight."""
    return error_of(written(**options))


def error_of(quantized: bytes) -> float:
    """The same of a file, run by onnx.reference, or by ONNX Runtime if it has its operators."""
    file = onnx.load_from_string(quantized)
    feed = {"x": np.eye(DEPTH, dtype=np.float32)}
    if any(node.domain for node in file.graph.node):
        session = onnxruntime.InferenceSession(quantized, providers=["CPUExecutionProvider"])
        (back,) = session.run(None, feed)
    else:
        (back,) = ReferenceEvaluator(file).run(None, feed)
    return float(np.square(back - WEIGHT).mean())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("weights", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("granularity", [{"block_size": 32}, {"per_channel": True}, {}])
def test_the_least_error_is_no_more_than_that_of_the_full_range(
    weights: str, granularity: dict[str, Any], symmetric: bool
) -> None:
    options = granularity | {"weights": weights, "symmetric": symmetric}
    least, full = (error(weight_method=method, **options) for method in ("mse", "minmax"))
    assert least <= full * 1.00001
    if granularity == {"block_size": 32} and weights != "int8" and not symmetric:
        assert least < 0.97 * full


@pytest.mark.parametrize(
    ("options", "usual"),
    [
        ({"bits": 4, "block_size": 32}, "mse"),
        ({"bits": 4, "output_format": "matmul_nbits"}, "mse"),
        ({"bits": 8, "output_format": "matmul_nbits"}, "minmax"),
        ({"bits": 8, "block_size": 32}, "minmax"),
        ({"bits": 4, "per_channel": True}, "minmax"),
        ({"bits": 4}, "minmax"),
        ({"bits": 8, "output_format": "dynamic"}, "minmax"),
    ],
)
def test_blocks_of_few_bits_take_the_least_error(options: dict[str, Any], usual: str) -> None:
    assert written(**options) == written(weight_method=usual, **options)
    plan = quantize_rs.open(model()).plan(
        weights=f"int{options.pop('bits')}", weight_method=usual, **options
    )
    assert plan.apply().to_bytes() == written(
        weights=plan.to_dict()["config"]["weights"], weight_method=usual, **options
    )


def test_both_formats_of_blocks_hold_the_same_numbers() -> None:
    qdq = onnx.load_from_string(written(weights="uint4", block_size=16))
    nbits = onnx.load_from_string(written(bits=4, block_size=16, output_format="matmul_nbits"))
    scales = [
        next(numpy_helper.to_array(t) for t in m.graph.initializer if t.name == "w_scale")
        for m in (qdq, nbits)
    ]
    np.testing.assert_array_equal(scales[0].T, scales[1])


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(errors.OptionError, match="`gptq`, expected one of minmax, mse") as refused:
        written(bits=4, block_size=32, weight_method="gptq")
    assert refused.value.option == "weight_method"


def half_quadratic(x: np.ndarray, levels: int) -> tuple[float, float]:
    """The scale and zero point of a block by the published method, then by least squares."""
    w, last = x.astype(np.float64), levels - 1
    scale = (w.max() - w.min()) / last
    zero = np.round(-w.min() / scale)
    beta, least = 10.0, np.inf
    for _ in range(20):
        q = np.clip(np.round(w / scale + zero), 0, last)
        off = w - (q - zero) * scale
        size = np.abs(off) + 1e-300
        rest = np.sign(off) * np.maximum(size - size ** (0.7 - 1) / beta, 0)
        zero, beta, error = np.mean(q - (w - rest) / scale), beta * 1.01, size.mean()
        if error >= least:
            break
        least = error
    q = np.clip(np.round(w / scale + zero), 0, last)
    scale = np.sum((q - q.mean()) * (w - w.mean())) / np.sum((q - q.mean()) ** 2)
    return scale, q.mean() - w.mean() / scale


def stored(model: bytes, name: str) -> np.ndarray:
    """Read an initializer."""
    graph = onnx.load_from_string(model).graph
    return next(numpy_helper.to_array(t) for t in graph.initializer if t.name == name)


@pytest.mark.parametrize("scale", [0.02, 40.0])
@pytest.mark.parametrize("bits", [2, 4])
def test_half_quadratic_zero_points_are_those_of_numpy(bits: int, scale: float) -> None:
    # At a scale of 40, the method leaves the errors of single elements as they are.
    weight = WEIGHT * np.float32(scale)
    made = model()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    options: dict[str, Any] = {"bits": bits, "block_size": 16, "output_format": "matmul_nbits"}
    found = quantize_rs.quantize(made, None, weight_method="hqq", **options).model
    assert found is not None
    scales, zeros = stored(found, "w_scale"), stored(found, "w_zp")
    assert zeros.dtype == np.float32
    assert zeros.shape == scales.shape == (WIDTH, DEPTH // 16)
    packed = stored(found, "w_quantized")
    shifts = np.arange(0, 8, bits)
    codes = (packed[..., None] >> shifts & (2**bits - 1)).reshape(WIDTH, -1, 16)
    blocks = weight.T.reshape(WIDTH, -1, 16)
    searched = 0
    for at in np.ndindex(*scales.shape):
        block, s, z = blocks[at], scales[at], zeros[at]
        if z == round(float(z)):
            continue  # the scale of the range had a smaller error
        searched += 1
        np.testing.assert_allclose((s, z), half_quadratic(block, 2**bits), rtol=1e-5)
        expected = np.clip(np.round(block / s + z), 0, 2**bits - 1)
        np.testing.assert_array_equal(codes[at], expected)
    assert searched >= 0.8 * scales.size
    back = ((codes - zeros[..., None]) * scales[..., None]).reshape(WIDTH, DEPTH).T
    session = onnxruntime.InferenceSession(found, providers=["CPUExecutionProvider"])
    (run,) = session.run(None, {"x": np.eye(DEPTH, dtype=np.float32)})
    np.testing.assert_allclose(run, back, rtol=1e-6, atol=1e-6 * scale)
    least = quantize_rs.quantize(made, None, weight_method="mse", **options).weights[0].mse
    hqq = quantize_rs.quantize(made, None, weight_method="hqq", **options).weights[0].mse
    assert hqq is not None
    assert least is not None
    assert hqq < least


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 8, "output_format": "matmul_nbits"},
        {"bits": 4, "output_format": "matmul_nbits", "symmetric": True},
        {"weights": "uint4", "block_size": 16},
    ],
)
def test_half_quadratic_zero_points_are_integers_elsewhere(options: dict[str, Any]) -> None:
    found = written(weight_method="hqq", **options)
    tensors = {t.name: t.data_type for t in onnx.load_from_string(found).graph.initializer}
    assert tensors.get("w_zp", TensorProto.UINT8) in (TensorProto.UINT8, TensorProto.UINT4)
    assert error_of(found) <= error(weight_method="minmax", **options) * 1.00001


def test_rows_that_are_looked_up_have_integers_for_zero_points() -> None:
    table = np.random.default_rng(5).standard_normal((64, 32)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "table")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options: dict[str, Any] = {"bits": 4, "output_format": "matmul_nbits", "weight_method": "hqq"}
    found = quantize_rs.quantize(made, None, **options).model
    assert found is not None
    assert stored(found, "table_zp").dtype == np.uint8
    session = onnxruntime.InferenceSession(found, providers=["CPUExecutionProvider"])
    (rows,) = session.run(None, {"i": np.arange(64)})
    assert np.abs(rows - table).max() < 0.3
