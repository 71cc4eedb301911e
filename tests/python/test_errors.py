"""Every exception that users can catch: where it comes from and what it carries."""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import (
    AccuracyCriteriaError,
    CalibrationError,
    ExternalDataError,
    MissingPackageError,
    ModelError,
    ModelFormatError,
    OptionError,
    Plan,
    QuantizeError,
    UnsupportedModelError,
    errors,
)
from quantize_rs._options.table import canonical

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_cnn.onnx"
ATTACKS = Path(__file__).resolve().parents[1] / "attacks" / "files"


def test_the_tree_is_that_of_the_documentation() -> None:
    tree = {
        QuantizeError: Exception,
        ModelError: QuantizeError,
        ModelFormatError: ModelError,
        ExternalDataError: ModelError,
        UnsupportedModelError: ModelError,
        OptionError: QuantizeError,
        CalibrationError: QuantizeError,
        MissingPackageError: QuantizeError,
        AccuracyCriteriaError: QuantizeError,
    }
    assert all(child.__bases__[0] is parent for child, parent in tree.items())
    assert issubclass(ModelError, ValueError)
    assert issubclass(OptionError, ValueError)
    assert issubclass(MissingPackageError, ImportError)
    assert {child.__name__ for child in tree} == set(errors.__all__)
    classes = dict(inspect.getmembers(errors, inspect.isclass))
    assert set(errors.__all__) == {n for n, c in classes.items() if issubclass(c, Exception)}
    assert all(getattr(quantize_rs, name) is classes[name] for name in errors.__all__)


def test_bytes_that_are_no_model_are_a_model_format_error(digits: Path) -> None:
    broken = digits.with_name("broken.onnx")
    broken.write_bytes(digits.read_bytes()[:1000])
    with pytest.raises(ModelFormatError, match="truncated") as caught:
        quantize_rs.quantize(broken, "q.onnx")
    error = caught.value
    assert error.path == broken
    assert error.offset is not None
    assert 0 <= error.offset <= 1000
    assert error.message
    assert error.message.endswith("Proto")
    assert error.field is not None
    with pytest.raises(ModelFormatError) as caught:
        quantize_rs.model_info(broken.read_bytes())
    assert caught.value.path is None


def test_an_illegal_graph_is_a_model_format_error() -> None:
    with pytest.raises(ModelFormatError, match="cycle") as caught:
        quantize_rs.quantize(ATTACKS / "cycle.onnx", None)
    assert caught.value.path == ATTACKS / "cycle.onnx"
    assert caught.value.offset is None


def test_a_node_that_lacks_inputs_is_a_model_format_error() -> None:
    with pytest.raises(ModelFormatError, match="Conv") as caught:
        quantize_rs.quantize(ATTACKS / "conv_no_weight.onnx", None)
    assert caught.value.path == ATTACKS / "conv_no_weight.onnx"


def test_data_that_is_not_there_is_an_external_data_error() -> None:
    with pytest.raises(ExternalDataError) as caught:
        quantize_rs.quantize(ATTACKS / "external_missing.onnx", None)
    assert caught.value.path == ATTACKS / "external_missing.onnx"
    assert caught.value.location == "missing.bin"


def test_bytes_have_no_data_beside_them() -> None:
    proto = onnx.load(oracle.model("external_data"), load_external_data=False)
    with pytest.raises(ExternalDataError) as caught:
        quantize_rs.quantize(proto, None)
    assert caught.value.path is None
    assert caught.value.location == "external_data.weights"


def test_a_node_that_cannot_be_converted_is_an_unsupported_model_error(
    digits: Path, tmp_path: Path
) -> None:
    model = onnx.load(digits)
    model.graph.node.add(op_type="Warp", name="odd", input=["image"], output=["warped"])
    source, target = tmp_path / "odd.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    with pytest.raises(UnsupportedModelError, match="needs opset 21") as caught:
        quantize_rs.quantize(source, target, bits=4)
    assert caught.value.feature == "opset 21"
    assert (caught.value.node, caught.value.op_type) == ("node `odd` (Warp)", "Warp")
    assert caught.value.path == source
    assert not target.exists()


def test_a_weight_of_nan_that_is_asked_for_is_an_unsupported_model_error() -> None:
    with pytest.raises(UnsupportedModelError, match="NaN") as caught:
        quantize_rs.quantize(ATTACKS / "nan_weight.onnx", None, include=["w"])
    assert caught.value.feature == "NaN or infinity in a weight"
    assert quantize_rs.quantize(ATTACKS / "nan_weight.onnx", None, excluded_layers=["w"])


