"""One channel of a normalization that is much larger than the others."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from graphs import built
from onnx import helper

import quantize_rs

SIZE = 64


def loud(gemm: bool = False, turned: bool = False) -> bytes:
    """A LayerNormalization with a factor of 60 in one channel, whose weights are 1/60 of others."""
    rng = np.random.default_rng(0)
    factors, weight = np.ones(SIZE), rng.normal(0, 0.1, (SIZE, SIZE))
    factors[5], weight[5] = 60, weight[5] / 60
    constants = {
        "g": factors,
        "b": rng.normal(0, 0.1, SIZE),
        "w": weight.T if turned else weight,
        "c": rng.normal(0, 0.1, SIZE),
    }
    product = (
        helper.make_node("Gemm", ["l", "w", "c"], ["y"], transB=int(turned))
        if gemm
        else helper.make_node("MatMul", ["l", "w"], ["y"])
    )
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["l"], axis=-1), product]
    return built(nodes, constants, ["n", SIZE])


def samples(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 1, (64, SIZE)).astype(np.float32)


def measured(model: bytes, report: quantize_rs.Report) -> float:
    assert report.model is not None
    expected, found = (oracle.ort(it, {"x": samples(2)}) for it in (model, report.model))
    return oracle.sqnr(expected, found)


@pytest.mark.parametrize(("gemm", "turned"), [(False, False), (True, False), (True, True)])
def test_dynamic_needs_no_samples_to_smooth(gemm: bool, turned: bool) -> None:
    model = loud(gemm, turned)
    report = quantize_rs.quantize(model, None, output_format="dynamic")
    plain = quantize_rs.quantize(model, None, output_format="dynamic", smooth=False)
    assert measured(model, plain) < 15
    assert measured(model, report) > 35
    assert any(note.startswith("smoothed 1 value") for note in report.notes)
    assert report.model is not None
    assert quantize_rs.validate(model, report.model).passed


@pytest.mark.parametrize("target", ["x86", "arm", "tensorrt", "openvino", "qnn", "generic"])
def test_every_target_is_smoothed(target: str) -> None:
    model = loud()
    report = quantize_rs.quantize_with_calibration(model, None, samples(1), target=target)
    # On qnn the input, the factors and the result of the normalization have 8 bits too.
    assert measured(model, report) > 30


def test_even_channels_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    constants = {"g": rng.uniform(0.5, 1.5, SIZE), "b": np.zeros(SIZE)}
    constants["w"] = rng.normal(0, 0.1, (SIZE, SIZE))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["l"], axis=-1),
        helper.make_node("MatMul", ["l", "w"], ["y"]),
    ]
    model = built(nodes, constants, ["n", SIZE])
    report = quantize_rs.quantize(model, None, output_format="dynamic")
    plain = quantize_rs.quantize(model, None, output_format="dynamic", smooth=False)
    assert report.model == plain.model


def test_a_value_with_a_type_of_its_own_is_not_smoothed_and_others_are() -> None:
    model, data = loud(), samples(1)

    def smoothed(**types: str) -> bool:
        report = quantize_rs.quantize_with_calibration(
            model, None, data, activation_types=types, check="none"
        )
        return any(note.startswith("smoothed 1 value") for note in report.notes)

    assert smoothed()
    assert smoothed(x="uint8")
    assert not smoothed(l="uint16")
