"""Options beside the calibration method: targets, operators, bit widths, biases; and masks."""

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

import quantize_rs
from quantize_rs import OptionError, Plan

# For each target, the type of activations, and whether zero points must be in the middle.
TARGETS: dict[str, tuple[str, bool]] = {
    "x86": ("uint8", False),
    "x86-avx2": ("uint8", False),
    "arm": ("uint8", False),
    "web": ("uint8", False),
    "tensorrt": ("int8", True),
    "openvino": ("uint8", False),
    "qnn": ("uint8", False),
    "generic": ("uint8", False),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_for_any_target_still_reads_digits(
    digits: Path, images: Path, target: str, per_channel: bool
) -> None:
    test = np.load(digits.with_name("test.npz"))
    report = quantize_rs.quantize_with_calibration(
        digits, None, images, target=target, per_channel=per_channel
    )
    qtype, symmetric = TARGETS[target]
    observed = [value for value in report.activations if value.quantized]
    assert observed
    assert {value.qtype for value in observed} == {qtype}
    if symmetric:
        assert all(value.symmetric for value in observed)
        assert all(value.symmetric for value in report.weights)
    assert report.model is not None
    oracle.check(report.model)
    found = oracle.ort(report.model, {"image": test["images"]})[0].argmax(1)
    assert (found == test["labels"]).sum() >= 392  # the float model gets 394 of 397 right


def test_every_target_there_is_is_tested(digits: Path) -> None:
    with pytest.raises(OptionError, match="target is `x87`, expected one of") as caught:
        quantize_rs.open(digits).plan(target="x87")
    assert caught.value.option == "target"
    listed = str(caught.value).split("expected one of ")[1]
    assert listed.split(", ") == list(TARGETS)
    for function in (quantize_rs.quantize, quantize_rs.quantize_with_calibration, Plan, plan_of):
        doc = function.__doc__ or ""
        assert "target" not in doc or all(f'``"{name}"``' in doc for name in TARGETS)


plan_of = quantize_rs.Model.plan


def test_a_target_brings_its_types_unless_others_are_asked_for(digits: Path) -> None:
    model = quantize_rs.open(digits)

    def types(**options: Any) -> set[str | None]:
        values = model.plan(**options).values
        return {value.qtype for value in values if value.role in ("input", "activation")} - {None}

    assert types() == set()
    assert types(target="tensorrt") == {"int8"}
    assert types(target="x86") == {"uint8"}
    assert types(target="x86", activations="int8") == {"int8"}
    with pytest.raises(OptionError, match="expected int8 or float8") as caught:
        model.plan(target="tensorrt", activations="uint8")
    assert caught.value.option == "activations"
    weights = quantize_rs.quantize(digits, None, target="tensorrt")
    assert all(value.symmetric for value in weights.weights)
    assert not any(value.quantized for value in weights.activations)


def test_x86_without_vnni_cannot_saturate(digits: Path, images: Path) -> None:
    def largest(target: str) -> int:
        report = quantize_rs.quantize_with_calibration(
            digits, None, images, target=target, symmetric=True
        )
        assert report.model is not None
        proto = onnx.load_from_string(report.model)
        constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
        weights = [c for c in constants.values() if c.dtype == np.int8 and c.ndim > 1]
        assert ("VNNI" in " ".join(report.warnings)) == (target == "x86-avx2")
        return max(int(np.abs(weight.astype(int)).max()) for weight in weights)

    assert largest("x86") == 127
    assert largest("x86-avx2") <= 64


def test_sums_that_saturate_here_are_a_warning_without_a_target(digits: Path, images: Path) -> None:
    def is_warned(**options: Any) -> bool:
        if options.pop("data", False):
            report = quantize_rs.quantize_with_calibration(digits, None, images, **options)
        else:
            report = quantize_rs.quantize(digits, None, **options)
        return "this processor has no VNNI" in " ".join(report.warnings)

    assert is_warned(data=True) == processor.SATURATES
    assert is_warned(output_format="dynamic", check="none") == processor.SATURATES
    assert not is_warned()
    assert not is_warned(data=True, weights="uint8")
    for target in ("x86", "x86-avx2", "arm", "tensorrt"):
        assert not is_warned(data=True, target=target)


@pytest.mark.parametrize("options", [{"target": "x86-avx2"}, {"weights": "uint8"}])
def test_what_cannot_saturate_is_as_near_with_the_kernels_of_this_processor(
    digits: Path, images: Path, options: dict[str, Any]
) -> None:
    report = quantize_rs.quantize_with_calibration(
        digits, None, images, per_channel=True, symmetric=True, **options
    )
    assert report.model is not None
    feeds = {"image": np.load(images)[:64]}
    found = oracle.ort(report.model, feeds, saturates=True)
    assert oracle.sqnr(oracle.ort(digits, feeds), found) > 36


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_uint8_weights_on_the_left_of_a_product_run(output_format: str) -> None:
    """The kernel of ONNX Runtime takes one zero point for its first input."""
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "k"], ["c"], pads=[1] * 4),
        onnx.helper.make_node("MatMul", ["w", "c"], ["y"]),
    ]
    constants = {"k": rng.normal(size=(6, 3, 3, 3)), "w": rng.normal(size=(4, 12))}
    model = built(nodes, constants, [1, 3, 12, 12])
    data = rng.normal(size=(16, 1, 3, 12, 12)).astype(np.float32)
    report = quantize_rs.quantize_with_calibration(
        model, None, [{"x": x} for x in data], weights="uint8", output_format=output_format
    )
    assert report.model is not None
    found = oracle.ort(report.model, {"x": data[0]})
    assert oracle.sqnr(oracle.ort(model, {"x": data[0]}), found) > 30
    granularities = {value.name: value.granularity for value in report.weights}
    assert granularities == {"k": "per_axis", "w": "per_tensor"}


