"""What ran when: a trace for viewers, and stages in Python's logging."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quantize_rs

STAGES = {
    "open",
    "plan",
    "run samples",
    "prepare the engine",
    "find ranges",
    "round weights",
    "encode weights",
    "rewrite",
    "check the graph",
    "check the outputs",
    "save",
}


def events(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())["traceEvents"]
    assert isinstance(found, list)
    return found


def calibrated(out: Path) -> None:
    digits = quantize_rs.examples.digits()
    quantize_rs.quantize_with_calibration(
        digits.model,
        out,
        digits.calibration,
        limit=8,
        weight_algorithm="descent",
        engine="tract",
    )


def test_a_trace_has_stages_layers_and_samples(tmp_path: Path) -> None:
    with quantize_rs.trace(tmp_path / "trace.json"):
        calibrated(tmp_path / "q.onnx")
    found = events(tmp_path / "trace.json")
    assert {event["name"] for event in found if event["cat"] == "stage"} == STAGES
    for event in found:
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    samples = {event["args"]["of"] for event in found if event["name"] == "sample"}
    assert samples >= {str(number) for number in range(8)}
    layers = {event["args"]["of"] for event in found if event["name"] == "encode"}
    assert "conv1.weight" in layers
    # A part lies within a stage of its kind.
    (rounding,) = (event for event in found if event["name"] == "round weights")
    parts = [event for event in found if event["name"] == "round"]
    assert parts
    for part in parts:
        assert rounding["ts"] <= part["ts"]
        assert part["ts"] + part["dur"] <= rounding["ts"] + rounding["dur"] + 1
    # Nothing is collected outside of the block.
    with quantize_rs.trace(tmp_path / "empty.json"):
        pass
    assert events(tmp_path / "empty.json") == []


def test_a_trace_is_written_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(quantize_rs.ModelError), quantize_rs.trace(tmp_path / "trace.json"):
        quantize_rs.open(b"\x00\x01")
    assert events(tmp_path / "trace.json") == []
    with pytest.raises(FileNotFoundError), quantize_rs.trace(tmp_path / "no" / "trace.json"):
        raise AssertionError("not reached")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    with pytest.raises(quantize_rs.OptionError, match=r"ends in \.json"), quantize_rs.trace(model):
        raise AssertionError("not reached")
    assert model.read_bytes() == b"model"


def test_stages_are_logged_where_they_are_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="quantize_rs.stages"):
        calibrated(tmp_path / "q.onnx")
    logged = [record for record in caplog.records if record.name == "quantize_rs.stages"]
    assert {record.getMessage().split(":")[0] for record in logged} == STAGES
    assert all(record.getMessage().endswith(" s") for record in logged)
    caplog.clear()
    calibrated(tmp_path / "q.onnx")
    assert not [record for record in caplog.records if record.name == "quantize_rs.stages"]


def test_a_handler_that_raises_ends_nothing(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record)

    logger = logging.getLogger("quantize_rs.stages")
    handler = Broken()
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.DEBUG)
        calibrated(tmp_path / "q.onnx")
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert (tmp_path / "q.onnx").exists()


def test_ctrl_c_while_a_model_is_saved_is_not_lost(tmp_path: Path) -> None:
    program = """
import os, signal, sys, threading
import numpy as np, onnx, quantize_rs
from onnx import helper, numpy_helper

weight = numpy_helper.from_array(np.ones((2000, 2000), np.float32), "w")
value = lambda name, shape: helper.make_tensor_value_info(name, 1, shape)
node = helper.make_node("MatMul", ["x", "w"], ["y"])
graph = helper.make_graph([node], "g", [value("x", [1, 2000])], [value("y", [1, 2000])], [weight])
opsets = [helper.make_opsetid("", 17)]
model = quantize_rs.open(helper.make_model(graph, opset_imports=opsets, ir_version=8))
quantized = model.plan().apply()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(3000):
        quantized.save(sys.argv[1])
except KeyboardInterrupt:
    print("stopped")
"""
    run = [sys.executable, "-c", program, str(tmp_path / "q.onnx")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.stdout == "stopped\n", done.stderr


def test_the_command_writes_the_same(tmp_path: Path) -> None:
    digits = quantize_rs.examples.digits()
    command = [sys.executable, "-m", "quantize_rs", "quantize", str(digits.model)]
    options = ["-o", str(tmp_path / "q.onnx"), "--trace", str(tmp_path / "trace.json")]
    subprocess.run([*command, *options], check=True, capture_output=True)
    found = {event["name"] for event in events(tmp_path / "trace.json")}
    assert {"open", "plan", "encode weights", "encode", "rewrite", "save"} <= found
    done = subprocess.run(
        [*command, *options[:2], "--trace", str(tmp_path / "no" / "t.json")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "t.json" in done.stderr
    done = subprocess.run(
        [*command, *options[:2], "--trace", str(tmp_path / "q.onnx")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--trace would overwrite" in done.stderr
