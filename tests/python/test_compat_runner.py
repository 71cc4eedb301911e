"""The command `static_quantize_runner`, with samples as the tests of ONNX have them."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantize_rs
from quantize_rs.compat import onnxruntime as ours

OURS, THEIRS = (
    f"{package}.static_quantize_runner"
    for package in ("quantize_rs.compat.onnxruntime", "onnxruntime.quantization")
)
DIGITS = quantize_rs.examples.digits()
IMAGES = np.load(DIGITS.calibration)[:12]


def write_samples(folder: Path) -> None:
    for index, image in enumerate(IMAGES):
        sample = folder / f"test_data_set_{index}"
        sample.mkdir()
        onnx.save_tensor(onnx.numpy_helper.from_array(image[None]), sample / "input_0.pb")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    shutil.copy(DIGITS.model, path)
    return path


def run(*arguments: object) -> None:
    importlib.import_module(OURS).main([*map(str, arguments)])


class Read(Exception):
    """The arguments were read."""


def options(module: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of a command: their default and what they take."""
    found: dict[str, Any] = {}

    def read(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        for action in parser._actions:
            choices = sorted(action.choices) if action.choices else None
            row = (
                action.default,
                choices,
                action.nargs,
                action.required,
                type(action),
                action.type,
            )
            found.update(dict.fromkeys(action.option_strings, row))
        raise Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", read)
    with pytest.raises(Read):
        importlib.import_module(module).main()
    return found


def test_the_options_are_those_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    own = options(OURS, monkeypatch)
    assert "--tensor_quant_overrides" in own
    assert own == options(THEIRS, monkeypatch)


def test_python_runs_it(model: Path) -> None:
    write_samples(model.parent)
    out, expected = model.with_name("o.onnx"), model.with_name("e.onnx")
    call = [sys.executable, "-m", OURS, "-i", str(model), "-o", str(out), "--per_channel"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    ours.quantize_static(
        model,
        expected,
        iter([{"image": image[None]} for image in IMAGES]),
        per_channel=True,
        activation_type=ours.QuantType.QUInt8,
        extra_options={"MinimumRealRange": 0.0001},
    )
    assert out.read_bytes() == expected.read_bytes()


def test_each_option_is_passed_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(model.parent)
    module = importlib.import_module(OURS)
    calls: list[tuple[Any, Any]] = []

    def called(*given: Any, **named: Any) -> None:
        calls.append((given, named))

    monkeypatch.setattr(module, "quantize_static", called)
    overrides = model.with_name("overrides.json")
    entry = {"quant_type": "QUInt16", "scale": [0.5], "zero_point": [7]}
    overrides.write_text(json.dumps({"image": [entry]}))
    given = ["--activation_type", "quint16", "--weight_type", "qint16", "--quant_format"]
    given += ["qoperator", "--calibration_method", "entropy", "--disable_quantize_bias"]
    given += ["--op_per_channel_axis", "Conv", "0", "--op_per_channel_axis", "MatMul", "1"]
    given += ["--nodes_to_exclude", "a", "b", "--tensor_quant_overrides", str(overrides)]
    given += ["--minimum_real_range", "0.5", "--calib_moving_average"]
    run("-i", model, "-o", "o.onnx", *given)
    [(_, named)] = calls
    extra = named.pop("extra_options")
    assert named == {
        "quant_format": ours.QuantFormat.QOperator,
        "per_channel": False,
        "activation_type": ours.QuantType.QUInt16,
        "weight_type": ours.QuantType.QInt16,
        "nodes_to_quantize": None,
        "nodes_to_exclude": ["a", "b"],
        "calibrate_method": ours.CalibrationMethod.Entropy,
    }
    assert extra.pop("TensorQuantOverrides") == {
        "image": [{"quant_type": ours.QuantType.QUInt16, "scale": 0.5, "zero_point": 7}]
    }
    assert extra.pop("QDQOpTypePerChannelSupportToAxis") == {"Conv": 0, "MatMul": 1}
    assert extra.pop("OpTypesToExcludeOutputQuantization") == []
    assert extra.pop("MinimumRealRange") == 0.5
    assert [name for name, value in extra.items() if value] == ["CalibMovingAverage"]
    assert set(extra) > {"EnableSubgraph", "QuantizeBias", "UseQDQContribOps"}


def test_samples_are_in_the_order_of_their_numbers(model: Path) -> None:
    write_samples(model.parent)
    reader = importlib.import_module(OURS).OnnxModelCalibrationDataReader(model)
    found = [sample["image"] for sample in reader]
    np.testing.assert_array_equal(np.concatenate(found), IMAGES)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "there are no samples: expected folders test_data_set_"),
        (["--calibration_method", "distribution"], "calibrate_method is Distribution"),
        (["--op_per_channel_axis", "Conv", "x"], "--op_per_channel_axis: invalid literal"),
        (["--tensor_quant_overrides", "no.json"], "No such file"),
    ],
)
def test_what_is_wrong_is_one_line(model: Path, arguments: list[str], why: str) -> None:
    if arguments:
        write_samples(model.parent)
    with pytest.raises(SystemExit) as caught:
        run("-i", model, "-o", model.with_name("o.onnx"), *arguments)
    assert str(caught.value.code).startswith("error: ")
    assert why in str(caught.value.code)
    assert not model.with_name("o.onnx").exists()


def test_a_sample_without_an_input_is_named(model: Path) -> None:
    write_samples(model.parent)
    missing = model.with_name("test_data_set_7") / "input_0.pb"
    missing.unlink()
    with pytest.raises(SystemExit, match=r"test_data_set_7.*for each input"):
        run("-i", model, "-o", model.with_name("o.onnx"))


def test_a_damaged_sample_is_named(model: Path) -> None:
    write_samples(model.parent)
    (model.with_name("test_data_set_7") / "input_0.pb").write_bytes(b"garbage")
    with pytest.raises(SystemExit, match=r"test_data_set_7.*is not a tensor of ONNX"):
        run("-i", model, "-o", model.with_name("o.onnx"))


@pytest.mark.parametrize(
    ("text", "why"),
    [("[1]", "is not a map"), ('{"image": [{"quant_type": "int8"}]}', "expected one of qint8")],
)
def test_a_file_of_overrides_is_checked(model: Path, text: str, why: str) -> None:
    write_samples(model.parent)
    path = model.with_name("overrides.json")
    path.write_text(text)
    with pytest.raises(SystemExit, match=why):
        run("-i", model, "-o", model.with_name("o.onnx"), "--tensor_quant_overrides", path)
