"""The recommendation for each kind of model, and tests that its calls and commands work."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Recommendation, recommend

KINDS = {
    "conv2d_relu": ("convolutions", "static"),
    "maxpool_flatten_gemm": ("convolutions", "static"),
    "transformer_block": ("attention", "dynamic"),
    "lstm": ("recurrent", "dynamic"),
    "gru": ("recurrent", "dynamic"),
    "mlp_relu": ("products", "dynamic"),
    "gather_embedding": ("tables", "weights"),
    "fp16_model": ("convolutions", "static"),
    "double_model": ("doubles", "weights"),
}


def copy(name: str, folder: Path) -> tuple[Path, Path]:
    """A fixture in a folder of its own, and samples for it."""
    model = folder / f"{name}.onnx"
    model.write_bytes(oracle.model(name).read_bytes())
    samples = folder / "samples.npz"
    np.savez(samples, **oracle.feeds(name, count=8))  # type: ignore[arg-type, unused-ignore]
    return model, samples


def works(model: Path, made: str | Path, found: Recommendation) -> None:
    """Check that the result of a call is valid, has smaller weights, and loads."""
    name = model.stem
    assert quantize_rs.validate(model, made), found
    assert quantize_rs.model_info(made).quantized or found.bits == 4
    feeds = oracle.feeds(name)
    for wanted, output in zip(oracle.ort(model, feeds), oracle.ort(made, feeds), strict=True):
        signal = np.square(np.asarray(wanted, np.float64)).sum()
        noise = np.square(np.asarray(output, np.float64) - wanted).sum()
        # 4 bits in blocks keep some 20 dB of random weights, 8 bits some 40.
        assert noise == 0 or 10 * np.log10(signal / noise) > (12 if found.bits == 4 else 25)


def runs(command: str) -> Path:
    """Run a command as it is printed; return the path of its output."""
    words = shlex.split(command)
    assert words[0] == "quantize-rs"
    made = Path(words[words.index("-o") + 1])
    made.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "quantize_rs", *words[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_gets_its_method_and_the_call_works(name: str, tmp_path: Path) -> None:
    model, samples = copy(name, tmp_path)
    found = recommend(model)
    assert (found.rule, found.way) == KINDS[name], found
    given = recommend(model, samples, engine="tract")
    assert given.samples == (str(samples) if given.way == "static" else None)
    if given.way != "nothing":
        unmeasured = [reason for reason in given.reasons if reason.text.startswith("not measured")]
        assert (given.measured is None) == bool(unmeasured), given
    report = eval(given.python, {"quantize_rs": quantize_rs})
    assert report.quantized
    works(model, report.output, given)

    works(model, runs(given.command), given)


@pytest.mark.parametrize("name", KINDS)
def test_alternatives_work_too(name: str, tmp_path: Path) -> None:
    model, samples = copy(name, tmp_path)
    found = recommend(model, samples, engine="tract")
    # Weights of float64 have the way that is recommended alone.
    assert bool(found.otherwise) == (name != "double_model")
    for other in found.otherwise:
        report = eval(other.python, {"quantize_rs": quantize_rs})
        assert quantize_rs.validate(model, report.output), other
        assert quantize_rs.validate(model, runs(other.command)), other
        assert other.when


def test_attention_is_static_where_there_are_samples(tmp_path: Path) -> None:
    model, samples = copy("transformer_block", tmp_path)
    found = recommend(model, samples, engine="tract")
    assert (found.rule, found.way) == ("attention_sampled", "static")
    assert "2 MatMul multiply two activations" in found.reasons[0].text
    assert [other.way for other in found.otherwise] == ["dynamic", "weights", "weights"]
    assert recommend(model, "random").way == "dynamic"
    assert recommend(model, Path("random")).way == "dynamic"


def language_model(width: int, tokens: int, *, cache: bool) -> onnx.ModelProto:
    """Tokens are looked up, multiplied, and scored."""
    rng = np.random.default_rng(0)
    float32, int64 = TensorProto.FLOAT, TensorProto.INT64
    weight = rng.standard_normal((width, width)).astype(np.float32)
    table = rng.standard_normal((tokens, width)).astype(np.float32)
    head = np.ascontiguousarray(table.T[:, ::-1])
    inputs = [helper.make_tensor_value_info("input_ids", int64, ["batch", "sequence"])]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"])]
    hidden = "x"
    if cache:
        past = ["batch", "past", width]
        inputs.append(helper.make_tensor_value_info("past_key_values.0.key", float32, past))
        nodes.append(helper.make_node("Concat", ["past_key_values.0.key", "x"], ["k"], axis=1))
        hidden = "k"
    nodes += [
        helper.make_node("MatMul", [hidden, "w"], ["h"]),
        helper.make_node("MatMul", ["h", "head"], ["scores"]),
    ]
    tensors = {"table": table, "w": weight, "head": head}
    graph = helper.make_graph(
        nodes,
        "tokens",
        inputs,
        [helper.make_tensor_value_info("scores", float32, ["batch", None, tokens])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_language_model_gets_blocks_of_4_bits() -> None:
    model = language_model(64, 96, cache=True)
    found = recommend(model)
    assert (found.rule, found.way, found.bits, found.block_size) == ("generative", "weights", 4, 32)
    assert (found.output_format, found.accuracy_level) == ("matmul_nbits", 4)
    assert "accuracy_level=4" in found.python
    assert "--accuracy-level 4" in found.command
    assert "`past_key_values.0.key`" in found.reasons[0].text
    assert found.model is None
    report = eval(found.python.replace('"model.int4.onnx"', "None"))
    assert {value.qtype for value in report.quantized} == {"uint4"}
    # A target without such operators gets the same in the operators of ONNX.
    other = recommend(model, target="generic")
    assert (other.way, other.bits, other.output_format) == ("weights", 4, "qdq")
    assert other.accuracy_level is None
    # A small one without a cache is a network like others.
    small = recommend(language_model(64, 96, cache=False))
    assert (small.rule, small.way) == ("products", "dynamic")


def test_large_lstms_multiply_integers_where_onnx_runtime_runs_them(tmp_path: Path) -> None:
    units = 128
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal((1, 4 * units, units)) / np.sqrt(units)).astype(np.float32)
        for name in ("w", "r")
    }
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=units)],
        "lstm",
        [helper.make_tensor_value_info("x", float32, ["steps", 1, units])],
        [helper.make_tensor_value_info("y", float32, ["steps", 1, 1, units])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    path = tmp_path / "lstm.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    feeds = {"x": rng.standard_normal((16, 1, units)).astype(np.float32)}
    (wanted,) = oracle.ort(path, feeds)
    for target in (None, "x86", "x86-avx2", "arm"):
        found = recommend(path, target=target)
        assert (found.rule, found.way, found.dynamic_lstm) == ("recurrent", "dynamic", True)
        assert "dynamic_lstm" in {reason.rule for reason in found.reasons}
        assert [other.dynamic_lstm for other in found.otherwise] == [False, False]
        report = eval(found.python)
        assert (
            quantize_rs.quantize(path, None, target=target, **options(found)).model
            == runs(found.command).read_bytes()
        )
        info = quantize_rs.model_info(report.output)
        assert info.operators["com.microsoft::DynamicQuantizeLSTM"] == 1
        assert info.quantized
        (output,) = oracle.ort(report.output, feeds)
        assert oracle.sqnr([wanted], [output]) > 20
    for other in found.otherwise:
        (output,) = oracle.ort(runs(other.command), feeds)
        assert oracle.sqnr([wanted], [output]) > 30
    assert not recommend(path, target="generic").dynamic_lstm


def test_samples_in_memory_are_a_variable_of_the_call(tmp_path: Path) -> None:
    model, samples = copy("conv2d_relu", tmp_path)
    with np.load(samples) as found:
        arrays = dict(found)
    given = recommend(model, arrays, engine="tract")
    assert (given.way, given.samples) == ("static", "data")
    (reason,) = (reason.text for reason in given.reasons if reason.rule == "samples")
    assert "`data` stands for" in reason
    assert "SAMPLES for a .npy file" in reason
    assert "--data SAMPLES " in given.command
    report = eval(given.python, {"quantize_rs": quantize_rs, "data": arrays})
    works(model, report.output, given)
    for none in (None, "random"):
        alone = recommend(model, none)
        assert alone.samples == "data"
        assert "calibration.npy" not in alone.command + alone.python
        (reason,) = (reason.text for reason in alone.reasons if reason.rule == "samples")
        assert "give at least 128 real examples of its input" in reason
    with pytest.raises(FileNotFoundError):
        recommend(model, tmp_path / "none.npy")


def test_the_reported_size_is_about_that_of_the_file(tmp_path: Path) -> None:
    for name in ("mlp_relu", "lstm", "gather_embedding", "conv_bn_relu"):
        model, samples = copy(name, tmp_path)
        found = recommend(model, samples, engine="tract")
        weights = found.facts["weight_bytes"]
        report = eval(found.python, {"quantize_rs": quantize_rs})
        (said,) = (reason.text for reason in found.reasons if reason.rule == "size")
        words = said.split("about ")[1].split()
        size = float(words[0]) * {"bytes": 1, "kB": 1e3, "MB": 1e6}[words[1]]
        # The estimate does not count names and nodes, which take much of a small model.
        assert abs(size - report.bytes_after) < 0.1 * weights + 4000, (said, report.bytes_after)


def test_convolutions_of_a_dynamic_model_stay_float(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "c": rng.standard_normal((8, 3, 4, 4)).astype(np.float32),
        "t": rng.standard_normal((8, 8, 1, 1)).astype(np.float32),
        "w": rng.standard_normal((1152, 512)).astype(np.float32),
    }
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "c"], ["patches"], strides=[4, 4]),
            helper.make_node("ConvTranspose", ["patches", "t"], ["mixed"]),
            helper.make_node("Flatten", ["mixed"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["y"]),
        ],
        "patches",
        [helper.make_tensor_value_info("image", float32, ["n", 3, 48, 48])],
        [helper.make_tensor_value_info("y", float32, ["n", 512])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: Any = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "patches.onnx"
    onnx.save(model, path)
    found = recommend(path)
    assert (found.rule, found.exclude) == ("products", ("Conv", "ConvTranspose"))
    assert any("2 convolution" in reason.text for reason in found.reasons)
    report = eval(found.python)
    assert [value.name for value in report.quantized] == ["w"]
    assert report.output is not None
    command = runs(found.command).read_bytes()
    assert quantize_rs.quantize(path, None, **options(found)).model == command


def options(found: Recommendation) -> dict[str, Any]:
    """What was recommended, as options of `quantize`."""
    return {
        "bits": found.bits,
        "per_channel": found.per_channel,
        "block_size": found.block_size,
        "output_format": found.output_format,
        "accuracy_level": found.accuracy_level,
        "excluded_layers": found.exclude,
        "dynamic_lstm": found.dynamic_lstm,
    }


def test_a_weight_that_stays_float_counts_in_the_reported_size() -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "c": rng.standard_normal((256, 64, 5, 5)).astype(np.float32),
        "w": rng.standard_normal((256, 4096)).astype(np.float32),
    }
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "c"], ["y"]),
            helper.make_node("GlobalAveragePool", ["y"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["z"]),
        ],
        "half",
        [helper.make_tensor_value_info("x", float32, ["n", 64, 5, 5])],
        [helper.make_tensor_value_info("z", float32, ["n", 4096])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: Any = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    found = recommend(model)
    assert found.exclude == ("Conv",), found
    report = eval(found.python.replace('"model.int8.onnx"', "None"))
    (said,) = (reason.text for reason in found.reasons if reason.rule == "size")
    size = float(said.split("about ")[1].split()[0]) * 1e6
    assert abs(size - report.bytes_after) < 0.02 * report.bytes_after, (said, report.bytes_after)


def test_the_result_is_frozen_and_has_every_form(digits: Path, images: Path) -> None:
    found = recommend(digits, images, target="arm")
    with pytest.raises(AttributeError):
        found.way = "dynamic"  # type: ignore[misc]
    assert found.to_dict() == json.loads(found.to_json())
    assert found.target == found.to_dict()["target"] == "arm"
    assert 'target="arm"' in found.python
    assert found.command.endswith("--target arm")
    text = str(found)
    assert all(reason.text in text for reason in found.reasons)
    assert found.python in text
    assert repr(found).startswith("<Recommendation: static")
    assert "Conv do" in found._repr_html_()
    assert found.facts["opset"] == 17
    assert found.facts["families"][0]["family"] == "convolution"
    assert found.facts["bytes"] == digits.stat().st_size
    assert found == recommend(quantize_rs.open(digits), images, "arm")


def test_a_quantized_model_needs_nothing(digits: Path) -> None:
    done = quantize_rs.quantize(digits, None, per_channel=True).model
    assert done is not None
    found = recommend(done)
    assert (found.rule, found.way, found.python) == ("quantized", "nothing", "")
    with pytest.raises(OptionError, match="x87"):
        recommend(digits, target="x87")


def one_loud_channel() -> onnx.ModelProto:
    """A convolution whose input has one channel 10,000 times as loud, which its weights balance."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    weight[:, 0] /= 1e4
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["y"], "relu"),
        ],
        "loud",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 10, 10])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: Any = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model


