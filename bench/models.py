"""The models that the bench builds for itself, seeded, and keeps in its cache folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from bert_base import bert_base
from decoder import decoder
from graph import FLOAT, OPSET, Graph
from onnx import version_converter
from recurrent import gru, lstm
from resnet18 import resnet18


def mlp(path: Path) -> None:
    """Nine Gemm of 4096 × 4096 with bias, Relu between them: 604 MB in one file."""
    layers_of(Graph(), 9, path)


def mlp_matmul(path: Path) -> None:
    """The same as MatMul and Add."""
    layers_of(Graph(), 9, path, product="MatMul")


def large(path: Path) -> None:
    """Thirty-six of these Gemm: 2.4 GB, which lie beside the file."""
    layers_of(Graph(data_of(path)), 36, path)


def layers_of(graph: Graph, layers: int, path: Path, product: str = "Gemm") -> None:
    """Write a model of `layers` layers of 4096 × 4096 to the path."""
    width, x = 4096, "x"
    rng = np.random.default_rng(width)
    for layer in range(layers):
        last = layer + 1 == layers
        weight = rng.standard_normal((width, width), dtype=np.float32) * np.float32(0.02)
        bias = rng.standard_normal(width, dtype=np.float32) * np.float32(0.02)
        weight_name = graph.constant(f"w{layer}", weight)
        bias_name = graph.constant(f"b{layer}", bias)
        made = "y" if last else f"sum{layer}"
        if product == "Gemm":
            x = graph.node("Gemm", [x, weight_name, bias_name], made)
        else:
            x = graph.node("MatMul", [x, weight_name], f"product{layer}")
            x = graph.node("Add", [x, bias_name], made)
        if not last:
            x = graph.node("Relu", [x], f"relu{layer}")
    save(graph, path, "mlp", width)


def many_nodes(path: Path, groups: int = 1000) -> None:
    """Groups of MatMul, Add and Relu of 16 × 16: a thousand are 3,000 nodes and 1.4 MB."""
    width = 16
    rng = np.random.default_rng(16)
    graph, x = Graph(), "x"
    for group in range(groups):
        # Orthogonal weights keep the signal alive over a thousand layers, the bias keeps Relu from
        # ending it.
        weight = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
        bias = rng.standard_normal(width, dtype=np.float32) * np.float32(0.1)
        x = graph.node("MatMul", [x, graph.constant(f"w{group}", weight)], f"matmul{group}")
        x = graph.node("Add", [x, graph.constant(f"b{group}", bias)], f"add{group}")
        x = graph.node("Relu", [x], "y" if group + 1 == groups else f"relu{group}")
    save(graph, path, "many_nodes", width)


def save(graph: Graph, path: Path, name: str, width: int) -> None:
    """One file with one input `x` and one output `y`, both [batch, width]."""
    graph.save(path, name, [("x", FLOAT, ["batch", width])], [("y", FLOAT, ["batch", width])])


BUILDERS: dict[str, Callable[[Path], None]] = {
    "mlp": mlp,
    "mlp_matmul": mlp_matmul,
    "large": large,
    "lstm": lstm,
    "gru": gru,
    "many_nodes": many_nodes,
    "resnet18": resnet18,
    "bert_base": bert_base,
    "decoder": decoder,
}


def built(name: str, cache: Path) -> Path:
    """The model's path in the cache, built when it is not there yet."""
    return kept(cache / "models" / f"{name}.onnx", BUILDERS[name])


def data_of(path: Path) -> Path:
    """Where a model's data lies when it is not in the file."""
    return path.with_suffix(".data")


def files_of(path: Path) -> list[Path]:
    """The model's file, and that beside it if there is one."""
    return [path, *([data_of(path)] if data_of(path).exists() else [])]


def opset(path: Path) -> int:
    """The opset of the file's own operators; 0 when it does not say."""
    imports = onnx.load(path, load_external_data=False).opset_import
    return max((found.version for found in imports if not found.domain), default=0)


def converted(path: Path, name: str, cache: Path) -> Path:
    """The file in the opset of the built models, by ONNX's own converter."""

    def convert(target: Path) -> None:
        onnx.save(version_converter.convert_version(onnx.load(path), OPSET), target)

    return kept(cache / "models" / f"{name}.onnx", convert)


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """The path of a file that is made only once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        make(partial)
        partial.rename(path)
    return path
