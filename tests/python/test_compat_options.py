"""Every extra option of onnxruntime.quantization does what it says, or says that it does not."""

from __future__ import annotations

import inspect
import logging
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as theirs
import pytest
from onnx import TensorProto, helper, numpy_helper
from readers import Reader, Strided

import quantize_rs
from quantize_rs import OptionError, Report
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import _extra

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

import generate_migration


def static(model: Path, images: Path, **options: Any) -> Report:
    return ours.quantize_static(model, model.with_name("o.onnx"), Reader(images), **options)


def test_every_extra_option_of_theirs_is_known() -> None:
    texts = [theirs.quantize_static.__doc__, theirs.quantize_dynamic.__doc__]
    names = {name for text in texts for name in option_names(text or "")}
    assert {"SmoothQuant", "extra.Sigmoid.nnapi"} <= names
    assert names <= set(_extra.EXTRA)


def option_names(text: str) -> list[str]:
    return [
        words[0]
        for words in (line.split() for line in text.splitlines())
        if len(words) > 2 and words[1] == "=" and (words[0][0].isupper() or "." in words[0])
    ]


# For each option a value that is not usual.
ASKED: dict[str, Any] = {
    "ActivationSymmetric": True,
    "ActivationRestrictedAsymmetric": True,
    "WeightSymmetric": False,
    "EnableSubgraph": True,
    "ForceQuantizeNoInputCheck": True,
    "MatMulConstBOnly": True,
    "AddQDQPairToWeight": True,
    "OpTypesToExcludeOutputQuantization": ["Conv"],
    "DedicatedQDQPair": True,
    "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
    "CalibTensorRangeSymmetric": True,
    "CalibStridedMinMax": 20,
    "CalibMovingAverage": True,
    "CalibMovingAverageConstant": 0.1,
    "CalibMaxIntermediateOutputs": 8,
    "CalibPercentile": 99.9,
    "QuantizeBias": False,
    "SmoothQuant": True,
    "SmoothQuantAlpha": 0.7,
    "SmoothQuantFolding": False,
    "UseQDQContribOps": True,
    "MinimumRealRange": 1e-4,
    "TensorQuantOverrides": {"conv1.weight": [{"quant_type": ours.QuantType.QUInt8}]},
    "QDQKeepRemovableActivations": True,
    "QDQDisableWeightAdjustForInt32Bias": True,
    "BlockSize": 32,
    "DefaultTensorType": 1,
    "extra.Sigmoid.nnapi": True,
}


def mark(name: str, value: Any, *, dynamic: bool) -> str:
    """What the table has to say of an option."""
    given = {name: value}
    if name.startswith("SmoothQuant"):
        given["SmoothQuant"] = True
    if dynamic and name == "MatMulConstBOnly":
        given[name] = False
    try:
        with Heard() as heard:
            _extra.options(given, dynamic=dynamic)
    except OptionError:
        return "refused"
    return "nothing" if any(repr(name) in line for line in heard.lines) else "done"


class Heard(logging.Handler):
    """What the package says meanwhile."""

    def __enter__(self) -> Heard:
        self.lines: list[str] = []
        logging.getLogger("quantize_rs").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("quantize_rs").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_table_marks_each_option_as_it_behaves() -> None:
    assert set(_extra.EXTRA) == set(ASKED)
    for name, value in ASKED.items():
        row = _extra.EXTRA[name]
        for effect, dynamic in ((row.static, False), (row.dynamic, True)):
            assert effect.mark == mark(name, value, dynamic=dynamic), name


def test_the_tables_of_the_document_are_those_of_the_code() -> None:
    assert generate_migration.page() == generate_migration.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("function", [ours.quantize_static, ours.MatMulNBitsQuantizer])
def test_the_document_has_a_row_for_every_argument(function: Any) -> None:
    page = generate_migration.PAGE.read_text(encoding="utf-8")
    first_cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    usual = {"model", "model_input", "model_output", "calibration_data_reader", "extra_options"}
    usual |= {"algo_config", "optimize_model"}
    for name in set(inspect.signature(function).parameters) - usual:
        assert any(f"`{name}" in cell for cell in first_cells), name


