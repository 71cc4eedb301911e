"""The packages onnx and onnxruntime, where a function returns or runs their objects."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import MissingPackageError

__all__ = ["onnx_package", "onnxruntime_package"]


def onnx_package(what: str) -> Any:
    """Import the package onnx, which `what` needs."""
    return _package("onnx", what)


def onnxruntime_package(what: str) -> Any:
    """Import the package onnxruntime, which `what` needs."""
    return _package("onnxruntime", what)


def _package(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        fix = f'which is not installed: pip install "quantization-rs[{name}]"'
        raise MissingPackageError(f"{what} needs {name}, {fix}", name=name) from error
