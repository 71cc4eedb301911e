"""Writing an ``onnx.ModelProto`` with its weights in other files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._packages import onnx_package

__all__ = ["bodies", "save_external"]


def save_external(
    model: Any,
    target: Path,
    what: str,
    *,
    one_file: bool = True,
    location: str | None = None,
    size_threshold: int = 1024,
) -> None:
    """Write a model, which is changed by it, and its weights to files beside it.

    The arguments are those of ``onnx.save_model``; `what` says who needs the package onnx. Files
    that exist are replaced, and only once the new ones are complete.
    """
    onnx = onnx_package(what)
    helper = onnx.external_data_helper
    with tempfile.TemporaryDirectory(prefix=".quantize-rs-", dir=target.parent) as folder:
        split = Path(folder)
        # onnx refuses a location that exists in the working directory, wherever it writes to.
        helper.convert_model_to_external_data(model, one_file, None, size_threshold)
        if one_file and location is not None:
            _move(model.graph, location)
            (split / location).parent.mkdir(parents=True, exist_ok=True)
        onnx.save_model(model, split / target.name)
        files = [path for path in split.rglob("*") if path.is_file()]
        # The model comes last: it refers to the others.
        for path in sorted(files, key=lambda path: path == split / target.name):
            place = target.parent / path.relative_to(split)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def _move(graph: Any, location: str) -> None:
    """Name the file that the weights of a graph will be written to."""
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    for node in graph.node:
        for body in bodies(node):
            _move(body, location)


def bodies(node: Any) -> Iterator[Any]:
    """Return the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
