"""Valid graphs that the optimizer or kernels of ONNX Runtime compute incorrectly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

Floats = npt.NDArray[np.float32]


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], shape: list[int], opset: int, **constants: npt.ArrayLike
) -> bytes:
    """Make a model with one input `x` and one output `y`."""
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset > 20 else 8)
    written: bytes = onnx.shape_inference.infer_shapes(made).SerializeToString()
    return written


@pytest.mark.parametrize("target", ["x86", "x86-avx2", "arm"])
@pytest.mark.parametrize("seed", range(3))
def test_a_bias_beside_a_dead_filter_leaves_room_for_the_sum(target: str, seed: int) -> None:
    weight, bias = floats(16, 16, 1, 1, seed=seed), floats(16, seed=seed + 9)
    weight[3] *= 1e-7
    bias[3] = -0.5
    samples = np.abs(floats(64, 16, 4, 4, seed=seed + 20))
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    original = model([node], [1, 16, 4, 4], 13, w=weight, b=bias)
    report = quantize_rs.quantize_with_calibration(
        original, None, samples, per_channel=True, target=target
    )
    assert report.model is not None
    for sample in samples[:16]:
        (wanted,) = oracle.ort(original, {"x": sample[None]})
        (found,) = oracle.ort(report.model, {"x": sample[None]})
        assert np.abs(found - wanted)[:, 3].max() < 0.1, "the sum wrapped around"


@pytest.mark.parametrize("options", [{"per_channel": True}, {"block_size": 32}])
def test_zeros_beside_quiet_weights_stay_zeros(options: dict[str, int]) -> None:
    weight = floats(64, 24) * np.float32(1e-5)
    weight[:, 3] = 0
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    original = model([node], [5, 64], 13, w=weight)
    made = quantize_rs.quantize(original, None, **options).model  # type: ignore[arg-type]
    assert made is not None
    sample = {"x": floats(5, 64, seed=1)}
    expected = oracle.ort(original, sample)
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(made, sample, optimized=optimized)) > 40


@pytest.mark.parametrize("dtype", ["int8", "int4", "uint8", "float8e4m3fn"])
def test_a_weight_of_zeros_is_nothing_however_it_is_computed(dtype: str) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    original = model([node], [5, 64], 21, w=np.zeros((64, 24), np.float32))
    made = quantize_rs.quantize(original, None, weights=dtype).model
    assert made is not None
    for optimized in (True, False):
        (found,) = oracle.ort(made, {"x": floats(5, 64)}, optimized=optimized)
        assert np.abs(found).max() < 1e-30


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize("biased", [True, False])
def test_a_float_bias_beside_integers_loads(target: str, opset: int, *, biased: bool) -> None:
    inputs = ["x", "w", "b"] if biased else ["x", "w"]
    # The output is quantized for the next convolution; only then is the bias quantized too.
    nodes = [
        helper.make_node("Conv", inputs, ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    constants = {"w": floats(4, 3, 3, 3), "v": floats(4, 4, 3, 3, seed=2)}
    constants |= {"b": floats(4)} if biased else {}
    original = model(nodes, [1, 3, 6, 6], opset, **constants)
    report = quantize_rs.quantize_with_calibration(
        original, None, floats(32, 3, 6, 6), per_channel=False, target=target
    )
    assert report.model is not None
    sample = {"x": floats(1, 3, 6, 6, seed=3)}
    expected = oracle.ort(original, sample)
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(report.model, sample, optimized=optimized)) > 25


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
@pytest.mark.parametrize("factor", [0, 1e-9])
@pytest.mark.parametrize("channels", [slice(None), slice(1, 3)])
def test_a_float_bias_beside_a_dead_filter_is_held(
    target: str, factor: float, channels: slice
) -> None:
    """ONNX Runtime quantizes the bias to int32 with the scale of input times weight."""
    weight = floats(4, 3, 3, 3)
    weight[channels] *= np.float32(factor)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    bias = np.full(4, 0.5, np.float32)
    original = model(nodes, [1, 3, 8, 8], 17, w=weight, b=bias, v=floats(4, 4, 3, 3, seed=2))
    report = quantize_rs.quantize_with_calibration(
        original, None, floats(32, 3, 8, 8), target=target, per_channel=True
    )
    assert report.model is not None
    sample = {"x": floats(1, 3, 8, 8, seed=3)}
    expected = oracle.ort(original, sample)
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(report.model, sample, optimized=optimized)) > 25


CARRIERS: dict[str, dict[str, object]] = {
    "MaxPool": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "Transpose": {"perm": [0, 2, 3, 1]},
    "Reshape": {},
    "Slice": {},
    "Squeeze": {},
    "Unsqueeze": {},
}
SHAPES = {
    "Reshape": {"to": np.array([1, -1])},
    "Slice": {"from": np.array([0, 0, 1, 1]), "to": np.array([1, 4, 4, 4])},
    "Squeeze": {"axes": np.array([0])},
    "Unsqueeze": {"axes": np.array([0])},
}


@pytest.mark.parametrize("op_type", CARRIERS)
@pytest.mark.parametrize("target", ["x86", "arm", "generic", "tensorrt"])
@pytest.mark.parametrize("excluded", [(), ("mover",)])
def test_int8_that_is_only_moved_loads(
    op_type: str, target: str, excluded: tuple[str, ...]
) -> None:
    shapes = SHAPES.get(op_type, {})
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(op_type, ["c", *shapes], ["m"], name="mover", **CARRIERS[op_type]),
        helper.make_node("Exp", ["m"], ["y"]),
    ]
    original = model(nodes, [1, 3, 6, 6], 21, w=floats(4, 3, 3, 3) * np.float32(0.2), **shapes)
    report = quantize_rs.quantize_with_calibration(
        original,
        None,
        floats(32, 3, 6, 6),
        activations="int8",
        target=target,
        excluded_layers=excluded,
    )
    assert report.model is not None
    # Only on x86 does ONNX Runtime refuse it otherwise.
    assert target == "tensorrt" or "m" in {v.name for v in report.values if v.quantized}
    sample = {"x": floats(1, 3, 6, 6, seed=3)}
    expected = oracle.ort(original, sample)
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(report.model, sample, optimized=optimized)) > 25


@pytest.mark.parametrize("target", ["x86", "arm", "tensorrt", "qnn"])
@pytest.mark.parametrize("op_type", ["Softmax", "Sigmoid", "Tanh"])
def test_small_numbers_of_a_function_have_a_scale_of_their_own(target: str, op_type: str) -> None:
    """None of 200 probabilities is close to 1, and the sigmoid of -6 is close to 0."""
    loud = {"Softmax": (0.05, 0.0), "Sigmoid": (0.1, -6.0), "Tanh": (0.002, 0.0)}
    gain, offset = (np.float32(number) for number in loud[op_type])
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["l"]),
        helper.make_node(op_type, ["l"], ["s"]),
        helper.make_node("MatMul", ["s", "c"], ["y"]),
    ]
    constants = {"a": floats(32, 200) * gain, "b": np.full(200, offset), "c": floats(200, 16)}
    original = model(nodes, [1, 8, 32], 17, **constants)
    report = quantize_rs.quantize_with_calibration(original, None, floats(64, 8, 32), target=target)
    assert report.model is not None
    sample = {"x": floats(1, 8, 32, seed=7)}
    expected = oracle.ort(original, sample)
    for optimized in (True, False):
        assert oracle.sqnr(expected, oracle.ort(report.model, sample, optimized=optimized)) > 25


@pytest.mark.parametrize("op_type", ["Sigmoid", "Tanh", "Softmax"])
def test_16_bits_hold_all_that_a_function_makes(op_type: str) -> None:
    """QNN requires it for Sigmoid and Tanh."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["l"]),
        helper.make_node(op_type, ["l"], ["s"]),
        helper.make_node("MatMul", ["s", "c"], ["y"]),
    ]
    quiet = floats(16, 64) * np.float32(1e-3)
    original = model(nodes, [1, 16], 21, a=quiet, c=floats(64, 8))
    plan = quantize_rs.open(original).plan(activations="uint16", target="qnn")
    found = plan.calibrate(floats(40, 16)).values["s"]
    assert found == ((-1, 1) if op_type == "Tanh" else (0, 1))


