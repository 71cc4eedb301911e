"""One-node models for every version that changed an operator, and what to feed them with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

# The opsets that quantized values need: int8, per channel, float8, int4, float4, ..., int2.
TARGETS = (10, 13, 19, 21, 23, 24, 25)


@dataclass(frozen=True)
class Case:
    """A node, the operator versions in which it has this form, and its inputs."""

    op: str
    since: int  # the first version with this form; `until` is the last
    until: int
    inputs: dict[str, Array]
    constants: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    order: tuple[str, ...] | None = None  # of the node's inputs, "" for one left out
    ranks: bool = True  # whether the model declares the shapes of its inputs
    name: str = ""
    atol: float = 0.0  # for versions with another kernel

    def __str__(self) -> str:
        said = "-".join(f"{key}={value}" for key, value in self.attributes.items())
        shaped = "" if self.ranks else "-ranks unknown"
        return f"{self.name or self.op}-{self.since}{'-' + said if said else ''}{shaped}"

    def model(self, opset: int) -> ModelProto:
        """Make the model of this version."""
        inputs = [
            helper.make_tensor_value_info(
                key,
                helper.np_dtype_to_tensor_dtype(value.dtype),
                list(value.shape) if self.ranks else None,
            )
            for key, value in self.inputs.items()
        ]
        made = ["", "y", "y2", "y3"][1 : self.outputs + 1]
        order = self.order or (*self.inputs, *self.constants)
        node = helper.make_node(self.op, order, made, name="it", **self.attributes)
        outputs = [helper.make_empty_tensor_value_info(name) for name in made]
        constants = [numpy_helper.from_array(value, key) for key, value in self.constants.items()]
        graph = helper.make_graph([node], "one", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", opset)]
        ir = max(4, helper.find_min_ir_version_for(opsets))
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


# The last bit of sums of a few numbers around 1, in another order.
SUMS = 2.0**-22

X = {"x": _floats(2, 3, 4, 5)}
IMAGE = {"x": _floats(1, 2, 7, 6)}
ROWS = {"x": _floats(4, 6)}
HALF = {"x": _floats(2, 3, 4).astype(np.float16)}
DOUBLE = {"x": _floats(2, 3, 4).astype(np.float64)}
SCALAR = np.array


def _both(op: str, since: int, until: int, inputs: dict[str, Array], **more: Any) -> list[Case]:
    """Make the case with shapes in the file, and without."""
    return [Case(op, since, until, inputs, ranks=ranks, **more) for ranks in (True, False)]


CASES: list[Case] = []
attributes: dict[str, Any]

for op in ("Softmax", "LogSoftmax", "Hardmax"):
    for attributes in ({}, {"axis": 0}, {"axis": 2}, {"axis": 3}):
        CASES += _both(op, 7, 12, X, attributes=attributes)
    CASES += _both(op, 11, 12, X, attributes={"axis": -2})
    CASES += _both(op, 7, 12, {"x": _floats(2, 5, 1, 1)})
    CASES += _both(op, 13, 99, X)

for bounds in ({"min": -0.5, "max": 0.25}, {"min": -0.5}, {"max": 0.25}, {}):
    for inputs in (X, HALF, DOUBLE):
        CASES.append(
            Case("Clip", 7, 10, inputs, attributes=bounds, name=f"Clip {inputs['x'].dtype}")
        )
CASES.append(
    Case("Clip", 11, 99, X, {"low": SCALAR(-0.5, np.float32), "high": SCALAR(0.5, np.float32)})
)

CASES += [
    Case("Dropout", 7, 9, X, attributes={"ratio": 0.3}),
    Case("Dropout", 10, 11, X, attributes={"ratio": 0.3}),
    Case("Dropout", 12, 99, X, {"ratio": SCALAR(0.3, np.float32)}),
]

REDUCTIONS = ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum")
for kind in REDUCTIONS:
    op, last = f"Reduce{kind}", 12 if kind == "Sum" else 17
    for attributes in ({}, {"axes": [1]}, {"axes": [1, 3], "keepdims": 0}, {"keepdims": 0}):
        CASES.append(Case(op, 7, last, X, attributes=attributes))
    CASES.append(Case(op, 11, last, X, attributes={"axes": [-1, 0]}, ranks=False))
    CASES.append(Case(op, last + 1, 99, X, {"axes": _ints(1, -1)}, {"keepdims": 0}))
CASES.append(Case("ReduceLogSum", 7, 17, {"x": np.abs(X["x"])}, attributes={"axes": [2]}))

ONES = {"x": _floats(1, 3, 1, 4)}
CASES += [
    *_both("Squeeze", 7, 12, ONES, attributes={"axes": [0, 2]}),
    *_both("Squeeze", 7, 12, ONES),
    Case("Squeeze", 11, 12, ONES, attributes={"axes": [-2]}),
    Case("Squeeze", 13, 99, ONES, {"axes": _ints(0)}),
    *_both("Unsqueeze", 7, 12, ROWS, attributes={"axes": [0, 3]}),
    Case("Unsqueeze", 11, 12, ROWS, attributes={"axes": [-1]}),
    *_both("Split", 7, 12, ROWS, attributes={"axis": 1, "split": [2, 4]}, outputs=2),
    *_both("Split", 7, 12, ROWS, attributes={"axis": 1}, outputs=3),
    Case("Split", 11, 12, ROWS, attributes={"axis": -1}, outputs=2),
    Case("Split", 13, 17, ROWS, attributes={"axis": -1}, outputs=2),
    Case("Split", 13, 99, ROWS, {"parts": _ints(1, 3)}, outputs=2),
    *_both("Slice", 7, 9, X, attributes={"starts": [0, -3], "ends": [2, 1000], "axes": [1, 3]}),
    Case("Slice", 7, 9, X, attributes={"starts": [1, 1], "ends": [2, -1]}),
    Case("Slice", 10, 99, X, {"s": _ints(3), "e": _ints(-9), "a": _ints(3), "t": _ints(-2)}),
    Case("TopK", 7, 9, ROWS, attributes={"k": 3}, outputs=2),
    Case("TopK", 7, 9, ROWS, attributes={"k": 2, "axis": 0}, outputs=2),
    Case("TopK", 10, 99, ROWS, {"k": _ints(2)}, outputs=2),
    Case("TopK", 11, 99, ROWS, {"k": _ints(2)}, {"largest": 0, "sorted": 1}, outputs=2),
    Case("Reshape", 7, 99, X, {"shape": _ints(0, -1, 5)}),
    Case("Transpose", 7, 99, X, attributes={"perm": [0, 2, 3, 1]}),
    Case("Flatten", 7, 99, X, attributes={"axis": 2}),
    Case("Concat", 7, 99, {"a": _floats(2, 3), "b": _floats(2, 2)}, attributes={"axis": 1}),
    Case("Expand", 8, 99, {"x": _floats(3, 1)}, {"shape": _ints(2, 3, 4)}),
    Case("Tile", 7, 99, ROWS, {"repeats": _ints(2, 1)}),
    Case("Shape", 7, 99, X),
    Case("Size", 7, 99, X),
    Case("Gather", 7, 99, ROWS, {"at": _ints(3, 0)}, {"axis": 1}),
    Case("DepthToSpace", 7, 99, {"x": _floats(1, 8, 2, 3)}, attributes={"blocksize": 2}),
    Case("SpaceToDepth", 7, 99, {"x": _floats(1, 2, 4, 6)}, attributes={"blocksize": 2}),
]

PADS = [0, 0, 1, 2, 0, 0, 2, 1]
CASES += [
    *_both("Pad", 7, 10, X, attributes={"pads": PADS}),
    Case("Pad", 7, 10, X, attributes={"pads": PADS, "value": 0.75}),
    Case("Pad", 7, 10, X, attributes={"pads": PADS, "mode": "reflect", "value": 0.75}),
    Case("Pad", 7, 10, X, attributes={"pads": [0, 0, -1, 0, 0, 0, 0, 2], "mode": "edge"}),
    Case(
        "Pad",
        7,
        10,
        DOUBLE,
        attributes={"pads": [0, 1, 0, 0, 0, 1], "value": 0.1},
        name="Pad double",
    ),
    Case("Pad", 11, 99, X, {"pads": _ints(*PADS), "v": SCALAR(0.5, np.float32)}),
]

for mode in ("nearest", "linear"):
    for scales in ([1, 1, 2, 2], [1, 1, 1.7, 3]):
        floats = np.array(scales, np.float32)
        CASES.append(Case("Upsample", 7, 8, IMAGE, attributes={"mode": mode, "scales": floats}))
        CASES += _both("Upsample", 9, 9, IMAGE, constants={"s": floats}, attributes={"mode": mode})
    for scales in ([1, 1, 2, 2], [1, 1, 0.6, 0.5], [1, 1, 0.6, 2.5], [1, 1, 3, 0.34]):
        floats = np.array(scales, np.float32)
        named: dict[str, Any] = {"attributes": {"mode": mode}, "name": f"Resize {scales}"}
        CASES += _both("Resize", 10, 10, IMAGE, constants={"s": floats}, **named)
        CASES.append(Case("Resize", 10, 10, {**IMAGE, "s": floats}, **named))
NONE = np.zeros(0, np.float32)
for places in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
    for mode in ("nearest", "linear", "cubic"):
        attributes = {"mode": mode, "coordinate_transformation_mode": places}
        scales_or_sizes = {"s": np.array([1, 1, 1.5, 0.8], np.float32)}
        CASES.append(Case("Resize", 11, 12, IMAGE, {"roi": NONE, **scales_or_sizes}, attributes))
        sizes = {"none": NONE, "sizes": _ints(1, 2, 10, 4)}
        order = ("x", "none", "none", "sizes")
        CASES.append(Case("Resize", 11, 12, IMAGE, sizes, attributes, order=order))
        CASES.append(
            Case("Resize", 13, 99, IMAGE, scales_or_sizes, attributes, order=("x", "", "s"))
        )
for scale in (2.0, 1.6, 0.4, 0.5):
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    scales_or_sizes = {"s": np.array([1, 1, scale, 1], np.float32)}
    CASES.append(
        Case(
            "Resize",
            11,
            12,
            IMAGE,
            {"roi": NONE, **scales_or_sizes},
            attributes,
            name=f"Resize {scale}",
        )
    )

STATISTICS = {
    "scale": _floats(3, seed=1),
    "shift": _floats(3, seed=2),
    "mean": _floats(3, seed=3),
    "variance": np.abs(_floats(3, seed=4)) + 0.1,
}
RECURRENT = {"x": _floats(4, 2, 3)}


def _recurrent(op: str, gates: int) -> list[Case]:
    weights = {"w": _floats(1, gates * 5, 3), "r": _floats(1, gates * 5, 5)}
    outputs = 3 if op == "LSTM" else 2
    return [Case(op, 7, 99, RECURRENT, weights, {"hidden_size": 5}, outputs=outputs)]


FILTER = {"w": _floats(4, 2, 3, 3)}
CASES += [
    Case("BatchNormalization", 7, 8, X, STATISTICS, {"spatial": 1, "momentum": 0.8}),
    Case("BatchNormalization", 7, 8, {"x": _floats(5, 3)}, STATISTICS, {"spatial": 0}),
    Case("BatchNormalization", 7, 99, X, STATISTICS, {"epsilon": 1e-3}),
    *_both(
        "GroupNormalization",
        18,
        20,
        {"x": _floats(2, 6, 4)},
        constants={"scale": _floats(3, seed=1), "bias": _floats(3, seed=2)},
        attributes={"num_groups": 3},
    ),
    Case("LRN", 7, 99, X, attributes={"size": 3}),
    Case("InstanceNormalization", 7, 99, X, {"scale": _floats(3), "b": _floats(3, seed=1)}),
    Case("LpNormalization", 7, 99, X, attributes={"axis": 1}),
    Case("LayerNormalization", 17, 99, X, {"scale": _floats(5)}),
    Case("Conv", 7, 99, IMAGE, FILTER, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("ConvTranspose", 7, 99, IMAGE, {"w": _floats(2, 3, 2, 2)}, {"strides": [2, 2]}),
    *(
        Case(
            op,
            since,
            99,
            IMAGE,
            attributes={"kernel_shape": [3, 3], "strides": [2, 2], **more},
            atol=SUMS if op == "AveragePool" else 0.0,
        )
        for op in ("MaxPool", "AveragePool")
        for since, more in (
            (7, {}),
            (7, {"pads": [1, 1, 1, 1]}),
            (7, {"auto_pad": "SAME_LOWER"}),
            (10, {"ceil_mode": 1, "pads": [1, 0, 0, 1]}),
        )
    ),
    Case(
        "AveragePool",
        7,
        99,
        IMAGE,
        attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        atol=SUMS,
    ),
    Case(
        "AveragePool",
        10,
        99,
        IMAGE,
        attributes={
            "kernel_shape": [4, 4],
            "strides": [3, 3],
            "pads": [1, 1, 1, 1],
            "count_include_pad": 1,
            "ceil_mode": 1,
        },
        atol=SUMS,
    ),
    Case("MaxPool", 8, 99, IMAGE, attributes={"kernel_shape": [2, 2]}, outputs=2),
    Case("LpPool", 7, 99, IMAGE, attributes={"kernel_shape": [2, 2]}),
    Case("GlobalAveragePool", 7, 99, IMAGE),
    Case("Gemm", 7, 99, ROWS, {"w": _floats(6, 5), "b": _floats(5)}),
    Case("MatMul", 7, 99, ROWS, {"w": _floats(6, 5)}),
    *_recurrent("LSTM", 4),
    *_recurrent("GRU", 3),
    *_recurrent("RNN", 1),
]

BOXES = {"boxes": np.array([[0, 0, 4, 3], [1, 2, 5, 6]], np.float32), "of": _ints(0, 0)}
PLACES = {"grid": np.random.default_rng(9).uniform(-1.1, 1.1, (1, 4, 5, 2)).astype(np.float32)}
CASES += [
    Case("RoiAlign", 10, 15, IMAGE, BOXES, {"output_height": 3, "output_width": 2}),
    Case(
        "RoiAlign",
        10,
        15,
        IMAGE,
        BOXES,
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    *(
        Case(
            "GridSample",
            16,
            19,
            {**IMAGE, **PLACES},
            attributes={"mode": mode, "padding_mode": pad},
        )
        for mode in ("bilinear", "bicubic", "nearest")
        for pad in ("zeros", "border")
    ),
    Case("GridSample", 16, 19, {**IMAGE, **PLACES}),
    Case("DFT", 17, 19, {"x": _floats(2, 4, 3, 1)}),
    Case("DFT", 17, 19, {"x": _floats(2, 4, 3, 1)}, attributes={"axis": 2, "onesided": 1}),
    Case("DFT", 17, 19, {"x": _floats(2, 4, 3, 1)}, {"n": SCALAR(6, np.int64)}, {"axis": -2}),
    Case("Scatter", 9, 10, ROWS, {"at": np.array([[1, 3]]), "to": _floats(1, 2)}, {"axis": 1}),
    Case("ScatterElements", 11, 99, ROWS, {"at": np.array([[1, 3]]), "to": _floats(1, 2)}),
    Case("Erf", 9, 99, X),
    Case(
        "OneHot", 9, 99, {"x": _ints(0, 2, 1)}, {"d": _ints(3), "v": np.array([0, 1], np.float32)}
    ),
    Case("ArgMax", 7, 99, {"x": np.round(X["x"])}, attributes={"axis": 2}),
    Case("Cast", 7, 99, X, attributes={"to": TensorProto.INT32}),
    Case("CumSum", 11, 99, X, {"axis": SCALAR(1, np.int64)}),
    Case("GatherND", 11, 99, ROWS, {"at": np.array([[1, 2], [0, 5]])}),
    Case("Mod", 10, 99, {"a": _ints(7, -7, 5), "b": _ints(3, 3, -3)}),
    Case("IsInf", 10, 99, {"x": np.array([1, np.inf, -np.inf], np.float32)}),
    Case(
        "Range",
        11,
        99,
        {"a": SCALAR(1, np.int64), "b": SCALAR(9, np.int64), "c": SCALAR(2, np.int64)},
    ),
    Case("QuantizeLinear", 10, 99, X, {"s": SCALAR(0.02, np.float32), "z": SCALAR(3, np.int8)}),
    Case(
        "QuantizeLinear",
        13,
        99,
        X,
        {"s": np.array([0.02, 0.1, 1], np.float32), "z": np.zeros(3, np.uint8)},
    ),
    Case(
        "DequantizeLinear",
        10,
        99,
        {"x": np.arange(-6, 6, dtype=np.int8)},
        {"s": SCALAR(0.3, np.float32)},
    ),
    Case(
        "MatMulInteger",
        10,
        99,
        {"a": np.arange(6, dtype=np.uint8).reshape(2, 3)},
        {"b": np.arange(12, dtype=np.int8).reshape(3, 4)},
    ),
    *(
        Case(op, 7, 99, {"a": _floats(2, 3), "b": _floats(3, seed=1)})
        for op in ("Add", "Sub", "Mul", "Div", "Less", "Greater", "PRelu")
    ),
    Case("Pow", 7, 99, {"a": np.abs(_floats(2, 3)), "b": _floats(3, seed=1)}),
    Case("Equal", 7, 99, {"a": _ints(1, 2), "b": _ints(1, 3)}),
    *(
        Case(op, 8, 99, {"a": _floats(2, 3), "b": _floats(3, seed=1)})
        for op in ("Max", "Min", "Sum", "Mean")
    ),
    *(
        Case(op, 7, 99, {"x": np.abs(_floats(2, 3)) % 1})
        for op in (
            *("Abs", "Acos", "Asin", "Atan", "Ceil", "Cos", "Elu", "Exp", "Floor", "HardSigmoid"),
            *("LeakyRelu", "Log", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin"),
            *("Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Identity"),
        )
    ),
    *(Case(op, 9, 99, {"x": _floats(2, 3)}) for op in ("Sinh", "Cosh", "Asinh", "Sign", "IsNaN")),
    Case("HardSwish", 14, 99, X),
    Case("Where", 9, 99, {"c": np.array([True, False, True]), "a": _floats(2, 3), "b": _floats(3)}),
    Case("EyeLike", 9, 99, ROWS),
    Case("ThresholdedRelu", 10, 99, X),
    Case("Round", 11, 99, X),
]
