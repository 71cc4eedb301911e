"""What is not quantized is not read: the attributes of a tree ensemble are only copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import memory

NODES = 300_000

MODEL = f"""
import numpy as np
from onnx import TensorProto, helper
nodes, ids = {NODES}, np.arange({NODES})
trees = dict(
    nodes_treeids=(ids // 1000).tolist(),
    nodes_nodeids=(ids % 1000).tolist(),
    nodes_featureids=(ids % 20).tolist(),
    nodes_values=np.linspace(-1, 1, nodes).astype(np.float32).tolist(),
    nodes_modes=["BRANCH_LEQ" if at % 2 else "LEAF" for at in range(nodes)],
    nodes_truenodeids=((2 * ids + 1) % 1000).tolist(),
    nodes_falsenodeids=((2 * ids + 2) % 1000).tolist(),
    class_treeids=(ids // 1000).tolist(),
    class_nodeids=(ids % 1000).tolist(),
    class_ids=[0] * nodes,
    class_weights=np.linspace(0, 1, nodes).astype(np.float32).tolist(),
    classlabels_int64s=[0, 1],
)
name = "TreeEnsembleClassifier"
node = helper.make_node(name, ["x"], ["label", "scores"], domain="ai.onnx.ml", **trees)
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [node],
    "trees",
    [value("x", TensorProto.FLOAT, ["count", 20])],
    [value("label", TensorProto.INT64, ["count"]), value("scores", TensorProto.FLOAT, None)],
)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
open(PATH, "wb").write(model.SerializeToString())
"""


@memory.needs_proc
def test_a_tree_ensemble_takes_no_memory(tmp_path: Path) -> None:
    path, out = tmp_path / "trees.onnx", tmp_path / "out.onnx"
    names = f"PATH, OUT = {str(path)!r}, {str(out)!r}\n"
    subprocess.run([sys.executable, "-c", names + MODEL], check=True)
    size = path.stat().st_size
    assert size > 11e6
    grown = memory.growth(
        """
info = quantize_rs.model_info(PATH)
report = quantize_rs.quantize(PATH, OUT)
assert [row for row in report.values if row.quantized] == []
""",
        before=names,
    )
    # A file of this size is read into memory. Decoded, the lists would take three times as much.
    assert grown < 1.3 * size
    assert out.read_bytes() == path.read_bytes()
