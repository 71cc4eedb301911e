"""Corrected biases, compared with the mean error of the outputs of both models."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import oracle
import pytest

import quantize_rs

Attributes = dict[str, Any]
Array = npt.NDArray[Any]

# Name of a case: the operator, the shapes of input and weight, and attributes.
CASES: dict[str, tuple[str, list[int], list[int], Attributes]] = {
    "conv": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {}),
    "conv_padded": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [1, 1, 1, 1]}),
    "conv_uneven_pads": ("Conv", [1, 6, 9, 7], [8, 6, 3, 3], {"pads": [2, 0, 1, 1]}),
    "conv_strided": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [1] * 4, "strides": [2, 3]}),
    "conv_dilated": ("Conv", [1, 6, 9, 9], [8, 6, 3, 3], {"pads": [2] * 4, "dilations": [2, 2]}),
    "conv_grouped": ("Conv", [1, 6, 9, 9], [8, 3, 3, 3], {"group": 2, "pads": [1] * 4}),
    "conv_depthwise": ("Conv", [1, 6, 9, 9], [12, 1, 3, 3], {"group": 6, "pads": [1] * 4}),
    "conv_1d": ("Conv", [1, 6, 20], [8, 6, 5], {"pads": [2, 2]}),
    "gemm": ("Gemm", [4, 6], [6, 8], {}),
    "gemm_transposed": ("Gemm", [4, 6], [8, 6], {"transB": 1}),
    "matmul": ("MatMul", [4, 6], [6, 8], {}),
}

TRANSPOSED: dict[str, tuple[str, list[int], list[int], Attributes]] = {
    "transposed": ("ConvTranspose", [1, 6, 7, 7], [6, 8, 3, 3], {}),
    "transposed_strided": (
        "ConvTranspose",
        [1, 6, 7, 5],
        [6, 8, 4, 3],
        {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 0]},
    ),
    "transposed_grouped": (
        "ConvTranspose",
        [1, 6, 7, 7],
        [6, 4, 3, 3],
        {"group": 3, "dilations": [2, 1], "strides": [2, 2]},
    ),
}
"""Operators that no runtime computes on integers; only their weights are quantized."""


def channels_of(case: str) -> int:
    """How many channels the output has."""
    op_type, _, w, attributes = (CASES | TRANSPOSED)[case]
    if op_type == "ConvTranspose":
        groups: int = attributes.get("group", 1)
        return w[1] * groups
    return w[0] if op_type == "Conv" or attributes.get("transB") else w[-1]


def model(case: str, *, biased: bool = True) -> onnx.ModelProto:
    """One operator with a weight and a bias; of a MatMul the bias is added by the next."""
    op_type, x, w, attributes = (CASES | TRANSPOSED)[case]
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 1, w).astype(np.float32)
    bias = rng.normal(0, 1, channels_of(case)).astype(np.float32)
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node(op_type, ["x", "w", "b"] if biased else ["x", "w"], ["y"], **attributes)]
    if op_type == "MatMul":
        nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    named = zip((weight, bias), ("w", "b"), strict=True)
    arrays = [onnx.numpy_helper.from_array(array, name) for array, name in named]
    graph = onnx.helper.make_graph(nodes, case, [info("x", 1, x)], [info("y", 1, None)], arrays)
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def dequantized(found: onnx.ModelProto, name: str) -> tuple[Array, Array]:
    """The dequantized values of a constant, and the steps of its channels."""
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in found.graph.initializer}
    pair = next(n for n in found.graph.node if n.output[0] == name)
    integers, scales = constants[pair.input[0]], constants[pair.input[1]]
    axis = next((a.i for a in pair.attribute if a.name == "axis"), 0)
    shape = [-1 if at == axis else 1 for at in range(integers.ndim)]
    steps = scales.astype(np.float64).reshape(shape)
    return np.asarray(integers * steps), steps


def still(case: str) -> list[Array]:
    """Samples that are constant within each channel."""
    op_type, x, _, _ = (CASES | TRANSPOSED)[case]
    rng, axis = np.random.default_rng(5), 1 if op_type.startswith("Conv") else len(x) - 1
    shape = [x[axis] if at == axis else 1 for at in range(len(x))]
    typical = rng.normal(2, 3, shape)
    return [
        np.broadcast_to(typical + rng.normal(0, 0.5, shape), x).astype(np.float32)
        for _ in range(64)
    ]


def fraction(case: str) -> float:
    """How much of the mean error of 64 samples is corrected."""
    op_type, x, _, _ = (CASES | TRANSPOSED)[case]
    rows = 64 * x[0]
    positions = rows * (math.prod(x[2:]) if op_type.startswith("Conv") else 1)
    known = math.sqrt(rows * positions)
    return known / (known + 2)


@pytest.mark.parametrize("case", CASES)
def test_a_bias_takes_back_what_the_mean_of_a_layer_is_off_by(case: str) -> None:
    float_model, samples = model(case), still(case)
    report = quantize_rs.quantize_with_calibration(
        float_model,
        None,
        [{"x": x} for x in samples],
        per_channel=True,
        symmetric=True,
        weight_algorithm="nearest",  # rounding with samples leaves little of the mean
    )
    assert report.corrected_biases == 1
    assert report.model is not None
    found = onnx.load_from_string(report.model)
    reader = next(node for node in found.graph.node if node.op_type == CASES[case][0])
    adds = next((node for node in found.graph.node if node.op_type == "Add"), None)
    after, steps = dequantized(found, adds.input[1] if adds else reader.input[2])

    # The mean error of the float model with the dequantized weight.
    rounded = model(case)
    weight = dequantized(found, reader.input[1])[0].astype(np.float32)
    rounded.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    exact, off = float_model.SerializeToString(), rounded.SerializeToString()
    errors = [oracle.ort(off, {"x": x})[0] - oracle.ort(exact, {"x": x})[0] for x in samples]
    mean = np.mean(errors, axis=0, dtype=np.float64)
    channels = 1 if CASES[case][0] == "Conv" else mean.ndim - 1
    mean = mean.mean(tuple(axis for axis in range(mean.ndim) if axis != channels))
    before = onnx.numpy_helper.to_array(float_model.graph.initializer[1])
    # Rounding to int32 leaves half a step, and the mean is computed in float32.
    left = np.abs(after - before + fraction(case) * mean)
    assert (left <= steps * 0.5 + 1e-5).all()
    assert (np.abs(mean) > 4 * steps).any()


@pytest.mark.parametrize("bits", [8, 4, 16])
@pytest.mark.parametrize("case", CASES | TRANSPOSED)
def test_beside_weights_alone_a_bias_takes_it_back_too(case: str, bits: int) -> None:
    float_model, samples = model(case), [{"x": x} for x in still(case)]
    options: dict[str, Any] = {"bits": bits, "per_channel": True, "symmetric": True}
    options["weight_algorithm"] = "nearest"  # the same weights with and without samples
    report = quantize_rs.quantize(float_model, None, calibration_data=samples, **options)
    plain = quantize_rs.quantize(float_model, None, **options)
    exact = float_model.SerializeToString()

    def off(found: bytes | None) -> Array:
        """The mean error of each channel of the output."""
        assert found is not None
        # With optimizations, ONNX Runtime quantizes the other operand of 8-bit products too.
        run = functools.partial(oracle.ort, optimized=False)
        errors = [run(found, x)[0] - run(exact, x)[0] for x in samples]
        mean = np.mean(errors, axis=0, dtype=np.float64)
        channels = 1 if (CASES | TRANSPOSED)[case][0].startswith("Conv") else mean.ndim - 1
        return np.asarray(mean.mean(tuple(at for at in range(mean.ndim) if at != channels)))

    assert (report.corrected_biases, report.samples) == (1, 64)
    assert not any(value.quantized for value in report.values if value.role != "weight")
    before = off(plain.model)
    # The rounding error of float32 in sums of some dozen products.
    assert np.abs(off(report.model) - (1 - fraction(case)) * before).max() < 2e-5
    assert np.abs(before).max() > 1e-4 * 2.0 ** (8 - bits)


@pytest.mark.parametrize("case", ["conv_padded", "gemm", "transposed_grouped"])
def test_what_has_no_bias_is_given_one(case: str) -> None:
    samples = [{"x": x} for x in still(case)]
    report = quantize_rs.quantize(
        model(case, biased=False), None, per_channel=True, calibration_data=samples
    )
    assert report.corrected_biases == 1
    assert report.model is not None
    assert oracle.ort(report.model, samples[0])[0].shape[1] == channels_of(case)
    found = onnx.load_from_string(report.model)
    (added,) = (n.input[2] for n in found.graph.node if n.op_type == CASES_OF[case])
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in found.graph.initializer}
    assert constants[added].shape == (channels_of(case),)


CASES_OF = {case: row[0] for case, row in (CASES | TRANSPOSED).items()}
"""The operator of each case."""


def test_of_matrices_of_4_bits_only_the_last_is_corrected() -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    rng = np.random.default_rng(4)
    arrays = {
        name: rng.normal(0, 1, shape).astype(np.float32)
        for name, shape in {"u": (6, 16), "b": (16,), "v": (16, 4), "c": (4,)}.items()
    }
    nodes = [
        node("MatMul", ["x", "u"], ["p"]),
        node("Add", ["p", "b"], ["q"]),
        node("Relu", ["q"], ["r"]),
        node("Gemm", ["r", "v", "c"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(
        nodes, "two", [info("x", 1, [4, 6])], [info("y", 1, [4, 4])], constants
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    two = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    samples = [{"x": rng.normal(1, 1, (4, 6)).astype(np.float32)} for _ in range(40)]
    for bits, corrected in ((8, 2), (4, 1)):
        report = quantize_rs.quantize(two, None, bits=bits, calibration_data=samples)
        assert report.corrected_biases == corrected
        assert report.model is not None
    found = {t.name for t in onnx.load_from_string(report.model).graph.initializer}
    assert {"c_negated_corrected", "b_negated"} <= found
    # Without a bias to correct or a weight to round, no sample is run, and the report says so.
    idle = quantize_rs.quantize(
        two,
        None,
        bits=4,
        excluded_layers=["c"],
        calibration_data=samples,
        weight_algorithm="nearest",
    )
    assert (idle.corrected_biases, idle.samples) == (0, 0)
    assert any("no bias can be corrected" in note for note in idle.notes)


def test_blocks_that_a_runtime_multiplies_by_are_corrected_beside_their_sum() -> None:
    case = "matmul"
    samples = [{"x": x} for x in still(case)]
    report = quantize_rs.quantize(
        model(case), None, block_size=16, output_format="matmul_nbits", calibration_data=samples
    )
    assert report.corrected_biases == 1
    assert report.model is not None
    exact = model(case).SerializeToString()
    errors = [oracle.ort(report.model, x)[0] - oracle.ort(exact, x)[0] for x in samples]
    assert np.abs(np.mean(errors, axis=(0, 1))).max() < 1e-3


def test_samples_bring_a_network_nearer_whatever_their_order_and_threads(
    digits: Path, images: Path
) -> None:
    options: dict[str, Any] = {"per_channel": True, "symmetric": True}
    data = np.load(images)
    made = [
        quantize_rs.quantize(digits, None, calibration_data=samples, threads=threads, **options)
        for samples, threads in [(data, 1), (data[::-1], 2), (list(data), 2)]
    ]
    assert made[0].model is not None
    assert {report.model for report in made} == {made[0].model}
    with np.load(digits.with_name("test.npz")) as held_out:
        feeds = {"image": held_out["images"]}
    plain = quantize_rs.quantize(digits, None, **options).model
    assert plain is not None
    wanted = oracle.ort(digits, feeds)
    near, far = (oracle.sqnr(wanted, oracle.ort(found, feeds)) for found in (made[0].model, plain))
    assert near > far


def test_calibration_samples_serve_evaluation_and_the_report_says_so(
    digits: Path, images: Path
) -> None:
    report = quantize_rs.quantize(
        digits, None, per_channel=True, calibration_data=images, min_sqnr=30, engine="tract"
    )
    assert report.corrected_biases > 0
    assert report.accuracy_control is not None
    assert not report.accuracy_control.held_out
    quantized = digits.with_name("q.onnx")
    quantize_rs.quantize(digits, quantized, per_channel=True, calibration_data=images)
    assert quantize_rs.validate(digits, quantized).problems == ()


def convolutions(bias: str = "b") -> onnx.ModelProto:
    """Two convolutions that add the same bias; the second may be quantized otherwise."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    rng = np.random.default_rng(6)
    arrays = {
        name: rng.normal(0, 1, shape).astype(np.float32)
        for name, shape in {"w": (8, 8, 3, 3), "v": (8, 8, 3, 3), bias: (8,)}.items()
    }
    nodes = [
        node("Conv", ["x", "w", bias], ["p"]),
        node("Relu", ["p"], ["r"]),
        node("Conv", ["r", "v", bias], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(
        nodes, "two", [info("x", 1, [1, 8, 8, 8])], [info("y", 1, [1, 8, 4, 4])], constants
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def test_a_bias_that_a_node_on_integers_has_too_is_corrected_for_each() -> None:
    rng = np.random.default_rng(7)
    samples = [{"x": rng.normal(1, 1, (1, 8, 8, 8)).astype(np.float32)} for _ in range(40)]
    report = quantize_rs.quantize_with_calibration(
        convolutions(), None, samples, per_channel=True, layer_bits={"v": 4}
    )
    assert report.corrected_biases == 2
    assert report.model is not None
    found = onnx.load_from_string(report.model)
    assert any(t.name == "b_corrected" for t in found.graph.initializer)
    second = [node for node in found.graph.node if node.op_type == "Conv"][1]
    assert second.input[2] == "b_corrected"


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_corrected_bias_that_is_no_number_is_found(tmp_path: Path, broken: float) -> None:
    rng = np.random.default_rng(7)
    samples = [{"x": rng.normal(1, 1, (1, 8, 8, 8)).astype(np.float32)} for _ in range(40)]
    original, quantized = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(convolutions(), original)
    quantize_rs.quantize(original, quantized, per_channel=True, calibration_data=samples)
    assert quantize_rs.validate(original, quantized).problems == ()
    found = onnx.load(quantized)
    (bias, *_) = (t for t in found.graph.initializer if t.name.startswith("b_corrected"))
    values = onnx.numpy_helper.to_array(bias).copy()
    values[3] = broken
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    onnx.save(found, quantized)
    assert bias.name in {
        problem.name for problem in quantize_rs.validate(original, quantized).problems
    }


def test_a_bias_of_the_original_that_is_called_corrected_is_held_to_what_it_was(
    tmp_path: Path,
) -> None:
    original, quantized = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(convolutions("b_corrected"), original)
    quantize_rs.quantize(original, quantized, per_channel=True)
    found = onnx.load(quantized)
    (bias,) = (t for t in found.graph.initializer if t.name == "b_corrected")
    values = onnx.numpy_helper.to_array(bias).copy()
    values[2] += 0.01
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    onnx.save(found, quantized)
    assert quantize_rs.validate(original, quantized).problems


def test_an_engine_object_does_not_evaluate(digits: Path, images: Path) -> None:
    class Engine:
        def run(self, feed: dict[str, Array]) -> dict[str, Array]:
            return feed

    with pytest.raises(quantize_rs.OptionError, match="does not evaluate") as refused:
        quantize_rs.quantize(digits, None, verify=images, engine=Engine())
    assert refused.value.option == "engine"


def test_padding_has_no_part_in_the_means() -> None:
    """What tokens an attention mask hides does not change biases."""
    rng = np.random.default_rng(4)
    weights = {
        "table": rng.normal(0.5, 1, (50, 64)),
        "w": rng.normal(size=(64, 64)) / 8,
        "b": rng.normal(size=64),
    }
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["e"]),
        onnx.helper.make_node("MatMul", ["e", "w"], ["p"], "projection"),
        onnx.helper.make_node("Add", ["p", "b"], ["h"]),
        onnx.helper.make_node("Cast", ["attention_mask"], ["m"], to=1),
        onnx.helper.make_node("Unsqueeze", ["m", "last"], ["mask"]),
        onnx.helper.make_node("Mul", ["h", "mask"], ["y"]),
    ]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1, 16])
        for name in ("input_ids", "attention_mask")
    ]
    constants = [
        onnx.numpy_helper.from_array(value.astype(np.float32), name)
        for name, value in weights.items()
    ]
    constants.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), "last"))
    outputs = [onnx.helper.make_tensor_value_info("y", 1, [1, 16, 64])]
    graph = onnx.helper.make_graph(nodes, "padded", inputs, outputs, constants)
    opset = [onnx.helper.make_opsetid("", 17)]
    made = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)

    def samples(padding: int) -> list[dict[str, Array]]:
        found = []
        for at in range(16):
            mask = (np.arange(16) < 4 + at % 5).astype(np.int64)[None]
            ids = np.random.default_rng(at).integers(0, 50, (1, 16))
            found.append({"input_ids": np.where(mask, ids, padding), "attention_mask": mask})
        return found

    options: dict[str, Any] = {"weight_algorithm": "nearest", "bits": 4, "check": "none"}
    corrected, other = (
        quantize_rs.quantize(made, None, calibration_data=samples(padding), **options).model
        for padding in (0, 33)
    )
    assert corrected == other
    assert corrected != quantize_rs.quantize(made, None, bits=4, check="none").model


