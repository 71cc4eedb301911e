"""Every call measures the outputs of its result, and warns where they or the speed are poor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import processor
import pytest
from graphs import built
from onnx import NodeProto, TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs.results import LostChannels


def layers(*weights: np.ndarray, op_type: str = "MatMul", shared: bool = False) -> bytes:
    """Layers of one operator type with a Relu after each; `shared` uses each weight twice."""
    nodes, value = [], "x"
    order = [index for index in range(len(weights)) for _ in range(2 if shared else 1)]
    for place, index in enumerate(order):
        nodes += [
            helper.make_node(op_type, [value, f"w{index}"], [f"m{place}"]),
            helper.make_node("Relu", [f"m{place}"], [f"r{place}"]),
        ]
        value = f"r{place}"
    rest = [8, 8] if op_type == "Conv" else []
    size = weights[0].shape[1 if op_type == "Conv" else 0]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size, *rest])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.astype(np.float32), f"w{i}") for i, w in enumerate(weights)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.1, shape)


def test_the_report_holds_what_was_measured(digits: Path, images: Path) -> None:
    # Sums of 7-bit weights do not saturate on any processor.
    report = quantize_rs.quantize_with_calibration(digits, "q.onnx", images, target="x86-avx2")
    check = report.output_check
    assert check is not None
    assert (check.inputs, check.samples, check.failure) == ("calibration", 16, None)
    assert check.sqnr_db == min(row.sqnr_db for row in check.outputs)
    assert check.sqnr_db is not None
    assert check.sqnr_db > 25
    assert f"output SQNR {check.sqnr_db:.1f} dB" in repr(report)
    assert f"output error: SQNR {check.sqnr_db:.1f} dB" in str(report)
    assert f"ratio (SQNR) of {check.sqnr_db:.1f} dB" in report.html()
    assert 'class="evaluation' in report.html()
    # It is what `compare` measures.
    compared = quantize_rs.compare(digits, "q.onnx", images)
    assert compared.sqnr_db == pytest.approx(check.sqnr_db, abs=3)


def test_one_activation_of_16_bits_leaves_the_others_their_weights_of_7(
    digits: Path, images: Path
) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    activations = [value for value in plan.values if value.role == "activation"]
    # The sums of the first layers are those that saturate.
    wide = [value.name for value in activations if value.qtype == "uint8"][-1]
    types = {wide: "uint16"}
    report = quantize_rs.quantize_with_calibration(digits, None, images, activation_types=types)
    said = any("use 7 of their 8 bits" in warning for warning in report.warnings)
    assert said == processor.SATURATES
    target = quantize_rs.quantize_with_calibration(
        digits, None, images, activation_types=types, target="x86-avx2"
    )
    assert {row.name: row.qtype for row in target.quantized}[wide] == "uint16"


@pytest.mark.parametrize("name", ["conv1.weight", "conv2.weight"])
def test_a_layer_that_ruins_a_static_result_stays_float_where_sums_saturate_too(
    digits: Path, images: Path, name: str
) -> None:
    proto = onnx.load(digits)
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values.flat[0] *= 3000
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    options: dict[str, Any] = {"per_channel": False, "symmetric": False, "equalize": False}
    report = quantize_rs.quantize_with_calibration(
        proto, None, images, weight_algorithm="nearest", **options
    )
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    assert report.output_check.sqnr_db > 25
    assert any(f"`{name}` stays float" in warning for warning in report.warnings)
    said = any("use 7 of their 8 bits" in warning for warning in report.warnings)
    assert said == processor.SATURATES


@pytest.mark.parametrize("criterion", [{}, {"min_sqnr": 30}])
def test_weights_have_seven_bits_where_sums_saturate_on_this_processor(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture, criterion: dict[str, Any]
) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images, **criterion)
    assert report.model is not None
    constants = onnx.load_from_string(report.model).graph.initializer
    integers = [numpy_helper.to_array(it) for it in constants if it.name.endswith("t_quantized")]
    largest = max(int(np.abs(codes.astype(int)).max()) for codes in integers)
    assert 63 <= largest <= 64 if processor.SATURATES else largest >= 127
    measured = report.accuracy_control or report.output_check
    assert measured is not None
    assert measured.sqnr_db is not None
    assert measured.sqnr_db > 30
    if processor.SATURATES:
        (said,) = [text for text in report.warnings if "VNNI" in text]
        assert said.startswith("weights use 7 of their 8 bits, with which an output has an SQNR of")
        # The warning about the first result, which was not taken, is not logged.
        assert [text for text in caplog.messages if "VNNI" in text] == [said]


@pytest.mark.parametrize("options", [{"target": "x86"}, {"check": "none"}, {"engine": "tract"}])
def test_weights_keep_eight_bits_where_nothing_saturating_is_measured(
    digits: Path, images: Path, options: dict[str, Any]
) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images, **options)
    assert not any("7 of their 8 bits" in text for text in report.warnings)


def test_there_is_no_warning_of_sums_where_seven_bits_gain_nothing() -> None:
    """Of each two products that are added, one is 0."""
    model = layers(np.eye(16))
    data = np.random.default_rng(0).uniform(0, 1, (64, 16)).astype(np.float32)
    warned = {
        check: any(
            "VNNI" in text
            for text in quantize_rs.quantize_with_calibration(
                model, None, data, check=check
            ).warnings
        )
        for check in ("auto", "none")
    }
    assert warned == {"auto": False, "none": processor.SATURATES}


def test_without_samples_inputs_are_made_from_the_graph(digits: Path) -> None:
    check = quantize_rs.quantize(digits, None).output_check
    assert check is not None
    assert (check.inputs, check.samples) == ("synthetic", 4)
    assert check.sqnr_db is not None
    assert check.sqnr_db > 30


def test_the_check_changes_no_byte_and_can_be_left_out(digits: Path, images: Path) -> None:
    for data in (None, images):
        plain = quantize_rs.quantize(digits, None, calibration_data=data, check="none")
        checked = quantize_rs.quantize(digits, None, calibration_data=data)
        assert plain.output_check is None
        assert plain.model == checked.model
    with pytest.raises(quantize_rs.OptionError, match="check"):
        quantize_rs.quantize(digits, None, check="never")


def test_accuracy_control_takes_its_place(digits: Path, images: Path) -> None:
    report = quantize_rs.quantize(digits, None, validation_data=images)
    assert report.output_check is None
    assert report.accuracy_control is not None


def test_ranges_of_data_are_not_checked_on_noise(digits: Path, images: Path) -> None:
    ranges = quantize_rs.open(digits).plan(activations="uint8").calibrate(images)
    report = quantize_rs.quantize_with_calibration(digits, None, ranges=ranges)
    assert report.output_check is None


def test_what_cannot_be_run_is_quantized_and_says_so() -> None:
    proto = onnx.load_from_string(layers(normal(32, 32)))
    proto.graph.node.append(helper.make_node("Odd", ["r0"], ["z"], domain="custom"))
    proto.opset_import.append(helper.make_opsetid("custom", 1))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    report = quantize_rs.quantize(proto, None)
    assert report.output_check is not None
    assert report.output_check.failure is not None
    assert "output error: not measured: " in str(report)


def test_a_large_error_is_a_warning_with_its_layer_and_the_way_out() -> None:
    first, spoilt = normal(64, 64), normal(64, 64)
    # The large weight multiplies a channel that is always 0.
    first[:, 0], spoilt[0, 0] = 0.0, 100.0
    source = layers(first, spoilt, normal(64, 64))
    samples = np.random.default_rng(1).normal(0, 1, (20, 64)).astype(np.float32)
    # Rounding with samples would see that the channel is always 0, equalization would share it.
    options: dict[str, Any] = {
        "per_channel": False,
        "symmetric": False,
        "calibration_data": samples,
        "weight_algorithm": "nearest",
        "equalize": False,
    }
    report = quantize_rs.quantize(source, None, **options)
    (warning,) = [text for text in report.warnings if "far from" in text]
    assert "output `r2`" in warning
    assert "16 calibration samples" in warning
    assert "comes from `w1` (" in warning
    assert warning.endswith("min_sqnr=20 leaves such layers in float")
    # The call that the warning names fixes it.
    fixed = quantize_rs.quantize(source, None, min_sqnr=20, **options)
    assert fixed.accuracy_control is not None
    assert fixed.accuracy_control.sqnr_db is not None
    assert fixed.accuracy_control.sqnr_db >= 20
    assert fixed.model is not None
    (expected,) = oracle.ort(source, {"x": samples})
    (found,) = oracle.ort(fixed.model, {"x": samples})
    assert oracle.sqnr([expected], [found]) > 18


@pytest.mark.parametrize("option", ["sparsity", "prune"])
def test_a_large_error_by_pruning_is_not_blamed_on_weights(option: str) -> None:
    source = layers(normal(64, 64), normal(64, 64), normal(64, 64))
    samples = np.random.default_rng(1).normal(0, 1, (20, 64)).astype(np.float32)
    most: Any = {"sparsity": {"sparsity": 0.9}, "prune": {"prune": 0.25}}[option]
    report = quantize_rs.quantize(source, None, calibration_data=samples, **most)
    (warning,) = [text for text in report.warnings if "far from" in text]
    assert f"{option} alone, with all weights in float, has " in warning
    assert warning.endswith(f": a lower {option} loses less")
    assert "most of it comes from" not in warning


def test_convolutions_with_float_activations_are_called_slow() -> None:
    source = layers(normal(128, 128, 3, 3), op_type="Conv")
    (warning,) = [text for text in quantize_rs.quantize(source, None).warnings if "every" in text]
    assert warning.startswith("1 weight of a convolution is dequantized at every inference")
    small = layers(normal(8, 8, 3, 3), op_type="Conv")
    assert not quantize_rs.quantize(small, None).warnings


def test_weights_that_several_products_share_are_called_slow() -> None:
    source = layers(normal(256, 256), normal(256, 256), shared=True)
    warnings = quantize_rs.quantize(source, None).warnings
    assert any(text.startswith("`w0`, `w1`: several nodes read it") for text in warnings)
    for form in ({"output_format": "matmul_nbits", "bits": 4}, {"output_format": "dynamic"}):
        warnings = quantize_rs.quantize(source, None, **form).warnings
        assert not processor.others(warnings)
    assert not quantize_rs.quantize(layers(normal(256, 256)), None).warnings


def test_lost_channels_are_found_though_the_whole_output_looks_right() -> None:
    """Scores from 0 to 1 beside boxes of hundreds, in one output with the weights of both."""
    rng = np.random.default_rng(0)
    weight = np.concatenate([rng.normal(0, 40, (32, 8)), rng.normal(0, 0.1, (32, 8))], axis=1)
    model = built([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, ["n", 32])
    report = quantize_rs.quantize(model, None, per_channel=False)
    assert report.output_check is not None
    (row,) = report.output_check.outputs
    assert row.sqnr_db > 30
    assert row.lost_channels == LostChannels(axis=1, lost=8, channels=16)
    assert any("`y` loses 8 of 16 channels along axis 1" in found for found in report.warnings)
    # A scale per channel keeps them.
    report = quantize_rs.quantize(model, None)
    assert report.output_check is not None
    assert report.output_check.outputs[0].lost_channels is None
    assert not report.warnings


def test_a_made_signal_is_long_and_a_name_stands_for_one_length() -> None:
    constants = {
        "pads": np.array([0, 0, 64, 0, 0, 64]),
        "axes": np.array([1]),
        "w": normal(16, 1, 128).astype(np.float32),
    }
    nodes = [
        helper.make_node("Unsqueeze", ["signal", "axes"], ["u"]),
        helper.make_node("Pad", ["u", "pads"], ["padded"], mode="reflect"),
        helper.make_node("Conv", ["padded", "w"], ["parts"], strides=[64]),
        helper.make_node("ReduceMean", ["parts"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Add", ["state", "mean"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("signal", TensorProto.FLOAT, ["batch", "samples"]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 16]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    check = quantize_rs.quantize(source, None).output_check
    assert check is not None
    assert (check.failure, check.samples) == (None, 4)
    assert check.sqnr_db is not None
    assert check.sqnr_db > 30


@pytest.mark.parametrize("channels", [1, 2])
def test_a_made_signal_with_channels_is_long(channels: int) -> None:
    """Strided convolutions on sound leave nothing of a short signal."""
    nodes, weights, value, count = [], [], "wave", channels
    for index in range(3):
        weights.append(numpy_helper.from_array(normal(8, count, 8).astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"], strides=[4]))
        value, count = f"c{index}", 8
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("wave", TensorProto.FLOAT, ["batch", channels, "time"])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        weights,
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    check = quantize_rs.quantize(source, None).output_check
    assert check is not None
    assert (check.failure, check.samples) == (None, 4)


def recurrent(name: str, through: list[str], steps: int | str) -> bytes:
    """Two GRU whose lengths are an input: ONNX Runtime refuses lengths that are none.

    One has shorter sequences by 4, so that it refuses lengths below that.
    """
    ends = [name, *(f"l{place}" for place in range(len(through)))]
    nodes = [
        helper.make_node(op_type, [before], [after])
        for op_type, before, after in zip(through, ends, ends[1:], strict=False)
    ]
    nodes += [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Cast", [ends[-1]], ["all"], to=TensorProto.INT32),
        helper.make_node("Sub", ["all", "four"], ["less"]),
        helper.make_node("GRU", ["t", "W", "R", "", "all"], ["", "h"], hidden_size=16),
        helper.make_node("GRU", ["t", "W", "R", "", "less"], ["", "g"], hidden_size=16),
    ]
    arrays = {"W": normal(1, 48, 8), "R": normal(1, 48, 16)}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    constants.append(numpy_helper.from_array(np.array(4, np.int32), "four"))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", steps, 8]),
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch"]),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "hg"],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("name", "through"), [("n", []), ("n", ["Identity"]), ("x_lengths", ["Neg", "Neg"])]
)
@pytest.mark.parametrize("steps", [12, "time"])
def test_made_lengths_are_those_of_sequences(
    name: str, through: list[str], steps: int | str
) -> None:
    source = recurrent(name, through, steps)
    check = quantize_rs.quantize(source, None).output_check
    assert check is not None
    assert (check.failure, check.samples) == (None, 4)


def in_units(node: NodeProto, **constants: npt.NDArray[np.floating[Any]]) -> bytes:
    """A node that brings `x` of three features to `v`, and a product of what is above 0 there."""
    rng = np.random.default_rng(0)
    constants["w"] = rng.normal(0, 1, (3, 200))
    nodes = [
        node,
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 200])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


MEAN, SPREAD = np.array([1000.0, 20.0, 1e6]), np.array([10.0, 2.0, 100.0])


@pytest.mark.parametrize(
    "model",
    [
        in_units(helper.make_node("Sub", ["x", "mean"], ["v"]), mean=np.array(1e4)),
        in_units(
            helper.make_node(
                "Scaler", ["x"], ["v"], domain="ai.onnx.ml", offset=MEAN, scale=1 / SPREAD
            )
        ),
        in_units(
            helper.make_node("BatchNormalization", ["x", "one", "zero", "mean", "variance"], ["v"]),
            one=np.ones(3),
            zero=np.zeros(3),
            mean=MEAN,
            variance=SPREAD**2,
        ),
    ],
    ids=["subtracted", "scaler", "batch_normalization"],
)
def test_synthetic_inputs_have_the_units_that_the_model_expects(model: bytes) -> None:
    """Standard normal inputs would all be below 0 after it, and every output 0."""
    found = quantize_rs.quantize(model, None).output_check
    assert found is not None
    assert found.sqnr_db is not None
    assert 30 < found.sqnr_db < 70


def test_an_input_without_elements_has_no_units() -> None:
    model = onnx.load_from_string(
        in_units(helper.make_node("Sub", ["x", "mean"], ["v"]), mean=np.zeros(0))
    )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 0
    assert quantize_rs.quantize(model.SerializeToString(), None).output_check is not None


def attention(mask_length: str | int, tokens: str | int) -> bytes:
    """One layer of attention over the keys of a cache and those of the tokens."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["k"]),
        helper.make_node("Unsqueeze", ["k", "one"], ["k4"]),
        helper.make_node("Concat", ["past_key_values.0.key", "k4"], ["present.0.key"], axis=2),
        helper.make_node("Transpose", ["present.0.key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["k4", "turned"], ["product"]),
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "two"], ["mask"]),
        helper.make_node("Add", ["product", "mask"], ["scores"]),
    ]
    past = ["batch", 1, "past_sequence_length", 8]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", tokens]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", mask_length]),
        helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, past),
    ]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)]
    arrays = {"table": normal(40, 8), "w": normal(8, 8)}
    constants = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    constants.append(numpy_helper.from_array(np.array([1]), "one"))
    constants.append(numpy_helper.from_array(np.array([1, 2]), "two"))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


