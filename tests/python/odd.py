"""Small models with one unusual property."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

rng = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return rng.normal(0, 1, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclasses.dataclass
class Odd:
    """A model with one property that a pass handles."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    inputs: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: {"x": [2, 3, 8, 8]})
    outputs: tuple[str, ...] = ("y",)
    opset: int = 17
    dtype: Any = np.float32
    also_inputs: tuple[str, ...] = ()
    rounds: bool = False
    """Whether the pass rounds weights, so that the last bits of outputs may differ."""

    def model(self) -> bytes:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info(k, kind, v) for k, v in self.inputs.items()]
        for name in self.also_inputs:
            array = self.constants[name]
            kind_of = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind_of, array.shape))
        graph = helper.make_graph(
            self.nodes,
            "odd",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("custom", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        # Outputs get their inferred types.
        known = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(known.graph.output)
        found: bytes = model.SerializeToString()
        return found

    def feeds(self) -> oracle.Feeds:
        shapes = {k: [d if isinstance(d, int) else 5 for d in v] for k, v in self.inputs.items()}
        return {name: normal(*shape).astype(self.dtype) for name, shape in shapes.items()}


def node(op_type: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; inputs are separated by blanks, `-` is one left out."""
    read = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, read, output.split(), name=f"a_{output}", **attributes)


def relu(value: str = "a", output: str = "y") -> onnx.NodeProto:
    return node("Relu", value, output)


def idle(op_type: str, read: str, constants: dict[str, Array], **rest: Any) -> Odd:
    """A node that changes nothing, before one that does."""
    odd = {key: rest.pop(key) for key in ("inputs", "opset", "dtype") if key in rest}
    return Odd([node(op_type, read, "a", **rest), node("Neg", "a")], constants, **odd)


def branch(name: str, value: str) -> onnx.GraphProto:
    """A body that reads a value from outside."""
    return helper.make_graph(
        [node("Elu" if name == "then" else "Softsign", value, name)],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8, 8])],
    )


def choice(value: str) -> onnx.NodeProto:
    then, other = branch("then", value), branch("else", value)
    return node("If", "when", then_branch=then, else_branch=other)


YES = {"when": np.array(True)}