def test_few_rows_make_weights_no_worse_than_none() -> None:
    """The means of one row are those of no other, and are corrected by a part only."""
    lost, size = [], 96
    for seed in range(6):
        rng, nodes, constants, x = np.random.default_rng(seed), [], [], "x"
        for layer in range(3):
            weight = (rng.normal(size=(size, size)) / size**0.5).astype(np.float32)
            bias = np.zeros(size, np.float32)
            for array, name in ((weight, f"w{layer}"), (bias, f"b{layer}")):
                constants.append(onnx.numpy_helper.from_array(array, name))
            nodes.append(
                onnx.helper.make_node("Gemm", [x, f"w{layer}", f"b{layer}"], [f"m{layer}"])
            )
            x = f"m{layer}"
            if layer < 2:
                nodes.append(onnx.helper.make_node("Relu", [x], [f"r{layer}"]))
                x = f"r{layer}"
        info = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            nodes, "mlp", [info("x", 1, ["n", size])], [info(x, 1, ["n", size])], constants
        )
        opset = [onnx.helper.make_opsetid("", 17)]
        mlp = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
        rows = rng.normal(size=(257, size)).astype(np.float32)
        options: dict[str, Any] = {"allow_larger": True, "check": "none"}
        options["weight_algorithm"] = "nearest"
        one = quantize_rs.quantize(mlp, None, calibration_data=rows[:1], **options)
        none = quantize_rs.quantize(mlp, None, **options)
        assert one.corrected_biases == 3
        exact = oracle.ort(mlp.SerializeToString(), {"x": rows[1:]})[0]
        errors = [
            np.square(oracle.ort(bytes(found.model or b""), {"x": rows[1:]})[0] - exact).sum()
            for found in (one, none)
        ]
        lost.append(math.log(errors[0] / errors[1]))
    assert np.mean(lost) < 0
