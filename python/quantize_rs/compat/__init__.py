"""Drop-in replacements for the quantization APIs of other tools.

Arguments of the other tool come in. A model file and a `Report` go out. This package may import
every other room.
"""

from __future__ import annotations

from . import onnxruntime

__all__ = ["onnxruntime"]
