"""The operators of ``onnxruntime.quantization.registry``, by name.

Pass their names as ``op_types_to_quantize``. The values are None: there is no class for an operator
here, and adding one has no effect.

>>> from quantize_rs.compat.onnxruntime.registry import IntegerOpsRegistry
>>> sorted(IntegerOpsRegistry)
['Attention', 'Conv', 'EmbedLayerNormalization', 'Gather', 'LSTM', 'MatMul', 'Transpose']
"""

from __future__ import annotations

from ._elsewhere import hints

__all__ = ["CommonOpsRegistry", "IntegerOpsRegistry", "QDQRegistry", "QLinearOpsRegistry"]

__getattr__ = hints(__name__)

CommonOpsRegistry = dict.fromkeys(["Gather", "Transpose", "EmbedLayerNormalization"])

IntegerOpsRegistry = dict.fromkeys(["Conv", "MatMul", "Attention", "LSTM", *CommonOpsRegistry])

QLinearOpsRegistry = dict.fromkeys(
    [
        "ArgMax",
        "Conv",
        "Gemm",
        "MatMul",
        "Add",
        "Mul",
        "Relu",
        "Clip",
        "LeakyRelu",
        "Sigmoid",
        "MaxPool",
        "GlobalAveragePool",
        "Split",
        "Pad",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Resize",
        "AveragePool",
        "Concat",
        "Softmax",
        "Where",
        *CommonOpsRegistry,
    ]
)

QDQRegistry = dict.fromkeys(
    [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "Clip",
        "Relu",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Resize",
        "MaxPool",
        "AveragePool",
        "Slice",
        "Pad",
        "MatMul",
        "Split",
        "Gather",
        "GatherElements",
        "Where",
        "InstanceNormalization",
        "LayerNormalization",
        "BatchNormalization",
        "TopK",
        "CumSum",
    ]
)