def test_an_option_that_says_no_does_not_undo_one_that_says_yes(digits: Path, images: Path) -> None:
    for other in ("CalibTensorRangeSymmetric", "ActivationSymmetric"):
        options = {"ActivationSymmetric": True, "CalibTensorRangeSymmetric": True} | {other: False}
        report = static(digits, images, extra_options=options)
        assert {value.zero_point for value in report.activations if value.quantized} == {0}


@pytest.mark.parametrize("method", ["Percentile", "Entropy"])
def test_zero_points_are_symmetric_for_minmax_alone_as_theirs(
    digits: Path, images: Path, method: str
) -> None:
    chosen = ours.CalibrationMethod[method]
    options = {"CalibTensorRangeSymmetric": True}
    report = static(digits, images, calibrate_method=chosen, extra_options=options)
    assert report.to_dict()["config"]["activation_symmetric"] is False


@pytest.mark.parametrize("percentile", [None, 99.0, 98.0])
def test_half_as_much_is_left_out_of_ranges_that_are_not_symmetric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, percentile: float | None
) -> None:
    rng = np.random.default_rng(0)
    model, out = tmp_path / "model.onnx", tmp_path / "o.onnx"
    weights = {"w": rng.normal(size=(64, 8))}
    model.write_bytes(graphs.built([helper.make_node("MatMul", ["x", "w"], ["y"])], weights, [64]))
    extra: dict[str, Any] = {"CalibTensorRangeSymmetric": False}
    if percentile is not None:
        extra["CalibPercentile"] = percentile
    skewed = (rng.gamma(1, 1, size=(64, 64)) - 0.3).astype(np.float32)

    def quantization(package: Any) -> tuple[float, int]:
        package.quantize_static(
            model,
            out,
            Feeds([{"x": row} for row in skewed]),
            activation_type=package.QuantType.QUInt8,
            calibrate_method=package.CalibrationMethod.Percentile,
            extra_options=extra,
        )
        found = {one.name: one for one in onnx.load(out).graph.initializer}
        scale, point = (
            numpy_helper.to_array(found[f"x_{what}"]) for what in ("scale", "zero_point")
        )
        return float(scale), int(point)

    scale, point = quantization(ours)
    expected = quantization(theirs)
    assert scale == pytest.approx(expected[0], rel=0.01)
    assert abs(point - expected[1]) <= 1
    assert "has no effect" not in caplog.text


@pytest.mark.parametrize(
    ("option", "method"),
    [
        ("CalibMovingAverage", "Percentile"),
        ("CalibMovingAverage", "Entropy"),
        ("CalibTensorRangeSymmetric", "Entropy"),
        ("CalibPercentile", "MinMax"),
    ],
)
def test_an_option_of_another_method_is_a_warning(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture, option: str, method: str
) -> None:
    chosen = ours.CalibrationMethod[method]
    value = 99.0 if option == "CalibPercentile" else True
    static(digits, images, calibrate_method=chosen, extra_options={option: value})
    said = f"extra_options[{option!r}] has no effect, as calibrate_method is {method}"
    assert said in caplog.messages
    caplog.clear()
    static(digits, images, calibrate_method=chosen, extra_options={option: None})
    assert "has no effect" not in caplog.text


