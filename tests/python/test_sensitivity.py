"""Which layers cost the most, and where accuracy is lost."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import oracle
import processor
import pytest
from onnx import helper, numpy_helper

import quantize_rs
from quantize_rs import CalibrationError, OptionError

Images = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def images() -> Images:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    found: Images = np.load(folder / "calibration.npy")[:12]
    return found


def spoilt(digits: Path, place: int) -> tuple[onnx.ModelProto, str]:
    """A model with an outlier in a weight, for which one scale is too coarse, and its name."""
    proto = onnx.load(digits)
    weights = [tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1]
    tensor = weights[place]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] *= 300
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return proto, tensor.name


@pytest.mark.parametrize("place", [0, 1])
def test_a_planted_bad_layer_is_the_first(digits: Path, images: Images, place: int) -> None:
    proto, name = spoilt(digits, place)
    # Equalization would share the outlier between two layers.
    model = quantize_rs.open(proto)
    plan = model.plan(per_channel=False, symmetric=True, equalize=False, include=["*"])
    assert quantize_rs.sensitivity(plan).layers[0].name == name
    plan = model.plan(symmetric=True, equalize=False, include=["*"])
    for metric in ("sqnr", "mse"):
        for all_but_one in (False, True):
            found = quantize_rs.sensitivity(plan, images, metric, all_but_one=all_but_one)
            assert found.layers[0].name == name, found


def test_a_ranking_on_a_processor_whose_sums_saturate_says_so(digits: Path, images: Images) -> None:
    for target, expected in ((None, processor.SATURATES), ("x86-avx2", False)):
        plan = quantize_rs.open(digits).plan(activations="uint8", target=target)
        found = quantize_rs.sensitivity(plan, images)
        assert any("has no VNNI" in note for note in found.notes) == expected


def test_a_layer_alone_is_the_model_with_all_others_float(digits: Path, images: Images) -> None:
    found = quantize_rs.sensitivity(quantize_rs.open(digits).plan(include=["*"]), images)
    names = [layer.name for layer in found.layers]
    for layer in found.layers:
        others = [name for name in names if name != layer.name]
        alone = quantize_rs.quantize(digits, None, include=["*"], excluded_layers=others)
        assert alone.model is not None
        whole = quantize_rs.compare(digits, alone.model, images, latency=False)
        assert layer.outputs[0].sqnr_db == pytest.approx(whole.outputs[0].sqnr_db, abs=1e-3)
        assert layer.weight_error is not None
        assert layer.outputs[0].top1_agreement == whole.outputs[0].top1_agreement


def test_scores_are_those_of_the_metric(digits: Path, images: Images) -> None:
    for metric in ("sqnr", "cosine", "max_abs", "mse", "top1", "weight"):
        found = quantize_rs.sensitivity(digits, images, metric)
        scores = [layer.score for layer in found.layers]
        assert scores == sorted(scores, reverse=metric in ("max_abs", "mse"))
        assert found.metric == metric


def test_what_is_known_is_not_done_again(digits: Path, images: Images, tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    seen: list[int] = []

    def stop(done: int, _: int | None) -> None:
        seen.append(done)
        if file.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_rs.sensitivity(
            digits, images, activations=None, resume=file, threads=1, progress=stop
        )
    known = len(json.loads(file.read_text())["layers"])
    whole = quantize_rs.sensitivity(digits, images, activations=None)
    assert 0 < known <= len(whole.layers)
    rest = quantize_rs.sensitivity(digits, images, activations=None, resume=file)
    for layer, other in zip(rest.layers, whole.layers, strict=True):
        assert layer.name == other.name
        assert layer.score == pytest.approx(other.score, abs=1e-9)  # the text lacks the last digit
    assert len(json.loads(file.read_text())["layers"]) == len(whole.layers)
    with pytest.raises(OptionError, match="belongs to another model"):
        quantize_rs.sensitivity(digits, images[:3], activations=None, resume=file)
    file.write_text("{}")
    with pytest.raises(OptionError, match="not a file of sensitivity results"):
        quantize_rs.sensitivity(digits, images, activations=None, resume=file)


def test_what_makes_no_sense_is_refused(digits: Path, images: Images) -> None:
    with pytest.raises(OptionError, match="metric"):
        quantize_rs.sensitivity(digits, images, "accuracy")
    with pytest.raises(OptionError, match="metric"):
        quantize_rs.sensitivity(digits, metric="mse")
    with pytest.raises(OptionError, match="data"):
        quantize_rs.sensitivity(digits, all_but_one=True)
    with pytest.raises(CalibrationError):
        quantize_rs.sensitivity(digits, images[:0])


@pytest.mark.parametrize("name", ["residual_add", "two_towers", "transformer_block", "two_inputs"])
def test_models_of_other_shapes_are_looked_at_too(name: str) -> None:
    path, feeds = oracle.model(name), [oracle.feeds(name)]
    found = quantize_rs.sensitivity(path, feeds)
    assert found.layers
    assert all(layer.outputs for layer in found.layers)
    made = quantize_rs.quantize_with_calibration(path, None, feeds)
    assert made.model is not None
    errors = quantize_rs.layer_errors(path, made.model, feeds)
    assert errors.values


def test_accumulated_errors_are_those_of_onnx_runtime(digits: Path, images: Images) -> None:
    # The kernels must not saturate: other kernels compute the values that are observed.
    made = quantize_rs.quantize_with_calibration(digits, None, images, target="x86-avx2")
    assert made.model is not None
    errors = quantize_rs.layer_errors(digits, made.model, images)
    whole = quantize_rs.compare(digits, made.model, images, latency=False)
    rows = {value.name: value for value in errors.values}
    for output in whole.outputs:
        assert rows[output.name].accumulated.sqnr_db == pytest.approx(output.sqnr_db, abs=0.1)
    # The own error of a value is a part of the accumulated error.
    assert all(value.own.sqnr_db > value.accumulated.sqnr_db - 1 for value in errors.values)
    assert str(errors).startswith("value")
    assert repr(errors).startswith("<LayerErrors: ")


def deep(layers: int = 50) -> onnx.ModelProto:
    """Many layers with all kinds of long connections: values that are added much later, an output
    in the middle that is read again, a weight that is read early and late, and integers computed
    from activations."""
    rng = np.random.default_rng(7)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def node(op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def weight(name: str, *shape: int) -> str:
        values = (rng.normal(0, 1, shape) / np.sqrt(shape[0])).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    kept: list[str] = []
    x = "x"
    for layer in range(layers):
        name = "w0" if layer == layers - 3 else weight(f"w{layer}", 16, 16)
        x = node("Tanh", [node("MatMul", [x, name], f"m{layer}")], f"t{layer}")
        kept.append(x)
        if layer in (9, 17, 26):
            x = node("Add", [x, kept[layer - 8]], f"a{layer}")
        if layer == 40:
            again = node("Tanh", [node("MatMul", ["early", weight("again", 4, 16)], "m")], "back")
            x = node("Add", [node("Add", [x, kept[2]], "far"), again], "both")
        if layer == 13:
            node("MatMul", [x, weight("head", 16, 4)], "early")
            node("ArgMax", [x], "best", axis=-1, keepdims=0)
        if layer == 20:
            table = weight("table", 16, 16)
            x = node("Add", [x, node("Gather", [table, "best"], "picked")], "mixed")
    nodes[-1].output[0] = "late"
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", length])
        for name, length in (("x", 16), ("early", 4), ("late", 16))
    ]
    graph = onnx.helper.make_graph(nodes, "deep", ends[:1], ends[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("activations", [None, "uint8"])
@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
@pytest.mark.parametrize("threads", [1, 3])
def test_layers_of_a_deep_model_are_each_looked_at_alone(
    engine: str, threads: int, activations: str | None
) -> None:
    model = deep()
    rng = np.random.default_rng(8)
    samples = [rng.normal(0, 1, (n, 16)).astype(np.float32) for n in (3, 5, 3)]
    subject = quantize_rs.open(model).plan(activations=activations, include=["*"])
    found = quantize_rs.sensitivity(subject, samples, engine=engine, threads=threads)
    names = [layer.name for layer in found.layers]
    assert len(names) == 52
    for layer in found.layers:
        others = [name for name in names if name != layer.name]
        plan = quantize_rs.open(model).plan(
            activations=activations,
            include=["*"],
            exclude=others,
            weight_algorithm="nearest",
        )
        alone = plan.apply(plan.calibrate(samples, engine=engine)).to_bytes()
        whole = quantize_rs.compare(model, alone, samples, engine=engine, latency=False)
        for output, wanted in zip(layer.outputs, whole.outputs, strict=True):
            assert output.name == wanted.name
            assert output.sqnr_db == pytest.approx(wanted.sqnr_db, abs=0.01)


def test_a_product_of_two_activations_is_a_layer_that_can_stay_float() -> None:
    """As in attention: the product of values with outliers, which 8 bits make useless."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(32, 32)).astype(np.float32) / 6
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "projection"),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["scores"], "scores"),
        helper.make_node("MatMul", ["x", "v"], ["values"], "values"),
        helper.make_node("MatMul", ["scores", "values"], ["y"], "attended"),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", 1, [1, 16, 32])],
        [helper.make_tensor_value_info("y", 1, [1, 16, 32])],
        [numpy_helper.from_array(weight, name) for name in "wv"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = rng.normal(size=(32, 1, 16, 32)).astype(np.float32)
    names = [row.name for row in quantize_rs.sensitivity(model, samples).layers]
    assert {"scores", "attended"} <= set(names)
    # Sums of 7-bit weights do not saturate on any processor.
    options: dict[str, Any] = {"include": ["*"], "target": "x86-avx2"}
    options["calibration_data"] = samples
    best = quantize_rs.quantize_with_calibration(
        model, None, exclude=["scores", "attended"], **options
    )
    assert best.output_check is not None
    assert best.output_check.sqnr_db is not None
    wanted = best.output_check.sqnr_db - 0.5
    found = quantize_rs.quantize_with_calibration(model, None, min_sqnr=wanted, **options)
    assert found.accuracy_control is not None
    assert found.accuracy_control.float_layers


@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_weight_with_a_default_among_the_inputs_needs_no_sample(ir_version: int) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 32] x, float[32, 32] w) => (float[n, 32] y) {
        a = MatMul(x, u)
        b = Relu(a)
        c = MatMul(b, w)
        d = Relu(c)
        e = MatMul(d, v)
        y = Relu(e)
    }""")
    model.ir_version = ir_version
    rng = np.random.default_rng(3)
    for name in ("u", "w", "v"):
        values = (rng.normal(size=(32, 32)) / 6).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        if ir_version < 4 and name != "w":
            model.graph.input.append(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 32])
            )
    samples = [{"x": rng.normal(size=(2, 32)).astype(np.float32)} for _ in range(8)]
    weights = {"u", "v"} | ({"w"} if ir_version < 4 else set())
    for activations in (None, "uint8"):
        found = quantize_rs.sensitivity(model, samples, activations=activations)
        names = {layer.name for layer in found.layers}
        assert weights <= names
        assert ("w" in names) == ("w" in weights)
    mixed = quantize_rs.mixed_precision(model, samples, min_sqnr=20)
    assert {layer.name for layer in mixed.layers} == weights
    report = quantize_rs.quantize_with_calibration(model, None, samples, allow_larger=True)
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    wanted = report.output_check.sqnr_db + 1
    controlled = quantize_rs.quantize_with_calibration(
        model, None, samples, allow_larger=True, min_sqnr=wanted
    )
    assert controlled.accuracy_control is not None


def test_layer_errors_of_a_float16_model_with_a_branch() -> None:
    """A branch reads a value in 16 bits, which is not fed in float32."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 64] x, bool c) => (float[n, 16] y) {
        r = Relu(x)
        h = MatMul(r, w)
        y = If (c) <
            then_branch = t() => (float[n, 16] p) { p = MatMul(h, v) },
            else_branch = e() => (float[n, 16] q) { q = Neg(h) }
        >
    }""")
    rng = np.random.default_rng(2)
    for name, shape in (("w", (64, 16)), ("v", (16, 16))):
        values = (rng.normal(size=shape) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    feeds = [
        {"x": rng.normal(size=(2, 64)).astype(np.float32), "c": np.array(True)} for _ in range(4)
    ]
    half = quantize_rs.convert_float16(model, None).model
    assert half is not None
    errors = quantize_rs.layer_errors(model, half, feeds)
    rows = {value.name: value for value in errors.values}
    assert "h" not in rows
    assert rows["y"].accumulated.sqnr_db > 50


@pytest.mark.parametrize("with_data", [False, True])
def test_a_model_without_layers_says_why(digits: Path, images: Images, with_data: bool) -> None:
    quantized = quantize_rs.quantize_with_calibration(digits, None, images).model
    assert quantized is not None
    found = quantize_rs.sensitivity(quantized, images[:4] if with_data else None)
    assert found.layers == ()
    assert any("nothing was quantized: the model holds integers" in note for note in found.notes)


def test_layers_are_compared_with_the_float_model_however_methods_are_chosen(
    digits: Path,
) -> None:
    """From 128 samples on, calibration runs quantized models to choose a method."""
    samples = np.load(digits.parent / "calibration.npy")[:140]
    plan = quantize_rs.open(digits).plan(activations="uint8", weight_algorithm="nearest")
    ranges = plan.calibrate(samples, engine="tract")
    found = quantize_rs.sensitivity(plan, samples, engine="tract")
    given = quantize_rs.sensitivity(plan, samples, engine="tract", ranges=ranges)
    expected = {layer.name: layer.score for layer in given.layers}
    # Compared with a quantized model, three of the layers lose 4 to 7 dB; ranges that were given
    # correct biases too.
    for layer in found.layers:
        assert abs(layer.score - expected[layer.name]) < 3, layer.name


def test_a_sensitivity_of_all_but_one_names_the_layer_to_leave_out(
    digits: Path, images: Images, tmp_path: Path
) -> None:
    proto, name = spoilt(digits, 0)
    plan = quantize_rs.open(proto).plan(symmetric=True, equalize=False, include=["*"])
    found = quantize_rs.sensitivity(plan, images, all_but_one=True)
    found.save_html(tmp_path / "page.html")
    text = html.unescape((tmp_path / "page.html").read_text("utf-8"))
    assert found.layers[0].score > 30
    assert f'quantize all others: exclude=["{name}"]' in text
    assert "no layer has to stay float" not in text
    assert "layers are below" not in text


def test_parts_of_a_model_without_shapes_run() -> None:
    """A Resize to the size of another value, as in a feature pyramid, which no shape declares."""
    rng = np.random.default_rng(6)
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["large"], pads=[1] * 4),
        helper.make_node("Conv", ["large", "second"], ["small"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Shape", ["large"], ["size"]),
        helper.make_node("Resize", ["small", "", "", "size"], ["raised"], mode="nearest"),
        helper.make_node("Conv", ["raised", "third"], ["y"]),
        helper.make_node("Identity", ["small"], ["beside"]),
    ]
    shapes = {"first": (8, 3, 3, 3), "second": (8, 8, 3, 3), "third": (4, 8, 1, 1)}
    weights = {name: rng.normal(size=shape) * 0.3 for name, shape in shapes.items()}
    x, y, beside = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"n_{name}", channels, *sides])
        for name, channels, sides in (("x", 3, "hw"), ("y", 4, "ab"), ("beside", 8, "cd"))
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [x],
        [y, beside],
        [numpy_helper.from_array(np.float32(values), name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    samples = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
    found = quantize_rs.sensitivity(model, samples, engine="onnxruntime")
    assert {layer.name for layer in found.layers} == set(weights)
    criterion: dict[str, Any] = {"validation_data": samples, "min_sqnr": 45.0}
    report = quantize_rs.quantize(model, None, allow_larger=True, **criterion)
    assert report.verified is not None
