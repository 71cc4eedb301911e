"""The models that the bench builds for itself, seeded, and keeps in its cache folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 17
IR_VERSION = 8


def mlp(path: Path) -> None:
    """Nine Gemm of 4096 × 4096 with bias, Relu between them: 604 MB in one file."""
    layers, width = 9, 4096
    rng = np.random.default_rng(4096)
    nodes, constants = [], []
    for layer in range(layers):
        last = layer + 1 == layers
        weight = rng.standard_normal((width, width), dtype=np.float32) * np.float32(0.02)
        bias = rng.standard_normal(width, dtype=np.float32) * np.float32(0.02)
        constants += [tensor(f"w{layer}", weight), tensor(f"b{layer}", bias)]
        value = "x" if layer == 0 else f"r{layer - 1}"
        gemm = "y" if last else f"g{layer}"
        nodes.append(
            helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [gemm], f"gemm{layer}")
        )
        if not last:
            nodes.append(helper.make_node("Relu", [gemm], [f"r{layer}"], f"relu{layer}"))
    save(path, "mlp", nodes, constants, width)


def many_nodes(path: Path) -> None:
    """A thousand times MatMul, Add and Relu of 16 × 16: 3,000 nodes, 1.4 MB."""
    groups, width = 1000, 16
    rng = np.random.default_rng(16)
    nodes, constants = [], []
    for group in range(groups):
        # Orthogonal weights keep the signal alive over a thousand layers, the bias keeps Relu from
        # ending it.
        weight = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
        bias = rng.standard_normal(width, dtype=np.float32) * np.float32(0.1)
        constants += [tensor(f"w{group}", weight), tensor(f"b{group}", bias)]
        value = "x" if group == 0 else f"r{group - 1}"
        output = "y" if group + 1 == groups else f"r{group}"
        nodes.append(
            helper.make_node("MatMul", [value, f"w{group}"], [f"m{group}"], f"matmul{group}")
        )
        nodes.append(
            helper.make_node("Add", [f"m{group}", f"b{group}"], [f"a{group}"], f"add{group}")
        )
        nodes.append(helper.make_node("Relu", [f"a{group}"], [output], f"relu{group}"))
    save(path, "many_nodes", nodes, constants, width)


def tensor(name: str, values: np.ndarray) -> onnx.TensorProto:
    """A float32 initializer holding raw bytes."""
    return helper.make_tensor(name, TensorProto.FLOAT, values.shape, values.tobytes(), raw=True)


def save(
    path: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    width: int,
) -> None:
    """One file with one input `x` and one output `y`, both [batch, width]."""
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["batch", width]) for end in "xy"]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], constants)
    opset = helper.make_opsetid("", OPSET)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION), path)


BUILDERS: dict[str, Callable[[Path], None]] = {"mlp": mlp, "many_nodes": many_nodes}


def built(name: str, cache: Path) -> Path:
    """The model's path in the cache, built when it is not there yet."""
    path = cache / "models" / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        BUILDERS[name](partial)
        partial.rename(path)
    return path