def test_only_operators_of_the_types_named_are_quantized(digits: Path, images: Path) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images, op_types=["Gemm"])
    assert {v.name for v in report.weights if v.quantized} == {"fc1.weight", "fc2.weight"}
    weights = quantize_rs.quantize(digits, None, op_types=["Conv"])
    assert {v.name for v in weights.weights if not v.quantized} == {"fc1.weight", "fc2.weight"}
    with pytest.raises(OptionError, match="Konv") as caught:
        quantize_rs.quantize(digits, None, op_types=["Konv"])
    assert caught.value.option == "op_types"
    with pytest.raises(OptionError, match="expected a list of names"):
        quantize_rs.quantize(digits, None, op_types="Conv")


def test_only_what_is_included_is_quantized(digits: Path, images: Path) -> None:
    layers = ["conv1", "relu1", "fc?"]
    report = quantize_rs.quantize_with_calibration(
        digits, None, images, included_layers=layers, excluded_layers=["fc2"]
    )
    assert {v.name for v in report.weights if v.quantized} == {"conv1.weight", "fc1.weight"}
    assert "relu1_out" in {v.name for v in report.activations if v.quantized}
    assert "relu2_out" not in {v.name for v in report.activations if v.quantized}
    why = {v.name: v.why for v in report.weights}
    assert why["conv2.weight"] == "not quantized: read by `conv2`, which is not to be quantized"
    plan = quantize_rs.open(digits).plan(include=["Conv"], prune=0.01)
    assert {v.name for v in plan if v.quantized} == {f"conv{i}.weight" for i in (1, 2, 3)}
    done = " ".join(line for step in plan.steps for line in step.did)
    assert "conv1.weight" in done
    assert "fc1.weight" not in done
    with pytest.raises(OptionError, match=r"konv1.*did you mean `conv1`") as caught:
        quantize_rs.quantize(digits, None, included_layers=["konv1"])
    assert caught.value.option == "include"


@pytest.mark.parametrize("target", ["x86", "qnn", "generic"])
def test_what_is_included_is_all_that_is_quantized(digits: Path, target: str) -> None:
    model = quantize_rs.open(digits)
    nothing = model.plan(activations="uint8", target=target, include=[])
    assert not [value.name for value in nothing if value.quantized]
    for include in (["conv1"], ["conv1.weight"]):
        plan = model.plan(activations="uint8", target=target, include=include)
        found = {value.name for value in plan if value.quantized}
        assert {"image", "conv1.weight"} <= found, include
        others = {"conv2.weight", "relu2_out", "relu3_out", "fc1.weight", "relu4_out"}
        assert not found & others, include


