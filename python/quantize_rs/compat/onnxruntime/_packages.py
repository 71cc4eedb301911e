"""The packages onnx and onnxruntime, where a function returns or runs their objects."""

from __future__ import annotations

from typing import Any

from ...errors import MissingPackageError

__all__ = ["onnx_package", "onnxruntime_package"]


def onnx_package(what: str) -> Any:
    """Import the package onnx, which `what` needs."""
    try:
        import onnx
    except ImportError as error:
        fix = 'which is not installed: pip install "quantization-rs[onnx]"'
        raise MissingPackageError(f"{what} needs onnx, {fix}", name="onnx") from error
    return onnx


def onnxruntime_package(what: str) -> Any:
    """Import the package onnxruntime, which `what` needs."""
    try:
        import onnxruntime
    except ImportError as error:
        fix = 'which is not installed: pip install "quantization-rs[onnxruntime]"'
        raise MissingPackageError(f"{what} needs onnxruntime, {fix}", name="onnxruntime") from error
    return onnxruntime