def test_the_minimum_range_widens_narrower_ranges_alone(digits: Path, images: Path) -> None:
    def scales(width: float | None) -> dict[str, float]:
        report = static(digits, images, extra_options={"MinimumRealRange": width})
        return {value.name: value.scale[0] for value in report.activations if value.scale}

    exact = scales(None)
    width = 255 * sorted(exact.values())[len(exact) // 2]
    expected = {name: max(scale, width / 255) for name, scale in exact.items()}
    assert len(set(expected.values())) < len(set(exact.values()))
    assert scales(width) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("percentile", "said"), [(99.9999, "percentile:99.9999"), (None, "percentile"), (99, None)]
)
def test_a_percentile_keeps_its_digits(
    digits: Path, images: Path, percentile: float | None, said: str | None
) -> None:
    report = static(
        digits,
        images,
        calibrate_method=ours.CalibrationMethod.Percentile,
        extra_options={"CalibPercentile": percentile},
    )
    assert report.method == (said or "percentile:99")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"CalibPercentile": "most"}, r"\['CalibPercentile'\] is 'most': could not"),
        ({"QDQOpTypePerChannelSupportToAxis": {"Conv": 1}}, "channels along axis 0, not 1"),
        ({"CalibMovingAverage": True, "CalibStridedMinMax": 20}, "averages over all samples"),
        ({"CalibStridedMinMax": 20}, r"needs a reader with set_range\(\)"),
        ({"BlockSize": 32, "AddQDQPairToWeight": True}, "is for QDQ"),
    ],
)
def test_what_would_come_out_otherwise_is_refused(
    digits: Path, images: Path, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        static(digits, images, extra_options=extra)
    assert not digits.with_name("o.onnx").exists()


def pairs(path: Path) -> dict[str, list[str]]:
    """Return the readers of each dequantized activation."""
    graph = onnx.load(path).graph
    codes = {node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    found = {
        node.output[0]: [
            other.name or other.op_type
            for other in graph.node
            for name in other.input
            if name == node.output[0]
        ]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in codes
    }
    return {name: readers for name, readers in found.items() if readers}


def residual(folder: Path) -> Path:
    """Save a network in which three nodes read one value."""
    rng = np.random.default_rng(3)
    weights = {f"w{index}": rng.normal(size=(8, 8, 3, 3)) / 8 for index in range(3)}
    weights["b"] = rng.normal(size=8)

    def conv(inputs: str, output: str) -> onnx.NodeProto:
        return helper.make_node("Conv", inputs.split(), [output], output, pads=[1, 1, 1, 1])

    nodes = [
        conv("x w0 b", "a"),
        conv("a w1", "c"),
        conv("a w2", "d"),
        helper.make_node("Add", ["c", "d"], ["e"], "e"),
        helper.make_node("Add", ["e", "a"], ["f"], "f"),
        helper.make_node("Relu", ["f"], ["r"], "r"),
        helper.make_node("Softmax", ["r"], ["y"], "y", axis=1),
    ]
    path = folder / "residual.onnx"
    path.write_bytes(graphs.built(nodes, weights, [1, 8, 6, 6]))
    return path


SAMPLES = [
    {"x": np.random.default_rng(seed).normal(size=(1, 8, 6, 6)).astype(np.float32)}
    for seed in range(8)
]


def test_every_reader_has_a_pair_of_its_own(tmp_path: Path) -> None:
    model, out, shared = residual(tmp_path), tmp_path / "o.onnx", tmp_path / "shared.onnx"
    ours.quantize_static(model, shared, SAMPLES)
    ours.quantize_static(model, out, SAMPLES, extra_options={"DedicatedQDQPair": True})
    assert max(len(readers) for readers in pairs(shared).values()) > 1
    assert {len(readers) for readers in pairs(out).values()} == {1}
    readers = [sorted(chain.from_iterable(pairs(path).values())) for path in (shared, out)]
    assert readers[0] == readers[1]
    runs = [
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, SAMPLES[0])
        for path in (shared, out)
    ]
    assert np.array_equal(runs[0][0], runs[1][0])
    assert quantize_rs.validate(model, out).passed


def test_biases_stay_float_if_they_are_not_to_be_quantized(tmp_path: Path) -> None:
    model, out = residual(tmp_path), tmp_path / "o.onnx"
    report = ours.quantize_static(model, out, SAMPLES, extra_options={"QuantizeBias": False})
    [bias] = [value for value in report.values if value.name == "b"]
    assert not bias.quantized
    assert bias.why == "not quantized: bias, which quantize_bias leaves in float"
    types = {tensor.data_type for tensor in onnx.load(out).graph.initializer}
    assert onnx.TensorProto.INT32 not in types
    assert quantize_rs.validate(model, out).passed
    exact, found = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, SAMPLES[0])
        for path in (model, out)
    )
    assert np.abs(exact[0] - found[0]).max() < 0.02
    with pytest.raises(OptionError, match="adds biases in float"):
        quantize_rs.quantize_with_calibration(
            model, None, SAMPLES, target="tensorrt", quantize_bias=True
        )


