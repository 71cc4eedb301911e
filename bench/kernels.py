"""Which kernels ONNX Runtime really runs: the integer and float operators of its optimised graph.

`python bench/kernels.py model.onnx` prints the count and every place where a dequantized value
meets a float kernel.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

INTEGER = {
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QMoE",
}
"""Integer kernels whose names do not begin with QLinear."""

FLOAT = {
    "Attention",
    "Conv",
    "ConvTranspose",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "GRU",
    "LSTM",
    "MatMul",
    "MultiHeadAttention",
    "RNN",
}
"""Float kernels that do the bulk of a network's arithmetic."""

CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def optimised(model: str) -> onnx.ModelProto:
    """The graph that a session runs, after every optimisation for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "optimised.onnx")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = path
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def count(model: onnx.ModelProto) -> dict[str, Any]:
    """Integer kernels, float kernels, conversions by operator; patterns that stayed float."""
    ops = Counter(node.op_type for node in model.graph.node)
    return {
        "integer": {op: n for op, n in sorted(ops.items()) if is_integer(op)},
        "float": {op: n for op, n in sorted(ops.items()) if op in FLOAT},
        "conversions": {op: ops[op] for op in CONVERSIONS if ops[op]},
        "stayed_float": dict(float_patterns(model.graph).most_common()),
    }


def is_integer(op: str) -> bool:
    """Whether the operator computes on integers."""
    return op.startswith("QLinear") or op in INTEGER


def float_patterns(graph: onnx.GraphProto) -> Counter[str]:
    """Float kernels that read a dequantized value, each with its producers and its consumers."""
    producers = {name: node.op_type for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    consumers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node.op_type)
    patterns: Counter[str] = Counter()
    for node in graph.node:
        sources = [origin(name, producers, constants) for name in node.input if name]
        if "DequantizeLinear" not in sources or node.op_type in CONVERSIONS:
            continue
        targets = {found for name in node.output for found in consumers.get(name, ["output"])}
        patterns[f"{', '.join(sources)} → {node.op_type} → {', '.join(sorted(targets))}"] += 1
    return patterns


def origin(name: str, producers: dict[str, str], constants: set[str]) -> str:
    """The type of the operator that outputs a value, or `constant` or `input`."""
    return producers.get(name) or ("constant" if name in constants else "input")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, json.dumps(count(optimised(argument)), indent=1, ensure_ascii=False))
