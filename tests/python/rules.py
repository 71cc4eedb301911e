"""A model for each operator that has a rule: it stands between two that multiply."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import oracle
from onnx import TensorProto, helper, numpy_helper

SHAPE = (2, 4, 8, 8)
CHANNELS = 8


class Case(NamedTuple):
    """An operator, its inputs besides `a`, and its kernel in ONNX Runtime on x86."""

    op_type: str
    reads: tuple[Any, ...] = ()
    attributes: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    kernel: str | None = None
    """The operator in the optimized graph that computes on integers; None where none does."""


def _ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


_SCALE = np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32)
_SHIFT = np.linspace(-1, 1, CHANNELS, dtype=np.float32)
_CONDITION = np.arange(8) % 2 == 0

CASES: dict[str, Case] = {
    "add": Case("Add", ("b",), kernel="QLinearAdd"),
    "add_constant": Case("Add", (_SHIFT.reshape(-1, 1, 1),), kernel="QLinearAdd"),
    "mul": Case("Mul", ("b",), kernel="QLinearMul"),
    "sub": Case("Sub", ("b",)),
    "div": Case("Div", (_SCALE.reshape(-1, 1, 1),)),
    "max": Case("Max", ("b",)),
    "min": Case("Min", ("b",)),
    "concat": Case("Concat", ("b",), {"axis": 1}, "QLinearConcat"),
    "where": Case("Where", (), kernel="QLinearWhere"),
    "average_pool": Case(
        "AveragePool", (), {"kernel_shape": [2, 2], "strides": [2, 2]}, "QLinearAveragePool"
    ),
    "global_average_pool": Case("GlobalAveragePool", kernel="QLinearGlobalAveragePool"),
    "reduce_mean": Case("ReduceMean", (_ints(2, 3),)),
    "reduce_sum": Case("ReduceSum", (_ints(2, 3),)),
    "reduce_max": Case("ReduceMax", (_ints(2, 3),), kernel="ReduceMax"),
    "reduce_min": Case("ReduceMin", (_ints(2, 3),), kernel="ReduceMin"),
    "global_max_pool": Case("GlobalMaxPool"),
    "max_of_one": Case("Max"),
    "max_of_three": Case("Max", ("b", "a")),
    "identity": Case("Identity"),
    "gather_elements": Case(
        "GatherElements",
        (np.arange(2 * 8 * 8 * 8).reshape(2, 8, 8, 8) % 8,),
        {"axis": 1},
        "GatherElements",
    ),
    "gather_nd": Case("GatherND", (_ints(0, 1).reshape(2, 1),)),
    "max_pool": Case("MaxPool", (), {"kernel_shape": [2, 2], "strides": [2, 2]}, "MaxPool"),
    "reshape": Case("Reshape", (_ints(0, 4, 16, 8),), kernel="Reshape"),
    "transpose": Case("Transpose", (), {"perm": [0, 1, 3, 2]}, "Transpose"),
    "flatten": Case("Flatten", kernel="Flatten"),
    "squeeze": Case("Squeeze", (_ints(),), kernel="Squeeze"),
    "unsqueeze": Case("Unsqueeze", (_ints(0),), kernel="Unsqueeze"),
    "slice": Case("Slice", (_ints(0), _ints(4), _ints(1)), kernel="Slice"),
    "split": Case("Split", (_ints(4, 4),), {"axis": 1}, "Split"),
    "gather": Case("Gather", (_ints(1, 3, 5),), {"axis": 1}, "Gather"),
    "depth_to_space": Case("DepthToSpace", (), {"blocksize": 2}, "DepthToSpace"),
    "space_to_depth": Case("SpaceToDepth", (), {"blocksize": 2}),
    "expand": Case("Expand", (_ints(2, 2, 8, 8, 8),), kernel="Expand"),
    "tile": Case("Tile", (_ints(1, 1, 2, 1),), kernel="Tile"),
    "pad": Case("Pad", (_ints(0, 0, 1, 1, 0, 0, 1, 1),)),
    "pad_with_one": Case("Pad", (_ints(0, 0, 1, 1, 0, 0, 1, 1), np.float32(1))),
    "resize_nearest": Case(
        "Resize", ("", _floats(1, 1, 2, 2)), {"mode": "nearest"}, kernel="Resize"
    ),
    "resize_linear": Case("Resize", ("", _floats(1, 1, 2, 2)), {"mode": "linear"}),
    "relu": Case("Relu"),
    "clip": Case("Clip", (np.float32(0), np.float32(6))),
    "leaky_relu": Case("LeakyRelu", (), {"alpha": 0.1}, "QLinearLeakyRelu"),
    "prelu": Case("PRelu", (_SCALE.reshape(-1, 1, 1),)),
    "elu": Case("Elu"),
    "sigmoid": Case("Sigmoid", kernel="QLinearSigmoid"),
    "hard_sigmoid": Case("HardSigmoid"),
    "hard_swish": Case("HardSwish"),
    "tanh": Case("Tanh"),
    "gelu": Case("Gelu"),
    "softmax": Case("Softmax", (), {"axis": -1}, "QLinearSoftmax"),
    "layer_normalization": Case("LayerNormalization", (_SCALE, _SHIFT)),
    "instance_normalization": Case("InstanceNormalization", (_SCALE, _SHIFT)),
    "batch_normalization": Case(
        "BatchNormalization", (_SCALE, _SHIFT, _SHIFT, _SCALE), {"epsilon": 1e-3}
    ),
    "conv_transpose": Case("ConvTranspose", ("w",)),
    "matmul": Case("MatMul", ("b",), kernel="QLinearMatMul"),
    "einsum": Case("Einsum", ("b",), {"equation": "nchw,ncwk->nchk"}),
}


ELSEWHERE = {"Conv", "Gemm", "Upsample"}
"""Operators with a rule that stand in every model here, or in none: `Gemm` takes matrices, and
`Upsample` is not of this opset."""


def model(name: str) -> onnx.ModelProto:
    """Two convolutions, the operator after them, and a product that reads its output."""
    case = CASES[name]
    rng = np.random.default_rng(len(name))

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    constants = {
        f"{part}{which}": draw(*shape)
        for which in "ab"
        for part, shape in (("w_", (CHANNELS, SHAPE[1], 3, 3)), ("b_", (CHANNELS,)))
    }
    constants["w"] = draw(CHANNELS, CHANNELS, 2, 2)
    # A branch without consumers would still be computed on integers and dequantized: leave it out.
    names = [other for other in case.reads if isinstance(other, str)]
    read = "ab" if "b" in names or case.op_type == "Where" else "a"
    nodes = [
        helper.make_node("Conv", ["x", f"w_{which}", f"b_{which}"], [which], pads=[1, 1, 1, 1])
        for which in read
    ]
    inputs = ["a"]
    if case.op_type == "Where":
        constants["condition"] = _CONDITION
        inputs = ["condition", "a", "b"]
    for index, other in enumerate(case.reads):
        if not isinstance(other, str):
            constants[f"c{index}"] = np.asarray(other)
        inputs.append(other if isinstance(other, str) else f"c{index}")
    nodes.append(helper.make_node(case.op_type, inputs, ["o"], **case.attributes))
    if case.op_type == "Split":
        nodes[-1].output.append("rest")
    outputs = list(nodes[-1].output)
    made = _made(nodes, constants, dict.fromkeys(outputs))
    shapes = [found.shape for found in oracle.ort(made.SerializeToString(), feeds())]
    constants["w_last"] = draw(shapes[0][-1], 6)
    nodes.append(helper.make_node("MatMul", ["o", "w_last"], ["y"]))
    ends = {"y": (*shapes[0][:-1], 6), **dict(zip(outputs[1:], shapes[1:], strict=True))}
    return _made(nodes, constants, ends)


def feeds(seed: int = 0) -> oracle.Feeds:
    """A batch of inputs."""
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(0, 1, SHAPE).astype(np.float32)}


def _made(
    nodes: list[onnx.NodeProto],
    constants: dict[str, npt.NDArray[Any]],
    outputs: dict[str, tuple[int, ...] | None],
) -> onnx.ModelProto:
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "rule",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items() if k in read],
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)
