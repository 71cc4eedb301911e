"""Facts about a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import notebook

__all__ = ["ModelInfo", "TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model says of one of its inputs or outputs.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str or None
        Its element type: ``"float32"``; None when the file does not say, or it is no tensor.
    shape : tuple of (int or None), or None
        Its shape, None for a length that varies; None altogether when the rank is unknown.
    """

    name: str
    dtype: str | None
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True, repr=False)
class ModelInfo:
    """Facts about a model; its weights were not touched to find them.

    Attributes
    ----------
    name : str
        Name of the graph.
    version : int
        Version of the model itself, as its maker counts.
    opset_version : int
        Version of ONNX's own operators; 0 when the model uses none.
    num_nodes : int
        Nodes of the main graph.
    inputs, outputs : list of str
        Names of what a caller has to give, and of what comes out.
    ir_version : int
        Version of the file format.
    producer : str
        The tool that made the file.
    opsets : dict of str to int
        Versions of all operator sets, by domain.
    operators : dict of str to int
        Nodes of the main graph, by operator.
    input_specs, output_specs : tuple of TensorSpec
        Inputs and outputs with their types and shapes.
    initializers, parameters : int
        Constant tensors of the main graph, and the elements in them.
    weight_bytes : dict of str to int
        Bytes in them, by element type.
    bytes : int
        Bytes of the file and of the data beside it.
    quantized : bool
        Whether the model has quantized values already.
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
    _json: str = field(compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Give the facts as plain dicts, lists, texts and numbers."""
        found: dict[str, Any] = json.loads(self._json)
        return found

    def to_json(self) -> str:
        """Give the facts as JSON."""
        return self._json

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


def parse_model_info(text: str) -> ModelInfo:
    """Read the facts that the extension module wrote as JSON."""
    found = json.loads(text)
    inputs, outputs = _specs(found["inputs"]), _specs(found["outputs"])
    return ModelInfo(
        **found
        | {
            "inputs": [spec.name for spec in inputs],
            "outputs": [spec.name for spec in outputs],
            "input_specs": inputs,
            "output_specs": outputs,
            "_json": text,
        }
    )


def _specs(found: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    def spec(row: dict[str, Any]) -> TensorSpec:
        shape = row["shape"]
        return TensorSpec(row["name"], row["dtype"], None if shape is None else tuple(shape))

    return tuple(spec(row) for row in found)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype or '?'} {notebook.shape(spec.shape)}"
