"""The configuration for Qualcomm NPUs, in the module that onnxruntime has it in."""

from __future__ import annotations

from ..._elsewhere import hints
from . import get_qnn_qdq_config

__all__: list[str] = ["get_qnn_qdq_config"]

__getattr__ = hints(__name__)
