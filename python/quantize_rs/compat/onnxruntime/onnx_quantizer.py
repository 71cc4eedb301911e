"""The quantizer to operators on integers, in the module that onnxruntime has it in."""

from __future__ import annotations

from ._elsewhere import hints
from ._quantizers import ONNXQuantizer

__all__: list[str] = ["ONNXQuantizer"]

__getattr__ = hints(__name__)
