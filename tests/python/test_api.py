"""The one-liners, called as people call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest

import quantize_rs
from quantize_rs import OptionError


def test_the_order_of_arguments_is_that_of_0_10() -> None:
    promised: dict[Callable[..., Any], str] = {
        quantize_rs.quantize: "input_path output_path bits per_channel excluded_layers "
        "min_elements layer_bits native_int4 symmetric",
        quantize_rs.quantize_with_calibration: "input_path output_path calibration_data bits "
        "per_channel method num_samples sample_shape native_int4 symmetric excluded_layers "
        "min_elements layer_bits",
        quantize_rs.model_info: "input_path",
    }
    for function, names in promised.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == names.split()


def test_defaults_are_those_of_0_10_or_the_best_that_the_model_allows() -> None:
    parameters = inspect.signature(quantize_rs.quantize_with_calibration).parameters
    expected = {
        "calibration_data": None,
        "bits": 8,
        "per_channel": None,
        "method": "auto",
        "num_samples": 100,
        "sample_shape": None,
        "symmetric": None,
        "excluded_layers": None,
        "min_elements": 0,
        "layer_bits": None,
    }
    assert {name: parameters[name].default for name in expected} == expected


def test_quantize_by_position(digits: Path) -> None:
    report = quantize_rs.quantize(str(digits), "q.onnx", 8, True, ["conv1*"], 10, {}, None, True)
    kinds = {value.name: value.kind for value in report.weights}
    assert set(kinds.values()) == {"float32", "float16", "int8 symmetric axis 0"}
    assert Path("q.onnx").stat().st_size == report.bytes_after


def test_quantize_with_calibration_by_position(digits: Path, images: Path) -> None:
    report = quantize_rs.quantize_with_calibration(
        str(digits),
        "q.onnx",
        str(images),
        8,
        False,
        "minmax",
        100,
        None,
        None,
        False,
        None,
        0,
        None,
    )
    assert (report.samples, report.method, report.engine) == (200, "minmax", "tract")


def test_model_info_has_the_fields_of_0_10(digits: Path) -> None:
    info = quantize_rs.model_info(str(digits))
    proto = onnx.load(digits)
    assert info.name == proto.graph.name
    assert info.version == proto.model_version
    assert info.opset_version == 17
    assert info.num_nodes == len(proto.graph.node)
    assert info.inputs == ["image"]
    assert info.outputs == ["logits"]


def test_model_info_counts_what_is_there(digits: Path) -> None:
    info = quantize_rs.model_info(digits)
    assert info.parameters == 56_426
    assert info.bytes == digits.stat().st_size
    assert info.weight_bytes["float32"] == 4 * info.parameters
    assert sum(info.operators.values()) == info.num_nodes
    assert info.input_specs == (quantize_rs.TensorSpec("image", "float32", (None, 1, 8, 8)),)
    assert not info.quantized
    quantize_rs.quantize(digits, "q.onnx")
    assert quantize_rs.model_info("q.onnx").quantized


@pytest.mark.parametrize(
    ("domain", "op_type", "quantized"),
    [
        ("", "QLinearMatMul", True),
        ("ai.onnx", "QLinearConv", True),
        ("", "DynamicQuantizeLinear", True),
        ("com.microsoft", "QLinearAdd", True),
        ("com.microsoft", "QLinearReduceMean", True),
        ("com.microsoft", "QGemm", True),
        ("com.microsoft", "MatMulIntegerToFloat", True),
        ("com.microsoft", "DynamicQuantizeMatMul", True),
        ("com.microsoft", "DequantizeLinear", True),
        ("com.microsoft", "FusedMatMul", False),
        ("com.acme", "QLinearMatMul", False),
        ("com.acme", "DequantizeLinear", False),
        ("", "QGemm", False),
        ("", "MatMul", False),
    ],
)
def test_model_info_knows_quantized_operators(domain: str, op_type: str, quantized: bool) -> None:
    node = onnx.helper.make_node(op_type, ["x"], ["y"], domain=domain)
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"
    ]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    assert quantize_rs.model_info(onnx.helper.make_model(graph)).quantized == quantized
    # In a subgraph, too.
    taken = onnx.helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=onnx.helper.make_graph([node], "then", [], values[1:]),
        else_branch=onnx.helper.make_graph([node], "else", [], values[1:]),
    )
    condition = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    graph = onnx.helper.make_graph([taken], "g", [values[0], condition], values[1:])
    assert quantize_rs.model_info(onnx.helper.make_model(graph)).quantized == quantized


@pytest.mark.parametrize("form", ["text", "path", "bytes", "bytearray", "memoryview", "proto"])
def test_every_form_of_a_model_gives_the_same_result(digits: Path, form: str) -> None:
    data = digits.read_bytes()
    forms: dict[str, Any] = {
        "text": str(digits),
        "path": digits,
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "proto": onnx.load(digits),
    }
    expected = quantize_rs.quantize(digits, None).model
    assert quantize_rs.quantize(forms[form], None).model == expected


def test_a_model_proto_stays_as_it_is(digits: Path, images: Path) -> None:
    proto = onnx.load(digits)
    before = proto.SerializeToString(deterministic=True)
    quantize_rs.quantize(proto, "q.onnx", per_channel=True)
    quantize_rs.quantize_with_calibration(proto, None, images)
    assert proto.SerializeToString(deterministic=True) == before


def test_without_an_output_path_the_model_is_in_the_report(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None)
    assert report.output is None
    assert report.model is not None
    assert len(report.model) == report.bytes_after
    assert report.model == _written(digits)
    assert list(Path.cwd().glob("*.onnx")) == [Path.cwd() / "q.onnx"]


def _written(digits: Path) -> bytes:
    report = quantize_rs.quantize(digits, "q.onnx")
    assert report.model is None
    assert report.output == "q.onnx"
    return Path("q.onnx").read_bytes()


def test_a_path_may_be_anything_that_names_one(digits: Path) -> None:
    class Place:
        def __fspath__(self) -> str:
            return str(digits)

    assert quantize_rs.model_info(Place()) == quantize_rs.model_info(digits)


def test_what_is_no_model_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"expected a path, bytes or an onnx\.ModelProto, got int"):
        quantize_rs.quantize(3, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [300, -8, 2**70, 0, 1, 7, 32])
def test_bits_that_are_none_are_an_option_error(digits: Path, bits: int) -> None:
    said = f"bits is {bits}, expected 2, 3, 4, 5, 6, 8 or 16"
    with pytest.raises(OptionError, match=said) as caught:
        quantize_rs.quantize(digits, None, bits)
    assert caught.value.option == "bits"
    with pytest.raises(OptionError, match=f"layer_bits is {bits}, expected") as caught:
        quantize_rs.quantize(digits, None, layer_bits={"conv1.weight": bits})
    assert caught.value.option == "layer_bits"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"min_elements": -1}, "min_elements"),
        ({"block_size": -1}, "block_size"),
        ({"block_size": 3}, "block_size"),
        ({"weights": "int7"}, "weights"),
        ({"weights": "int32"}, "weights"),
        ({"bits": 4, "weights": "int8"}, "bits"),
        ({"excluded_layers": ["no such layer"]}, "exclude"),
        ({"excluded_layers": ["no such *"]}, "exclude"),
        ({"excluded_layers": "conv1"}, "exclude"),
        ({"layer_bits": {"no such layer": 8}}, "layer_bits"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    digits: Path, options: dict[str, Any], option: str
) -> None:
    with pytest.raises(OptionError, match=option) as caught:
        quantize_rs.quantize(digits, "q.onnx", **options)
    assert caught.value.option == option
    assert not Path("q.onnx").exists()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"calibration_data": None}, "calibration_data"),
        ({"calibration_data": 3}, "calibration_data"),
        ({"method": "entropie"}, "method"),
        ({"activations": "int4"}, "activations"),
        ({"activations": "float9"}, "activations"),
        ({"weights": "float8"}, "weights"),
        ({"layer_bits": {"*": "float8"}}, "layer_bits"),
        ({"limit": 0}, "limit"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"num_samples": 0}, "num_samples"),
        ({"sample_shape": [1, -8]}, "sample_shape"),
    ],
)
def test_an_option_of_calibration_that_cannot_be_is_named(
    digits: Path, options: dict[str, Any], option: str
) -> None:
    options = {"calibration_data": "random"} | options
    with pytest.raises(OptionError, match=option) as caught:
        quantize_rs.quantize_with_calibration(digits, "q.onnx", **options)
    assert caught.value.option == option
    assert not Path("q.onnx").exists()


def test_no_data_says_what_would_be_data(digits: Path) -> None:
    with pytest.raises(ValueError, match="calibration_data is None, expected a path"):
        quantize_rs.quantize_with_calibration(digits, "q.onnx")


@pytest.mark.parametrize(("bits", "opset"), [(2, 25), (4, 21), (8, 10), (16, 21)])
def test_all_bits_there_are(bits: int, opset: int) -> None:
    source = oracle.model("opset26_conv")
    # The check would give convolutions more bits.
    report = quantize_rs.quantize(
        source, None, bits, per_channel=True, symmetric=True, check="none"
    )
    assert report.model is not None
    assert {value.qtype for value in report.quantized} == {f"int{bits}"}
    assert quantize_rs.model_info(source).opset_version >= opset
    oracle.check(report.model)
    inputs = oracle.feeds("opset26_conv")
    floor = {2: 2.0, 4: 12.0, 8: 35.0, 16: 80.0}[bits]  # 6 dB a bit, less what small nets lose
    assert oracle.sqnr(oracle.ort(source, inputs), oracle.ort(report.model, inputs)) > floor


def test_bits_in_their_own_types_and_blocks() -> None:
    source = oracle.model("opset26_conv")
    for weights in ("uint8", "uint4", "int4", "uint16"):
        report = quantize_rs.quantize(source, None, weights=weights, block_size=16)
        assert {value.qtype for value in report.quantized} == {weights}
        assert report.model is not None
        oracle.check(report.model)


def test_layer_bits_and_exclusions_reach_the_layers_they_name() -> None:
    source = oracle.model("opset26_conv")
    names = [value.name for value in quantize_rs.open(source).plan() if value.role == "weight"]
    report = quantize_rs.quantize(
        source, None, excluded_layers=[names[0]], layer_bits={names[1]: 16}
    )
    kinds = {value.name: value.qtype for value in report.weights}
    assert kinds[names[0]] is None
    assert kinds[names[1]] == "int16"


def test_numpy_integers_are_integers(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None, np.int64(4), min_elements=np.int32(200))
    kinds = {value.name: value.qtype for value in report.weights}
    assert (kinds["fc1.weight"], kinds["conv1.weight"]) == ("int4", None)


def test_the_outputs_of_the_digits_network_stay(digits: Path, images: Path) -> None:
    test = np.load(digits.with_name("test.npz"))
    feed, labels = {"image": test["images"]}, test["labels"]
    expected = oracle.ort(digits, feed)
    weights = quantize_rs.quantize(digits, None, per_channel=True, symmetric=True)
    both = quantize_rs.quantize_with_calibration(
        digits, None, images, per_channel=True, symmetric=True
    )
    # As measured, less one decibel; the float model gets 394 of 397 right.
    for report, floor in ((weights, 39.6), (both, 38.0)):
        model = report.model
        assert model is not None
        oracle.check(model)
        for found in (oracle.ort(model, feed), oracle.ort(model, feed, optimized=False)):
            assert oracle.sqnr(expected, found) > floor
            assert (found[0].argmax(1) == labels).sum() >= 393
    assert weights.ratio > 3.3
