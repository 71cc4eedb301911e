"""Overrides for mixed types in onnxruntime: each name says what to use instead."""

from __future__ import annotations

from ..._elsewhere import hints

__all__: list[str] = []

__getattr__ = hints(__name__)
