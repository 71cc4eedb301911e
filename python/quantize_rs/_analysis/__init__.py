"""Analysis: functions that measure, compare or advise, and change no model.

Models and samples come in. Results go out. This package may import `_core`, `errors`,
`_options`, `_inputs`, `_results`, `_flow` and `metrics`.
"""
