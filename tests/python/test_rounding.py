"""Rounding that keeps sums: its properties, where it is applied, and what it gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs.errors import OptionError

Array = npt.NDArray[Any]

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def made(
    nodes: list[onnx.NodeProto], weights: dict[str, Array], shape: list[int]
) -> onnx.ModelProto:
    """A model from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "rounding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def noise(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(model: onnx.ModelProto, name: str, **options: Any) -> tuple[Array, Array]:
    """The integers of a weight less their zero points, and its scales."""
    written = quantize_rs.quantize(model, None, **options).model
    assert written is not None
    constants = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(written).graph.initializer
    }
    integers = constants[f"{name}_quantized"].astype(np.int64)
    zero = constants.get(f"{name}_zp", np.int8(0))
    assert not np.any(zero), "symmetric"
    return integers, constants[f"{name}_scale"].astype(np.float64)


RELU_CONV = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Conv", ["r", "w"], ["y"])]
PER_CHANNEL: dict[str, Any] = {"per_channel": True, "symmetric": True}


def by_hand(exact: Array, kernels: int) -> Array:
    """Round one channel, whose kernels are rows, by the definition: one integer at a time."""
    q = np.rint(exact)
    while True:
        error = q - exact
        sums = error.sum(1, keepdims=True) * (kernels > 1) + error.sum()
        gain = np.sign(error) * (error + sums)
        free = (np.abs(error) > 0.25) & (exact != 0) & (np.abs(q - np.sign(error)) <= 127)
        gain = np.where(free, gain, -np.inf)
        if gain.max() <= (1.5 if kernels > 1 else 1.0):
            return q
        at = np.unravel_index(gain.argmax(), gain.shape)
        q[at] -= np.sign(error[at])


@pytest.mark.parametrize("shape", [(6, 5, 3, 3), (6, 1, 3, 3), (8, 40, 1, 1)])
def test_integers_are_those_of_the_definition(shape: tuple[int, ...]) -> None:
    weight = noise(*shape)
    weight[0, 0, 0, 0] = 0
    group = 1 if shape[1] > 1 else shape[0]
    conv = [RELU_CONV[0], helper.make_node("Conv", ["r", "w"], ["y"], group=group)]
    model = made(conv, {"w": weight}, [1, shape[1] * group, 9, 9])
    found, scales = stored(model, "w", **PER_CHANNEL)
    kernels = shape[1] if shape[2] > 1 else 1
    for channel in range(shape[0]):
        exact = weight[channel].astype(np.float64) / scales[channel]
        rows = exact.reshape(kernels, -1)
        np.testing.assert_array_equal(found[channel].reshape(rows.shape), by_hand(rows, kernels))
    nearest, _ = stored(model, "w", rounding="nearest", **PER_CHANNEL)
    assert (found != nearest).any()
    assert found[0, 0, 0, 0] == 0


def test_what_meets_numbers_around_0_is_rounded_to_the_nearest() -> None:
    weight = noise(4, 6, 3, 3)
    for first, moves in (("Relu", True), ("Tanh", False), ("Sigmoid", True)):
        nodes = [helper.make_node(first, ["x"], ["r"]), RELU_CONV[1]]
        model = made(nodes, {"w": weight}, [1, 6, 9, 9])
        usual, _ = stored(model, "w", **PER_CHANNEL)
        nearest, _ = stored(model, "w", rounding="nearest", **PER_CHANNEL)
        assert (usual != nearest).any() == moves, first


def test_matrices_keep_their_sums_in_dynamic_and_where_it_is_asked_for() -> None:
    nodes = [RELU_CONV[0], helper.make_node("MatMul", ["r", "w"], ["y"])]
    weight = noise(300, 20)
    model = made(nodes, {"w": weight}, [1, 300])
    for output_format in ("qdq", "dynamic"):
        options: dict[str, Any] = {"output_format": output_format, **PER_CHANNEL}
        nearest, scales = stored(model, "w", rounding="nearest", **options)
        np.testing.assert_array_equal(nearest, np.rint(weight / scales.astype(np.float32)))
        asked, _ = stored(model, "w", rounding="sums", **options)
        off = (asked - weight / scales).sum(0)
        assert np.abs(off).max() < 0.6 < np.abs((nearest - weight / scales).sum(0)).max()
        usual, _ = stored(model, "w", **options)
        np.testing.assert_array_equal(usual, asked if output_format == "dynamic" else nearest)


