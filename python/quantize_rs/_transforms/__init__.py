"""Transforms: functions that change a model and need no plan.

A model and options come in. A model, in memory or in a file, goes out with a result that says what
changed. This package may import `_core`, `errors`, `_options`, `_inputs` and
`_results`.
"""