ENCODE_ERROR = importlib.import_module("google.protobuf.message").EncodeError


@pytest.mark.parametrize("kind", [ValueError, ENCODE_ERROR])
def test_a_model_proto_beyond_2_gib_is_an_unsupported_model_error(kind: type[Exception]) -> None:
    class Huge:
        def SerializeToString(self) -> bytes:
            raise kind("Failed to serialize proto")

    for call in (quantize_rs.model_info, lambda model: quantize_rs.quantize(model, None)):
        message = "written by protobuf: Failed to serialize proto; save it with .* give its path"
        with pytest.raises(UnsupportedModelError, match=message) as caught:
            call(Huge())
        assert caught.value.feature == "models of 2 GiB in one piece"


def test_an_unknown_name_is_an_option_error_with_a_hint(digits: Path) -> None:
    name = next(v.name for v in quantize_rs.open(digits).plan() if v.role == "weight")
    with pytest.raises(OptionError, match=f"did you mean .*{name}") as caught:
        quantize_rs.quantize(digits, None, excluded_layers=[name + "x"])
    assert caught.value.option == "exclude"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("per_channel", 2, "true or false"),
        ("symmetric", "yes", "true or false"),
        ("weights", 3, "a text"),
        ("excluded_layers", [3], "text"),
        ("layer_bits", {3: 4}, "no value of an option"),
        ("layer_bits", 4, "dict by name"),
        ("layer_dtype", "uint4", "dict by name"),
        ("excluded_layers", 3, "list of names"),
        ("layer_types", {"conv1": "FLOAT33"}, "one of int2.*, float32$"),
        ("layer_bits", {"conv1": "FLOAT33"}, "one of int2.*, float32$"),
        ("per_channel", np.float32(2), "true or false"),
        ("bits", "8", "whole number"),
        ("opset", "a", "whole number"),
        ("min_elements", 1.5, "whole number"),
    ],
)
def test_a_value_of_another_type_is_an_option_error(
    digits: Path, option: str, value: object, expected: str
) -> None:
    name = canonical(option)
    with pytest.raises(OptionError, match=f"{name} is .*{expected}") as caught:
        quantize_rs.quantize(digits, None, **{option: value})  # type: ignore[arg-type]
    assert caught.value.option == name


def test_a_method_that_is_no_text_is_an_option_error(digits: Path, images: Path) -> None:
    ranges = quantize_rs.open(digits).plan(activations="uint8").calibrate(images)
    method: Any = 3
    for call in (
        lambda: quantize_rs.quantize_with_calibration(digits, None, images, method=method),
        lambda: ranges.using(method),
    ):
        with pytest.raises(OptionError, match=r"method is 3, expected the name") as caught:
            call()
        assert caught.value.option == "method"


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8")


package: Any = quantize_rs  # whose types are those that callers mistake
Calls = dict[str, tuple[str, Callable[[Any, Any], Any]]]
OF_ANOTHER_TYPE: Calls = {
    "apply": ("ranges is of type dict, .*path", lambda plan, _: plan.apply({"image": (0, 1)})),
    "quantize": (
        "ranges is of type dict, .*path",
        lambda *_: package.quantize_with_calibration(DIGITS, None, ranges={"image": (0, 1)}),
    ),
    "diff": ("other is of type int, .*path", lambda _, ranges: ranges.diff(3)),
    "merge": ("other is of type int, .*path", lambda _, ranges: ranges.merge([ranges, 3])),
    "merge nothing": ("other is None, .*path", lambda _, ranges: ranges.merge()),
    "merge no list": ("parts is 3, expected a list", lambda *_: package.Ranges.merge(3)),
    "version": ("version is 8.6", lambda _, r: r.save_tensorrt_cache("c", version=8.6)),
    "ends": ("'image' 3, expected two numbers", lambda _, r: r.with_values({"image": 3})),
    "three ends": ("expected two numbers", lambda _, r: r.with_values({"image": (0, 1, 2)})),
    "no dict of ends": ("expected a dict", lambda _, r: r.with_values([(0, 1)])),
    "shard": ("shard is 1, expected a part", lambda plan, _: plan.calibrate([], shard=1)),
    "part of a shard": ("shard is", lambda plan, _: plan.calibrate([], shard=(None, 2))),
    "fraction of a shard": (
        r"shard is \(1\.5, 4\), expected a part such as '1/4' or \(1, 4\)",
        lambda plan, _: plan.calibrate([], shard=(1.5, 4)),
    ),
    "target_size": (
        "target_size is 'small', expected a number",
        lambda *_: package.mixed_precision(DIGITS, target_size="small"),
    ),
    "min_sqnr": (
        "min_sqnr is 'high', expected a number",
        lambda *_: package.mixed_precision(DIGITS, min_sqnr="high"),
    ),
    "plan": (
        r"plan is of type bytes, expected a Plan: .*\.plan\(",
        lambda *_: package.distributed.calibrate(b"", [], 1),
    ),
    "plan of layers": (
        "plan is of type bytes, expected a Plan",
        lambda *_: package.distributed.sensitivity(b"", [], 1),
    ),
    "plan of shards": (
        "plan is of type bytes, expected a Plan",
        lambda *_: package.distributed.split(b"", [], 1),
    ),
}