def test_a_network_of_rectifiers_comes_closer() -> None:
    digits = DIGITS / "digits_cnn.onnx"
    images = np.load(DIGITS / "test.npz")["images"]
    expected = oracle.ort(digits, {"image": images})
    found = {}
    for rounding in ("nearest", "sums"):
        for per_channel in (False, True):
            report = quantize_rs.quantize(
                digits, None, per_channel=per_channel, symmetric=True, rounding=rounding
            )
            assert report.model is not None
            got = oracle.ort(report.model, {"image": images})
            found[rounding, per_channel] = oracle.sqnr(expected, got)
            assert quantize_rs.validate(digits, report.model), rounding
    assert found["sums", True] > found["nearest", True] + 1, found
    assert found["sums", False] > found["nearest", False] + 1, found


def test_noise_through_channels_of_all_sizes_loses_nothing_by_it() -> None:
    base = onnx.load(oracle.model("conv_depthwise"))
    ahead: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(24):
        model = onnx.ModelProto()
        model.CopyFrom(base)
        for at, tensor in enumerate(model.graph.initializer):
            array = numpy_helper.to_array(tensor)
            if array.ndim > 1:
                # The rows keep their magnitudes, which differ by a factor of ten and more.
                axes = tuple(range(1, array.ndim))
                fresh = noise(*array.shape, seed=100 * seed + at)
                size = np.square(array).mean(axes, keepdims=True)
                fresh *= np.sqrt(size / np.square(fresh).mean(axes, keepdims=True))
                tensor.CopyFrom(numpy_helper.from_array(fresh, tensor.name))
        inputs = {"x": noise(2, 3, 12, 12, seed=seed)}
        expected = oracle.ort(model.SerializeToString(), inputs)
        for per_channel, found in ahead.items():
            sqnr = {}
            for rounding in ("nearest", "sums"):
                report = quantize_rs.quantize(
                    model, None, per_channel=per_channel, rounding=rounding
                )
                assert report.model is not None
                sqnr[rounding] = oracle.sqnr(expected, oracle.ort(report.model, inputs))
            found.append(sqnr["sums"] - sqnr["nearest"])
    assert np.mean(ahead[False]) > 0, ahead
    assert np.mean(ahead[True]) > 0, ahead


def test_what_it_may_be_is_said() -> None:
    with pytest.raises(OptionError, match="sums, nearest") as refused:
        quantize_rs.quantize(oracle.model("conv2d_relu"), None, rounding="up")
    assert refused.value.option == "rounding"


