"""A graph under construction: nodes and constants in the order in which they are added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 17
IR_VERSION = 8

Ends = Sequence[tuple[str, int, list[str | int]]]
"""Name, element type and shape of each input or output."""


class Graph:
    """Nodes and constants; what a node is called, its output is called.

    With `data`, larger constants are written there at once and lie beside the model.
    """

    def __init__(self, data: Path | None = None) -> None:
        self.data = data
        if data is not None:
            data.write_bytes(b"")
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        """An initializer holding raw bytes."""
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        if self.data is not None and values.nbytes > INLINE_BYTES:
            self.constants.append(appended(self.data, name, kind, values))
            return name
        self.constants.append(
            helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True)
        )
        return name

    def scalar(self, name: str, value: float) -> str:
        """A float32 initializer of rank 0."""
        return self.constant(name, np.array(value, np.float32))

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def save(self, path: Path, name: str, inputs: Ends, outputs: Ends) -> None:
        """One file with everything in it."""
        ends = [[helper.make_tensor_value_info(*end) for end in side] for side in (inputs, outputs)]
        graph = helper.make_graph(self.nodes, name, *ends, self.constants)
        opset = helper.make_opsetid("", OPSET)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION), path)


def appended(data: Path, name: str, kind: int, values: np.ndarray) -> onnx.TensorProto:
    """An initializer whose bytes are added to a file beside the model."""
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=values.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    where = {"location": data.name, "offset": data.stat().st_size, "length": values.nbytes}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    with data.open("ab") as stream:
        stream.write(values.tobytes())
    return tensor


INLINE_BYTES = 1024
"""Constants up to this size stay in the model."""

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