def test_the_size_of_a_cache_is_no_number_of_tokens() -> None:
    model = onnx.load_from_string(attention("total_sequence_length", "sequence_length"))
    size = [1, "max_sequence_length", 64, 64]
    model.graph.input.append(helper.make_tensor_value_info("cache", TensorProto.FLOAT, size))
    check = quantize_rs.quantize(model, None).output_check
    assert check is not None
    assert check.failure is None


@pytest.mark.parametrize("length", [2**64 - 1, 2**64, "-1", ""])
def test_a_sum_that_is_no_length_is_none(length: int | str) -> None:
    model = attention(f"past_sequence_length + {length}", "sequence_length")
    assert quantize_rs.quantize(model, None).output_check is not None


@pytest.mark.parametrize("tokens", [1, "sequence_length"])
@pytest.mark.parametrize(
    "mask_length",
    [
        "past_sequence_length + sequence_length",
        "past_sequence_length + 1",
        "total_sequence_length",
    ],
)
def test_synthetic_masks_cover_the_past_and_the_tokens(mask_length: str, tokens: str | int) -> None:
    if tokens == 1:
        mask_length = mask_length.replace("+ sequence_length", "+ 1")
    check = quantize_rs.quantize(attention(mask_length, tokens), None).output_check
    assert check is not None
    assert check.failure is None
    assert check.sqnr_db is not None
    assert check.sqnr_db > 30


