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
name. `quantize_static`, `quantize_dynamic`, `quantize` and ``save_model_to_file`` return a `Report`
where those of onnxruntime return None.

Submodules have the same names as in onnxruntime: ``calibrate``, ``quant_utils``, ``quantize``,
``shape_inference``, ``preprocess``, ``static_quantize_runner``, ``execution_providers.qnn``,
``qdq_loss_debug``, ``matmul_nbits_quantizer``, ``matmul_bnb4_quantizer`` and ``registry``.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ._matmul_bnb4 import MatMulBnb4Quantizer
from ._matmul_nbits import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
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

# Names that have no equivalent here, and what to use instead.
_ELSEWHERE = {
    "QDQQuantizer": "quantize_static writes QDQ; `quantize_rs.open(model).plan()` shows each value",
    "ONNXQuantizer": "quantize_static and quantize_dynamic do what it does",
    "CudaQuantizer": "it packs weights for CUDA kernels, which this package does not write",
}

# Modules that are commands, imported when they are asked for: Python warns of a module that is
# imported before ``python -m`` runs it.
_COMMANDS = ("matmul_bnb4_quantizer", "matmul_nbits_quantizer")


def __dir__() -> list[str]:
    return sorted({*globals(), *_COMMANDS})


def __getattr__(name: str) -> Any:
    """Import a command, or say what to use instead of a name that onnxruntime has."""
    if name in _COMMANDS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    what = f"{__name__} has no {name}: {_ELSEWHERE[name]}"
    # The import system replaces an AttributeError by one of its own, without the text.
    if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
        raise ImportError(what, name=__name__)
    raise AttributeError(what)