def erf_gelu(value: str) -> list[onnx.NodeProto]:
    """`x / 2 · (erf(x / √2) + 1)`."""
    return [
        helper.make_node("Mul", [value, "half"], ["small"]),
        helper.make_node("Div", [value, "root"], ["wide"]),
        helper.make_node("Erf", ["wide"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["gate"]),
        helper.make_node("Mul", ["small", "gate"], ["r"]),
    ]


ONE_SIDED: dict[str, tuple[list[onnx.NodeProto], bool]] = {
    "clip": ([helper.make_node("Clip", ["x", "zero", "six"], ["r"])], True),
    "clip_around_0": ([helper.make_node("Clip", ["x", "minus", "six"], ["r"])], False),
    "leaky": ([helper.make_node("LeakyRelu", ["x"], ["r"], alpha=0.1)], True),
    "hardly_bent": ([helper.make_node("LeakyRelu", ["x"], ["r"], alpha=0.9)], False),
    "gelu": (erf_gelu("x"), True),
    "silu": (
        [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["r"])],
        True,
    ),
    "gated": (
        [
            helper.make_node("Tanh", ["x"], ["t"]),
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("Mul", ["t", "s"], ["r"]),
        ],
        False,
    ),
    "pooled": (
        [
            helper.make_node("Relu", ["x"], ["p"]),
            helper.make_node("MaxPool", ["p"], ["q"], kernel_shape=[1, 1]),
            helper.make_node("Concat", ["q", "p"], ["c"], axis=2),
            helper.make_node("Mul", ["c", "six"], ["r"]),
        ],
        True,
    ),
    "residual": (
        [helper.make_node("Relu", ["x"], ["p"]), helper.make_node("Add", ["p", "x"], ["r"])],
        False,
    ),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_the_graph_says_which_values_lie_on_one_side(name: str) -> None:
    nodes, moves = ONE_SIDED[name]
    numbers = {"zero": 0.0, "six": 6.0, "minus": -6.0, "half": 0.5, "root": 2**0.5, "one": 1.0}
    weights = {key: np.array(number, np.float32) for key, number in numbers.items()}
    weights["w"] = noise(4, 6, 3, 3)
    model = made([*nodes, RELU_CONV[1]], weights, [1, 6, 9, 9])
    usual, _ = stored(model, "w", **PER_CHANNEL)
    nearest, _ = stored(model, "w", rounding="nearest", **PER_CHANNEL)
    assert (usual != nearest).any() == moves


def test_weights_that_are_shared_move_only_where_all_want_it() -> None:
    for second, moves in (("Relu", True), ("Tanh", False)):
        nodes = [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node(second, ["x"], ["b"]),
            helper.make_node("Conv", ["a", "w"], ["c"]),
            helper.make_node("Conv", ["b", "w"], ["d"]),
            helper.make_node("Add", ["c", "d"], ["y"]),
        ]
        model = made(nodes, {"w": noise(4, 6, 3, 3)}, [1, 6, 9, 9])
        usual, _ = stored(model, "w", **PER_CHANNEL)
        nearest, _ = stored(model, "w", rounding="nearest", **PER_CHANNEL)
        assert (usual != nearest).any() == moves, second


def test_a_reshaped_weight_is_no_crash() -> None:
    flat = noise(4 * 2 * 2 * 2)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["flat", "shape"], ["w"]),
        helper.make_node("ConvTranspose", ["r", "w"], ["y"], group=2),
    ]
    model = made(nodes, {"flat": flat}, [1, 4, 5, 5])
    shape = numpy_helper.from_array(np.array([4, 2, 2, 2], np.int64), "shape")
    model.graph.initializer.append(shape)
    for optimize in (True, False):
        report = quantize_rs.quantize(model, None, optimize=optimize)
        assert report.model is not None
        assert quantize_rs.validate(model, report.model)


@pytest.mark.parametrize("rounding", ["sums", "nearest"])
def test_an_integer_that_is_off_is_named_however_it_was_rounded(rounding: str) -> None:
    model = made(RELU_CONV, {"w": noise(12, 30, 3, 3)}, [1, 30, 9, 9])
    written = quantize_rs.quantize(model, None, rounding=rounding, **PER_CHANNEL).model
    assert written is not None
    assert quantize_rs.validate(model, written)
    generator = np.random.default_rng(3)
    for _ in range(40):
        wrong = onnx.load_from_string(written)
        for tensor in wrong.graph.initializer:
            if tensor.name == "w_quantized":
                integers = numpy_helper.to_array(tensor).copy()
                at = tuple(int(generator.integers(length)) for length in integers.shape)
                integers[at] += 1 if integers[at] < 100 else -1
                tensor.CopyFrom(numpy_helper.from_array(integers, tensor.name))
        found = quantize_rs.validate(model, wrong)
        assert not found
        assert {problem.name for problem in found.problems} <= {"w_quantized", "w_scale"}
