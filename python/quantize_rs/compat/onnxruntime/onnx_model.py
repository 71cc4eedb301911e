"""A model with methods that find and change its parts, as ``onnxruntime.quantization`` names it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._inputs.files import writable, write
from ..._options import check
from ._external_data import bodies, save_external
from ._packages import onnx_package

__all__ = ["ONNXModel"]


class ONNXModel:
    """A model that can be changed: `model` is the ``onnx.ModelProto``, which the methods change.

    Those of onnxruntime are here, except ``replace_gemm_with_matmul``. They are about the main
    graph.

    Examples
    --------
    >>> import onnx
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime.onnx_model import ONNXModel
    >>> digits = ONNXModel(onnx.load(quantize_rs.examples.digits().model))
    >>> [first] = digits.input_name_to_nodes()["image"]
    >>> first.op_type, [node.op_type for node in digits.get_children(first)]
    ('Conv', ['Relu'])
    """

    def __init__(self, model: Any) -> None:
        """Take an ``onnx.ModelProto``, which is not copied."""
        self.model = model

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

    def find_graph_input(self, input_name: str) -> Any:
        """Return the input with a name, or None."""
        return _named(self.graph().input, input_name)

    def find_graph_output(self, output_name: str) -> Any:
        """Return the output with a name, or None."""
        return _named(self.graph().output, output_name)

    def is_graph_input(self, tensor_name: str) -> bool:
        """Return whether a name is that of an input."""
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        """Return whether a name is that of an output."""
        return self.find_graph_output(output_name) is not None

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of the inputs that are not initializers as well."""
        return {value.name for value in self.graph().input} - self.get_initializer_name_set()

    def get_tensor_type(self, tensor_name: str) -> Any:
        """Return the element type and the shape of a value, or None if they are not known."""
        graph = self.graph()
        values = (graph.value_info, graph.input, graph.output)
        found = (_named(those, tensor_name) for those in values)
        return next((value.type.tensor_type for value in found if value is not None), None)

    def get_constant_value(self, output_name: str) -> Any:
        """Return the array of a Constant or an initializer, or None."""
        helper = onnx_package("get_constant_value").numpy_helper
        node = self.output_name_to_node().get(output_name)
        if node is not None and node.op_type == "Constant":
            value = _named(node.attribute, "value")
            return None if value is None else helper.to_array(value.t)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else helper.to_array(tensor)

    def input_name_to_nodes(self) -> dict[str, list[Any]]:
        """Return the nodes that read each value."""
        found = defaultdict(list)
        for node in self.nodes():
            for name in node.input:
                if name:
                    found[name].append(node)
        return dict(found)

    def output_name_to_node(self) -> dict[str, Any]:
        """Return the node that computes each value."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self, node: Any, input_name_to_nodes: Mapping[str, list[Any]] | None = None
    ) -> list[Any]:
        """Return the nodes that read a result of a node."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return [reader for name in node.output for reader in readers.get(name, ())]

    def get_parents(
        self, node: Any, output_name_to_node: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the nodes whose results a node reads."""
        made = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [made[name] for name in node.input if name in made]

    def get_parent(
        self, node: Any, idx: int, output_name_to_node: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the node that computes an input of a node, or None."""
        made = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return made.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(self, node_name: str, new_nodes_list: Iterable[Any], graph: Any) -> Any:
        """Return the node of a graph, or of a list, with a name, or None."""
        return _named([*graph.node, *new_nodes_list], node_name)

    def find_nodes_by_initializer(self, graph: Any, initializer: Any) -> list[Any]:
        """Return the nodes of a graph that read an initializer, once for each input."""
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number after a prefix in names of nodes, or -1."""
        return _largest_suffix(self.nodes(), node_name_prefix)

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number after a prefix in names of initializers, or -1."""
        return _largest_suffix(self.initializer(), initializer_name_prefix)

    @staticmethod
    def replace_node_input(node: Any, old_input_name: str, new_input_name: str) -> None:
        """Let a node read another value."""
        _replace(node.input, old_input_name, new_input_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let all nodes that read a value read another one."""
        for node in self.nodes():
            _replace(node.input, old_input_name, new_input_name)

    def replace_input_of_nodes(
        self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]
    ) -> None:
        """Let some nodes, given by name, read another value."""
        for node in self.nodes():
            if node.name in node_names_set:
                _replace(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: Any, old_output_name: str, new_output_name: str) -> None:
        """Give a result of a node another name."""
        _replace(node.output, old_output_name, new_output_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Give a result another name, whichever node computes it."""
        for node in self.nodes():
            _replace(node.output, old_output_name, new_output_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Collection[str]
    ) -> None:
        """Give a result of some nodes, given by name, another name."""
        for node in self.nodes():
            if node.name in node_names_set:
                _replace(node.output, old_output_name, new_output_name)

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
        return _named(self.initializer(), name)

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of the initializers."""
        return {tensor.name for tensor in self.initializer()}

    def initializer_extend(self, inits: Collection[Any]) -> None:
        """Add initializers.

        Raises
        ------
        ValueError
            There are none.
        """
        if not inits:
            raise ValueError("inits is empty, expected initializers")
        self.initializer().extend(inits)

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

    def remove_unused_constant(self) -> None:
        """Remove the nodes of type Constant and the initializers that nothing reads."""
        read = {*_read(self.graph())}
        constants = (node for node in self.nodes() if node.op_type == "Constant")
        self.remove_nodes([node for node in constants if read.isdisjoint(node.output)])
        self.clean_initializers()

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
    ) -> Any:
        """Write the model, with its weights in ``<name>.data`` if that is asked for.

        Raises
        ------
        OSError
            A file cannot be written.
        MissingPackageError
            `use_external_data_format` is set, and the package onnx is not installed.
        """
        self.topological_sort()
        target = Path(check.path("output_path", output_path)).resolve()
        writable(target, option="output_path")
        if not use_external_data_format:
            write(target, self.model.SerializeToString(), option="output_path")
            return
        copy = type(self.model)()
        copy.CopyFrom(self.model)
        location = f"{target.name}.data"
        save_external(copy, target, "use_external_data_format", location=location)


def _named(those: Iterable[Any], name: str) -> Any:
    """Return the first with a name, or None."""
    return next((one for one in those if one.name == name), None)


def _largest_suffix(those: Iterable[Any], prefix: str) -> int:
    after = (one.name.removeprefix(prefix) for one in those if one.name.startswith(prefix))
    return max((int(text) for text in after if text.isdecimal()), default=-1)


def _replace(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new


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
