"""The quantized model of `MatMulNBitsQuantizer`, with methods of onnxruntime's ``ONNXModel``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from ..._flow.model import open as open_model
from ..._options import check
from ..._results.report import Report
from ._applied import Applied
from ._external_data import bodies
from ._packages import onnx_package

__all__ = ["SavedModel"]


class SavedModel:
    """The quantized model of `MatMulNBitsQuantizer`.

    `model` is one object, and what you change in it is saved. The methods change it, too; all but
    `save_model_to_file` need the package onnx.
    """

    def __init__(self, done: Applied) -> None:
        """Wrap the quantized model."""
        self._done = done

    @cached_property
    def model(self) -> Any:
        """The ``onnx.ModelProto``.

        Raises
        ------
        MissingPackageError
            The package onnx is not installed.
        UnsupportedModelError
            The model has 2 GiB or more.
        """
        onnx = onnx_package("model as an onnx.ModelProto")
        return onnx.load_from_string(self._done.to_bytes())

    def graph(self) -> Any:
        """Return the main graph."""
        return self.model.graph

    def nodes(self) -> Any:
        """Return the nodes of the main graph."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the initializers of the main graph."""
        return self.model.graph.initializer

    def ir_version(self) -> int:
        """Return the IR version."""
        return int(self.model.ir_version)

    def opset_import(self) -> Any:
        """Return the opsets."""
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        """Set the version of an opset; nodes are not converted."""
        for opset in self.model.opset_import:
            if opset.domain == domain:
                opset.version = version
                return
        self.model.opset_import.add(domain=domain, version=version)

    def add_node(self, node: Any) -> None:
        """Add a node."""
        self.add_nodes([node])

    def add_nodes(self, nodes_to_add: Iterable[Any]) -> None:
        """Add nodes."""
        self.nodes().extend(nodes_to_add)

    def remove_node(self, node: Any) -> None:
        """Remove a node, if the graph has it."""
        if node in self.nodes():
            self.nodes().remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[Any]) -> None:
        """Remove nodes, those that the graph has."""
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def get_initializer(self, name: str) -> Any:
        """Return the initializer with a name, or None."""
        return next((tensor for tensor in self.initializer() if tensor.name == name), None)

    def add_initializer(self, tensor: Any) -> None:
        """Add an initializer, unless there is one with its name."""
        if self.get_initializer(tensor.name) is None:
            self.initializer().append(tensor)

    def remove_initializer(self, tensor: Any) -> None:
        """Remove an initializer, if the graph has it, and the input with its name."""
        if tensor in self.initializer():
            self._remove_initializers({tensor.name})

    def remove_initializers(self, init_to_remove: Iterable[Any]) -> None:
        """Remove initializers, those that the graph has."""
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def clean_initializers(self) -> None:
        """Remove the initializers that nothing reads."""
        self._remove_initializers({it.name for it in self.initializer()} - {*_read(self.graph())})

    def _remove_initializers(self, names: set[str]) -> None:
        for values in (self.initializer(), self.graph().input):
            for index in reversed(range(len(values))):
                if values[index].name in names:
                    del values[index]

    def topological_sort(self) -> None:
        """Sort the nodes: each after those whose results it reads. Sorted nodes stay as they are.

        Raises
        ------
        ValueError
            The graph has a cycle.
        """
        nodes = list(self.nodes())
        waiting = {name for node in nodes for name in node.output if name}
        left, order = list(range(len(nodes))), list[int]()
        while left:
            later = []
            for index in left:
                if waiting.isdisjoint(_inputs(nodes[index])):
                    waiting.difference_update(nodes[index].output)
                    order.append(index)
                else:
                    later.append(index)
            if len(later) == len(left):
                raise ValueError(f"node {nodes[left[0]].name!r} is in a cycle, or after one")
            left = later
        if order != sorted(order):
            del self.nodes()[:]
            self.nodes().extend(nodes[index] for index in order)

    def save_model_to_file(
        self, output_path: str | os.PathLike[str], use_external_data_format: bool = False
    ) -> Report:
        """Write the model; weights as external data if that is asked for, or from 2 GiB on.

        Raises
        ------
        OSError
            The file cannot be written.
        UnsupportedModelError
            The model was edited, and has more than 2 GiB.
        """
        done = self._done
        if "model" in vars(self):  # it was handed out, and may have been changed
            self.topological_sort()
            edited = open_model(self.model)
            done = Applied(done._quantized.with_model(edited._model))
        target = check.path("output_path", output_path)
        return done.save(target, external_data=use_external_data_format)


def _inputs(node: Any) -> Iterator[str]:
    """Return the names that a node reads, in its subgraphs too."""
    yield from node.input
    for body in bodies(node):
        yield from _read(body)


def _read(graph: Any) -> Iterator[str]:
    """Return the names that a graph reads, in subgraphs too, and those of its outputs."""
    for node in graph.node:
        yield from _inputs(node)
    yield from (value.name for value in graph.output)
