"""Outputs of integers and booleans are compared element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import errors

F = np.float32


def segments(*outputs: str, seed: int = 0) -> bytes:
    """Two convolutions and the class of each pixel, with some of their outputs."""
    generator = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["scores"], "second", pads=[1] * 4),
        helper.make_node("ArgMax", ["scores"], ["classes"], "argmax", axis=1),
        helper.make_node("Greater", ["scores", "zero"], ["positive"], "positive"),
        helper.make_node("NonZero", ["positive"], ["places"], "places"),
    ]
    types = {
        "scores": TensorProto.FLOAT,
        "classes": TensorProto.INT64,
        "positive": TensorProto.BOOL,
        "places": TensorProto.INT64,
    }
    graph = helper.make_graph(
        nodes,
        "segments",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 16, 16])],
        [helper.make_tensor_value_info(name, types[name], None) for name in outputs],
        [
            numpy_helper.from_array((generator.normal(size=(16, 1, 3, 3)) / 3).astype(F), "v"),
            numpy_helper.from_array((generator.normal(size=(8, 16, 3, 3)) / 12).astype(F), "w"),
            numpy_helper.from_array(np.zeros((), F), "zero"),
        ],
    )
    opset = [helper.make_opsetid("", 21)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return bytes(made.SerializeToString())


def two_bits(model: bytes) -> bytes:
    result = quantize_rs.quantize(model, None, bits=2, block_size=16, check="none").model
    assert result is not None
    return result


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(16, 1, 16, 16)).astype(F)


def shares(float_model: bytes, result: bytes, images: np.ndarray, at: int) -> float:
    """The share of equal elements of an output."""
    pairs = [
        [oracle.ort(model, {"x": image[None]})[at] for model in (float_model, result)]
        for image in images
    ]
    equal = sum(int((a.ravel()[: b.size] == b.ravel()[: a.size]).sum()) for a, b in pairs)
    return float(equal / sum(max(a.size, b.size) for a, b in pairs))


@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
def test_equal_elements_are_those_of_the_runtime(images: np.ndarray, engine: str) -> None:
    names = ["scores", "classes", "positive"]
    model = segments(*names)
    result = two_bits(model)
    found = quantize_rs.compare(model, result, images, engine=engine)
    assert [row.name for row in found.outputs] == ["scores"]
    assert found.not_compared == ()
    assert [row.name for row in found.integer_outputs] == names[1:]
    for at, row in enumerate(found.integer_outputs, start=1):
        assert row.equal == pytest.approx(shares(model, result, images, at), abs=2e-3)
        assert 0.3 < row.equal < 0.95
        assert f"`{row.name}` equal in {row.equal:.1%}".replace("%", " %") in str(found)
        assert f"`{row.name}` equal in" in found.html()
    assert found.integer_outputs[0].elements == 16 * 16 * 16


def test_shapes_may_depend_on_the_data(images: np.ndarray) -> None:
    model = segments("places")
    result = two_bits(model)
    (row,) = quantize_rs.compare(model, result, images, engine="onnxruntime").integer_outputs
    assert row.equal == pytest.approx(shares(model, result, images, 0), abs=2e-3)


def test_a_model_and_itself_have_equal_integers(images: np.ndarray) -> None:
    model = segments("classes", "positive")
    found = quantize_rs.compare(model, model, images)
    assert [row.equal for row in found.integer_outputs] == [1.0, 1.0]


@pytest.mark.parametrize("names", [["classes"], ["scores", "classes"]])
def test_other_integers_are_a_warning_and_not_good(images: np.ndarray, names: list[str]) -> None:
    options: dict[str, Any] = {"bits": 2, "block_size": 16, "calibration_data": images}
    report = quantize_rs.quantize(segments(*names), None, **options)
    check = report.output_check
    assert check is not None
    (row,) = check.integer_outputs
    assert (row.name, row.elements) == ("classes", 16 * 16 * 16)
    other = f"output `classes` has other integers in {100 * (1 - row.equal):.1f} %"
    assert any(other in warning for warning in report.warnings), report.warnings
    assert report.assessment.grade == "fair"
    assert f"`classes` equal in {row.equal:.1%}".replace("%", " %") in report.assessment.sentence


def test_integers_of_noise_are_no_warning() -> None:
    report = quantize_rs.quantize(segments("classes"), None, bits=2, block_size=16)
    assert not any("classes" in warning for warning in report.warnings)


def test_min_sqnr_needs_a_float_output(images: np.ndarray) -> None:
    with pytest.raises(errors.OptionError, match="needs a float output"):
        quantize_rs.quantize(segments("classes"), None, calibration_data=images, min_sqnr=20)
    report = quantize_rs.quantize(
        segments("classes", "scores"), None, calibration_data=images, min_sqnr=20
    )
    verified = report.accuracy_control
    assert verified is not None
    assert [row.name for row in verified.attempts[-1].integer_outputs] == ["classes"]
    assert "`classes` equal in" in report.assessment.sentence


def test_integers_that_floats_do_not_distinguish_are_not_compared() -> None:
    """From 2^24 on, an integer and the next one are the same float32."""

    def model(added: int) -> bytes:
        graph = helper.make_graph(
            [
                helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
                helper.make_node("Add", ["i", "added"], ["ids"]),
            ],
            "ids",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
            [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 8])],
            [numpy_helper.from_array(np.array([added], np.int64), "added")],
        )
        opset = [helper.make_opsetid("", 21)]
        proto = helper.make_model(graph, opset_imports=opset, ir_version=10)
        return bytes(proto.SerializeToString())

    samples = np.arange(32, dtype=F).reshape(4, 1, 8)
    small = quantize_rs.compare(model(0), model(1), list(samples))
    assert [row.equal for row in small.integer_outputs] == [0.0]
    large = quantize_rs.compare(model(1 << 25), model((1 << 25) + 1), list(samples))
    assert (large.integer_outputs, large.not_compared) == ((), ("ids",))
