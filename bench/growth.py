"""How the time of planning and rewriting grows with the number of nodes.

    python bench/growth.py [NODES ...]

The models are chains of MatMul, Add and Relu. Ranges are found before, and outputs are not checked,
so that no sample is run. Printed is the least CPU time of five runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from models import many_nodes

import quantize_rs

NODES = (1000, 3000, 10_000)
RUNS = 5


def cpu_seconds(folder: Path, nodes: int) -> float:
    model, result = folder / f"{nodes}.onnx", folder / "result.onnx"
    many_nodes(model, nodes // 3)
    sample = np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32)
    ranges = quantize_rs.open(model).plan(activations="uint8").calibrate(sample, method="minmax")
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        quantize_rs.quantize_with_calibration(model, result, ranges=ranges, check="none")
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for nodes in map(int, sys.argv[1:]) if sys.argv[1:] else NODES:
            print(f"{nodes} nodes: {cpu_seconds(Path(folder), nodes):.3f} CPU s", flush=True)


if __name__ == "__main__":
    main()
