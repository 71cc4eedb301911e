"""What programs look up in a result has the name and the number that onnxruntime gives it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest
from decoders import decoder
from graphs import built
from onnx import numpy_helper
from readers import Reader

import quantize_rs
from quantize_rs.compat import onnxruntime as ours

Nodes = dict[str, onnx.NodeProto]


def quantized(
    model: Path, out: Path, samples: Any, package: Any, **options: Any
) -> onnx.ModelProto:
    package.quantize_static(
        str(model), str(out), samples, activation_type=package.QuantType.QUInt8, **options
    )
    return onnx.load(out)


def pairs(model: onnx.ModelProto) -> Nodes:
    """Return the nodes that quantize and dequantize, by name."""
    kinds = ("QuantizeLinear", "DequantizeLinear")
    found = [node for node in model.graph.node if node.op_type in kinds]
    named = {node.name: node for node in found}
    assert len(named) == len(found)
    return named


def constants(model: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


class Feeds:
    """Samples of a fixture, one by one."""

    def __init__(self, name: str) -> None:
        self.left = iter([oracle.feeds(name, count) for count in (4, 8, 12)])

    def get_next(self) -> Any:
        return next(self.left, None)


FIXTURES = ("conv_clip6", "mlp_relu", "residual_add", "graph_output_conv", "maxpool_flatten_gemm")


@pytest.mark.parametrize("fixture", FIXTURES)
def test_what_both_quantize_has_the_same_names(tmp_path: Path, fixture: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(oracle.model(fixture).read_bytes())
    found = []
    for name, package in (("ours", ours), ("theirs", theirs)):
        out = tmp_path / f"{name}.onnx"
        found.append(pairs(quantized(model, out, Feeds(fixture), package)))
    own, other = found
    shared = set(own) & set(other)
    assert len(shared) > 0.6 * len(own)
    for name in shared:
        mine, expected = own[name], other[name]
        # A zero point of 0 is omitted where runtimes do without, and values that move share scales.
        assert mine.input[0] == expected.input[0], name
        assert mine.output == expected.output, name
        assert mine.input[1].endswith("_scale")
        assert all(point.endswith("_zero_point") for point in mine.input[2:])
    # Nothing has a name that onnxruntime would not give.
    assert all(name.endswith(("_QuantizeLinear", "_DequantizeLinear")) for name in own)


def test_scales_and_zero_points_are_those_of_onnxruntime(digits: Path, images: Path) -> None:
    def numbers(package: Any, name: str) -> dict[str, tuple[Any, Any]]:
        out = digits.with_name(f"{name}.onnx")
        model = quantized(digits, out, Reader(images), package)
        values = constants(model)
        return {
            node.name: (values[node.input[1]], values[node.input[2]])
            for node in pairs(model).values()
            if node.op_type == "QuantizeLinear"
        }

    own, other = numbers(ours, "own"), numbers(theirs, "theirs")
    shared = set(own) & set(other)
    assert len(shared) >= 4
    for name in shared:
        np.testing.assert_allclose(own[name][0], other[name][0], rtol=1e-6)
        assert own[name][1] == other[name][1]


def test_weights_have_their_scales_too(digits: Path, images: Path) -> None:
    for per_channel in (False, True):
        own, other = (
            constants(quantized(digits, out, Reader(images), package, per_channel=per_channel))
            for package, out in (
                (ours, digits.with_name("own.onnx")),
                (theirs, digits.with_name("theirs.onnx")),
            )
        )
        for weight in ("conv2.weight", "conv3.weight", "fc1.weight"):
            found = own[f"{weight}_scale"]
            np.testing.assert_allclose(found, other[f"{weight}_scale"].reshape(found.shape), 1e-6)


def test_blocks_have_the_names_of_onnxruntime(tmp_path: Path) -> None:
    model = tmp_path / "decoder.onnx"
    model.write_bytes(decoder())
    quantizer = ours.MatMulNBitsQuantizer(model, block_size=32)
    quantizer.process()
    nodes = [node for node in quantizer.model.model.graph.node if node.op_type == "MatMulNBits"]
    assert nodes
    for node in nodes:
        base = node.input[1].removesuffix("_Q4")
        assert list(node.input[1:]) == [f"{base}_Q4", f"{base}_scales", f"{base}_zero_points"]
        assert node.name.endswith("_Q4")


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path, digits: Path, images: Path) -> None:
    model = onnx.load(digits)
    for node in model.graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == "relu1_out":
                    names[at] = "image_scale"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    out = tmp_path / "out.onnx"
    ours.quantize_static(path, out, Reader(images))
    feeds = {"image": np.load(images)[:8]}
    assert oracle.sqnr(oracle.ort(path, feeds), oracle.ort(out, feeds)) > 25
    names = [tensor.name for tensor in onnx.load(out).graph.initializer]
    assert sum(name.startswith("image_scale") for name in names) > 1
    assert "image_scale" not in names


def test_a_percentile_is_within_a_bin_of_that_of_onnxruntime(digits: Path, images: Path) -> None:
    """Where no value is negative: otherwise onnxruntime cuts magnitudes, and this package ends."""
    from onnxruntime.quantization import calibrate as their_calibrate

    extra = {"percentile": 99.0}
    kind = their_calibrate.CalibrationMethod.Percentile
    path = str(digits.with_name("augmented.onnx"))
    other = their_calibrate.create_calibrator(str(digits), None, path, kind, extra_options=extra)
    other.collect_data(Reader(images))
    expected = other.compute_data()
    widest = ours.create_calibrator(digits)
    widest.collect_data(Reader(images))
    wide = widest.compute_data()
    method = ours.CalibrationMethod.Percentile
    own = ours.create_calibrator(digits, calibrate_method=method, extra_options=extra)
    own.collect_data(Reader(images))
    found = own.compute_data()
    positive = [name for name in found if wide[name].range_value[0] >= 0]
    assert len(positive) >= 4
    for name in positive:
        width = float(wide[name].range_value[1].item()) / 2048
        ends = [float(np.ravel(data[name].range_value[1])[0]) for data in (found, expected)]
        assert abs(ends[0] - ends[1]) <= 2 * width, name


@pytest.mark.parametrize("kind", ["get_qdq_config", "get_qnn_qdq_config"])
@pytest.mark.parametrize("fixture", ["residual_add", "maxpool_flatten_gemm", "transformer_block"])
def test_configurations_that_quantize_everything_give_the_same_pairs(
    tmp_path: Path, fixture: str, kind: str
) -> None:
    """A Relu is kept here always, and by onnxruntime with `keep_removable_activations`."""
    model = tmp_path / "model.onnx"
    model.write_bytes(oracle.model(fixture).read_bytes())
    found = []
    for package in (ours, theirs):
        module: Any = package
        if kind == "get_qnn_qdq_config":
            name = f"{package.__name__}.execution_providers.qnn"
            module = importlib.import_module(name)
        configure, out = getattr(module, kind), tmp_path / "out.onnx"
        config = configure(str(model), Feeds(fixture), keep_removable_activations=True)
        package.quantize(str(model), str(out), config)
        nodes = pairs(onnx.load(out)).values()
        found.append({node.output[0] for node in nodes if node.op_type == "QuantizeLinear"})
    assert found[0] == found[1]


def test_layers_that_the_model_lacks_are_passed_over(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model builder of onnxruntime-genai lists the layers of several kinds of models."""
    bits = {"fc1": {"bits": 8}, "/lm_head/MatMul": {"bits": 8}, "qkv_proj": {"bits": 8}}
    found = []
    for layers in (bits, {"fc1": {"bits": 8}}):
        config = ours.KQuantWeightOnlyQuantConfig(customized_weight_config=layers)
        quantizer = ours.MatMulNBitsQuantizer(
            digits, 4, 32, op_types_to_quantize=("Gemm",), algo_config=config
        )
        quantizer.process()
        quantizer.model.save_model_to_file(tmp_path / "q.onnx")
        found.append((tmp_path / "q.onnx").read_bytes())
    assert found[0] == found[1]
    said = [text for text in caplog.messages if "customized_weight_config" in text]
    assert [name in text for name, text in zip([*bits][1:], said, strict=True)] == [True, True]


