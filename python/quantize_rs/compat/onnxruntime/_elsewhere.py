"""What to use instead of names of onnxruntime that are not here."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

__all__ = ["HINTS", "hints"]

_ARRAYS = "quantize_rs.kernels computes scales, and quantizes and dequantizes arrays"
_INSIDE = "it is part of how onnxruntime writes models; open(model).plan() shows each decision"
_HELPERS = "it is a helper of onnxruntime, which you can import from there"

# The names of the parts of onnxruntime, by what takes their place.
_INSTEAD = {
    "use StaticQuantConfig or DynamicQuantConfig": ["QuantConfig"],
    "use DefaultWeightOnlyQuantConfig or another configuration of matmul_nbits_quantizer": [
        "WeightOnlyQuantConfig"
    ],
    "AWQ downloads data sets: use GPTQWeightOnlyQuantConfig with samples of your own": [
        "NVAWQWeightOnlyQuantConfig"
    ],
    "use MatMulNBitsQuantizer": [
        "DefaultWeightOnlyQuantizer",
        "HQQWeightOnlyQuantizer",
        "NVAWQWeightOnlyQuantizer",
    ],
    "use EntropyCalibrater or PercentileCalibrater": [
        "CalibrationDataCollector",
        "HistogramCalibrater",
        "HistogramCollector",
    ],
    "use MinMaxCalibrater: float8 is scaled by its largest magnitude": ["DistributionCalibrater"],
    "it packs weights for CUDA kernels, which this package does not write": [
        "CudaQuantizer",
        "has_cuda_weight_prepacking",
    ],
    "import it from quantize_rs.compat.onnxruntime.onnx_quantizer": ["ONNXQuantizer"],
    "import it from quantize_rs.compat.onnxruntime.onnx_model": ["ONNXModel"],
    "import it from quantize_rs.compat.onnxruntime.quant_utils": ["load_model_with_shape_infer"],
    "use QDQQuantizer or ONNXQuantizer": ["BaseQuantizer"],
    "give quantize_static extra_options['TensorQuantOverrides'] as a dict": [
        "MixedPrecisionTensorQuantOverridesFixer",
        "QnnCompatibilityOverrides",
        "QuantTypeInfo",
        "TensorQuantOverridesHelper",
        "TensorTypeRequest",
        "warn_unable_to_override",
    ],
    "models are opened and simplified without it: see infer_shapes and optimize": [
        "ReplaceUpsampleWithResize",
        "add_infer_metadata",
        "add_pre_process_metadata",
        "model_has_infer_metadata",
        "model_has_pre_process_metadata",
        "optimize_model",
        "save_and_reload_optimize_model",
        "save_and_reload_model_with_shape_infer",
        "update_opset_version",
    ],
    _ARRAYS: [
        "compute_data_quant_params",
        "compute_scale_zp",
        "compute_scale_zp_blocked",
        "compute_scale_zp_float8",
        "get_qmin_qmax_for_qType",
        "get_qrange_for_qType",
        "pack_bytes_to_4bit",
        "quantize_data",
        "quantize_nparray",
        "quantize_onnx_initializer",
        "snap_zero_point_to_uint8",
    ],
    _INSIDE: [
        "BiasToQuantize",
        "CreateDefaultOpQuantizer",
        "CreateOpQuantizer",
        "CreateQDQQuantizer",
        "DEQUANT_OP_NAME",
        "DEQUANT_OUTPUT_SUFFIX",
        "QDQBiasQuantInfo",
        "QDQQuantParamProvider",
        "QDQQuantTensorType",
        "QDQScaleZpInitializers",
        "QDQTensorQuantInfo",
        "QDQTensorQuantParams",
        "QDQTensorQuantizedValue",
        "QDQTensorScaleZpInitializers",
        "QUANT_INPUT_SUFFIX",
        "QUANT_OP_NAME",
        "QuantizationParams",
        "QuantizedInitializer",
        "QuantizedValue",
        "TENSOR_NAME_QUANT_SUFFIX",
        "add_dequant_input_suffix",
        "add_dequant_output_suffix",
        "add_dequant_suffix",
        "add_quant_input_suffix",
        "add_quant_output_suffix",
        "add_quant_suffix",
        "check_static_quant_arguments",
    ],
    _HELPERS: [
        "FLOAT8_DISTRIBUTIONS",
        "FLOAT8_TYPES",
        "MODEL_SIZE_THRESHOLD",
        "ONNX_INT_TYPE_RANGE",
        "ONNX_INT_TYPE_REDUCED_RANGE",
        "ONNX_INT_TYPE_SYMMETRIC_RANGE",
        "ONNX_TYPE_TO_NP_TYPE",
        "apply_plot",
        "attribute_to_kwarg",
        "entropy",
        "find_by_name",
        "generate_identified_filename",
        "get_elem_index",
        "get_mul_node",
        "get_opset_version",
        "model_has_external_data",
        "ms_domain",
        "normalize_axis",
        "onnx_domain",
        "rel_entr",
        "smooth_distribution",
        "tensor_proto_to_array",
        "to_array_extended",
        "type_to_name",
    ],
}

HINTS = {name: what for what, names in _INSTEAD.items() for name in names}


def hints(module: str, commands: Collection[str] = ()) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module, which says what to use instead of a name.

    Modules that are `commands` are imported when they are asked for.
    """

    def find(name: str) -> Any:
        if name in commands:
            return importlib.import_module(f"{module}.{name}")
        hint = HINTS.get(name)
        if hint is None and name in sys.modules[str(__package__)].__all__:
            hint = f"import it from {__package__}"
        if hint is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        what = f"{module} has no {name}: {hint}"
        # ``from … import`` replaces an AttributeError by an error without its text.
        if _imports(sys._getframe(1)):
            raise ImportError(what, name=module)
        raise AttributeError(what)

    return find


def _imports(frame: FrameType) -> bool:
    """Return whether a frame runs ``from … import``."""
    if frame.f_globals.get("__name__") == "importlib._bootstrap":
        return True
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]
