"""Facts about a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import notebook
from .base import Result

__all__ = ["ModelInfo", "TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of an input or output of a model.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str or None
        Its element type, such as ``"float32"``; None if it is unknown or not a tensor.
    shape : tuple of (int or None), or None
        Its shape, with None for a dynamic dimension; None if the rank is unknown.
    """

    name: str
    dtype: str | None
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True, repr=False)
class ModelInfo(Result):
    """Facts about a model, found without reading its weights.

    Attributes
    ----------
    name : str
        Name of the graph.
    version : int
        The ``model_version`` field of the file.
    opset_version : int
        The opset version of the default domain; 0 if the model does not use it.
    num_nodes : int
        The number of nodes in the main graph.
    inputs, outputs : list of str
        The names of inputs and outputs.
    ir_version : int
        The IR version of the file.
    producer : str
        The tool that produced the file.
    opsets : dict of str to int
        The opset versions by domain.
    operators : dict of str to int
        The number of nodes in the main graph, by operator type.
    input_specs, output_specs : tuple of TensorSpec
        The inputs and outputs with their types and shapes.
    initializers, parameters : int
        The number of initializers in the main graph, and of their elements.
    weight_bytes : dict of str to int
        The bytes of the initializers, by element type.
    bytes : int
        The size of the file and its external data, in bytes.
    quantized : bool
        Whether the model has quantized values.
    """

    name: str
    version: int
    opset_version: int
    num_nodes: int
    inputs: list[str]
    outputs: list[str]
    ir_version: int
    producer: str
    opsets: dict[str, int]
    operators: dict[str, int]
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]
    initializers: int
    parameters: int
    weight_bytes: dict[str, int]
    bytes: int
    quantized: bool

    @staticmethod
    def _adapt(found: dict[str, Any]) -> dict[str, Any]:
        specs = {"input_specs": found["inputs"], "output_specs": found["outputs"]}
        names = {key: [spec["name"] for spec in found[key]] for key in ("inputs", "outputs")}
        return found | specs | names

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return (
            f"<ModelInfo {self.name!r}: opset {self.opset_version}, {self.num_nodes} nodes, "
            f"{self.parameters} parameters, {self.bytes} bytes>"
        )

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            ["opset", self.opset_version],
            ["IR version", self.ir_version],
            ["producer", self.producer],
            ["nodes", self.num_nodes],
            ["parameters", self.parameters],
            ["bytes", self.bytes],
            ["quantized", "yes" if self.quantized else "no"],
            *(["input", _shown(spec)] for spec in self.input_specs),
            *(["output", _shown(spec)] for spec in self.output_specs),
            *([op_type, f"{n} nodes"] for op_type, n in self.operators.items()),
        ]
        return notebook.table(f"model {self.name}", ["", ""], rows)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype or '?'} {notebook.shape(spec.shape)}"