def test_a_list_of_what_has_no_weights_leaves_all_as_it_is() -> None:
    source = oracle.model("conv_bn_relu")
    norm = next(n.name for n in onnx.load(source).graph.node if n.op_type == "BatchNormalization")
    report = quantize_rs.quantize(source, None, included_layers=[norm])
    assert not [value for value in report.weights if value.quantized]


def test_widths_are_numbers_or_types_by_name_pattern_or_operator() -> None:
    source = oracle.model("opset26_conv")
    names = [value.name for value in quantize_rs.open(source).plan() if value.role == "weight"]
    report = quantize_rs.quantize(source, None, layer_bits={names[0]: 16, "Conv": "uint4"})
    kinds = {value.name: value.qtype for value in report.weights}
    assert kinds.pop(names[0]) == "int16", "a name takes precedence over an operator type"
    assert set(kinds.values()) == {"uint4"}
    with pytest.raises(OptionError, match="layer_bits") as caught:
        quantize_rs.quantize(source, None, layer_bits={names[0]: "int7"})
    assert caught.value.option == "layer_bits"
    regular = quantize_rs.quantize(source, None, excluded_layers=["re:.*"])
    assert not regular.quantized


def test_bias_correction_can_be_left_out(digits: Path, images: Path) -> None:
    corrected = quantize_rs.quantize_with_calibration(digits, None, images)
    plain = quantize_rs.quantize_with_calibration(digits, None, images, bias_correction=False)
    assert corrected.corrected_biases == 5
    assert plain.corrected_biases == 0
    assert corrected.model != plain.model
    feed = {"image": np.load(digits.with_name("test.npz"))["images"]}
    expected = oracle.ort(digits, feed)

    def shift(model: bytes | None) -> float:
        assert model is not None
        return float(np.abs(np.mean(oracle.ort(model, feed)[0] - expected[0], axis=0)).max())

    assert shift(corrected.model) < shift(plain.model)


@pytest.mark.parametrize(
    ("options", "samples"),
    [({"bits": 4}, 200), ({"weights": "fp16"}, 0), ({"weights": "int16"}, 200)],
)
def test_a_target_that_gets_no_integers_is_a_warning(
    digits: Path, images: Path, options: dict[str, Any], samples: int
) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images, **options)
    # A cast shifts no output; the biases of other weights are corrected.
    assert (report.samples, report.corrected_biases > 0) == (samples, samples > 0)
    (text,) = (warning for warning in report.warnings if "no activation" in warning)
    assert "weights of 8 bits" in text