def test_outputs_of_a_type_stay_float_where_nothing_on_integers_reads_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, out = residual(tmp_path), tmp_path / "o.onnx"

    def quantized(**extra: Any) -> set[str]:
        options = {"ForceQuantizeNoInputCheck": True, **extra}
        report = ours.quantize_static(model, out, SAMPLES, extra_options=options)
        assert quantize_rs.validate(model, out).passed
        return {value.name for value in report.activations if value.quantized}

    usual = quantized()
    assert {"a", "y"} <= usual
    assert usual - quantized(OpTypesToExcludeOutputQuantization=["Softmax", "Conv"]) == {"y"}
    # As in onnxruntime, where such a name has no effect.
    with caplog.at_level(logging.WARNING):
        assert quantized(OpTypesToExcludeOutputQuantization=["Erf"]) == usual
    assert "no operator of the type Erf is ever quantized" in caplog.text
    with pytest.raises(OptionError, match=r"OutputQuantization names `Sofmax`.*`Softmax`"):
        quantized(OpTypesToExcludeOutputQuantization=["Sofmax"])


@pytest.mark.parametrize("call", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_weights_have_7_bits_or_a_warning_says_that_they_have_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str, kind: str
) -> None:
    model, out = attention(tmp_path), tmp_path / "o.onnx"
    options: dict[str, Any] = {"reduce_range": True, "weight_type": ours.QuantType[kind]}
    if call == "static":
        options["activation_type"] = ours.QuantType.QUInt8
        ours.quantize_static(model, out, SAMPLES, **options)
    else:
        ours.quantize_dynamic(model, out, **options)
    found = {one.name: one for one in onnx.load(out).graph.initializer}
    weights = [numpy_helper.to_array(found[f"{name}_quantized"]) for name in "cdvw"]
    widest = max(int(np.ptp(weight.astype(np.int32))) for weight in weights)
    said = [text for text in caplog.messages if text.startswith("reduce_range")]
    assert (widest <= 127) == (not said)
    if kind == "QUInt8":
        assert said == [
            "reduce_range has no effect on weights of uint8, which keep all bits: "
            "those of QInt8 get 7"
        ]


