"""Where a scale is taken decides how much is lost."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import quantize_rs


def test_what_a_max_pool_hides_sets_no_scale() -> None:
    """Large negative numbers that never leave the pool must not coarsen what does."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((8, 3, 3, 3)) * 0.2).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["m"]),
        helper.make_node("MaxPool", ["m"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    shapes = {"x": [1, 3, 16, 16], "y": [1, 8, 6, 6]}
    infos = {k: helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()}
    constants = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.float32(1), "one"),
    ]
    graph = helper.make_graph(nodes, "pool", [infos["x"]], [infos["y"]], constants)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    images = rng.standard_normal((8, 3, 16, 16)).astype(np.float32)
    images[:, :, ::2, ::2] = -100

    report = quantize_rs.quantize_with_calibration(model, None, images, per_channel=True)
    assert report.model is not None
    provider = ["CPUExecutionProvider"]
    feed = {"x": images[:1]}
    before, after = (
        ort.InferenceSession(data, providers=provider).run(None, feed)[0].astype(np.float64)
        for data in (model.SerializeToString(), report.model)
    )
    assert 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum()) > 30
    onnx.checker.check_model(onnx.load_from_string(report.model), full_check=True)
