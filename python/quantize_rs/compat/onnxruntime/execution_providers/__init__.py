"""Configurations for accelerators, as ``onnxruntime.quantization.execution_providers``."""
