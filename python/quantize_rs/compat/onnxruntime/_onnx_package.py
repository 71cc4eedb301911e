"""The package onnx, where a function of onnxruntime returns its objects."""

from __future__ import annotations

from typing import Any

from ...errors import MissingPackageError

__all__ = ["onnx_package"]


def onnx_package(what: str) -> Any:
    """Import the package onnx, which `what` needs."""
    try:
        import onnx
    except ImportError as error:
        fix = 'which is not installed: pip install "quantization-rs[onnx]"'
        raise MissingPackageError(f"{what} needs onnx, {fix}", name="onnx") from error
    return onnx
