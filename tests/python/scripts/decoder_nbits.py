"""Quantize a decoder to 4 bits. Usage: model output"""

import logging
import sys
from pathlib import Path

from onnxruntime.quantization import QuantFormat, matmul_nbits_quantizer, quant_utils

logging.basicConfig(level=logging.WARNING)
model_path, output_path = map(Path, sys.argv[1:])
config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
    block_size=32,
    is_symmetric=False,
    accuracy_level=4,
    quant_format=QuantFormat.QOperator,
    op_types_to_quantize=("MatMul",),
)
model = quant_utils.load_model_with_shape_infer(model_path)
quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
    model,
    nodes_to_exclude=["/lm_head/MatMul"],
    algo_config=config,
)
quantizer.process()
quantizer.model.save_model_to_file(str(output_path), use_external_data_format=True)
