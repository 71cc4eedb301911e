"""What `recommend` says of each kind of model, and that the calls it gives do what they say."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import judge
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError, Recommendation, recommend

KINDS = {
    "conv2d_relu": ("convolutions", "static"),
    "maxpool_flatten_gemm": ("convolutions", "static"),
    "transformer_block": ("attention", "dynamic"),
    "lstm": ("recurrent", "dynamic"),
    "gru": ("recurrent", "dynamic"),
    "mlp_relu": ("products", "dynamic"),
    "gather_embedding": ("tables", "weights"),
    "fp16_model": ("half_floats", "weights"),
}


def copy(name: str, folder: Path) -> tuple[Path, Path]:
    """A fixture in a folder of its own, and samples for it."""
    model = folder / f"{name}.onnx"
    model.write_bytes(judge.model(name).read_bytes())
    samples = folder / "samples.npz"
    np.savez(samples, **judge.feeds(name, count=8))  # type: ignore[arg-type, unused-ignore]
    return model, samples


def works(model: Path, made: str | Path, found: Recommendation) -> None:
    """What came of a call is right, smaller in its weights, and loads."""
    name = model.stem
    assert quantize_rs.validate(model, made), found
    assert quantize_rs.model_info(made).quantized or found.bits == 4
    feeds = judge.feeds(name)
    for wanted, output in zip(judge.ort(model, feeds), judge.ort(made, feeds), strict=True):
        signal = np.square(np.asarray(wanted, np.float64)).sum()
        noise = np.square(np.asarray(output, np.float64) - wanted).sum()
        # 4 bits in blocks keep some 20 dB of random weights, 8 bits some 40.
        assert noise == 0 or 10 * np.log10(signal / noise) > (12 if found.bits == 4 else 25)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_told_its_way_and_the_call_works(name: str, tmp_path: Path) -> None:
    model, samples = copy(name, tmp_path)
    found = recommend(model)
    assert (found.rule, found.way) == KINDS[name], found
    given = recommend(model, samples)
    assert given.samples == (str(samples) if given.way == "static" else None)
    report = eval(given.python, {"quantize_rs": quantize_rs})
    assert report.quantized
    works(model, report.output, given)

    command = shlex.split(given.command)
    assert command[0] == "quantize-rs"
    made = Path(command[command.index("-o") + 1])
    made.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "quantize_rs", *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    works(model, made, given)


@pytest.mark.parametrize("name", KINDS)
def test_other_ways_work_too(name: str, tmp_path: Path) -> None:
    model, samples = copy(name, tmp_path)
    found = recommend(model, samples)
    for other in found.otherwise:
        report = eval(other.python, {"quantize_rs": quantize_rs})
        assert quantize_rs.validate(model, report.output), other
        assert other.when


def test_attention_is_static_where_there_are_samples(tmp_path: Path) -> None:
    model, samples = copy("transformer_block", tmp_path)
    found = recommend(model, samples)
    assert (found.rule, found.way) == ("attention_sampled", "static")
    assert "2 MatMul multiply two activations" in found.reasons[0].text
    assert [other.way for other in found.otherwise] == ["dynamic", "weights", "weights"]
    assert recommend(model, "random").way == "dynamic"
    assert recommend(model, np.zeros((1, 2), np.float32)).way == "static"


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


def test_a_language_model_is_told_blocks_of_4_bits() -> None:
    model = language_model(64, 96, cache=True)
    found = recommend(model)
    assert (found.rule, found.way, found.bits, found.block_size) == ("generative", "weights", 4, 32)
    assert found.output_format == "matmul_nbits"
    assert "`past_key_values.0.key`" in found.reasons[0].text
    assert found.model is None
    report = eval(found.python.replace('"model.int4.onnx"', "None"))
    assert {value.qtype for value in report.quantized} == {"uint4"}
    # Those who have no such operators get the same in ONNX's own.
    other = recommend(model, target="generic")
    assert (other.way, other.bits, other.output_format) == ("weights", 4, "qdq")
    # A small one without a cache is a network like others.
    small = recommend(language_model(64, 96, cache=False))
    assert (small.rule, small.way) == ("products", "dynamic")


def test_convolutions_of_a_dynamic_model_stay_float() -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "c": rng.standard_normal((8, 3, 4, 4)).astype(np.float32),
        "w": rng.standard_normal((1152, 512)).astype(np.float32),
    }
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "c"], ["patches"], strides=[4, 4]),
            helper.make_node("Flatten", ["patches"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["y"]),
        ],
        "patches",
        [helper.make_tensor_value_info("image", float32, ["n", 3, 48, 48])],
        [helper.make_tensor_value_info("y", float32, ["n", 512])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: Any = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    found = recommend(model)
    assert (found.rule, found.exclude) == ("products", ("Conv",))
    assert any("1 convolution" in reason.text for reason in found.reasons)
    report = eval(found.python.replace('"model.int8.onnx"', "None"))
    assert [value.name for value in report.quantized] == ["w"]


def test_the_result_is_frozen_and_told_in_every_form(digits: Path, images: Path) -> None:
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


def test_what_is_done_is_told_so(digits: Path) -> None:
    done = quantize_rs.quantize(digits, None, per_channel=True).model
    assert done is not None
    found = recommend(done)
    assert (found.rule, found.way, found.python) == ("quantized", "nothing", "")
    with pytest.raises(OptionError, match="x87"):
        recommend(digits, target="x87")
