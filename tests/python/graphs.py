"""Small graphs with one float input `x` and one output `y`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper


def built(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, npt.NDArray[np.floating] | npt.NDArray[np.int64]],
    shape: Sequence[int | str],
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(a if a.dtype == np.int64 else a.astype(np.float32), name)
            for name, a in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
