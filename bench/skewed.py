"""What quantization leaves of networks whose channels were scaled apart at random, exactly.

    python bench/skewed.py FOLDER [--seeds 3] [--octaves 6] [--models glyph_resnet,...]

FOLDER holds a folder for each model, with `model.onnx`, `calib.npz` and what `evaluate.py` beside
them reads. Each channel between two convolutions, or products by a constant weight, is multiplied
by a power of two from 2^-octaves to 2^octaves where it is written, and the weights that read it are
divided by that. The float outputs are the same, which is checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

import quantize_rs

NAMES = ("glyph_resnet", "glyph_mobilenetv2", "ultraface", "super_resolution")

# Besides the addition of a bias.
PASS_ON = ("Relu", "LeakyRelu", "Clip")


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def skewed(model: onnx.ModelProto, octaves: int, seed: int) -> tuple[onnx.ModelProto, int]:
    """Scale the channels of each Conv whose output only convolutions and a Gemm read, directly or
    after activation functions; the model, and how many layers were scaled."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph, rng, count = model.graph, np.random.default_rng(seed), 0
    values = constants(graph)
    outputs = {output.name for output in graph.output}
    reads: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            reads.setdefault(name, []).append(node)
    changed: dict[str, np.ndarray] = {}
    swaps: dict[str, list[onnx.NodeProto]] = {}
    for first in list(graph.node):
        if first.op_type != "Conv" or len(first.input) < 2 or first.input[1] not in values:
            continue
        name, clips, added, consumers = first.output[0], [], [], []
        while True:
            consumers = reads.get(name, [])
            [one] = consumers if len(consumers) == 1 else [None]
            biased = one is not None and one.op_type == "Add" and one.input[1] in values
            if name in outputs or one is None or not (biased or one.op_type in PASS_ON):
                break
            if one.op_type == "Clip":
                clips.append(one)
            if biased:
                added.append(one.input[1])
            name = one.output[0]
        convolutions = all(n.op_type == "Conv" and n.input[0] == name for n in consumers)
        if name in outputs or not consumers or not convolutions:
            continue
        weight = changed.get(first.input[1], values[first.input[1]])
        by = np.exp2(rng.integers(-octaves, octaves + 1, len(weight))).astype(np.float32)
        changed[first.input[1]] = weight * by[:, None, None, None]
        if len(first.input) > 2:
            bias = changed.get(first.input[2], values[first.input[2]])
            changed[first.input[2]] = bias * by
        for constant in added:
            bias = changed.get(constant, values[constant])
            changed[constant] = bias * by[:, None, None]
        for clip in clips:
            low, high = (float(values[clip.input[at]]) for at in (1, 2))
            assert low == 0.0
            middle = clip.output[0] + "_relu"
            bound = clip.output[0] + "_bound"
            graph.initializer.append(
                numpy_helper.from_array((high * by)[:, None, None].astype(np.float32), bound)
            )
            swaps[clip.output[0]] = [
                helper.make_node("Relu", [clip.input[0]], [middle]),
                helper.make_node("Min", [middle, bound], [clip.output[0]], clip.name),
            ]
        for consumer in consumers:
            weight = changed.get(consumer.input[1], values[consumer.input[1]])
            group = attribute(consumer, "group", 1)
            inputs = by.reshape(group, -1).repeat(len(weight) // group, axis=0)
            changed[consumer.input[1]] = weight / inputs[:, :, None, None]
        count += 1
    for tensor in graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(numpy_helper.from_array(changed[tensor.name], tensor.name))
    nodes = []
    for node in graph.node:
        nodes += swaps.get(node.output[0], [node])
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model, count


def metric(found: dict[str, Any]) -> str:
    """The first numbers of a metric, those of its parts included."""
    numbers = []
    for key, value in found.items():
        if isinstance(value, dict):
            numbers.append(metric(value))
        elif isinstance(value, float) and not key.endswith("seconds"):
            numbers.append(f"{key} {value:.4f}")
    return ", ".join([number for number in numbers if number][:4])


def load_evaluation(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluate", folder / "evaluate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(path: Path, feeds: list[Any], score: Callable[[Path], str]) -> None:
    """Print the metric of every way to quantize a model, without and with equalization."""
    to = path.with_name("quantized.onnx")
    for equalize, per_channel, static in product((False, True), (True, False), (False, True)):
        options: dict[str, Any] = {"per_channel": per_channel, "equalize": equalize}
        if static:
            report = quantize_rs.quantize_with_calibration(path, to, feeds, **options)
        else:
            report = quantize_rs.quantize(path, to, **options)
        done = any(step.name == "equalize" for step in report.steps)
        mode = "equalize=True " if equalize else "equalize=False"
        kind = "static " if static else "weights"
        how = "per channel" if per_channel else "per tensor "
        print(f"    {mode} {kind} {how}: {score(to)}{' (equalized)' * done}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--octaves", type=int, default=6)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--limit", type=int, default=None, help="evaluate on this many samples")
    arguments = parser.parse_args()
    evaluation = load_evaluation(arguments.folder)
    for name in arguments.models.split(","):
        folder = arguments.folder / name
        meta = evaluation.load_meta(str(folder))
        source = onnx.load(folder / "model.onnx")
        if source.opset_import[0].version < 13:
            source = onnx.version_converter.convert_version(source, 17)
        feeds = list(evaluation.calib_feeds(str(folder), meta))

        def score(file: Path, folder: Path = folder) -> str:
            return metric(evaluation.evaluate(str(file), str(folder), arguments.limit))

        for seed in range(-1, arguments.seeds):
            model, count = (source, 0) if seed < 0 else skewed(source, arguments.octaves, seed)
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "skewed.onnx"
                onnx.save(model, path)
                what = "as trained" if seed < 0 else f"seed {seed}, {count} layers"
                print(f"{name}, {what}: float {score(path)}", flush=True)
                measure(path, feeds, score)


if __name__ == "__main__":
    main()
