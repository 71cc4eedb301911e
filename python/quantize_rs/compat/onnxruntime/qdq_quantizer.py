"""The quantizer to QDQ, in the module that onnxruntime has it in."""

from __future__ import annotations

from ._elsewhere import hints
from ._quantizers import QDQQuantizer

__all__: list[str] = ["QDQQuantizer"]

__getattr__ = hints(__name__)
