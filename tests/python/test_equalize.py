"""Channels between weights that were scaled apart are equalized, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from graphs import built
from onnx import NodeProto, helper

import quantize_rs

Array: TypeAlias = npt.NDArray[Any]

CHANNELS = 24
SHAPE: tuple[int | str, ...] = ("n", 3, 12, 12)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def powers(seed: int, octaves: int = 6) -> Array:
    rng = np.random.default_rng(seed)
    return np.exp2(rng.integers(-octaves, octaves + 1, CHANNELS)).astype(np.float32)


def network(between: Sequence[NodeProto], residual: bool = False, **more: Array) -> bytes:
    """Conv, what is between, depthwise Conv, Relu, Conv, pooling, Gemm; `h` is the value that the
    depthwise convolution reads, `c` what the first writes. Channels are scaled apart."""
    rng = np.random.default_rng(1)
    first, second = powers(2), powers(3)
    wide = CHANNELS * 2
    constants = {
        "w1": rng.normal(0, 0.4, (CHANNELS, 3, 3, 3)) * first[:, None, None, None],
        "b1": rng.normal(0, 0.2, CHANNELS) * first,
        "w2": rng.normal(0, 0.4, (CHANNELS, 1, 3, 3)) * (second / first)[:, None, None, None],
        "b2": rng.normal(0, 0.2, CHANNELS) * second,
        "w3": rng.normal(0, 0.3, (wide, CHANNELS, 1, 1)) / second[:, None, None],
        "b3": rng.normal(0, 0.2, wide),
        "w4": rng.normal(0, 0.3, (10, wide)),
        **more,
    }
    if residual:
        # Every convolution of the block reads and writes the channels that `h` and `r` share.
        constants["w3"] = np.concatenate([constants["w3"][:CHANNELS]] * 2) / 1.0
        constants["wr"] = (
            rng.normal(0, 0.2, (CHANNELS, CHANNELS, 1, 1)) * first[:, None, None, None]
        ) / first[:, None, None]
    nodes = [
        node("Conv", "x w1 b1", "c", pads=[1] * 4),
        *between,
        *([node("Conv", "h wr", "d"), node("Add", "d h", "s")] if residual else []),
        node("Conv", "s w2 b2" if residual else "h w2 b2", "e", pads=[1] * 4, group=CHANNELS),
        node("Relu", "e", "f"),
        node("Conv", "f w3 b3", "g"),
        node("GlobalAveragePool", "g", "p"),
        node("Flatten", "p", "q"),
        node("Gemm", "q w4", "y", transB=1),
    ]
    return built(nodes, constants, SHAPE)


def bound() -> Array:
    return (1.5 * powers(2))[:, None, None]


NETWORKS = {
    "relu": network([node("Relu", "c", "h")]),
    "none": network([node("Identity", "c", "h")]),
    "leaky": network([node("LeakyRelu", "c", "h", alpha=0.1)]),
    "prelu": network([node("PRelu", "c slope", "h")], slope=np.full((CHANNELS, 1, 1), 0.2)),
    "bounds of channels": network(
        [node("Relu", "c", "r"), node("Min", "r bound", "h")], bound=bound()
    ),
    "clip": network([node("Clip", "c low high", "h")], low=np.array(0.0), high=np.array(20.0)),
    "clip on both sides": network(
        [node("Clip", "c low high", "h")], low=np.array(-3.0), high=np.array(20.0)
    ),
    "pooled": network([node("Relu", "c", "r"), node("MaxPool", "r", "h", kernel_shape=[2, 2])]),
    "residual": network([node("Relu", "c", "h")], residual=True),
}


def matrices(op_type: str) -> bytes:
    """Products of matrices, whose channels are scaled apart."""
    rng, by = np.random.default_rng(4), powers(5)
    constants = {
        "w1": rng.normal(0, 0.4, (16, CHANNELS)) * by,
        "b1": rng.normal(0, 0.2, CHANNELS) * by,
        "w2": rng.normal(0, 0.4, (CHANNELS, 12)) / by[:, None],
    }
    if op_type == "Gemm":
        nodes = [node("Gemm", "x w1 b1", "c"), node("Relu", "c", "h"), node("Gemm", "h w2", "y")]
        return built(nodes, constants, ["n", 16])
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Add", "a b1", "c"),
        node("Relu", "c", "h"),
        node("MatMul", "h w2", "y"),
    ]
    return built(nodes, constants, ["n", 5, 16])


def samples(model: bytes, seed: int, count: int = 32) -> Array:
    shape = [
        dim.dim_value
        for dim in onnx.load_from_string(model).graph.input[0].type.tensor_type.shape.dim
    ]
    return np.random.default_rng(seed).normal(0, 1, (count, *shape[1:])).astype(np.float32)


def measured(model: bytes, report: quantize_rs.Report) -> float:
    assert report.model is not None
    feeds = {"x": samples(model, 9)}
    return oracle.sqnr(oracle.ort(model, feeds), oracle.ort(report.model, feeds))


def is_equalized(report: quantize_rs.Report) -> bool:
    return any(step.name == "equalize" for step in report.steps)


ALL = {**NETWORKS, "Gemm": matrices("Gemm"), "MatMul": matrices("MatMul")}


@pytest.mark.parametrize("name", ALL)
def test_the_float_model_computes_the_same(name: str) -> None:
    model = ALL[name]
    done = quantize_rs.optimize(model, passes=["equalize"])
    assert [step.name for step in done.steps] == ["equalize"]
    assert done.model is not None
    feeds = {"x": samples(model, 7)}
    (expected,), (found,) = oracle.ort(model, feeds), oracle.ort(done.model, feeds)
    assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()
    assert not quantize_rs.optimize(done.model, passes=["equalize"]).steps


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_weights_alone(name: str, per_channel: bool) -> None:
    model = ALL[name]
    report = quantize_rs.quantize(model, None, per_channel=per_channel)
    plain = quantize_rs.quantize(model, None, per_channel=per_channel, equalize=False)
    assert is_equalized(report)
    assert not is_equalized(plain)
    assert measured(model, report) > max(28, measured(model, plain) + 10)
    assert report.model is not None
    assert quantize_rs.validate(model, report.model).passed


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_static(name: str, per_channel: bool) -> None:
    model = ALL[name]
    data = samples(model, 8, 128)
    # Where a result is poor, the check would keep layers float.
    report, plain = (
        quantize_rs.quantize_with_calibration(
            model, None, data, per_channel=per_channel, equalize=equalize, check=check
        )
        for equalize, check in ((True, "auto"), (False, "none"))
    )
    assert is_equalized(report)
    assert measured(model, report) > max(20, measured(model, plain) + 5)
    assert report.model is not None
    assert quantize_rs.validate(model, report.model).passed


def test_what_is_read_elsewhere_is_left_alone() -> None:
    """A softmax, an output of the model and a weight with two readers keep their channels."""
    model = onnx.load_from_string(NETWORKS["relu"])
    model.graph.output.append(helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, None))
    done = quantize_rs.optimize(model, passes=["equalize"])
    assert done.model is not None
    scaled = {name for node in onnx.load_from_string(done.model).graph.node for name in node.output}
    assert {"c", "h"} <= scaled
    softmax = network([node("Softmax", "c", "h", axis=1)])
    done = quantize_rs.optimize(softmax, passes=["equalize"])
    assert done.model is not None
    scaled = {name for node in onnx.load_from_string(done.model).graph.node for name in node.output}
    assert {"c", "h"} <= scaled


@pytest.mark.parametrize(
    ("op_type", "shape", "groups"),
    [("Conv", (7, 3, 1, 1), 2), ("ConvTranspose", (6, 3, 1, 1), 4), ("Conv", (6, 3, 1, 1), 0)],
)
def test_groups_that_do_not_divide_the_channels_are_left_alone(
    op_type: str, shape: tuple[int, ...], groups: int
) -> None:
    """No runtime runs such a model, and its channels cannot be matched."""
    rng = np.random.default_rng(0)
    scales = np.exp2(np.arange(-6, 6, 2))[:, None, None, None]
    model = built(
        [
            node("Conv", "x w1", "c"),
            node("Relu", "c", "r"),
            node(op_type, "r w2", "y", group=groups),
        ],
        {"w1": rng.normal(size=(6, 6, 1, 1)) * scales, "w2": rng.normal(size=shape)},
        ("n", 6, 4, 4),
    )
    for per_channel in (True, False):
        report = quantize_rs.quantize(model, None, per_channel=per_channel, check="none")
        assert not is_equalized(report)


def test_factors_of_a_normalization_are_folded_beside_one_scale() -> None:
    """Left outside, they would keep channels from being equalized, and the result from integers."""
    zeros, ones = np.zeros(CHANNELS), np.ones(CHANNELS)
    even = np.random.default_rng(4).normal(0, 0.4, (CHANNELS, 3, 3, 3))
    normalization: dict[str, Any] = {
        "gamma": powers(2),
        "beta": zeros,
        "mean": zeros,
        "variance": ones,
    }
    normalized = node("BatchNormalization", "c gamma beta mean variance", "n")
    model = network([normalized, node("Relu", "n", "h")], w1=even, b1=zeros, **normalization)
    data = samples(model, 8, 128)

    def quantized(**options: Any) -> tuple[float, bool]:
        report = quantize_rs.quantize_with_calibration(
            model, None, data, per_channel=False, **options
        )
        assert report.model is not None
        kinds = {made.op_type for made in onnx.load_from_string(report.model).graph.node}
        return measured(model, report), "BatchNormalization" in kinds

    sqnr, is_left = quantized()
    plain, is_left_alone = quantized(equalize=False)
    assert (is_left, is_left_alone) == (False, True)
    assert sqnr > max(20, plain + 5)
