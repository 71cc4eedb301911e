"""A drop-in replacement for ``onnxruntime.quantization``: change only the import.

>>> import quantize_rs
>>> from quantize_rs.compat.onnxruntime import QuantType, quantize_dynamic
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_dynamic(
...     digits.model, "digits.dynamic.onnx", weight_type=QuantType.QInt8
... )
>>> report.ratio > 3
True

Names, order and defaults of arguments are those of onnxruntime 1.31. The written models differ: see
``docs/migrating-from-onnxruntime.md``. An option that is not supported raises an error with its
name. Functions that return None in onnxruntime return a `Report` here.

Submodules have the same names as in onnxruntime: ``calibrate``, ``quant_utils``, ``quantize``,
``shape_inference`` and ``matmul_nbits_quantizer``.
"""

from __future__ import annotations

from .calibrate import CalibrationDataReader, CalibrationMethod
from .matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
from .quant_utils import QuantFormat, QuantType
from .quantize import (
    DynamicQuantConfig,
    StaticQuantConfig,
    get_qdq_config,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from .shape_inference import quant_pre_process

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DefaultWeightOnlyQuantConfig",
    "DynamicQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "QuantFormat",
    "QuantType",
    "RTNWeightOnlyQuantConfig",
    "StaticQuantConfig",
    "get_qdq_config",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
