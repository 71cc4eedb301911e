"""Calibration takes the memory of one session, whose kernels pack the weights once."""

from __future__ import annotations

from pathlib import Path

import memory
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE, LAYERS = 2048, 6
WEIGHTS = LAYERS * SIZE * SIZE * 4


def perceptron(path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"]) for at in range(LAYERS)
    ]
    weights = [
        numpy_helper.from_array(
            (rng.standard_normal((SIZE, SIZE)) / SIZE**0.5).astype(np.float32), f"w{at}"
        )
        for at in range(LAYERS)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE])
        for name in ("x0", f"x{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@memory.needs_proc
def test_calibration_holds_the_weights_once(tmp_path: Path) -> None:
    path = tmp_path / "perceptron.onnx"
    perceptron(path)
    assert path.stat().st_size > WEIGHTS
    held = memory.printed(f"""
import numpy as np
samples = np.ones((4, 1, {SIZE}), np.float32)
plan = quantize_rs.open({str(path)!r}).plan(activations="uint8")
held, before = [0], anonymous()
def progress(done, total):
    if done:
        held.append(anonymous() - before)
plan.calibrate(samples, method="minmax", engine="onnxruntime", progress=progress)
print(max(held))
""")
    # Those of a second copy would be at least as many again.
    assert 0.9 * WEIGHTS < held < 1.5 * WEIGHTS