def outliers(residual: bool = True) -> onnx.ModelProto:
    """A normalization with two channels far larger than the others, read by products and a sum."""
    rng, width = np.random.default_rng(0), 32
    gain = np.ones(width, np.float32)
    gain[[3, 17]] = 60
    arrays = {
        "gain": gain,
        "offset": rng.normal(0, 0.1, width).astype(np.float32),
        "w1": rng.normal(0, 0.2, (width, 48)).astype(np.float32),
        "w2": rng.normal(0, 0.2, (40, width)).astype(np.float32),
        "b2": rng.normal(0, 0.2, 40).astype(np.float32),
    }
    arrays["w1"][[3, 17]] /= 20
    arrays["w2"][:, [3, 17]] /= 20
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        node("LayerNormalization", ["x", "gain", "offset"], ["n"], axis=-1),
        node("MatMul", ["n", "w1"], ["y1"]),
        node("Gemm", ["n", "w2", "b2"], ["y2"], transB=1),
        node("Add", ["n", "x"], ["y3"]),
    ]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    outputs = [info("y1", 1, [8, 48]), info("y2", 1, [8, 40]), info("y3", 1, [8, width])]
    if not residual:
        del nodes[-1], outputs[-1]
    graph = onnx.helper.make_graph(nodes, "o", [info("x", 1, [8, width])], outputs, weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("method", ["minmax", "mse", "auto"])
@pytest.mark.parametrize("target", ["x86", "arm", "generic"])
@pytest.mark.parametrize("residual", [True, False])
def test_large_channels_behind_a_normalization_are_smoothed(
    residual: bool, target: str, method: str
) -> None:
    model, rng = outliers(residual), np.random.default_rng(1)
    # As many as `auto` needs for its evaluation.
    samples = rng.normal(0, 1, (128, 8, 32)).astype(np.float32)
    found = {}
    for smooth in (False, True):
        report = quantize_rs.quantize_with_calibration(
            model, None, samples, target=target, per_channel=True, smooth=smooth, method=method
        )
        assert any("smoothed" in note for note in report.notes) == smooth
        assert report.model is not None
        oracle.check(report.model)
        decibels = []
        for x in rng.normal(0, 1, (8, 8, 32)).astype(np.float32):
            expected = oracle.ort(model.SerializeToString(), {"x": x})
            outputs = zip(expected, oracle.ort(report.model, {"x": x}), strict=True)
            decibels.append([oracle.sqnr([a], [b]) for a, b in outputs])
        found[smooth] = np.mean(decibels, 0)
        names = {value.name: value for value in report.values}
        assert names["w1"].quantized
        assert names["w2"].quantized
        # Without other consumers, the normalization itself divides.
        assert oracle.kernels(report.model)["Mul"] == (smooth and residual)
    assert (found[True][:2] > found[False][:2] + 3).all(), found
    # A consumer that does not multiply it reads the value unchanged.
    assert (found[True][2:] > 100).all()


def test_nothing_is_smoothed_where_nothing_is_gained(digits: Path, images: Path) -> None:
    default = quantize_rs.quantize_with_calibration(digits, None, images)
    plain = quantize_rs.quantize_with_calibration(digits, None, images, smooth=False)
    assert default.model == plain.model


def attention() -> onnx.ModelProto:
    """Attention over eight words, some of which a mask hides."""
    rng, width = np.random.default_rng(0), 16
    weights = [
        onnx.numpy_helper.from_array(rng.normal(0, 0.25, (width, width)).astype(np.float32), name)
        for name in ("wq", "wk", "wv", "wo")
    ]
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("MatMul", ["x", "wv"], ["v"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["a"]),
        node("MatMul", ["a", "wo"], ["y"]),
    ]
    inputs = [info("x", 1, ["batch", 8, width]), info("mask", 1, ["batch", 1, 8])]
    outputs = [info("y", 1, ["batch", 8, width])]
    graph = onnx.helper.make_graph(nodes, "attention", inputs, outputs, weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, np.finfo(np.float32).min, -np.inf])
@pytest.mark.parametrize("method", ["minmax", "entropy", "mse"])
def test_a_mask_destroys_no_range(hidden: float, method: str) -> None:
    model, rng = attention(), np.random.default_rng(1)
    mask: npt.NDArray[np.float32] = np.zeros((64, 1, 8), np.float32)
    for number in range(64):
        mask[number, 0, 7 - number % 4 :] = hidden
    data = {"x": rng.normal(0, 1, (64, 8, 16)).astype(np.float32), "mask": mask}
    expected = oracle.ort(model.SerializeToString(), data)
    for target in TARGETS:
        report = quantize_rs.quantize_with_calibration(
            model, None, data, target=target, method=method
        )
        for value in report.activations:
            assert value.range is None or value.range[0] > -200 or not value.quantized
        # The SQNR of 8 bits, less the amplification of errors by a softmax over random scores.
        assert report.model is not None
        assert oracle.sqnr(expected, oracle.ort(report.model, data)) > 20
        if target == "qnn":  # quantizes every value that it can
            assert any("`masked` carries an attention mask" in note for note in report.notes)
            masked = next(value for value in report.values if value.name == "masked")
            assert not masked.quantized
            assert "mask" in masked.why


@pytest.mark.parametrize("target", ["x86", "qnn"])
def test_what_was_never_seen_but_as_zero_stays_float(target: str) -> None:
    model, rng = attention(), np.random.default_rng(1)
    data = {"x": rng.normal(0, 1, (64, 8, 16)).astype(np.float32)}
    data["mask"] = np.zeros((64, 1, 8), np.float32)
    report = quantize_rs.quantize_with_calibration(model, None, data, target=target)
    # The mask hides nothing in calibration, but three positions in this input.
    data["mask"][:, 0, 5:] = -1e9
    assert report.model is not None
    expected = oracle.ort(model.SerializeToString(), data)
    assert oracle.sqnr(expected, oracle.ort(report.model, data)) > 20
    if target == "qnn":  # quantizes every value that it can
        mask = next(value for value in report.values if value.name == "mask")
        assert not mask.quantized
        assert "never seen but as 0" in mask.why
        assert any("`mask` was 0 in all samples" in note for note in report.notes)
