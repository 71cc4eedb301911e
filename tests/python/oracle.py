"""The references that tests compare with: onnx.checker, ONNX Runtime, onnx.reference, numpy."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import processor
from onnx.reference import ReferenceEvaluator

import quantize_rs

Feeds: TypeAlias = dict[str, npt.NDArray[Any]]
Outputs: TypeAlias = list[Any]

MODELS = Path(__file__).resolve().parents[1] / "fixtures" / "models"
FIXTURES: dict[str, dict[str, Any]] = json.loads((MODELS / "index.json").read_text("utf-8"))


def model(name: str) -> Path:
    """The file of a fixture."""
    return MODELS / f"{name}.onnx"


def feeds(name: str, count: int = 2) -> Feeds:
    """Valid inputs of a fixture, from a fixed seed."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made: Feeds = {}
    for key, said in FIXTURES[name]["inputs"].items():
        shape = [d if isinstance(d, int) else {"batch": count}.get(d, 12) for d in said["shape"]]
        if "range" in said:
            low, high = said["range"]
            made[key] = rng.integers(low, high + 1, shape).astype(said["dtype"])
        else:
            made[key] = rng.normal(0, 1, shape).astype(said["dtype"])
    return made


def prepared(model: str | Path | bytes, *skip: str) -> bytes:
    """The float model that a plan is made for, without the passes to skip."""
    made = quantize_rs.optimize(model, skip=["merge_duplicates", "dead", *skip]).model
    assert made is not None
    return made


def session(
    model: str | Path | bytes, *, optimized: bool = True, saturates: bool = False
) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one thread, with or without its optimizations.

    Where sums of uint8 x int8 saturate on this processor, the weights are converted to uint8,
    unless `saturates` is given.
    """
    if processor.SATURATES and not saturates:
        model = processor.unsigned(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model, options, providers=providers)


def ort(
    model: str | Path | bytes, inputs: Feeds, *, optimized: bool = True, saturates: bool = False
) -> Outputs:
    """The outputs of ONNX Runtime."""
    made = session(model, optimized=optimized, saturates=saturates)
    outputs: Outputs = made.run(None, inputs)
    return outputs


def optimized(model: str | Path | bytes) -> onnx.ModelProto:
    """The model that ONNX Runtime runs, once it has optimized it."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def kernels(model: str | Path | bytes) -> Counter[str]:
    """The operators that ONNX Runtime runs, once it has optimized the model."""
    return Counter(node.op_type for node in optimized(model).graph.node)


def reference(model: str | Path | bytes, inputs: Feeds) -> Outputs:
    """The outputs of the reference implementation of ONNX."""
    outputs: Outputs = ReferenceEvaluator(
        onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    ).run(None, inputs)
    return outputs


def check(model: str | Path | bytes) -> None:
    """Raise when onnx.checker, shape inference included, does not accept the model."""
    onnx.checker.check_model(model, full_check=True)


def sqnr(expected: Outputs, found: Outputs) -> float:
    """Signal to noise of the worst output in decibels; other types must be equal."""
    assert len(expected) == len(found)
    return min((_sqnr(x, y) for x, y in zip(expected, found, strict=True)), default=np.inf)


def _sqnr(x: Any, y: Any) -> float:
    if isinstance(x, list):
        return sqnr(x, y)
    x, y = np.asarray(x), np.asarray(y)
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    if x.dtype.kind != "f":
        np.testing.assert_array_equal(x, y)
        return np.inf
    noise = np.sum((x.astype(np.float64) - y.astype(np.float64)) ** 2)
    signal = np.sum(x.astype(np.float64) ** 2)
    if noise == 0:
        return np.inf
    return float(10 * np.log10(signal / noise)) if signal > 0 else -np.inf
