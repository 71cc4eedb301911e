"""Weights of 3, 5 and 6 bits, which are stored in a type with more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from graphs import built
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError

STORED = {3: TensorProto.INT4, 5: TensorProto.INT8, 6: TensorProto.INT8}


def matrix() -> tuple[bytes, np.ndarray]:
    weight = np.random.default_rng(3).normal(size=(64, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    return built(nodes, {"w": weight}, ["n", 64]), weight


def integers(model: bytes) -> tuple[np.ndarray, int]:
    """The integers of the only weight, and their type."""
    tensors = onnx.load_from_string(model).graph.initializer
    found = max(tensors, key=lambda tensor: int(np.prod(tensor.dims)))
    return numpy_helper.to_array(found).astype(np.int32), found.data_type


@pytest.mark.parametrize("bits", [3, 5, 6])
@pytest.mark.parametrize("options", [{}, {"per_channel": False}, {"block_size": 16}])
def test_integers_use_the_bits_that_were_asked_for(bits: int, options: dict[str, Any]) -> None:
    model, _ = matrix()
    report = quantize_rs.quantize(
        model, None, bits=bits, include=["*"], weight_method="minmax", **options
    )
    assert report.model is not None
    found, stored = integers(report.model)
    assert stored == STORED[bits]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert low <= found.min() < low / 2
    assert high / 2 < found.max() <= high
    # All steps are used.
    assert len(np.unique(found)) > 0.8 * 2**bits
    assert quantize_rs.validate(model, report.model).passed
    few, many = (
        quantize_rs.quantize(
            model, None, weights=weights, include=["*"], weight_method="minmax", **options
        )
        for weights in ("int2", "int8")
    )
    errors = [
        next(row.mse for row in made.quantized if row.name == "w") for made in (few, report, many)
    ]
    assert None not in errors
    assert errors == sorted(errors, key=lambda error: -(error or 0))
    assert any(f"weights of {bits} bits are stored in" in text for text in report.warnings)


def test_a_grid_of_few_bits_is_that_of_numpy() -> None:
    model, weight = matrix()
    report = quantize_rs.quantize(
        model,
        None,
        weights="uint5",
        include=["*"],
        weight_method="minmax",
        per_channel=False,
        symmetric=False,
    )
    assert report.model is not None
    found, stored = integers(report.model)
    assert stored == TensorProto.UINT8
    scale = (float(weight.max()) - float(weight.min())) / 31
    point = np.clip(np.round(-float(weight.min()) / scale), 0, 31)
    expected = np.clip(np.round(weight / np.float32(scale)) + point, 0, 31)
    assert np.mean(found == expected) > 0.999


@pytest.mark.parametrize("output_format", ["matmul_nbits", "fake_quant"])
def test_other_formats_take_them(output_format: str) -> None:
    model, _ = matrix()
    report = quantize_rs.quantize(
        model, None, bits=3, include=["*"], output_format=output_format, check="none"
    )
    assert report.model is not None
    assert any(row.name == "w" for row in report.quantized)
    assert quantize_rs.validate(model, report.model).passed
    with pytest.raises(OptionError, match="expected one of int8, uint8"):
        quantize_rs.quantize(model, None, bits=6, output_format="dynamic")


def test_layers_and_samples_take_them(digits: Path) -> None:
    images = np.load(digits.parent / "calibration.npy")[:32]
    report = quantize_rs.quantize(
        digits, None, layer_bits={"*": 3}, calibration_data=images, check="none"
    )
    assert report.model is not None
    tensors = onnx.load_from_string(report.model).graph.initializer
    weights = [found for found in tensors if found.data_type == TensorProto.INT4]
    assert weights
    for found in weights:
        values = numpy_helper.to_array(found).astype(np.int32)
        assert values.min() >= -4
        assert values.max() <= 3
    assert any("rounded with samples" in note for note in report.notes)


@pytest.mark.parametrize("bits", [3, 5, 6])
@pytest.mark.parametrize("operator", ["MatMul", "Gather"])
def test_blocks_have_the_middle_of_their_own_grid(bits: int, operator: str) -> None:
    """A kernel without zero points takes the middle of the type that stores the integers."""
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(64, 64)).astype(np.float32)
    if operator == "MatMul":
        model, _ = matrix()
        feeds = {"x": rng.normal(size=(8, 64)).astype(np.float32)}
    else:
        nodes = [
            helper.make_node("Cast", ["x"], ["rows"], to=TensorProto.INT64),
            helper.make_node("Gather", ["w", "rows"], ["y"], "table"),
        ]
        model = built(nodes, {"w": weight}, ["n"])
        feeds = {"x": np.arange(64, dtype=np.float32)}
    reports = [
        quantize_rs.quantize(
            model, None, bits=bits, block_size=32, symmetric=True, output_format=output_format
        )
        for output_format in ("qdq", "matmul_nbits")
    ]
    expected = oracle.ort(model, feeds)
    quality = []
    for made in reports:
        assert made.model is not None
        assert quantize_rs.validate(model, made.model).passed
        quality.append(oracle.sqnr(expected, oracle.ort(made.model, feeds)))
    assert quality[1] > quality[0] - 3
    (row,) = reports[1].quantized
    assert row.symmetric


@pytest.mark.parametrize("bits", [5, 6])
def test_unsigned_weights_off_the_midpoint_are_refused_for_openvino(bits: int) -> None:
    model, _ = matrix()
    data = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)

    def quantized(target: str, **options: Any) -> quantize_rs.Report:
        return quantize_rs.quantize_with_calibration(model, None, data, target=target, **options)

    kind = f"uint{bits}"
    expected = f"{kind}, whose zero point is {2 ** (bits - 1)}, and target openvino expects 128"
    by_name = {"match": {"name": "w"}, "weights": kind}
    options: dict[str, Any]
    for options in ({"weights": kind}, {"layer_bits": {"w": kind}}, {"overrides": [by_name]}):
        with pytest.raises(OptionError, match=expected):
            quantized("openvino", **options)
        assert quantized("x86", **options).quantized
    assert quantized("openvino", weights=f"int{bits}").quantized
