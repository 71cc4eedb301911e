"""Quantization-aware training on arrays: fake quantization, gradients, learned scales.

Arrays and models come in; arrays, models and reports go out. Torch is not needed: the arithmetic is
in Rust. `fake_quantize` returns the mask of the straight-through estimator and
`fake_quantize_gradients` the gradients, so that you can wrap them in any framework. This package
may import every other room except `_analysis`, `_transforms` and `compat`.

>>> from quantize_rs import training
>>> y, mask = training.fake_quantize([0.6, -1.0, 99.0], 0.5, return_mask=True)
>>> y, mask
(array([ 0.5, -1. , 63.5], dtype=float32), array([ True,  True, False]))

To train with the graph of an ONNX model, see `quantize_rs.insert_fake_quant`.
"""

from __future__ import annotations

from .fake_quantize import Gradients, Learned, fake_quantize, fake_quantize_gradients, learn_scale
from .layers import QuantizationAwareTraining, QuantizationConfig
from .modules import FakeQuantize, LearnableFakeQuantize, StochasticQuantize
from .qconfig import CalibrationSession, QConfig, QConfigDict

__all__ = [
    "CalibrationSession",
    "FakeQuantize",
    "Gradients",
    "LearnableFakeQuantize",
    "Learned",
    "QConfig",
    "QConfigDict",
    "QuantizationAwareTraining",
    "QuantizationConfig",
    "StochasticQuantize",
    "fake_quantize",
    "fake_quantize_gradients",
    "learn_scale",
]
