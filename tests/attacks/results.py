"""Quantize models like those of the tests, run what comes out, and compare it with its report.

    python tests/attacks/results.py [--count N] [--first NUMBER] [--seeds FOLDER]

Each model is one of the fixtures, or of FOLDER, with a few weights, attributes, operators or
outputs changed, as long as ONNX Runtime still runs it. What comes out of quantization must load in
ONNX Runtime and have the inputs and outputs of the model, `validate` must pass, and the error of
its outputs must be what the report says. A number stands for a model: `--first NUMBER --count 1`
repeats it.

Needs numpy, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import quantize_rs
from quantize_rs import QuantizeError

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "models"
LARGEST = 40_000  # bytes
SAMPLES = 16
# The report is measured in another session, whose optimizations round differently.
TOLERANCE_DB = 3.0

# Ways to quantize: options, and whether there are calibration samples.
WAYS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"bits": 4}, False),
    ({"bits": 4, "output_format": "matmul_nbits"}, False),
    ({"output_format": "dynamic"}, False),
    ({"weights": "float8e4m3fn"}, False),
    ({}, True),
    ({"per_channel": False}, True),
    ({"symmetric": True, "activation_symmetric": True}, True),
    ({"output_format": "qoperator"}, True),
    ({"target": "tensorrt"}, True),
    ({"target": "x86"}, True),
]

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "Softplus", "Neg", "Abs", "Exp", "Identity", "Erf")

Feed = dict[str, np.ndarray]


class Useless(Exception):
    """ONNX Runtime does not run this model, or its outputs are not finite."""


def mutate(model: onnx.ModelProto, pick: random.Random) -> None:
    graph = model.graph
    for _ in range(pick.randint(0, 3)):
        match pick.randrange(6):
            case 0 | 1:
                if graph.initializer:
                    weight(pick.choice(graph.initializer), pick)
            case 2:
                numbers = [(node, a) for node in graph.node for a in node.attribute if a.ints]
                if numbers:
                    _, attribute = pick.choice(numbers)
                    at = pick.randrange(len(attribute.ints))
                    attribute.ints[at] = max(0, attribute.ints[at] + pick.choice((-1, 1)))
            case 3:
                single = [a for node in graph.node for a in node.attribute if a.type == a.INT]
                if single:
                    attribute = pick.choice(single)
                    attribute.i += pick.choice((-1, 1))
            case 4:
                unary = [node for node in graph.node if node.op_type in ACTIVATIONS]
                if unary:
                    pick.choice(unary).op_type = pick.choice(ACTIVATIONS)
            case _:
                # A value inside becomes an output, too.
                inner = [name for node in graph.node for name in node.output if name]
                name = pick.choice(inner)
                if name not in {output.name for output in graph.output}:
                    graph.output.append(onnx.ValueInfoProto(name=name))


def weight(tensor: onnx.TensorProto, pick: random.Random) -> None:
    """Other numbers in a weight: outliers, zeros, other sizes."""
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype != np.float32 or not array.size:
        return
    flat = array.reshape(-1)
    at = pick.randrange(flat.size)
    match pick.randrange(6):
        case 0:
            flat *= np.float32(10.0 ** pick.randint(-6, 4))
        case 1:
            flat[at] = np.float32(pick.choice((0.0, 1e-30, 30.0, -1e3)))
        case 2:
            flat[:] = 0
        case 3:
            np.abs(flat, out=flat)
        case 4 if array.ndim > 1:
            array[pick.randrange(array.shape[0])] *= np.float32(pick.choice((0, 1e-3, 100)))
        case _:
            flat[:] = flat[at]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds(runs: onnxruntime.InferenceSession, rng: np.random.Generator) -> list[Feed]:
    known = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    found = []
    for _ in range(SAMPLES):
        feed = {}
        for one in runs.get_inputs():
            kind = known.get(one.type)
            if kind is None:
                raise Useless(one.type)
            dims = [dim if isinstance(dim, int) else 2 for dim in one.shape]
            # Of a batch of any size, one: the report counts rows.
            shape = [1 if isinstance(one.shape[0], str) else dims[0], *dims[1:]] if dims else []
            if kind is np.float32:
                feed[one.name] = rng.normal(0, 1, shape).astype(kind)
            else:
                feed[one.name] = rng.integers(0, 2, shape).astype(kind)
        found.append(feed)
    return found


def outputs(runs: onnxruntime.InferenceSession, samples: list[Feed]) -> list[list[np.ndarray]]:
    return [runs.run(None, feed) for feed in samples]


def sqnr(wanted: list[list[np.ndarray]], got: list[list[np.ndarray]]) -> float:
    """The ratio of the worst float output, in decibels."""
    worst = math.inf
    for place, first in enumerate(wanted[0]):
        if not isinstance(first, np.ndarray) or first.dtype != np.float32:
            continue
        float_, other = (
            np.concatenate([np.float64(sample[place]).reshape(-1) for sample in samples])
            for samples in (wanted, got)
        )
        noise, signal = np.sum((float_ - other) ** 2), np.sum(float_**2)
        if noise > 0:
            worst = min(worst, 10 * math.log10(signal / noise) if signal > 0 else -math.inf)
    return worst


def apart(seed: bytes, number: int) -> tuple[str, str | None]:
    """As `attack`, in a process of its own: ONNX Runtime may end it."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            try:
                found = attack(seed, number, lambda: print("quantized", file=out, flush=True))
            except BaseException as error:  # panics are no `Exception`
                found = ("fault", f"{type(error).__name__}: {error}")
            print(json.dumps(found), file=out, flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        written = lines.read().splitlines()
    _, status = os.waitpid(child, 0)
    if status == 0:
        outcome, fault = json.loads(written[-1])
        return outcome, fault
    if written:
        return "fault", f"ONNX Runtime ends with {status} on the quantized model"
    return "ends ONNX Runtime as it is", None


def attack(seed: bytes, number: int, quantized: Callable[[], None]) -> tuple[str, str | None]:
    """What became of a model, and what is wrong with it; calls `quantized` in between."""
    pick = random.Random(number)
    model = onnx.load_from_string(seed)
    mutate(model, pick)
    original = model.SerializeToString()
    options, calibrated = pick.choice(WAYS)
    try:
        runs = session(original)
        samples = feeds(runs, np.random.default_rng(number))
        wanted = outputs(runs, samples)
        for value in (value for sample in wanted for value in sample):
            if not isinstance(value, np.ndarray) or not np.isfinite(np.float64(value)).all():
                raise Useless
    except Exception:
        return "does not run", None
    data = samples if calibrated else None
    # Without samples the report measures made inputs; with them, the same as here.
    call = quantize_rs.quantize_with_calibration if calibrated else quantize_rs.quantize
    args = (original, None, data) if calibrated else (original, None)
    try:
        report = call(*args, allow_larger=True, **options)
    except QuantizeError as error:
        return f"refused: {type(error).__name__}", None
    model_out = report.model
    assert model_out is not None
    quantized()
    way = f"{options}, {'with' if calibrated else 'without'} samples"
    try:
        made = session(model_out)
        got = outputs(made, samples)
    except Exception as error:
        if report.output_check is not None and report.output_check.failure:
            return "does not run, as its report says", None
        return "fault", f"{way}: it does not run: {error}"
    for side in ("get_inputs", "get_outputs"):
        names = [[one.name for one in getattr(one, side)()] for one in (runs, made)]
        if names[0] != names[1]:
            return "fault", f"{way}: names {names[0]} became {names[1]}"
    check = report.output_check
    same = calibrated and check is not None and check.samples == SAMPLES
    if same and check is not None and check.sqnr_db is not None:
        measured = sqnr(wanted, got)
        if measured < check.sqnr_db - TOLERANCE_DB:
            what = f"its error is {measured:.1f} dB, the report says {check.sqnr_db:.1f} dB"
            return "fault", f"{way}: {what}"
    validation = quantize_rs.validate(original, model_out)
    if not validation.passed:
        return "fault", f"{way}: validate refuses it: {validation}"
    return "quantized and run" + (", error compared" if same else ""), None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first model")
    parser.add_argument("--seeds", type=Path, help="a folder of further models")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(4)
    paths = sorted(FIXTURES.glob("*.onnx"))
    if args.seeds:
        paths += sorted(args.seeds.rglob("*.onnx"))
    # Models are passed as bytes: data in other files is not there.
    paths = [path for path in paths if not path.name.startswith("external_data")]
    seeds = {path.name: path.read_bytes() for path in paths if path.stat().st_size < LARGEST}
    names, became, faults = list(seeds), Counter[str](), 0
    for number in range(args.first, args.first + args.count):
        name = random.Random(-number - 1).choice(names)
        outcome, fault = apart(seeds[name], number)
        became[outcome] += 1
        if fault:
            faults += 1
            print(f"model {number} ({name}): {fault}", flush=True)
    print(f"{args.count} models: " + ", ".join(f"{n} {what}" for what, n in became.most_common()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