def test_what_was_not_measured_has_no_grade(digits: Path) -> None:
    nothing = quantize_rs.quantize(digits, None, exclude=["*"])
    assert any("nothing was quantized" in warning for warning in nothing.warnings)
    assert nothing.bytes_after == nothing.bytes_before
    larger = quantize_rs.insert_fake_quant(digits, None)
    unchecked = quantize_rs.quantize(digits, None, check="none")
    for report in (nothing, larger, unchecked):
        assert report.assessment.grade == "unknown"
        assert "output error not measured" in report.assessment.sentence


def test_a_result_that_is_hardly_smaller_is_not_good() -> None:
    rng = np.random.default_rng(0)
    matrices = {"v": (64, 512), "w": (512, 8)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["a"], "large"),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w"], ["y"], "small"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            for name, shape in matrices.items()
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    all_of_it, little = (
        quantize_rs.quantize(made.SerializeToString(), None, exclude=names)
        for names in ([], ["large"])
    )
    assert all_of_it.assessment.grade == "good"
    assert little.ratio < 1.1
    assert little.assessment.grade == "fair"


@pytest.mark.parametrize("kind", ["rnn", "gemm", "vector"])
def test_synthetic_inputs_have_the_width_of_the_constant_that_they_meet(kind: str) -> None:
    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(normal(*shape).astype(np.float32), name)

    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    nodes, constants = {
        # The axes that are added come before the last one.
        "rnn": (
            [
                helper.make_node("Unsqueeze", ["x", "second"], ["rows"]),
                helper.make_node("RNN", ["rows", "w", "r"], ["y"], hidden_size=64),
            ],
            [ints("second", 1), constant("w", 1, 64, 80), constant("r", 1, 64, 64)],
        ),
        "gemm": (
            [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
            [constant("w", 64, 80)],
        ),
        "vector": (
            [
                helper.make_node("Mul", ["scale", "x"], ["scaled"]),
                helper.make_node("Unsqueeze", ["scaled", "first"], ["image"]),
                helper.make_node("Conv", ["image", "w"], ["c"], pads=[1] * 4),
                helper.make_node("Reshape", ["c", "all"], ["rows"]),
                helper.make_node("MatMul", ["rows", "v"], ["y"]),
            ],
            [
                constant("scale", 80),
                ints("first", 0, 1),
                constant("w", 16, 1, 3, 3),
                ints("all", 16, -1, 80),
                constant("v", 80, 64),
            ],
        ),
    }[kind]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "features"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    check = quantize_rs.quantize(bytes(made.SerializeToString()), None).output_check
    assert check is not None
    assert check.failure is None
    assert check.sqnr_db is not None
    assert check.sqnr_db > 20


def test_few_bits_are_called_good_on_real_samples_alone() -> None:
    model = layers(normal(64, 64))
    said = "which may be much lower on real inputs, as some weights have fewer than 8 bits"
    few = quantize_rs.quantize(model, None, bits=6)
    assert few.output_check is not None
    assert few.output_check.sqnr_db is not None
    assert few.output_check.sqnr_db > 30
    assert few.assessment.grade == "fair"
    assert said in few.assessment.sentence
    samples = np.random.default_rng(0).normal(size=(16, 1, 64)).astype(np.float32)
    data = [{"x": sample} for sample in samples]
    for report in (
        quantize_rs.quantize(model, None),
        quantize_rs.quantize(model, None, bits=6, calibration_data=data),
    ):
        assert report.assessment.grade == "good"
        assert said not in report.assessment.sentence


def test_convolutions_that_get_more_bits_have_no_warning_about_their_ranges() -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 3, 3, 3), "offset": (2, 16, 3, 3), "last": (8, 16, 1, 1)}
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]>
    g(float[1, 3, 12, 12] x) => (float[1, 8, 12, 12] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        o = Conv <pads = [1, 1, 1, 1]> (c, offset)
        t = Tanh(o)
        grid = Transpose <perm = [0, 2, 3, 1]> (t)
        s = GridSample <padding_mode = "border"> (c, grid)
        y = Conv(s, last)
    }""")
    for name, shape in shapes.items():
        values = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    samples = rng.normal(size=(32, 1, 3, 12, 12)).astype(np.float32)
    report = quantize_rs.quantize(model, None, bits=4, calibration_data=list(samples))
    assert {value.qtype for value in report.weights} == {"int8"}
    assert any("weights of Conv get 8 bits" in it for it in report.warnings)
    assert not any("without samples" in it for it in report.warnings)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_synthetic_sequences_have_several_steps(op_type: str, lengths: bool) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    given = ["lengths"] if lengths else []
    weights = {
        name: numpy_helper.from_array(normal(1, gates * 32, width).astype(np.float32), name)
        for name, width in (("w", 16), ("r", 32))
    }
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w", "r", "", *given], ["", "y"], hidden_size=32)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 16]),
            *(helper.make_tensor_value_info(name, TensorProto.INT32, [None]) for name in given),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, 32])],
        list(weights.values()),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    report = quantize_rs.quantize(made, None, bits=4, exclude=["w"])
    # The first step reads no state, so that the weights of the state are not used.
    check = report.output_check
    assert check is not None
    assert check.sqnr_db is not None
    assert 5 < check.sqnr_db < 60


def test_a_weight_is_suggested_by_its_own_error_only_where_outputs_are_not_measured() -> None:
    rng = np.random.default_rng(7)
    good, bad = rng.normal(size=(64, 64)), rng.standard_t(1.5, size=(64, 64))
    model = layers(0.1 * good, 0.05 * bad, 0.1 * good[::-1])
    suggested = quantize_rs.quantize(model, None, bits=3, allow_larger=True)
    samples = rng.normal(size=(64, 64)).astype(np.float32)
    measured = quantize_rs.quantize(
        model, None, bits=3, allow_larger=True, calibration_data=samples
    )
    steps = [
        [step for step in report.assessment.next if "lowest SQNR" in step]
        for report in (suggested, measured)
    ]
    assert [len(found) for found in steps] == [1, 0]
