"""The weights of a quantized file, and the floats that they may be made of."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..._flow.model import open as open_model
from ...errors import QuantizeError
from ...kernels import dequantize_linear

__all__ = ["StoredWeight", "prepared_graphs", "stored_weights"]

Array: TypeAlias = npt.NDArray[Any]
StrPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class StoredWeight:
    """A weight as a file stores it."""

    integers: Array
    scale: Array
    point: Array
    axis: int | None
    block_size: int | None
    is_bias: bool

    def dequantized(self) -> Array:
        return self._floats(self.integers, self.point)

    def explains(self, floats: Array) -> bool:
        """Whether no element differs by more than a step of its scale."""
        if floats.size != self.integers.size:
            return False
        steps = self._floats(np.ones_like(self.integers), np.zeros_like(self.point))
        error = np.abs(floats.reshape(steps.shape) - self.dequantized())
        return bool(np.all(error <= steps))

    def _floats(self, integers: Array, point: Array) -> Array:
        return dequantize_linear(
            integers,
            self.scale,
            point,
            dtype="int32",
            axis=self.axis,
            block_size=self.block_size,
        )


def stored_weights(
    onnx: Any, graph: Any, names: Collection[str]
) -> Iterator[tuple[str, StoredWeight]]:
    """Iterate over the weights with one of some names that a graph dequantizes."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    array = onnx.numpy_helper.to_array
    for node in graph.node:
        own = [constants.get(name) for name in node.input]
        if node.op_type != "DequantizeLinear" or own[0] is None or own[1] is None:
            continue
        name = node.output[0].removesuffix("_DequantizeLinear_Output")
        if name not in names:
            name = node.input[0].removesuffix("_quantized")
        if name not in names:
            continue
        given = {attribute.name: attribute.i for attribute in node.attribute}
        scale = array(own[1]).astype(np.float32)
        points = own[2] if len(own) > 2 else None
        point = np.zeros(scale.shape) if points is None else array(points)
        weight = StoredWeight(
            array(own[0]).astype(np.int32),
            scale,
            point.astype(np.int32),
            axis=given.get("axis", 1) if scale.size > 1 else None,
            block_size=given.get("block_size") or None,
            is_bias=own[0].data_type == onnx.TensorProto.INT32,
        )
        yield name, weight


def prepared_graphs(onnx: Any, path: StrPath) -> Iterator[Any]:
    """Iterate over the graphs that `quantize_static` may quantize, if it takes the model."""
    with contextlib.suppress(QuantizeError), tempfile.TemporaryDirectory() as folder:
        model = open_model(path)
        for per_channel, equalize in itertools.product((False, True), repeat=2):
            plan = model.plan(
                activations="uint8", per_channel=per_channel, equalize=equalize, allow_larger=True
            )
            file = Path(folder) / "model.onnx"
            plan._plan.model.save(file)
            yield onnx.load(file).graph
