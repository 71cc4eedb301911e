"""The calls of other tools, for programs that were written for them."""

from __future__ import annotations

from . import onnxruntime

__all__ = ["onnxruntime"]
