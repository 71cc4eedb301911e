"""Training with quantization in mind, on arrays: fake quantization, gradients, learned scales.

Nothing here needs torch; arrays go in and out, and the arithmetic is Rust's. `fake_quantize` gives
the mask that gradients pass through, `fake_quantize_gradients` what becomes of them, so that any
framework can wrap them.

>>> from quantize_rs import training
>>> y, mask = training.fake_quantize([0.6, -1.0, 99.0], 0.5, return_mask=True)
>>> y, mask
(array([ 0.5, -1. , 63.5], dtype=float32), array([ True,  True, False]))

What was trained in the graph of an ONNX model is in `insert_fake_quant`.
"""

from __future__ import annotations

from .fake_quantize import Gradients, Learned, fake_quantize, fake_quantize_gradients, learn_scale
from .layers import QuantizationAwareTraining, QuantizationConfig
from .modules import FakeQuantize, LearnableFakeQuantize, StochasticQuantize
from .qconfig import CalibrationSession

__all__ = [
    "CalibrationSession",
    "FakeQuantize",
    "Gradients",
    "LearnableFakeQuantize",
    "Learned",
    "QuantizationAwareTraining",
    "QuantizationConfig",
    "StochasticQuantize",
    "fake_quantize",
    "fake_quantize_gradients",
    "learn_scale",
]
