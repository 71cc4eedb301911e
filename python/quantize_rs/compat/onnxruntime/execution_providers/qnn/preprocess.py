"""Preparing models for Qualcomm NPUs, in the module that onnxruntime has it in."""

from __future__ import annotations

from ..._elsewhere import hints
from . import qnn_preprocess_model

__all__: list[str] = ["qnn_preprocess_model"]

__getattr__ = hints(__name__)