def tabled() -> bytes:
    """A table that holds a small share of the weights, a matrix and a short kernel."""
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["ids"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("Gather", ["table", "ids"], ["rows"], "embed"),
        onnx.helper.make_node("Conv", ["rows", "kernel"], ["c"], "conv", group=4, pads=[1, 1]),
        onnx.helper.make_node("MatMul", ["c", "w"], ["y"], "head"),
    ]
    constants = {
        "table": rng.normal(size=(60, 64)),
        "kernel": rng.normal(size=(4, 1, 3)),
        "w": rng.normal(size=(64, 800)),
    }
    return built(nodes, constants, ["n", 4])


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
@pytest.mark.parametrize("bits", [2, 4])
def test_small_tables_have_the_bits_of_the_call(
    bits: int, quant_format: str, tmp_path: Path
) -> None:
    quantizer = ours.MatMulNBitsQuantizer(
        tabled(),
        bits=bits,
        block_size=32,
        op_types_to_quantize=("MatMul", "Gather"),
        quant_format=ours.QuantFormat[quant_format],
    )
    quantizer.process()
    report = quantizer.model.save_model_to_file(tmp_path / "q.onnx")
    assert {(row.name, str(row.qtype).lstrip("u")) for row in report.quantized} == {
        (name, f"int{bits}") for name in ("table", "w")
    }


def test_the_report_says_why_weights_have_more_bits() -> None:
    report = quantize_rs.quantize(tabled(), None, bits=4, block_size=None)
    rows = {row.name: (row.qtype, row.why) for row in report.quantized}
    assert rows["w"] == ("int4", "quantized: weight of node `head` (MatMul)")
    for name, kind in (("table", "table"), ("kernel", "kernel")):
        qtype, why = rows[name]
        assert qtype == "int8"
        assert f"8 bits for a small {kind}" in why
    mixed = quantize_rs.quantize(tabled(), None, bits=4, mixed_layers="last")
    assert any("8 bits for mixed_layers" in row.why for row in mixed.quantized)
