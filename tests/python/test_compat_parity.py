"""What programs written for onnxruntime.quantization find: names, files and warnings."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest
from graphs import built
from onnxruntime.quantization import calibrate as their_calibrate

import quantize_rs
from quantize_rs import OptionError
from quantize_rs.compat import onnxruntime as ours

Warned = pytest.LogCaptureFixture


class Reader(ours.CalibrationDataReader):
    def __init__(self, digits: Path, count: int = 16) -> None:
        images = np.load(digits.with_name("calibration.npy"))[:count]
        self.samples = iter([{"image": image[None]} for image in images])

    def get_next(self) -> Any:
        return next(self.samples, None)


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_calibrater_finds_the_ranges_of_onnxruntime(digits: Path) -> None:
    path = digits.with_name("augmented.onnx")
    other = their_calibrate.create_calibrator(str(digits), None, str(path))
    other.collect_data(Reader(digits))
    expected = other.compute_data()
    own = ours.create_calibrator(digits)
    own.collect_data(Reader(digits, 8))
    own.collect_data(list(Reader(digits))[8:])
    found = own.compute_data()
    assert set(found.keys()) == set(expected.keys())
    assert {"image", "conv1_out"} <= set(found.keys())
    for name in found:
        ends, wanted = (np.ravel(data[name].range_value) for data in (found, expected))
        assert np.allclose(ends, wanted, rtol=1e-5)
    convs, same = (
        module.create_calibrator(model, ["Conv"])
        for module, model in ((ours, digits), (their_calibrate, str(digits)))
    )
    for calibrater in (convs, same):
        calibrater.collect_data(Reader(digits, 4))
    assert set(convs.compute_data().keys()) == set(same.compute_data().keys())


def test_values_of_a_16_bit_model_keep_their_names() -> None:
    calibrater = ours.create_calibrator(oracle.model("fp16_model"))
    calibrater.collect_data([oracle.feeds("fp16_model", 4)])
    found = set(calibrater.compute_data().keys())
    assert {"x", "conv1_y", "matmul1_y"} <= found
    assert not any("float32" in name for name in found)


@pytest.mark.parametrize("method", ["Entropy", "Percentile"])
def test_other_methods_cut_ranges(digits: Path, method: str) -> None:
    widest = ours.create_calibrator(digits)
    widest.collect_data(Reader(digits))
    narrow = ours.create_calibrator(
        digits,
        calibrate_method=ours.CalibrationMethod[method],
        extra_options={"percentile": 99.0} if method == "Percentile" else {"num_bins": 128},
    )
    narrow.collect_data(Reader(digits))
    wide, cut = widest.compute_data(), narrow.compute_data()
    assert cut.calibration_method.name == method
    pairs = [(cut[name].range_value[1], wide[name].range_value[1]) for name in cut]
    assert any(narrower < wider for narrower, wider in pairs)
    assert all(narrower <= wider for narrower, wider in pairs)


def test_a_calibrater_refuses_what_it_does_not_do(digits: Path) -> None:
    with pytest.raises(OptionError, match="collect_data"):
        ours.create_calibrator(digits).compute_data()
    with pytest.raises(OptionError, match="'scenario'"):
        ours.create_calibrator(digits, extra_options={"scenario": "p3"})
    method = ours.CalibrationMethod.Distribution
    with pytest.raises(OptionError, match="expected MinMax"):
        ours.create_calibrator(digits, calibrate_method=method)


def test_data_of_values_is_read_by_both(tmp_path: Path) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    low, high = np.array(-1.5, np.float32), np.array(2.5, np.float32)
    ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax, {"x": (low, high)}), own)
    theirs.save_tensors_data(
        theirs.TensorsData(theirs.CalibrationMethod.MinMax, {"x": (low, high)}), other
    )
    for path in (own, other):
        assert ours.load_tensors_data(path)["x"].range_value == (low, high)
        found = theirs.load_tensors_data(path)
        assert tuple(found["x"].range_value) == (low, high)
    other.write_text("[1]")
    with pytest.raises(OptionError, match="holds no data"):
        ours.load_tensors_data(other)
    with pytest.raises(ValueError, match="float16 or float32"):
        ours.TensorData(lowest=1.0)
    with pytest.raises(RuntimeError, match="'y'"):
        ours.load_tensors_data(own)["y"] = ours.TensorData()


def test_a_calibration_table_has_the_largest_magnitudes(tmp_path: Path) -> None:
    table = pytest.importorskip("onnxruntime.quantization.CalTableFlatBuffers.TrtTable")
    ranges = {
        "wide": ours.TensorData.of_range(-10, 1),
        "relu": ours.TensorData.of_range(0, 4),
    }
    ours.write_calibration_table(ours.TensorsData(ours.CalibrationMethod.MinMax, ranges), tmp_path)
    # onnxruntime writes 1 for the first, so that nearly all of it would be clipped.
    assert (tmp_path / "calibration.cache").read_text() == "relu 4.0\nwide 10.0\n"
    stored = json.loads((tmp_path / "calibration.json").read_text())
    assert set(stored["data"]) == {"relu", "wide"}
    found = table.TrtTable.GetRootAsTrtTable((tmp_path / "calibration.flatbuffers").read_bytes(), 0)
    rows = [found.Dict(at) for at in range(found.DictLength())]
    assert [(row.Key(), row.Value()) for row in rows] == [(b"relu", b"4.0"), (b"wide", b"10.0")]


def test_external_data_is_written_where_it_is_asked_for(digits: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name / "q.onnx" for name in ("static", "dynamic")]
    for out in outs:
        out.parent.mkdir()
    reports = (
        ours.quantize_static(digits, outs[0], Reader(digits), use_external_data_format=True),
        ours.quantize_dynamic(digits, outs[1], use_external_data_format=True),
    )
    for out, report in zip(outs, reports, strict=True):
        files = sorted(out.parent.iterdir())
        assert [path.name for path in files] == ["q.onnx", "q.onnx.data"]
        assert report.bytes_after == sum(path.stat().st_size for path in files)
        onnx.checker.check_model(str(out))
    ours.quantize_dynamic(digits, outs[0])
    assert [path.name for path in outs[0].parent.iterdir()] == ["q.onnx"]


def test_a_model_without_large_weights_stays_one_file(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, [2])], [value("y", 1, [2])], [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    plan = quantize_rs.open(model).plan(allow_larger=True)
    plan.apply().save(tmp_path / "q.onnx", external_data=True)
    assert sorted(path.name for path in tmp_path.glob("q.*")) == ["q.onnx"]


def test_options_without_effect_are_named(digits: Path, tmp_path: Path, caplog: Warned) -> None:
    out = tmp_path / "q.onnx"
    with caplog.at_level(logging.WARNING, "quantize_rs"):
        ours.quantize_static(
            digits,
            out,
            Reader(digits),
            nodes_to_exclude=["konv1"],
            extra_options={"CalibPercentile": 99.0},
        )
    assert "CalibPercentile" in caplog.text
    assert "MinMax" in caplog.text
    assert "no node 'konv1'; did you mean 'conv1'" in caplog.text


def test_every_operator_can_be_quantized_with_the_default_types(
    digits: Path, tmp_path: Path, caplog: Warned
) -> None:
    out = tmp_path / "q.onnx"
    with caplog.at_level(logging.WARNING, "quantize_rs"):
        report = ours.quantize_static(
            digits, out, Reader(digits), extra_options={"ForceQuantizeNoInputCheck": True}
        )
    assert "activations are uint8" in caplog.text
    assert report.ratio > 3
    found = quantize_rs.compare(digits, out, Reader(digits), latency=False)
    assert found.sqnr_db is not None
    assert found.sqnr_db > 25


def test_the_last_product_runs_on_integers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(64, 64)).astype(np.float32) for name in ("a", "b", "c")}
    weights["c"] = weights["c"][:, :4]
    nodes = [
        onnx.helper.make_node("MatMul", [x, w], [y], w)
        for x, w, y in (("x", "a", "p"), ("p", "b", "q"), ("q", "c", "y"))
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", 1, ["n", 64])],
        [value("y", 1, ["n", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    out = tmp_path / "q.onnx"
    ours.quantize_dynamic(model, out)
    assert operators(out)["MatMulInteger"] == 3
    ours.quantize_dynamic(model, out, nodes_to_quantize=["c"])
    assert operators(out)["MatMulInteger"] == 1
    assert operators(out)["MatMul"] == 2


def test_configurations_of_blocks_are_mapped(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"

    def bits(config: Any, **options: Any) -> list[int]:
        options = {"op_types_to_quantize": ["Gemm"]} | options
        quantizer = ours.MatMulNBitsQuantizer(digits, 4, 32, algo_config=config, **options)
        quantizer.process()
        quantizer.model.save_model_to_file(out)
        found = [node for node in onnx.load(out).graph.node if node.op_type == "MatMulNBits"]
        return [at.i for node in found for at in node.attribute if at.name == "bits"]

    assert bits(ours.KQuantWeightOnlyQuantConfig()) == [4, 4]
    least = out.read_bytes()
    assert bits(ours.RTNWeightOnlyQuantConfig()) == [4, 4]
    assert out.read_bytes() != least
    wide = ours.KQuantWeightOnlyQuantConfig(customized_weight_config={"fc1": {"bits": 8}})
    assert sorted(bits(wide)) == [4, 8]
    assert bits(None, op_types_to_quantize=["MatMul"], nodes_to_include=["fc1"]) == [4]
    wrong = ours.RTNWeightOnlyQuantConfig(customized_weight_config={"fc1": {"group": 8}})
    with pytest.raises(OptionError, match="has group"):
        bits(wrong)
    older = importlib.import_module("quantize_rs.compat.onnxruntime.matmul_4bits_quantizer")
    quantizer = older.MatMul4BitsQuantizer(digits, 32, True, op_types_to_quantize=["Gemm"])
    quantizer.process()
    assert quantizer.model.save_model_to_file(out).ratio > 1.9


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("", "CudaQuantizer"),
        ("base_quantizer", "BaseQuantizer"),
        ("calibrate", "HistogramCalibrater"),
        ("cuda_quantizer", "CudaQuantizer"),
        ("execution_providers.qnn.mixed_precision_overrides_utils", "TensorTypeRequest"),
        ("matmul_nbits_quantizer", "NVAWQWeightOnlyQuantConfig"),
        ("matmul_nbits_quantizer", "WeightOnlyQuantConfig"),
        ("quant_utils", "add_quant_suffix"),
        ("quantize", "QuantConfig"),
        ("quantize", "QuantizationMode"),
        ("registry", "CreateQDQQuantizer"),
        ("shape_inference", "ReplaceUpsampleWithResize"),
        ("tensor_quant_overrides", "TensorQuantOverridesHelper"),
    ],
)
def test_names_without_equivalent_say_what_to_use(module: str, name: str) -> None:
    where = f"{ours.__name__}.{module}".rstrip(".")
    assert hasattr(importlib.import_module(where.replace(ours.__name__, theirs.__name__)), name)
    found = importlib.import_module(where)
    with pytest.raises(ImportError, match=f"{where} has no {name}: "):
        exec(f"from {where} import {name}")
    with pytest.raises(AttributeError, match=f"{where} has no {name}: "):
        getattr(found, name)
    assert getattr(found, name, None) is None
    assert not hasattr(found, name)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        getattr(found, "nothing_like_it")  # noqa: B009 - mypy knows that it is not there
    with pytest.raises(ImportError, match="nothing_like_it"):
        exec(f"from {where} import nothing_like_it")


def test_what_theirs_exports_is_exported() -> None:
    there = [name for name, thing in vars(theirs).items() if not inspect.ismodule(thing)]
    missing = {name for name in there if not name.startswith("_")} - set(ours.__all__)
    assert missing <= {"CudaQuantizer"}


@pytest.mark.parametrize("name", ["MinMaxCalibrater", "EntropyCalibrater", "PercentileCalibrater"])
def test_calibraters_take_the_arguments_of_onnxruntime(name: str) -> None:
    own, other = (
        [(it.name, it.default) for it in inspect.signature(getattr(of, name)).parameters.values()]
        for of in (importlib.import_module(ours.create_calibrator.__module__), their_calibrate)
    )
    assert own == other


def skewed(tmp_path: Path) -> Path:
    """A network whose channels have magnitudes from 1/64 to 64."""
    rng = np.random.default_rng(2)
    factors = 2.0 ** rng.integers(-6, 7, 8).astype(np.float32)
    weights = {
        "w0": rng.normal(size=(8, 3, 3, 3)) * factors[:, None, None, None],
        "w1": rng.normal(size=(4, 8, 3, 3)) / factors[:, None, None],
    }
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w0"], ["a"], "c0"),
        onnx.helper.make_node("Relu", ["a"], ["r"], "r0"),
        onnx.helper.make_node("Conv", ["r", "w1"], ["y"], "c1"),
    ]
    path = tmp_path / "skewed.onnx"
    path.write_bytes(built(nodes, weights, [1, 3, 8, 8]))
    return path


def test_ranges_are_those_of_the_given_model(tmp_path: Path) -> None:
    model, out = skewed(tmp_path), tmp_path / "q.onnx"
    data = np.random.default_rng(1).normal(size=(16, 1, 3, 8, 8)).astype(np.float32)
    samples = [{"x": image} for image in data]
    report = quantize_rs.quantize_with_calibration(model, None, samples)
    assert any("equalize" in step.name for step in report.steps)
    calibrater = ours.create_calibrator(model)
    calibrater.collect_data(samples)
    found = calibrater.compute_data()["r"].range_value[1].item()
    shown = onnx.load(model)
    shown.graph.output.append(onnx.ValueInfoProto(name="r"))
    runs = [oracle.ort(shown.SerializeToString(), sample)[1].max() for sample in samples]
    assert found == pytest.approx(max(runs), rel=1e-5)
    # A range that is given holds for the given model, too.
    extra = {"TensorQuantOverrides": {"r": [{"rmin": 0.0, "rmax": found}]}}
    ours.quantize_static(model, out, samples, extra_options=extra)
    tensors = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    scale = onnx.numpy_helper.to_array(tensors["r_scale"])
    assert scale == pytest.approx(found / 255, rel=1e-5)


def test_preprocessing_is_a_command_too(digits: Path, tmp_path: Path) -> None:
    module = "quantize_rs.compat.onnxruntime.preprocess"
    out = tmp_path / "p.onnx"
    command = [sys.executable, "-m", module, "--input", str(digits), "--output", str(out)]
    done = subprocess.run([*command, "--skip_optimization", "True"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.exists()
    assert not done.stdout


def test_the_configuration_for_npus_has_its_own_module(digits: Path, tmp_path: Path) -> None:
    qnn = importlib.import_module("quantize_rs.compat.onnxruntime.execution_providers.qnn")
    config = qnn.get_qnn_qdq_config(digits, Reader(digits), activation_type=ours.QuantType.QUInt16)
    out = tmp_path / "q.onnx"
    ours.quantize(digits, out, config)
    types = {tensor.data_type for tensor in onnx.load(out).graph.initializer}
    assert onnx.TensorProto.UINT16 in types
    proto = onnx.load(digits)
    proto.graph.node.insert(0, onnx.helper.make_node("Identity", ["image"], ["copied"]))
    proto.graph.node[1].input[0] = "copied"
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    assert qnn.qnn_preprocess_model(proto, first)
    assert not operators(first)["Identity"]
    # Nothing is left to do, so that nothing is written.
    assert not qnn.qnn_preprocess_model(first, second)
    assert not second.exists()
    with pytest.raises(OptionError, match="dynamic_input_shapes"):
        qnn.qnn_preprocess_model(digits, out, dynamic_input_shapes=[("image", "1,1,8,8")])


@pytest.mark.parametrize(
    ("options", "types", "symmetric"),
    [
        ({"weight_type": "QInt4", "per_channel": True}, ["int4"], True),
        ({"weight_type": "QInt16", "activation_type": "QUInt16"}, ["int16"], True),
        ({"weight_type": "QUInt8", "weight_symmetric": False}, ["uint8"], False),
        ({"init_overrides": {"fc1.weight": [{"quant_type": "QInt4"}]}}, ["int4", "uint8"], None),
    ],
    ids=str,
)
def test_the_weights_of_npus_have_the_types_of_onnxruntime(
    digits: Path,
    tmp_path: Path,
    options: dict[str, Any],
    types: list[str],
    symmetric: bool | None,
) -> None:
    def kinds(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kinds(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [kinds(inner) for inner in value]
        return ours.QuantType[value] if isinstance(value, str) else value

    qnn = importlib.import_module("quantize_rs.compat.onnxruntime.execution_providers.qnn")
    out = tmp_path / "q.onnx"
    config = qnn.get_qnn_qdq_config(digits, Reader(digits), **kinds(options))
    report = ours.quantize(digits, out, config)
    weights = [value for value in report.weights if value.shape and len(value.shape) > 1]
    assert sorted({str(value.qtype) for value in weights}) == types
    assert symmetric is None or {value.symmetric for value in weights} == {symmetric}
    oracle.session(out)


@pytest.mark.parametrize(
    ("weights", "activations"), [("QUInt4", "QUInt8"), ("QInt16", "QUInt8"), ("QUInt16", "QUInt16")]
)
def test_weights_that_npus_do_not_take_are_refused(
    digits: Path, tmp_path: Path, weights: str, activations: str
) -> None:
    qnn = importlib.import_module("quantize_rs.compat.onnxruntime.execution_providers.qnn")
    kinds = {
        "weight_type": ours.QuantType[weights],
        "activation_type": ours.QuantType[activations],
    }
    config = qnn.get_qnn_qdq_config(digits, Reader(digits), **kinds)
    with pytest.raises(OptionError, match=r"^weight_type is .*, expected int8 or uint8 or int4 .*"):
        ours.quantize(digits, tmp_path / "q.onnx", config)


def overridden(digits: Path, out: Path, overrides: dict[str, Any], **options: Any) -> Any:
    extra = {"TensorQuantOverrides": overrides}
    return ours.quantize_static(digits, out, Reader(digits), extra_options=extra, **options)


def test_single_tensors_get_types_and_ranges(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    report = overridden(
        digits,
        out,
        {
            "image": [{"rmin": np.float32(-1), "rmax": np.float32(3)}],
            "relu4_out": [{"quant_type": ours.QuantType.QUInt16}],
            "relu1_out": [{"scale": 0.03125, "zero_point": -128}],
            "conv2.weight": [{"axis": 0}],
            "fc1.weight": [{"quant_type": theirs.QuantType.QInt16}],
        },
    )
    rows = {row.name: row for row in report.quantized}
    assert rows["image"].range == (-1, 3)
    assert rows["relu1_out"].range == (0, 255 * 0.03125)
    tensors = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    scale = onnx.numpy_helper.to_array(tensors["relu1_out_scale"])
    assert scale == np.float32(0.03125)
    assert onnx.numpy_helper.to_array(tensors["image_scale"]) == np.float32(4 / 255)
    assert any(tensor.data_type == onnx.TensorProto.UINT16 for tensor in tensors.values())
    assert tensors["fc1.weight_quantized"].data_type == onnx.TensorProto.INT16
    assert len(tensors["conv2.weight_scale"].dims) == 1
    assert len(tensors["conv1.weight_scale"].dims) == 0


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"imag": [{"rmin": 0, "rmax": 1}]}, "did you mean 'image'"),
        ({"image": [{"range": 1}]}, "has 'range'"),
        ({"image": [{"rmin": 0}]}, "expected both"),
        ({"image": [{"scale": 1.0}]}, "expected both"),
        ({"image": [{"scale": 1.0, "zero_point": 0, "rmin": 0}]}, "expected one of them"),
        ({"image": [{"scale": -1.0, "zero_point": 0}]}, "cannot have"),
        ({"image": [{"scale": 1.0, "zero_point": 999}]}, "cannot have"),
        ({"image": [{}, {"reduce_range": True}]}, "is for initializers"),
        ({"image": [{"axis": 0}]}, "is for initializers"),
        ({"image": [{}, {}]}, "2 entries"),
        ({"image": [3]}, "expected dictionaries"),
        ({"image": [{"convert": {}}]}, "has convert"),
        # Every entry is checked, not the first alone.
        ({"conv2.weight": [{"axis": 0}, {"axis": 0, "other": 1}]}, "has 'other'"),
        ({"conv2.weight": [{"scale": 1.0, "zero_point": 0}]}, "computed from their elements"),
    ],
)
def test_overrides_are_checked_whole(
    digits: Path, tmp_path: Path, entry: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        overridden(digits, tmp_path / "q.onnx", entry)
    assert caught.value.option == "extra_options"
    assert not (tmp_path / "q.onnx").exists()


def test_ranges_with_other_values_stay_for_other_types(digits: Path) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    ranges = plan.calibrate(digits.with_name("calibration.npy"))
    wider = ranges.with_values({"image": (0, 2)})
    assert wider.values["image"] == (0, 2)
    assert ranges.values["image"] == (0, 1)
    types = {"image": "uint16"}
    plan = quantize_rs.open(digits).plan(activations="uint8", activation_types=types)
    other = plan.apply(wider)
    [row] = [row for row in other.report.values if row.name == "image"]
    assert row.range == (0, 2)
    for wrong in ({"imag": (0, 1)}, {"image": (1, 0)}, {"image": (0, float("nan"))}):
        with pytest.raises(quantize_rs.errors.CalibrationError):
            ranges.with_values(wrong)


def test_losses_of_activations_and_weights_are_found(digits: Path, tmp_path: Path) -> None:
    debug = importlib.import_module("quantize_rs.compat.onnxruntime.qdq_loss_debug")
    other = importlib.import_module("onnxruntime.quantization.qdq_loss_debug")
    out = tmp_path / "q.onnx"
    ours.quantize_static(digits, out, Reader(digits), per_channel=True)
    values = []
    for path in (digits, out):
        shown = tmp_path / f"{path.stem}.shown.onnx"
        debug.modify_model_output_intermediate_tensors(path, shown)
        values.append(debug.collect_activations(shown, Reader(digits, 4)))
    floats, quantized = values
    assert len(floats["conv1_out"]) == 4
    matched = debug.create_activation_matching(quantized, floats)
    errors = debug.compute_activation_error(matched)
    assert len(errors) > 2
    assert all(row["qdq_err"] > 20 for row in errors.values())
    assert any("xmodel_err" in row for row in errors.values())
    # A value without a float twin has one error, where onnxruntime's function fails.
    alone = debug.compute_activation_error(debug.create_activation_matching(quantized))
    assert all(set(row) == {"qdq_err"} for row in alone.values())
    weights = debug.create_weight_matching(digits, out)
    assert {"conv1.weight", "fc1.weight"} <= set(weights)
    found = debug.compute_weight_error(weights)
    assert all(30 < error < 70 for name, error in found.items() if name.endswith("weight"))
    # The same numbers as onnxruntime's function for the same arrays.
    for row in weights.values():
        pair = row["float"], row["dequantized"]
        expected = other.compute_signal_to_quantization_noice_ratio(*pair)
        own = debug.compute_signal_to_quantization_noice_ratio(*pair)
        assert own == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("options", [{"bits": 4, "block_size": 32}, {"bits": 2}, {"bits": 4}])
def test_weights_of_few_bits_are_compared_too(
    digits: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    debug = importlib.import_module("quantize_rs.compat.onnxruntime.qdq_loss_debug")
    out = tmp_path / "q.onnx"
    report = quantize_rs.quantize(digits, out, include=["fc1"], check="none", **options)
    [row] = [row for row in report.quantized if row.name == "fc1.weight"]
    found = debug.compute_weight_error(debug.create_weight_matching(digits, out))
    assert found["fc1.weight"] == pytest.approx(row.sqnr_db, abs=0.05)


@pytest.mark.parametrize("one_file", [True, False])
def test_preprocessing_again_writes_the_same_files(
    digits: Path, tmp_path: Path, one_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"external_data_location": "data/p.bin"} if one_file else {}
    given |= {"all_tensors_to_one_file": one_file, "external_data_size_threshold": 0}
    folder = tmp_path / "out"
    folder.mkdir()
    sizes = []
    for _ in range(2):
        out = folder / "p.onnx"
        ours.quant_pre_process(digits, out, save_as_external_data=True, **given)
        files = [path for path in folder.rglob("*") if path.is_file()]
        sizes.append({path.relative_to(folder): path.stat().st_size for path in files})
        # The second time, the files are those of the working directory.
        monkeypatch.chdir(folder)
    assert sizes[0] == sizes[1]
    assert (Path("data/p.bin") in sizes[0]) == one_file
    onnx.checker.check_model(folder / "p.onnx")
    for wrong in ("../p.bin", "p.onnx", str(tmp_path / "p.bin")):
        with pytest.raises(OptionError, match="external_data_location is"):
            ours.quant_pre_process(
                digits, out, save_as_external_data=True, external_data_location=wrong
            )


def test_a_file_of_the_working_directory_is_no_external_data_of_another_folder(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "w.bin").write_text("other")
    monkeypatch.chdir(here)
    for _ in range(2):
        ours.quant_pre_process(
            digits,
            there / "p.onnx",
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            external_data_location="w.bin",
        )
    assert {path.name for path in there.iterdir()} == {"p.onnx", "w.bin"}
    assert (here / "w.bin").read_text() == "other"
    feeds = {"image": np.load(digits.with_name("calibration.npy"))[:2]}
    assert oracle.sqnr(oracle.ort(digits, feeds), oracle.ort(there / "p.onnx", feeds)) > 60
