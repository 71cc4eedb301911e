"""The flow of quantization: model, plan, ranges, quantized model, report.

A model, samples and options come in. A plan, then the quantized model and its report go out. This
room may import `_core`, `errors`, `_options`, `_inputs` and `_results`.
"""