def test_a_function_that_fills_half_of_what_it_can_has_all_of_it() -> None:
    """The full range leaves room for other samples, and costs at most one bit."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["l"]),
        helper.make_node("Sigmoid", ["l"], ["s"]),
        helper.make_node("MatMul", ["s", "c"], ["y"]),
    ]
    original = model(nodes, [1, 16], 17, a=np.eye(16, dtype=np.float32), c=floats(16, 8))
    plan = quantize_rs.open(original).plan(activations="uint8")
    for most, expected in ((2.0, (0.0, 1.0)), (-1.0, (0.0, 0.2689414))):
        samples = np.linspace(-9, most, 64 * 16, dtype=np.float32).reshape(64, 16)
        found = plan.calibrate(samples, method="minmax").values["s"]
        assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("options", [{"bits": 4}, {"bits": 8}, {"weights": "uint8"}])
@pytest.mark.parametrize(("length", "block_size"), [(12, 32), (32, 32), (40, 16)])
def test_a_vector_in_blocks_runs(options: dict[str, Any], length: int, block_size: int) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    source = model([node], [2, length], 21, w=floats(length))
    report = quantize_rs.quantize(source, None, block_size=block_size, **options)
    assert report.model is not None
    samples = {"x": floats(2, length, seed=1)}
    expected = oracle.ort(source, samples)
    for optimized in (False, True):
        found = oracle.ort(report.model, samples, optimized=optimized)
        assert oracle.sqnr(expected, found) > (15 if options == {"bits": 4} else 35)


def test_a_gemm_whose_bias_is_a_row_runs_on_integers() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "v", "a"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "b"], ["y"], transB=1),
    ]
    numbers = {"v": floats(24, 16), "a": floats(1, 24), "w": floats(24, 24), "b": floats(1, 24)}
    source = model(nodes, [3, 16], 17, **numbers)
    samples = [{"x": floats(3, 16, seed=seed)} for seed in range(40)]
    report = quantize_rs.quantize_with_calibration(source, None, samples, symmetric=True)
    assert report.model is not None
    assert oracle.kernels(report.model)["QGemm"] == 2
    for optimized in (False, True):
        found = oracle.ort(report.model, samples[0], optimized=optimized)
        assert oracle.sqnr(oracle.ort(source, samples[0]), found) > 30


@pytest.mark.parametrize(
    ("attributes", "scales"),
    [
        pytest.param({"mode": "cubic"}, [1, 1, 0.5, 0.5], id="smaller"),
        pytest.param({"mode": "cubic"}, [1, 1, 2, 0.5], id="one axis smaller"),
        pytest.param({"mode": "cubic", "exclude_outside": 1}, [1, 1, 2, 2], id="excludes"),
        pytest.param({"mode": "cubic"}, [1, 1, 2, 2], id="larger"),
        pytest.param({"mode": "linear"}, [1, 1, 0.5, 0.5], id="linear"),
    ],
)
@pytest.mark.parametrize("behind", ["", "Relu", "HardSwish", "MaxPool", "Concat"])
@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_a_resize_between_convolutions_is_loaded(
    attributes: dict[str, Any], scales: list[float], behind: str, output_format: str
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Resize", ["b", "", "s"], ["c"], **attributes),
    ]
    if behind:
        inputs = ["c", "c"] if behind == "Concat" else ["c"]
        rest: dict[str, dict[str, Any]] = {
            "Concat": {"axis": 1},
            "MaxPool": {"kernel_shape": [2, 2]},
        }
        nodes.append(helper.make_node(behind, inputs, ["d"], **rest.get(behind, {})))
    nodes.append(helper.make_node("Conv", ["d" if behind else "c", "v"], ["y"], "second"))
    channels = 16 if behind == "Concat" else 8
    constants = {"w": floats(8, 4, 3, 3), "v": floats(4, channels, 1, 1, seed=1)}
    scales_of = np.array(scales, np.float32)
    data = model(nodes, [1, 4, 18, 18], 19, **constants, s=scales_of)
    x = {"x": floats(1, 4, 18, 18, seed=2)}
    report = quantize_rs.quantize_with_calibration(
        data, None, x, output_format=output_format, target="x86-avx2", check="none"
    )
    assert report.model is not None
    for optimized in (False, True):
        found = oracle.ort(report.model, x, optimized=optimized)
        assert oracle.sqnr(oracle.ort(data, x), found) > 20


def test_a_resize_of_the_input_leaves_convolutions_on_integers() -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], ["a"], mode="cubic"),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["y"]),
    ]
    constants = {"w": floats(8, 4, 3, 3), "v": floats(4, 8, 1, 1, seed=1)}
    scales = np.array([1, 1, 0.5, 0.5], np.float32)
    data = model(nodes, [1, 4, 18, 18], 19, **constants, s=scales)
    x = {"x": floats(1, 4, 18, 18, seed=2)}
    report = quantize_rs.quantize_with_calibration(data, None, x, target="x86-avx2", check="none")
    assert report.model is not None
    assert oracle.kernels(report.model)["QLinearConv"] == 2
    assert oracle.sqnr(oracle.ort(data, x), oracle.ort(report.model, x)) > 20
