"""What a quantized model is worth: whether it loads, is valid, and is close to the float model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kernels
import numpy as np
import onnx
import onnxruntime as ort
import samples

Outputs = dict[str, np.ndarray]


def quality(request: dict[str, Any]) -> dict[str, Any]:
    """Every check of one model file; one that fails holds its error and stops no other."""
    model, reference = request["model"], request["reference"]
    data = samples.of(request["samples"])
    feeds = list(data.held_out(request["sqnr_samples"]))
    wanted = attempt(lambda: outputs(reference, feeds))
    found: dict[str, Any] = {
        "checker": attempt(lambda: check(model)),
        "optimised": attempt(lambda: distance(wanted, model, feeds, optimise=True)),
        "plain": attempt(lambda: distance(wanted, model, feeds, optimise=False)),
    }
    if loads(found["optimised"]):
        if request["metric"]:
            found["metric"] = attempt(lambda: data.metric(model, request["metric_limit"]))
        if request["kernels"]:
            found["kernels"] = attempt(lambda: kernels.count(kernels.optimised(model)))
    return found


def loads(result: object) -> bool:
    """Whether an attempt gave a result."""
    return not (isinstance(result, dict) and "error" in result)


def attempt(check: Callable[[], Any]) -> Any:
    """The result of a check, or its error as a value."""
    try:
        return check()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def check(model: str) -> str:
    """ONNX's own check, shape inference included."""
    onnx.checker.check_model(model, full_check=True)
    return "ok"


def distance(
    wanted: Any, model: str, feeds: list[samples.Feed], *, optimise: bool
) -> dict[str, Any]:
    """SQNR of every output, in decibels, against the float model's outputs on the same samples."""
    got = outputs(model, feeds, optimise=optimise)
    if not loads(wanted):
        return {"sqnr": {}, "reference": wanted["error"]}
    return {"sqnr": {name: sqnr(wanted[name], got[name]) for name in wanted}}


def outputs(model: str, feeds: list[samples.Feed], *, optimise: bool = True) -> Outputs:
    """Every output of the model over the feeds, joined along the first axis."""
    session = open_session(model, optimise=optimise)
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(None, feed) for feed in feeds]
    return {
        name: np.concatenate(parts)
        for name, parts in zip(names, zip(*runs, strict=True), strict=True)
    }


def open_session(model: str, *, optimise: bool) -> ort.InferenceSession:
    """A session with all of ONNX Runtime's graph optimisations or with none."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def sqnr(wanted: np.ndarray, got: np.ndarray) -> float | None:
    """Signal over noise in decibels; None when there is no noise (equal) or no signal."""
    signal = wanted.astype(np.float64)
    noise = np.square(signal - got.astype(np.float64)).sum()
    power = np.square(signal).sum()
    return None if noise == 0 or power == 0 else 10 * math.log10(power / noise)
