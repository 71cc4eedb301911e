"""Calibration on many processes or machines.

Each worker opens the model, reads its own part of the samples and finds ranges of them; the ranges
of all parts are merged, and weights are rounded by the workers. The result equals that of one
process bit for bit.

>>> import quantize_rs
>>> digits = quantize_rs.examples.digits()
>>> plan = quantize_rs.open(digits.model).plan(activations="uint8")
>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(2) as executor:
...     ranges = quantize_rs.distributed.calibrate(plan, digits.calibration, executor)
>>> ranges == plan.calibrate(digits.calibration)
True

Plans, samples and executors come in. Shards and ranges go out. This package may import `_core`,
`errors`, `_options`, `_inputs`, `_results`, `_flow` and `_analysis`.
"""

from __future__ import annotations

from .calibrate import calibrate
from .processes import Processes
from .sensitivity import sensitivity
from .shards import Shard, merge, split

__all__ = ["Processes", "Shard", "calibrate", "merge", "sensitivity", "split"]
