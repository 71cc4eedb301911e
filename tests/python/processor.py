"""The processor of the tests, and models for one whose sums of uint8 x int8 saturate.

On x86 without VNNI, ONNX Runtime adds pairs of such products in 16 bits. Its own workaround, the
option session.x64quantprecision, refuses models that share constants (1.31 and 1.32).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper


def _saturates() -> bool:
    """Whether sums of uint8 x int8 saturate here."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_vnni", "avx_vnni"} & set(flags)


SATURATES = _saturates()

WEIGHTS: dict[str, list[tuple[int, int | None, int]]] = {
    "DequantizeLinear": [(0, 1, 2)],
    "QLinearMatMul": [(3, 4, 5)],
    "QLinearConv": [(3, 4, 5)],
    "QGemm": [(3, 4, 5)],
    "MatMulIntegerToFloat": [(1, 3, 5)],
    "MatMulInteger": [(1, None, 3)],
    "ConvInteger": [(1, None, 3)],
    "DynamicQuantizeLSTM": [(1, 8, 9), (2, 10, 11)],
    "QAttention": [(1, 4, 7)],
}
"""Inputs of operators: integers, their scales, their zero points."""


OF_INTEGERS = {"QLinearMatMul": 2, "QLinearConv": 2, "QGemm": 2, "MatMulIntegerToFloat": 4}
"""Operators that read integers, with the place of the zero point of the first of them."""


def others(warnings: Iterable[str]) -> list[str]:
    """Leave out the warning about this processor."""
    return [text for text in warnings if "no VNNI" not in text]


def unsigned(model: str | Path | bytes) -> str | Path | bytes:
    """Make the same model with 128 added to weights of int8 and to their zero points."""
    loaded = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    tensors = {tensor.name: tensor for tensor in loaded.graph.initializer}
    producers = {name: node for node in loaded.graph.node for name in node.output}
    changed = False

    def raised(values: npt.NDArray[Any], name: str) -> str:
        made = (values.astype(np.int16) + 128).astype(np.uint8)
        loaded.graph.initializer.append(numpy_helper.from_array(made, name))
        return name

    for node in _nodes(loaded.graph):
        zero_of = OF_INTEGERS.get(node.op_type)
        first = tensors.get(node.input[zero_of]) if zero_of is not None else None
        if first is not None and first.data_type == TensorProto.INT8:
            # Sums of int8 x int8 do not saturate, and there are no kernels for int8 x uint8.
            continue
        for at, scales, zeros in WEIGHTS.get(node.op_type, []):
            tensor = tensors.get(node.input[at])
            producer = producers.get(node.input[at])
            if (
                producer is not None
                and producer.op_type == "QuantizeLinear"
                and producer.input[0] in tensors
            ):
                # A weight that the model quantizes itself.
                zero = tensors.get(node.input[2]) if len(node.input) > 2 else None
                if zero is not None and zero.data_type == TensorProto.INT8:
                    name = raised(numpy_helper.to_array(zero), f"{zero.name}.{node.output[0]}")
                    producer.input[2] = node.input[2] = name
                    changed = True
            is_table = producer is not None and producer.op_type == "Transpose"
            if producer is not None and is_table and len(node.input) > zeros:
                # A table that is a weight too.
                table, zero = tensors.get(producer.input[0]), tensors.get(node.input[zeros])
                if table is not None and zero is not None and zero.data_type == TensorProto.INT8:
                    name = f"{table.name}.unsigned.{len(loaded.graph.initializer)}"
                    node.input[zeros] = raised(numpy_helper.to_array(zero), f"{name}.{zeros}")
                    producer.input[0] = raised(numpy_helper.to_array(table), f"{name}.{at}")
                    changed = True
            if tensor is None or tensor.data_type != TensorProto.INT8 or len(tensor.dims) < 2:
                continue
            name = f"{tensor.name}.unsigned.{len(loaded.graph.initializer)}"
            node.input.extend([""] * (zeros + 1 - len(node.input)))
            if node.input[zeros]:
                points = numpy_helper.to_array(tensors[node.input[zeros]])
            else:
                shape = tensors[node.input[scales]].dims if scales is not None else ()
                points = np.zeros(tuple(shape), np.int8)
            node.input[at] = raised(numpy_helper.to_array(tensor), f"{name}.{at}")
            node.input[zeros] = raised(points, f"{name}.{zeros}")
            changed = True
    if not changed:
        return model
    # These declare the type int8.
    del loaded.graph.value_info[:]
    return bytes(loaded.SerializeToString())


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
