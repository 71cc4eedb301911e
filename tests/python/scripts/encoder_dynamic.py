"""Quantize the matrix multiplications of an encoder. Usage: model output"""

import sys

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

source, target = sys.argv[1:]
heads = [
    node.name
    for node in onnx.load(source).graph.node
    if node.op_type == "MatMul" and "classifier" in node.name
]
quantize_dynamic(
    source,
    target,
    op_types_to_quantize=["MatMul", "Attention", "Gather"],
    per_channel=True,
    reduce_range=False,
    weight_type=QuantType.QInt8,
    nodes_to_exclude=heads,
    extra_options={"EnableSubgraph": False, "MatMulConstBOnly": True, "WeightSymmetric": True},
)
print(f"quantized model saved to {target}")
