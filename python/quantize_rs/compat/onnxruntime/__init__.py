"""A drop-in replacement for ``onnxruntime.quantization``: change only the import.

>>> import quantize_rs
>>> from quantize_rs.compat.onnxruntime import QuantType, quantize_dynamic
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_dynamic(
...     digits.model, "digits.dynamic.onnx", weight_type=QuantType.QInt8
... )
>>> report.ratio > 3
True

Names, order and defaults of arguments are those of onnxruntime 1.32. The written models differ: see
``docs/migrating-from-onnxruntime.md``. An option that is not supported raises an error with its
name. `quantize_static`, `quantize_dynamic`, `quantize` and ``save_model_to_file`` return a `Report`
where those of onnxruntime return None.

Submodules have the same names as in onnxruntime: ``calibrate``, ``quant_utils``, ``quantize``,
``shape_inference``, ``preprocess``, ``static_quantize_runner``, ``execution_providers.qnn``,
``qdq_loss_debug``, ``matmul_nbits_quantizer``, ``matmul_bnb4_quantizer``, ``onnx_model``,
``onnx_quantizer``, ``qdq_quantizer`` and ``registry``. A name of onnxruntime that is not in them
raises an error that says what to use instead.
"""

from __future__ import annotations

from ._elsewhere import hints
from ._matmul_bnb4 import MatMulBnb4Quantizer
from ._matmul_nbits import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
from ._quantizers import QDQQuantizer
from .calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    MinMaxCalibrater,
    TensorData,
    TensorsData,
    create_calibrator,
    load_tensors_data,
    save_tensors_data,
)
from .quant_utils import QuantFormat, QuantizationMode, QuantType, write_calibration_table
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
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DefaultWeightOnlyQuantConfig",
    "DynamicQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulBnb4Quantizer",
    "MatMulNBitsQuantizer",
    "MinMaxCalibrater",
    "QDQQuantizer",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "RTNWeightOnlyQuantConfig",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "save_tensors_data",
    "write_calibration_table",
]

# Modules that are commands, imported when they are asked for: Python warns of a module that is
# imported before ``python -m`` runs it.
_COMMANDS = ("matmul_bnb4_quantizer", "matmul_nbits_quantizer")

__getattr__ = hints(__name__, _COMMANDS)


def __dir__() -> list[str]:
    return sorted({*globals(), *_COMMANDS})