@pytest.mark.parametrize("said", OF_ANOTHER_TYPE)
def test_an_argument_of_another_type_is_an_option_error(
    plan: Plan, images: Path, said: str
) -> None:
    message, call = OF_ANOTHER_TYPE[said]
    ranges = plan.calibrate(images, limit=2)
    with pytest.raises(OptionError, match=message) as caught:
        call(plan, ranges)
    assert str(caught.value).startswith(f"{caught.value.option} ")


def test_a_key_that_is_no_name_is_a_calibration_error(plan: Plan, images: Path) -> None:
    with pytest.raises(CalibrationError, match=r"key 0 .*`image`") as caught:
        plan.calibrate({0: np.load(images)})
    assert (caught.value.value, caught.value.category) == ("image", "input_mismatch")


@pytest.mark.parametrize("factor", [1e-300, 1e-40, 1e39])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_doubles_that_float32_does_not_hold_are_refused(factor: float, weights: str) -> None:
    """They were formerly written as zeros without an error."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g(double[8, 8] x) => (double[8, 4] y) { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((8, 4)) * factor
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    with pytest.raises(QuantizeError, match=r"magnitudes up to .*float32.*exclude"):
        quantize_rs.quantize(model, None, weights=weights)
    assert quantize_rs.quantize(model, None, excluded_layers=["w"]).model is not None


def test_an_error_names_the_option_as_the_caller_does(digits: Path) -> None:
    for call in (
        lambda: quantize_rs.prune(digits, None, threshold=0.1, exclude=["nothing"]),
        lambda: quantize_rs.open(digits).plan(exclude=["nothing"]),
    ):
        with pytest.raises(OptionError, match=r"^exclude names `nothing`") as caught:
            call()
        assert caught.value.option == "exclude"
    with pytest.raises(OptionError, match=r"^include names `nothing`"):
        quantize_rs.open(digits).plan(include=["nothing"])


def test_nan_in_a_sample_is_a_calibration_error(digits: Path) -> None:
    samples = np.zeros((5, 1, 8, 8), np.float32)
    samples[3, 0, 2, 2] = np.nan
    with pytest.raises(CalibrationError, match="NaN") as caught:
        quantize_rs.quantize_with_calibration(digits, "q.onnx", {"image": samples})
    assert caught.value.value == "image"
    assert caught.value.sample == 3
    assert not Path("q.onnx").exists()


def test_an_operator_that_the_engine_lacks_is_a_calibration_error() -> None:
    samples = [oracle.feeds("custom_domain")]
    with pytest.raises(CalibrationError, match="Sparkle"):
        quantize_rs.quantize_with_calibration(oracle.model("custom_domain"), None, samples)


def test_an_input_of_strings_is_a_calibration_error() -> None:
    keys = {"keys_strings": ["a", "b", "c"], "values_int64s": [0, 1, 2]}
    nodes = [
        helper.make_node("LabelEncoder", ["text"], ["at"], domain="ai.onnx.ml", **keys),
        helper.make_node("Gather", ["table", "at"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weight"], ["y"]),
    ]
    floats = np.random.default_rng(0).normal(0, 1, (3, 64)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [
            numpy_helper.from_array(floats, "table"),
            numpy_helper.from_array(np.tile(floats.T, (1, 22))[:, :64], "weight"),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    samples = [{"text": np.array([letter], object)} for letter in "abc"]
    calls: list[Callable[[], object]] = [
        lambda: quantize_rs.quantize_with_calibration(model, None, samples),
        lambda: quantize_rs.quantize_with_calibration(model, None, "random"),
        lambda: quantize_rs.recommend(model, samples),
    ]
    said = r"string input, `text`.*weights alone"
    for call in calls:
        with pytest.raises(CalibrationError, match=said) as caught:
            call()
        assert caught.value.value == "text"
    assert quantize_rs.quantize(model, None).model is not None


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_an_input_that_is_no_tensor_is_a_calibration_error(kind: str) -> None:
    rows = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 64])
    if kind == "sequence":
        made, reads = helper.make_sequence_type_proto(rows), ("SequenceAt", ["s", "zero"])
    else:
        made, reads = helper.make_optional_type_proto(rows), ("OptionalGetElement", ["s"])
    graph = helper.make_graph(
        [helper.make_node(*reads, ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_value_info("s", made)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [
            numpy_helper.from_array(np.ones((64, 64), np.float32), "w"),
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    samples = [{"s": np.ones((2, 64), np.float32)}] * 4
    for data in (samples, "random"):
        with pytest.raises(CalibrationError, match=r"`s` is declared as no tensor") as caught:
            quantize_rs.quantize_with_calibration(model, None, data)
        assert caught.value.value == "s"
        assert caught.value.category == "input_mismatch"
    assert quantize_rs.quantize(model, None).model is not None


def test_ranges_of_another_model_are_a_calibration_error(digits: Path, images: Path) -> None:
    ranges = quantize_rs.open(digits).plan(activations="uint8").calibrate(images)
    other = quantize_rs.open(oracle.model("conv2d_relu")).plan(activations="uint8")
    with pytest.raises(CalibrationError, match="another model"):
        other.apply(ranges)
    with pytest.raises(CalibrationError):
        other.apply()


@pytest.mark.parametrize("read", [quantize_rs.model_info, quantize_rs.open])
def test_a_missing_model_is_a_file_not_found_error(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(FileNotFoundError) as caught:
        read(tmp_path / "none.onnx")
    assert caught.value.filename == str(tmp_path / "none.onnx")
    assert caught.value.errno == 2


def test_a_folder_is_an_is_a_directory_error(tmp_path: Path, digits: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        quantize_rs.model_info(tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(IsADirectoryError):
        quantize_rs.quantize(digits, tmp_path)
    with pytest.raises(IsADirectoryError):
        quantize_rs.open(digits).plan().apply().save(tmp_path)


def test_a_device_is_an_os_error(digits: Path) -> None:
    with pytest.raises(OSError, match="device") as caught:
        quantize_rs.model_info("/dev/null")
    assert caught.value.filename == "/dev/null"
    with pytest.raises(OSError, match="device"):
        quantize_rs.quantize(digits, "/dev/null")


def test_missing_samples_are_a_file_not_found_error(digits: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        quantize_rs.quantize_with_calibration(digits, "q.onnx", "none.npy")
    assert caught.value.filename == "none.npy"


def test_a_missing_folder_is_a_file_not_found_error(digits: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        quantize_rs.quantize(digits, "none/q.onnx")
    assert caught.value.filename == "none"
    with pytest.raises(FileNotFoundError) as caught:
        quantize_rs.open(digits).plan().apply().save("none/q.onnx")
    assert caught.value.filename == "none/q.onnx"


def test_exceptions_survive_a_process_boundary() -> None:
    made = [
        ModelFormatError("a", path="p", offset=1, message="m", field=2),
        ExternalDataError("a", path="p", location="l"),
        UnsupportedModelError("a", path="p", node="n", op_type="o", feature="f"),
        OptionError("a", option="o"),
        CalibrationError("a", value="v", sample=3, category="engine"),
    ]
    for error in made:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (copy.args, vars(copy)) == (error.args, vars(error))


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.zeros((2, 3), np.float32))
    (tmp_path / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    for name, called in (("samples.npy", "a NumPy array"), ("pointer.onnx", "a Git LFS pointer")):
        with pytest.raises(quantize_rs.ModelFormatError, match=f"not an ONNX model, but {called}"):
            quantize_rs.quantize(tmp_path / name, None)