def test_static_is_measured_as_its_call_makes_it_on_any_processor(
    digits: Path, images: Path
) -> None:
    found = recommend(digits, images)
    ways = [(found.way, found.measured), *((one.way, one.measured) for one in found.otherwise)]
    (measured,) = (measured for way, measured in ways if way == "static")
    assert measured is not None
    assert measured.sqnr_db is not None
    assert measured.sqnr_db > 30


def test_a_strategy_that_is_measured_poor_yields_to_an_alternative() -> None:
    rng = np.random.default_rng(1)
    samples = rng.standard_normal((8, 1, 16, 12, 12)).astype(np.float32)
    samples[:, :, 0] *= 1e4
    model = one_loud_channel()
    assert recommend(model).way == "static"
    found = recommend(model, list(samples), engine="tract")
    assert (found.rule, found.way, found.samples) == ("measured", "weights", None), found
    assert "static was measured and is far from the float model" in found.reasons[0].text
    assert found.measured is not None
    assert found.measured.sqnr_db is not None
    assert found.measured.sqnr_db > 10
    assert found.measured.speedup is None, "tract computes quantized models in float"
    assert found.measured.samples == 2, "a quarter is held out"
    (static,) = (other for other in found.otherwise if other.way == "static")
    assert static.measured is not None
    assert static.measured.sqnr_db is not None
    assert static.measured.sqnr_db < 10
    assert "measured" in static.when
    assert "SQNR" in str(found)
    report = eval(found.python.replace('"model.int8.onnx"', "None"))
    assert report.quantized


def test_onnxruntime_measures_time_and_samples_are_read(tmp_path: Path) -> None:
    model, samples = copy("conv_and_matmul", tmp_path)
    found = recommend(model, samples, engine="onnxruntime", limit=5, threads=1)
    shown = str(found)
    for measured in (found.measured, *(other.measured for other in found.otherwise)):
        assert measured is not None
        assert measured.engine == "onnxruntime"
        assert f"({measured.samples} sample" in shown
    assert found.to_dict()["measured"]["bytes_original"] == model.stat().st_size
    with pytest.raises(CalibrationError, match="x"):
        recommend(model, np.zeros((1, 2), np.float32))
    with pytest.raises(CalibrationError, match="no calibration samples"):
        recommend(model, [])
    with pytest.raises(OptionError, match="limit"):
        recommend(model, limit=3)