class Feeds:
    """Samples, one by one."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.left = iter(samples)

    def get_next(self) -> Any:
        return next(self.left, None)


def attention(folder: Path) -> Path:
    """Save a product of two activations, and a Sigmoid between convolutions beside it."""
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=(6, 6)) for name in ("v", "w")}
    weights |= {name: rng.normal(size=(8, 8, 1, 1)) for name in ("c", "d")}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["q"], "q"),
        helper.make_node("MatMul", ["x", "w"], ["k"], "k"),
        helper.make_node("MatMul", ["q", "k"], ["qk"], "qk"),
        helper.make_node("Conv", ["qk", "c"], ["e"], "e"),
        helper.make_node("Sigmoid", ["e"], ["s"], "s"),
        helper.make_node("Conv", ["s", "d"], ["y"], "y"),
    ]
    path = folder / "attention.onnx"
    path.write_bytes(graphs.built(nodes, weights, [1, 8, 6, 6]))
    return path


@pytest.mark.parametrize("option", ["MatMulConstBOnly", "extra.Sigmoid.nnapi"])
def test_an_option_of_qoperator_is_like_theirs_or_says_that_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    model, out = attention(tmp_path), tmp_path / "o.onnx"

    def written(package: Any, **options: Any) -> bytes:
        options |= {"quant_format": package.QuantFormat.QOperator}
        options |= {"activation_type": package.QuantType.QUInt8}
        package.quantize_static(model, out, Feeds(SAMPLES), **options)
        return out.read_bytes()

    asked = {option: True}
    assert written(theirs) != written(theirs, extra_options=asked)
    assert written(ours) == written(ours, extra_options=asked)
    [said] = [text for text in caplog.messages if option in text]
    assert "as in onnxruntime" not in said
    # What is said is true.
    graph = onnx.load(out).graph
    if option == "MatMulConstBOnly":
        assert "qk" not in {node.name for node in graph.node if node.op_type == "MatMul"}
        written(ours, nodes_to_exclude=["qk"])
        graph = onnx.load(out).graph
        assert "qk" in {node.name for node in graph.node if node.op_type == "MatMul"}
    else:
        [scale] = [tensor for tensor in graph.initializer if tensor.name == "s_scale"]
        assert numpy_helper.to_array(scale) == np.float32(1 / 255)


def test_types_of_weights_are_overridden_in_dynamic_too(digits: Path) -> None:
    out = digits.with_name("o.onnx")
    given = {"fc1.weight": [{"quant_type": ours.QuantType.QUInt8}]}
    report = ours.quantize_dynamic(digits, out, extra_options={"TensorQuantOverrides": given})
    types = {value.name: value.qtype for value in report.weights}
    assert types["fc1.weight"] == "uint8"
    assert types["fc2.weight"] == "int8"
    given = {"image": [{"quant_type": ours.QuantType.QUInt8}]}
    with pytest.raises(OptionError, match="is not a weight"):
        ours.quantize_dynamic(digits, out, extra_options={"TensorQuantOverrides": given})


def test_options_without_effect_are_a_warning_and_change_nothing(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    static(digits, images)
    same = out.read_bytes()
    idle = {"MatMulConstBOnly": True, "CalibMovingAverageConstant": 0.1, "SmoothQuantAlpha": 0.7}
    static(digits, images, extra_options=idle)
    assert out.read_bytes() == same
    said = [record.getMessage() for record in caplog.records]
    named = [text.split("'")[1] for text in said if "has no effect" in text]
    assert named == ["MatMulConstBOnly", "CalibMovingAverageConstant"]
    ours.quantize_dynamic(digits, out)
    same = out.read_bytes()
    caplog.clear()
    idle = {"AddQDQPairToWeight": True, "BlockSize": 32, "SmoothQuant": True}
    ours.quantize_dynamic(digits, out, extra_options=idle)
    assert out.read_bytes() == same
    assert len([record for record in caplog.records if "has no effect" in record.message]) == 3
    ours.quantize_dynamic(digits, out, extra_options={"MatMulConstBOnly": True})
    assert out.read_bytes() == same
    with pytest.raises(OptionError, match="computes in float"):
        ours.quantize_dynamic(digits, out, extra_options={"MatMulConstBOnly": False})


def test_restricted_zero_points_are_those_of_onnxruntime(digits: Path, tmp_path: Path) -> None:
    # Shifted images have negative values.
    shifted = tmp_path / "shifted.npy"
    np.save(shifted, np.random.default_rng(3).uniform(-0.25, 0.75, (40, 1, 8, 8)).astype("f4"))
    extra = {"ActivationRestrictedAsymmetric": True}
    out, expected = digits.with_name("o.onnx"), digits.with_name("theirs.onnx")
    ours.quantize_static(
        digits, out, Reader(shifted), activation_type=ours.QuantType.QUInt8, extra_options=extra
    )
    theirs.quantize_static(
        digits,
        expected,
        Reader(shifted),
        activation_type=theirs.QuantType.QUInt8,
        extra_options=extra,
    )
    found, wanted = grids(out), grids(expected)
    assert {point for _, point in found.values()} == {0, 128}
    (image,) = (grid for name, grid in found.items() if name.startswith("image"))
    assert image == pytest.approx(wanted["image"], rel=1e-6)


def grids(path: Path) -> dict[str, tuple[float, int]]:
    """Return scale and zero point of each activation."""
    graph = onnx.load(path).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    return {
        node.input[0]: (float(constants[node.input[1]]), int(constants[node.input[2]]))
        for node in nodes
    }


def test_one_activation_is_symmetric(digits: Path, images: Path) -> None:
    out = digits.with_name("o.onnx")
    extra = {"TensorQuantOverrides": {"image": [{"symmetric": True}]}}
    ours.quantize_static(
        digits, out, np.load(images), activation_type=ours.QuantType.QUInt8, extra_options=extra
    )
    found = grids(out)
    assert {point for name, (_, point) in found.items() if name.startswith("image")} <= {127, 128}
    assert 0 in {point for _, point in found.values()}


def test_an_alpha_is_not_used_and_that_is_said(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    static(digits, images, extra_options={"SmoothQuant": True})
    same = out.read_bytes()
    for extra in ({"SmoothQuantAlpha": 0.7}, {"SmoothQuantFolding": False}):
        caplog.clear()
        static(digits, images, extra_options={"SmoothQuant": True} | extra)
        assert out.read_bytes() == same
        assert any("not used" in record.message for record in caplog.records)


def test_strides_give_what_all_samples_give(digits: Path, images: Path) -> None:
    out = digits.with_name("o.onnx")
    static(digits, images)
    same = out.read_bytes()
    strided = {"CalibStridedMinMax": 20}
    report = ours.quantize_static(digits, out, Strided(images), extra_options=strided)
    assert (report.samples, out.read_bytes()) == (40, same)
    with pytest.raises(OptionError, match="multiple of 17"):
        ours.quantize_static(digits, out, Strided(images), extra_options={"CalibStridedMinMax": 17})


def test_every_operator_is_quantized_where_all_are_forced(digits: Path, images: Path) -> None:
    config = ours.get_qdq_config(digits, Reader(images), per_channel=True)
    config.extra_options["WeightSymmetric"] = True
    report = ours.quantize(digits, digits.with_name("o.onnx"), config)
    assert report.to_dict()["config"]["target"] == "qnn"
    usual = static(digits, images, activation_type=ours.QuantType.QUInt8)
    quantized, less = (
        sum(value.quantized for value in found.activations) for found in (report, usual)
    )
    assert quantized > less


def test_npus_have_zero_points_of_weights_and_no_seven_bits(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    forced = {"ForceQuantizeNoInputCheck": True}
    static(digits, images, extra_options=forced)
    same = out.read_bytes()
    static(digits, images, reduce_range=True, extra_options=forced)
    assert out.read_bytes() == same
    assert "reduce_range has no effect with ForceQuantizeNoInputCheck" in caplog.text

    def points(model: onnx.ModelProto) -> set[int]:
        tensors = model.graph.initializer
        arrays = [numpy_helper.to_array(t) for t in tensors if t.data_type == TensorProto.INT8]
        return {int(array) for array in arrays if array.ndim == 0}

    assert points(onnx.load(out)) <= {0}
    static(digits, images, extra_options=forced | {"WeightSymmetric": False})
    assert points(onnx.load(out)) - {0}


def test_a_function_may_say_which_nodes_stay_float(digits: Path, images: Path) -> None:
    def excluded(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
        return bool(node == model.graph.node[0])

    first = onnx.load(digits).graph.node[0].name
    for model in (digits, onnx.load(digits)):
        config = ours.get_qdq_config(model, Reader(images), nodes_to_exclude=excluded)
        assert config.nodes_to_exclude == [first]
    config = ours.get_qdq_config(digits, Reader(images), calibrate_args={"moving_average": True})
    assert config.extra_options["CalibMovingAverage"] is True
    with pytest.raises(OptionError, match="calibrate_args has 'bins'"):
        ours.get_qdq_config(digits, Reader(images), calibrate_args={"bins": 8})


@pytest.mark.parametrize("module", [ours, theirs])
def test_configurations_of_either_tool_are_the_call(
    digits: Path, images: Path, module: Any
) -> None:
    one, other = digits.with_name("one.onnx"), digits.with_name("other.onnx")
    asked: dict[str, Any] = {
        "op_types_to_quantize": ["Conv"],
        "extra_options": {"ActivationSymmetric": True},
    }
    ours.quantize(digits, one, module.StaticQuantConfig(Reader(images), **asked))
    ours.quantize_static(digits, other, Reader(images), **asked)
    assert one.read_bytes() == other.read_bytes()
    ours.quantize(digits, one, module.DynamicQuantConfig(per_channel=True))
    ours.quantize_dynamic(digits, other, per_channel=True)
    assert one.read_bytes() == other.read_bytes()
    config = ours.RTNWeightOnlyQuantConfig(op_types_to_quantize=["Gemm"])
    ours.quantize(digits, one, config)
    plan = quantize_rs.open(digits).plan(
        "int4",
        block_size=128,
        op_types=["Gemm"],
        output_format="matmul_nbits",
        weight_method="minmax",
        onnxruntime_names=True,
    )
    plan.apply().save(other, external_data=True)
    assert onnx.load(one) == onnx.load(other)


def test_distribution_is_the_method_of_float8(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = ours.QuantType.QFLOAT8E4M3FN
    options: dict[str, Any] = {"activation_type": kind, "weight_type": kind}
    with caplog.at_level(logging.WARNING, "quantize_rs"):
        method = ours.CalibrationMethod.Distribution
        report = static(digits, images, calibrate_method=method, **options)
    assert report.method == "minmax"
    assert "scaled by its largest magnitude" in caplog.text


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"symmetric": False}, "unlike other weights: set WeightSymmetric"),
        ({"symmetric": True, "reduce_range": True}, "has reduce_range"),
    ],
)
def test_what_a_weight_cannot_have_is_refused(
    digits: Path, images: Path, entry: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        static(digits, images, extra_options={"TensorQuantOverrides": {"fc1.weight": [entry]}})


def test_a_weight_may_say_what_all_weights_are(digits: Path, images: Path) -> None:
    """As the configuration for NPUs does of onnxruntime."""
    out = digits.with_name("o.onnx")
    static(digits, images)
    same = out.read_bytes()
    entry = {"quant_type": ours.QuantType.QInt8, "symmetric": True}
    static(digits, images, extra_options={"TensorQuantOverrides": {"fc1.weight": [entry]}})
    assert out.read_bytes() == same


def test_blocks_leave_activations_float(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantize_rs"):
        report = static(digits, images, extra_options={"BlockSize": 32})
    assert "activations stay float beside BlockSize" in caplog.text
    assert not any(value.quantized for value in report.activations)
    attributes = [
        attribute.i
        for node in onnx.load(digits.with_name("o.onnx")).graph.node
        for attribute in node.attribute
        if attribute.name == "block_size"
    ]
    assert set(attributes) == {32}


@pytest.mark.parametrize(
    ("options", "without", "name"),
    [
        (
            {"quant_format": ours.QuantFormat.QOperator},
            {"DedicatedQDQPair": True},
            "DedicatedQDQPair",
        ),
        (
            {"quant_format": ours.QuantFormat.QOperator},
            {"AddQDQPairToWeight": True},
            "AddQDQPairToWeight",
        ),
        ({"quant_format": ours.QuantFormat.QOperator}, {"QuantizeBias": False}, "QuantizeBias"),
        (
            {"quant_format": ours.QuantFormat.QOperator},
            {"OpTypesToExcludeOutputQuantization": ["Conv"]},
            "OpTypesToExcludeOutputQuantization",
        ),
        (
            {"extra_options": {"AddQDQPairToWeight": True}},
            {"DedicatedQDQPair": True},
            "DedicatedQDQPair",
        ),
        ({}, {"MinimumRealRange": -1.0}, "MinimumRealRange"),
        ({}, {"MinimumRealRange": 0}, "MinimumRealRange"),
    ],
)
def test_options_that_do_not_matter_together_are_a_warning(
    digits: Path,
    images: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    without: dict[str, Any],
    name: str,
) -> None:
    out = digits.with_name("o.onnx")
    static(digits, images, **options)
    same = out.read_bytes()
    caplog.clear()
    together = options.get("extra_options", {}) | without
    static(digits, images, **options | {"extra_options": together})
    assert out.read_bytes() == same
    assert any(f"extra_options['{name}']" in record.getMessage() for record in caplog.records)


def test_seven_bits_do_not_matter_for_16_bit_activations(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    wide = {"activation_type": ours.QuantType.QInt16}
    static(digits, images, **wide)
    same = out.read_bytes()
    static(digits, images, reduce_range=True, **wide)
    assert out.read_bytes() == same
    assert "reduce_range has no effect with activation_type int16" in caplog.text


def test_one_type_may_be_given_as_text(digits: Path, images: Path) -> None:
    out = digits.with_name("o.onnx")
    name = "OpTypesToExcludeOutputQuantization"
    static(digits, images, extra_options={name: ["Relu"]})
    same = out.read_bytes()
    static(digits, images, extra_options={name: "Relu"})
    assert out.read_bytes() == same


def test_refusals_name_the_options_that_were_given(digits: Path, images: Path) -> None:
    wide = ours.QuantType.QInt16
    for options, said in (
        (
            {"quant_format": ours.QuantFormat.QOperator, "activation_type": wide},
            "activation_type is int16, expected int8 or uint8; quant_format is QOperator",
        ),
        (
            {"extra_options": {"ForceQuantizeNoInputCheck": True}, "weight_type": wide},
            "weight_type is int16, .* with ForceQuantizeNoInputCheck",
        ),
    ):
        with pytest.raises(OptionError, match=f"^{said}$"):
            static(digits, images, **options)
