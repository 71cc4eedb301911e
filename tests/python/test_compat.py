"""What was written for onnxruntime.quantization runs, and nothing it says is passed over."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as theirs
import oracle
import pytest
from onnx import TensorProto
from onnxruntime.quantization import registry as their_registry
from readers import Reader

import quantize_rs
from quantize_rs import OptionError
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import qdq_loss_debug as debug
from quantize_rs.compat.onnxruntime import registry

MODULES = [
    "",
    "base_quantizer",
    "calibrate",
    "cuda_quantizer",
    "execution_providers.qnn",
    "execution_providers.qnn.mixed_precision_overrides_utils",
    "execution_providers.qnn.preprocess",
    "execution_providers.qnn.quant_config",
    "matmul_bnb4_quantizer",
    "matmul_nbits_quantizer",
    "onnx_model",
    "onnx_quantizer",
    "preprocess",
    "qdq_loss_debug",
    "qdq_quantizer",
    "quant_utils",
    "quantize",
    "registry",
    "shape_inference",
    "static_quantize_runner",
    "tensor_quant_overrides",
]

# What differs on purpose, as a pattern for ``module.name`` or ``module.class.method``, and why.
# Names that are not there at all are in the table of hints.
DIFFERENCES = {
    "*Calibrater*.select_tensors_to_calibrate *": "the values are chosen when the model is opened",
    "*Calibrater*.get_augment_model *": "no outputs are added: `model` is the model",
    "*Calibrater.clear_collected_data *": "only counts are kept of a sample",
    "*MinMaxCalibrater.merge_range *": "calls of collect_data count together",
    "*Calibrater*.set_execution_providers *": "None stands for the list of the default",
    "*create_calibrator *": "None stands for the dict of the default",
    "*CalibrationCacheEncoder.default *": "the parameter has the name that json gives it",
    "*QDQQuantizer.*": "the nodes are written in one step, by quantize_static",
    "*ONNXQuantizer.*": "the nodes are written in one step, by quantize_static",
    "*ONNXModel.replace_gemm_with_matmul *": "Gemm is quantized as it is",
    "*.parse_arg*": "a part of a command",
    "*.parse_key_value_pair *": "a part of a command",
    "*.ort_convert_str_to_bool *": "a part of a command",
    "static_quantize_runner.main *": "it takes arguments, for tests",
    "static_quantize_runner.get_tensor_quant_overrides *": "a part of the command",
    "*OnnxModelCalibrationDataReader.read_onnx_pb_data *": "a step of the reader",
    "execution_providers.qnn.preprocess.InputOutputNameMap *": "a step of qnn_preprocess_model",
    "execution_providers.qnn.preprocess.update_io_to_channel_last *": "a step of it, too",
    "qdq_loss_debug.compute_*_error *": "the default function has another name",
    "matmul_nbits_quantizer.*WeightOnlyQuantConfig.__init__ *": "see the test of these below",
    "matmul_nbits_quantizer.is_divisible *": "a step of the quantizer",
    "matmul_nbits_quantizer.get_initializer *": "a step of the quantizer",
    "matmul_nbits_quantizer.transpose_packed_int4_matrix *": "a step of the quantizer",
    "*Quantizer.int4_quant_algo *": "a step of the quantizer",
    "*Quantizer.bnb4_block_quant *": "a step of the quantizer",
}


def parameters(thing: Any) -> list[tuple[str, str]]:
    """The names and the defaults of parameters; those for keywords alone have their own mark."""
    found = []
    for each in inspect.signature(thing).parameters.values():
        default = getattr(each.default, "name", repr(each.default))
        if each.kind is not each.VAR_KEYWORD:
            mark = "*" if each.kind is each.KEYWORD_ONLY else ""
            found.append((f"{mark}{each.name}", default))
    return found


def differences(module: str) -> Iterator[str]:
    """The public names of a module of theirs that are others here, or not there without a hint."""
    other = importlib.import_module(f"{theirs.__name__}.{module}".rstrip("."))
    own = importlib.import_module(f"{ours.__name__}.{module}".rstrip("."))
    for name, thing in vars(other).items():
        constant = not callable(thing) and module in ("", "quant_utils", "registry")
        if name.startswith("_") or inspect.ismodule(thing):
            continue
        # The package has names of its modules, and a module those that it defines.
        place = str(getattr(thing, "__module__", ""))
        if not (constant or place.startswith(other.__name__ if module else theirs.__name__)):
            continue
        where = f"{module}.{name}".lstrip(".")
        try:
            here = getattr(own, name)
        except AttributeError as error:
            if f"has no {name}: " not in str(error):
                yield f"{where} is not there"
            continue
        if inspect.isclass(thing) and issubclass(thing, enum.Enum):
            continue  # see below
        if inspect.isclass(thing):
            yield from differences_of_class(where, here, thing)
        elif callable(thing) and not same(here, thing):
            yield f"{where} has other parameters"


def same(here: Any, thing: Any) -> bool:
    """Whether the parameters are the same; here there may be more for keywords alone."""
    own, other = parameters(here), parameters(thing)
    return [each for each in own if not each[0].startswith("*") or each in other] == other


def differences_of_class(where: str, here: Any, thing: Any) -> Iterator[str]:
    for name, method in inspect.getmembers(thing):
        if name.startswith("_") and name != "__init__":
            continue
        if not hasattr(here, name):
            yield f"{where}.{name} is not there"
        elif inspect.isfunction(method) and not same(getattr(here, name), method):
            yield f"{where}.{name} has other parameters"


@pytest.mark.parametrize("module", MODULES)
def test_public_names_and_their_parameters_are_those_of_theirs(module: str) -> None:
    # Some of theirs need other packages.
    pytest.importorskip(f"{theirs.__name__}.{module}".rstrip("."), exc_type=ImportError)
    found = list(differences(module))
    assert [text for text in found if not any(fnmatch(text, known) for known in DIFFERENCES)] == []


@pytest.mark.parametrize("name", ["Default", "GPTQ", "HQQ", "KQuant", "RTN"])
def test_configurations_of_weights_take_the_same_arguments(name: str) -> None:
    where = f"{theirs.__name__}.matmul_nbits_quantizer"
    module = pytest.importorskip(where, exc_type=ImportError)
    own, other = (getattr(it, f"{name}WeightOnlyQuantConfig") for it in (ours, module))
    # What is only here comes last; None stands for what is not given.
    names = [name for name, _ in parameters(other)]
    assert [name for name, _ in parameters(own)][: len(names)] == names


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("calibrate", ["CalibrationDataReader", "CalibrationMethod"]),
        ("matmul_nbits_quantizer", ["DefaultWeightOnlyQuantConfig", "MatMulNBitsQuantizer"]),
        ("quant_utils", ["QuantFormat", "QuantType"]),
        ("quantize", ["StaticQuantConfig", "quantize", "quantize_dynamic", "quantize_static"]),
        ("shape_inference", ["quant_pre_process"]),
    ],
)
def test_modules_have_the_same_names(module: str, names: list[str]) -> None:
    found = importlib.import_module(f"{ours.__name__}.{module}")
    # Read and not imported: one of them imports packages that the tests do not need.
    known = (Path(theirs.__file__).parent / f"{module}.py").read_text()
    for name in names:
        assert re.search(rf"^(class|def) {name}\b", known, re.MULTILINE)
        assert getattr(found, name) is getattr(ours, name, None) is not None


@pytest.mark.parametrize(
    "name", ["QuantType", "QuantFormat", "QuantizationMode", "QuantizedValueType"]
)
def test_choices_are_read_and_written_as_in_theirs(name: str) -> None:
    own, other = getattr(ours.quant_utils, name), getattr(theirs.quant_utils, name)
    assert {member.name: member.value for member in own} == {
        member.name: member.value for member in other
    }
    for member in other:
        assert str(own.from_string(member.name)) == str(member)
        assert own.from_string(str(member)) is own[member.name]
        if name == "QuantType":
            assert own[member.name].tensor_type == member.tensor_type
    with pytest.raises(ValueError, match=f"{name} has no 'Other', expected one of .*{member.name}"):
        own.from_string("Other")


def test_calibration_methods_have_the_same_names_and_numbers() -> None:
    known = {member.name: member.value for member in theirs.CalibrationMethod}
    assert {member.name: member.value for member in ours.CalibrationMethod} == known


def test_both_spellings_of_types_are_known() -> None:
    assert ours.QuantType["QINT4"] is ours.QuantType.QInt4
    assert ours.QuantType["QFLOAT8"] is ours.QuantType.QFLOAT8E4M3FN
    assert str(ours.QuantType.QUInt8) == "QUInt8"


@pytest.mark.parametrize("module", [ours, theirs])
def test_a_static_model_has_the_types_that_were_asked_for(
    digits: Path, images: Path, module: Any
) -> None:
    out = digits.with_name("out.onnx")
    report = ours.quantize_static(
        digits,
        out,
        Reader(images),
        quant_format=module.QuantFormat.QDQ,
        activation_type=module.QuantType.QUInt8,
        weight_type=module.QuantType.QUInt8,
    )
    assert report.samples == 40
    assert {value.qtype for value in report.weights} == {"uint8"}
    assert all(value.granularity == "per_tensor" for value in report.weights)
    model = onnx.load(out)
    oracle.check(model.SerializeToString())
    tensors = model.graph.initializer
    types = {tensor.data_type for tensor in tensors if tensor.name.endswith("_quantized")}
    assert types == {TensorProto.UINT8, TensorProto.INT32}


def test_the_two_tools_answer_alike(digits: Path, images: Path) -> None:
    options: dict[str, Any] = {"per_channel": True}
    ours.quantize_static(digits, digits.with_name("ours.onnx"), Reader(images), **options)
    theirs.quantize_static(digits, digits.with_name("theirs.onnx"), Reader(images), **options)
    feeds = {"image": np.load(images)[100:]}
    answers = [
        oracle.ort((digits.with_name(f"{name}.onnx")).read_bytes(), feeds)[0].argmax(1)
        for name in ("ours", "theirs")
    ]
    assert (answers[0] == answers[1]).mean() > 0.95


def test_methods_and_options_reach_the_ranges(digits: Path, images: Path) -> None:
    def ranges(**options: Any) -> tuple[Any, ...]:
        report = ours.quantize_static(digits, digits.with_name("o"), Reader(images), **options)
        return report.method, [value.range for value in report.activations if value.quantized]

    method = ours.CalibrationMethod
    found = {
        "minmax": ranges(),
        "percentile": ranges(calibrate_method=method.Percentile),
        "percentile:99": ranges(
            calibrate_method=method.Percentile, extra_options={"CalibPercentile": 99}
        ),
        "entropy:1": ranges(calibrate_method=method.Entropy),
        "moving_average": ranges(extra_options={"CalibMovingAverage": True}),
    }
    assert {name: said[0] for name, said in found.items()} == {name: name for name in found}
    del found["percentile"]  # with so few values this is the full range
    assert len({str(said[1]) for said in found.values()}) == len(found)


def test_symmetric_activations_and_seven_bits(digits: Path, images: Path) -> None:
    report = ours.quantize_static(
        digits, digits.with_name("o"), Reader(images), extra_options={"ActivationSymmetric": True}
    )
    assert all(value.zero_point == 0 for value in report.activations if value.quantized)
    out = digits.with_name("narrow.onnx")
    ours.quantize_static(
        digits,
        out,
        Reader(images),
        reduce_range=True,
        activation_type=ours.QuantType.QUInt8,
        per_channel=True,
    )
    for tensor in onnx.load(out).graph.initializer:
        if tensor.name.endswith("_quantized") and tensor.data_type == TensorProto.INT8:
            assert np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max() <= 64


def test_a_cache_is_written_and_read(digits: Path, images: Path) -> None:
    cache, out = digits.with_name("cache.json"), digits.with_name("o.onnx")
    ours.quantize_static(digits, out, Reader(images), calibration_cache_path=cache)
    first = out.read_bytes()
    ours.quantize_static(digits, out, calibration_cache_path=cache)
    assert out.read_bytes() == first


def test_nodes_and_types_choose(digits: Path, images: Path) -> None:
    report = ours.quantize_static(
        digits,
        digits.with_name("o"),
        Reader(images),
        op_types_to_quantize=["Conv"],
        nodes_to_exclude=("conv2",),
    )
    quantized = {value.name for value in report.weights if value.quantized}
    assert quantized == {"conv1.weight", "conv3.weight"}


def test_only_the_nodes_that_are_listed_are_quantized(digits: Path, images: Path) -> None:
    out = digits.with_name("o")
    nodes = ["conv1", "relu1", "conv3"]
    report = ours.quantize_static(
        digits, out, Reader(images), nodes_to_quantize=nodes, nodes_to_exclude=["conv3"]
    )
    assert {value.name for value in report.weights if value.quantized} == {"conv1.weight"}
    float_weights = {i.name for i in onnx.load(out).graph.initializer if i.data_type == 1}
    assert "conv2.weight" in float_weights
    assert "conv1.weight" not in float_weights
    report = ours.quantize_dynamic(digits, out, nodes_to_quantize=["fc1"])
    assert [value.name for value in report.weights if value.quantized] == ["fc1.weight"]


def test_a_dynamic_model_needs_no_samples(digits: Path) -> None:
    out = digits.with_name("o.onnx")
    ours.quantize_dynamic(digits, out, ["MatMul"], per_channel=True)
    operators = {node.op_type for node in onnx.load(out).graph.node}
    assert {"DynamicQuantizeLinear", "MatMulInteger", "Conv"} <= operators
    assert "ConvInteger" not in operators


def test_a_configuration_is_the_call(digits: Path, images: Path) -> None:
    one, other = digits.with_name("one.onnx"), digits.with_name("other.onnx")
    ours.quantize(digits, one, ours.StaticQuantConfig(Reader(images), per_channel=True))
    ours.quantize_static(digits, other, Reader(images), per_channel=True)
    assert one.read_bytes() == other.read_bytes()
    ours.quantize(digits, one, ours.DynamicQuantConfig())
    ours.quantize_dynamic(digits, other)
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(TypeError, match="got int"):
        ours.quantize(digits, one, 8)


def test_pre_processing_infers_and_simplifies(digits: Path) -> None:
    out = digits.with_name("o.onnx")
    ours.quant_pre_process(input_model_path=digits, output_model_path=out)
    assert len(onnx.load(out).graph.value_info) >= 10
    ours.quant_pre_process(
        digits, out, skip_optimization=True, skip_onnx_shape=True, skip_symbolic_shape=True
    )
    assert out.read_bytes() == digits.read_bytes()
    with pytest.raises(OptionError, match="output_model_path"):
        ours.quant_pre_process(digits)
    with pytest.raises(TypeError, match="speed"):
        ours.quant_pre_process(digits, out, speed=11)


def test_pre_processing_writes_external_data_to_the_given_location(digits: Path) -> None:
    out, data = digits.with_name("o.onnx"), digits.with_name("o.weights")
    ours.quant_pre_process(
        digits,
        out,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        external_data_location=data.name,
    )
    whole = digits.with_name("whole.onnx")
    ours.quant_pre_process(digits, whole)
    assert data.stat().st_size > 200_000 > 20_000 > out.stat().st_size
    one, other = (onnx.load(path).graph.initializer for path in (out, whole))
    for kept, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(*map(onnx.numpy_helper.to_array, (kept, same)))


def test_a_reader_is_an_iterator_and_any_object_with_get_next_is_one(
    digits: Path, images: Path
) -> None:
    reader = Reader(images, 3)
    assert next(reader).keys() == {"image"}
    assert len(list(reader)) == 2

    class Theirs(theirs.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return inner.get_next()

    inner = Reader(images)
    assert isinstance(Theirs(), ours.CalibrationDataReader)
    assert ours.quantize_static(digits, digits.with_name("o"), Theirs()).samples == 40


@pytest.mark.parametrize("end", [None, {}, [], False])
def test_a_reader_ends_at_anything_false(digits: Path, images: Path, end: Any) -> None:
    class Ending(Reader):
        def get_next(self) -> Any:
            return super().get_next() or end

    report = ours.quantize_static(digits, digits.with_name("out.onnx"), Ending(images))
    assert report.samples == 40
    assert len(list(Ending(images, 3))) == 3
    reader = Ending(images, 3)
    assert len(debug.collect_activations(digits, reader)["logits"]) == 3
    assert quantize_rs.open(digits).plan(activations="int8").calibrate(Ending(images)).samples == 40


def test_a_reader_ends_at_stop_iteration(digits: Path, images: Path) -> None:
    class Ending(Reader):
        def get_next(self) -> Any:
            return {"image": next(self.left)[None]}

    report = ours.quantize_static(digits, digits.with_name("out.onnx"), Ending(images))
    assert report.samples == 40
    assert len(debug.collect_activations(digits, Ending(images, 3))["logits"]) == 3
    assert quantize_rs.open(digits).plan(activations="int8").calibrate(Ending(images)).samples == 40


@pytest.mark.parametrize(
    "providers",
    [
        ("CUDAExecutionProvider", "CPUExecutionProvider"),
        [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"],
        (("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})),
        "CUDAExecutionProvider",
    ],
)
def test_providers_are_names_or_pairs_of_name_and_options(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture, providers: Any
) -> None:
    out = digits.with_name("out.onnx")
    ours.quantize_static(digits, out, Reader(images), calibration_providers=providers)
    assert "samples are run on the CPU, not by CUDAExecutionProvider" in caplog.messages


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    digits: Path, images: Path
) -> None:
    reader = Reader(images)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ours.quantize_static(digits, digits.parent / "nowhere" / "o.onnx", reader)
    assert reader.get_next() is not None


@pytest.mark.parametrize("form", [ours.QuantFormat.QOperator, theirs.QuantFormat.QDQ])
def test_blocks(digits: Path, form: Any) -> None:
    out = digits.with_name("o.onnx")
    quantizer = ours.MatMulNBitsQuantizer(
        onnx.load(digits), 4, 32, True, quant_format=form, op_types_to_quantize=["Gemm"]
    )
    assert quantizer.model.model == onnx.load(digits)
    quantizer.process()
    quantizer.model.save_model_to_file(out, use_external_data_format=True)
    operators = [node.op_type for node in onnx.load(out).graph.node]
    assert operators.count("MatMulNBits" if form.name == "QOperator" else "DequantizeLinear") == 2
    feeds = {"image": np.load(digits.with_name("calibration.npy"))}
    assert out.with_name("o.onnx.data").exists()
    models = [onnx.load(path).SerializeToString() for path in (digits, out)]
    labels = [oracle.ort(model, feeds)[0].argmax(1) for model in models]
    assert (labels[0] == labels[1]).mean() > 0.95


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (ours.DefaultWeightOnlyQuantConfig(block_size=32, bits=8), None),
        (ours.HQQWeightOnlyQuantConfig(block_size=32), "hqq"),
        (ours.DefaultWeightOnlyQuantConfig(block_size=32, quant_axes={"MatMul": 0}), None),
    ],
)
def test_a_configuration_of_blocks_takes_precedence_over_the_arguments(
    digits: Path, config: Any, method: str | None
) -> None:
    config.op_types_to_quantize = ("Gemm",)
    quantizer = ours.MatMulNBitsQuantizer(digits, 2, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(digits.with_name("o.onnx"))
    same = quantize_rs.quantize(
        digits,
        None,
        config.bits,
        block_size=32,
        op_types=["Gemm"],
        output_format="matmul_nbits",
        weight_method=method,
        onnxruntime_names=True,
    )
    assert digits.with_name("o.onnx").read_bytes() == same.model


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"algo_config": "RTN"},
            "algo_config is 'RTN', expected a configuration of DEFAULT, GPTQ, HQQ",
        ),
        ({"algo_config": SimpleNamespace(algorithm="GPTQ")}, "has no calibration_data_reader"),
        ({"algo_config": SimpleNamespace(algorithm="NVAWQ")}, "algo_config is 'NVAWQ'"),
        ({"algo_config": ours.RTNWeightOnlyQuantConfig({"fc1": 0.9})}, "algo_config has ratios"),
        ({"algo_config": ours.DefaultWeightOnlyQuantConfig(quant_axes={"MatMul": 1})}, "MatMul: 1"),
        ({"quant_axes": (("Gather", 0),)}, "quant_axes has Gather: 0"),
    ],
)
def test_what_blocks_cannot_be_is_refused(digits: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ours.MatMulNBitsQuantizer(digits, **options)


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        (ours.HQQWeightOnlyQuantConfig(32), 4),
        (ours.KQuantWeightOnlyQuantConfig(), 4),
        # As in onnxruntime: this one takes the argument.
        (ours.RTNWeightOnlyQuantConfig(), 3),
    ],
)
def test_hqq_and_k_quant_have_zero_points_whatever_is_asked_for(
    digits: Path, caplog: pytest.LogCaptureFixture, config: Any, inputs: int
) -> None:
    def nodes(**options: Any) -> list[onnx.NodeProto]:
        quantizer = ours.MatMulNBitsQuantizer(
            digits, block_size=32, op_types_to_quantize=["Gemm"], algo_config=config, **options
        )
        quantizer.process()
        found[len(found)] = quantizer.model.model.SerializeToString()
        graph = quantizer.model.model.graph
        return [node for node in graph.node if node.op_type == "MatMulNBits"]

    found: dict[int, bytes] = {}
    nodes()
    blocks = nodes(is_symmetric=True)
    assert blocks
    assert {len([name for name in node.input[:4] if name]) for node in blocks} == {inputs}
    assert (found[0] == found[1]) == (inputs == 4)
    warned = "is_symmetric has no effect with" in caplog.text
    assert warned == (inputs == 4)
    assert "weight_method" not in caplog.text


def test_a_field_of_gptq_without_effect_is_a_warning(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def idle(**fields: Any) -> list[str]:
        caplog.clear()
        config = ours.GPTQWeightOnlyQuantConfig(Reader(images), **fields)
        ours.MatMulNBitsQuantizer(digits, op_types_to_quantize=["Gemm"], algo_config=config)
        said = [record.getMessage() for record in caplog.records]
        return [text.split()[0] for text in said if "has no effect here: " in text]

    assert not idle()
    asked = {"percdamp": 0.5, "actorder": True, "mse": True, "perchannel": False}
    assert idle(**asked) == [f"algo_config.{name}" for name in asked]


def test_usual_axes_are_accepted_and_an_unused_one_is_a_warning(
    digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    axes = (("MatMul", 0), ("Gather", 1))
    config = ours.HQQWeightOnlyQuantConfig(32, axis=0, quant_axes=axes)
    config.op_types_to_quantize = {"MatMul", "Gather", "Gemm"}
    quantizer = ours.MatMulNBitsQuantizer(digits, quant_axes=axes, algo_config=config)
    quantizer.process()
    assert "algo_config.axis has no effect" in caplog.text
    proto = quantizer.model.model
    assert isinstance(proto, onnx.ModelProto)
    quantizer.model.save_model_to_file(digits.with_name("o.onnx"))
    assert proto == onnx.load(digits.with_name("o.onnx")) == quantizer.model.model


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra_options": {"WeightSymetric": True}}, "did you mean WeightSymmetric"),
        ({"nodes_to_quantize": ["konv1"]}, "none of nodes_to_quantize is in the model"),
        ({"nodes_to_exclude": "conv1"}, "nodes_to_exclude is the text 'conv1'"),
        ({"op_types_to_quantize": ["Konv"]}, "op_types_to_quantize names `Konv`"),
        ({"activation_type": ours.QuantType.QInt4}, "activation_type is int4"),
        ({"weight_type": "QInt8"}, "weight_type is 'QInt8'"),
        (
            {"calibrate_method": ours.CalibrationMethod.Distribution},
            "Distribution, which is for float8",
        ),
        ({"calibration_data_reader": None}, "calibration_data_reader is None"),
    ],
)
def test_what_cannot_be_met_is_refused(
    digits: Path, images: Path, options: dict[str, Any], said: str
) -> None:
    out = digits.with_name("o.onnx")
    reader = {"calibration_data_reader": Reader(images)}
    with pytest.raises(OptionError, match=said):
        ours.quantize_static(digits, out, **(reader | options))
    assert not out.exists()


@pytest.mark.parametrize("quant_format", [ours.QuantFormat.QOperator, theirs.QuantFormat.QOperator])
def test_operators_on_integers_are_those_of_theirs(
    digits: Path, images: Path, quant_format: Any
) -> None:
    out, other = digits.with_name("o.onnx"), digits.with_name("theirs.onnx")
    types: dict[str, Any] = {"activation_type": ours.QuantType.QUInt8}
    ours.quantize_static(digits, out, Reader(images), quant_format, per_channel=True, **types)
    form, kind = theirs.QuantFormat.QOperator, theirs.QuantType.QUInt8
    theirs.quantize_static(
        digits, other, Reader(images), form, per_channel=True, activation_type=kind
    )
    images_of, runs = np.load(images)[:64], []
    for path in (digits, out, other):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        runs.append(session.run(None, {"image": images_of})[0])
    errors = [float(np.square(run - runs[0]).mean()) for run in runs[1:]]
    assert errors[0] <= errors[1] * 1.02
    kinds = [
        {node.op_type for node in onnx.load(path).graph.node if "QLinear" in node.op_type}
        for path in (out, other)
    ]
    assert {"QLinearConv"} <= kinds[0] & kinds[1]


def test_what_is_usual_is_not_refused(digits: Path, images: Path) -> None:
    usual = {"DedicatedQDQPair": False, "QuantizeBias": True, "TensorQuantOverrides": {}}
    out = digits.with_name("o.onnx")
    assert ours.quantize_static(digits, out, Reader(images), extra_options=usual).samples == 40


def test_every_type_of_operator_that_theirs_knows_may_be_named(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = digits.with_name("o.onnx")
    for name in registry.__all__:
        assert [*getattr(registry, name)] == [*getattr(their_registry, name)]
    ours.quantize_dynamic(digits, out, [*registry.IntegerOpsRegistry])
    assert "are not quantized" not in caplog.text
    types = sorted({*registry.QDQRegistry, *registry.QLinearOpsRegistry})
    report = ours.quantize_static(digits, out, Reader(images), op_types_to_quantize=types)
    assert all(value.quantized for value in report.weights)
    assert "ArgMax, CumSum, TopK are not quantized" in caplog.text
    with pytest.raises(OptionError, match="op_types_to_quantize names `CumSum`"):
        ours.quantize_dynamic(digits, out, ["CumSum"])


@pytest.mark.parametrize(
    "option", ["nodes_to_quantize", "nodes_to_exclude", "op_types_to_quantize"]
)
def test_names_that_are_no_text_are_refused(digits: Path, option: str) -> None:
    out, options = digits.with_name("o.onnx"), {option: ["Conv", None]}
    with pytest.raises(OptionError, match=f"{option} is a list with None, expected names"):
        ours.quantize_dynamic(digits, out, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="exclude is a list with 3, expected names"):
        quantize_rs.open(digits).plan(exclude=[3])  # type: ignore[list-item]


def test_floats_of_8_bits_need_no_target(digits: Path, images: Path) -> None:
    float8 = ours.QuantType.QFLOAT8E4M3FN
    report = ours.quantize_static(
        digits,
        digits.with_name("o.onnx"),
        Reader(images),
        activation_type=float8,
        weight_type=float8,
    )
    assert {value.qtype for value in report.weights} == {"float8e4m3fn"}
