"""Operators on integers with all scales as inputs, compared with the QDQ form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import helper

import quantize_rs

RNG = np.random.default_rng(11)
FLOATS = dict[str, Any]


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape) / np.sqrt(shape[-1])


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], op_type + output, **attributes)


CONV = node("Conv", "x w b", "c", pads=[1, 1, 1, 1])
LAST = node("Conv", "l w2", "y")
FILTERS: FLOATS = {
    "w": RNG.normal(size=(8, 8, 3, 3)) / 8,
    "b": RNG.normal(size=8),
    "w2": RNG.normal(size=(4, 8, 1, 1)) / 3,
}
SHAPE = [1, 8, 12, 12]

# Each case: the nodes, their constants, the shape of the input, and the operators expected.
CASES: dict[str, tuple[list[onnx.NodeProto], FLOATS, list[int], set[str]]] = {
    "Conv": ([CONV, node("Relu", "c", "y")], FILTERS, SHAPE, {"QLinearConv"}),
    "Conv and Clip": (
        [CONV, node("Clip", "c lo hi", "y")],
        FILTERS | {"lo": np.float32(0), "hi": np.float32(1)},
        SHAPE,
        {"QLinearConv"},
    ),
    "Gemm": (
        [node("Gemm", "x w b", "y", transB=1)],
        {"w": normal(24, 32), "b": RNG.normal(size=24)},
        [1, 32],
        {"QGemm"},
    ),
    "MatMul": ([node("MatMul", "x w", "y")], {"w": normal(32, 24)}, [1, 32], {"MatMul*"}),
    "Add": (
        [CONV, node("Relu", "c", "r"), node("Add", "r x", "s"), node("Relu", "s", "l"), LAST],
        FILTERS,
        SHAPE,
        {"QLinearConv", "QLinearAdd"},
    ),
    "Mul": (
        [CONV, node("Sigmoid", "c", "g"), node("Mul", "x g", "l"), LAST],
        FILTERS,
        SHAPE,
        {"QLinearConv", "QLinearSigmoid", "QLinearMul"},
    ),
    "LeakyRelu": (
        [CONV, node("LeakyRelu", "c", "l", alpha=0.1), LAST],
        FILTERS,
        SHAPE,
        {"QLinearConv", "QLinearLeakyRelu"},
    ),
    "Softmax": (
        [CONV, node("Softmax", "c", "l", axis=1), LAST],
        FILTERS,
        SHAPE,
        {"QLinearConv", "QLinearSoftmax"},
    ),
    "Where": (
        [
            CONV,
            node("Relu", "c", "r"),
            node("Greater", "x half", "k"),
            node("Where", "k r x", "l"),
            LAST,
        ],
        FILTERS | {"half": np.float32(0.5)},
        SHAPE,
        {"QLinearConv", "QLinearWhere"},
    ),
    "two activations": (
        [
            node("MatMul", "x w", "q"),
            node("MatMul", "x w2", "k"),
            node("MatMul", "q k", "l"),
            node("MatMul", "l w3", "y"),
        ],
        {name: normal(16, 16) for name in ("w", "w2", "w3")},
        [1, 16, 16],
        {"QLinearMatMul"},
    ),
    "pools": (
        [
            CONV,
            node("Relu", "c", "r"),
            node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[2, 2]),
            node("AveragePool", "m", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", "a", "l"),
            LAST,
        ],
        FILTERS,
        SHAPE,
        {"QLinearConv", "QLinearAveragePool", "QLinearGlobalAveragePool"},
    ),
    "Concat": (
        [
            CONV,
            node("Relu", "c", "r"),
            node("Concat", "x r x", "k", axis=1),
            node("Conv", "k w3", "y"),
        ],
        FILTERS | {"w3": RNG.normal(size=(4, 24, 1, 1)) / 5},
        SHAPE,
        {"QLinearConv", "QLinearConcat"},
    ),
    "moves": (
        [
            CONV,
            node("Relu", "c", "r"),
            node("Transpose", "r", "t", perm=[0, 1, 3, 2]),
            node("Pad", "t pads", "p"),
            node("Reshape", "p shape", "s"),
            node("Slice", "s zero six axis", "l"),
            LAST,
        ],
        FILTERS
        | {
            "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
            "shape": np.array([1, 8, -1, 7], np.int64),
            "zero": np.array([0], np.int64),
            "six": np.array([6], np.int64),
            "axis": np.array([3], np.int64),
        },
        SHAPE,
        {"QLinearConv"},
    ),
}


def model(name: str) -> bytes:
    nodes, constants, shape, _ = CASES[name]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    read = {name for node in nodes for name in node.input}
    constants = {name: value for name, value in constants.items() if name in read}
    return graphs.built(nodes, constants, shape)


def samples(shape: list[int], count: int = 8) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=(count, *shape[1:])).astype(np.float32)


def both(name: str, **options: Any) -> tuple[bytes, bytes, quantize_rs.Report]:
    """Return the model in both forms, with the report of the second."""
    data = samples(CASES[name][2])
    made = []
    options = {"include": ["*"], "smooth": False, "weight_algorithm": "nearest", **options}
    for form in ("qdq", "qoperator"):
        report = quantize_rs.quantize_with_calibration(
            model(name), None, data, output_format=form, allow_larger=True, **options
        )
        assert report.model is not None
        made.append((report.model, report))
    return made[0][0], made[1][0], made[1][1]


def operators(data: bytes) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load_from_string(data).graph.node)


# For each operator: the operator on floats, the places of integers (their scale and zero point
# follow), that of the bias and that of the scale of the output.
LAYOUTS: dict[str, tuple[str, list[int], int | None, int]] = {
    "QLinearConv": ("Conv", [0, 3], 8, 6),
    "QLinearMatMul": ("MatMul", [0, 3], None, 6),
    "QGemm": ("Gemm", [0, 3], 6, 7),
    "QLinearAdd": ("Add", [0, 3], None, 6),
    "QLinearMul": ("Mul", [0, 3], None, 6),
    "QLinearSigmoid": ("Sigmoid", [0], None, 3),
    "QLinearLeakyRelu": ("LeakyRelu", [0], None, 3),
    "QLinearSoftmax": ("Softmax", [0], None, 3),
    "QLinearAveragePool": ("AveragePool", [0], None, 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", [0], None, 3),
    "QLinearWhere": ("Where", [1, 4], None, 7),
    "QLinearConcat": ("Concat", [2, 5, 8], None, 0),
}


def every_value(data: bytes, feeds: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Run a model without optimizations, and return every value of it."""
    proto = onnx.load_from_string(data)
    del proto.graph.output[:]
    names = [name for node in proto.graph.node for name in node.output if name]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = oracle.session(proto.SerializeToString(), optimized=False).run(names, feeds)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return constants | dict(zip(names, found, strict=True)) | feeds


def in_qdq_form(node: onnx.NodeProto, values: dict[str, Any]) -> Any:
    """Compute an operator on integers as DequantizeLinear, an operator on floats and
    QuantizeLinear."""
    float_op, places, bias, output = LAYOUTS[node.op_type]
    inputs: list[Any] = [values[name] if name else None for name in node.input]

    def floats(at: int) -> Any:
        codes, scale, zero = inputs[at : at + 3]
        if scale.size > 1:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            rows = node.op_type == "QLinearConv" or transposed
            scale = scale.reshape([-1] + [1] * (codes.ndim - 1)) if rows else scale
            zero = zero.reshape(scale.shape) if zero.size > 1 else zero
        return ((codes.astype(np.int32) - zero.astype(np.int32)) * scale).astype(np.float32)

    operands = [floats(at) for at in places if at < len(inputs)]
    if bias is not None and len(inputs) > bias and inputs[bias] is not None:
        scale = inputs[places[0] + 1] * inputs[places[1] + 1]
        operands.append((inputs[bias] * scale).astype(np.float32))
    if node.op_type == "QLinearWhere":
        operands.insert(0, inputs[0])
    attributes = [a for a in node.attribute if a.name not in ("opset", "channels_last")]
    names = [f"i{index}" for index in range(len(operands))]
    alone = helper.make_node(float_op, names, ["y"])
    alone.attribute.extend(attributes)
    kinds = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in operands]
    given = [
        helper.make_tensor_value_info(name, kind, value.shape)
        for name, kind, value in zip(names, kinds, operands, strict=True)
    ]
    graph = helper.make_graph([alone], "g", given, [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = dict(zip(names, operands, strict=True))
    found = oracle.session(proto.SerializeToString(), optimized=False).run(None, feeds)[0]
    scale, zero = inputs[output], inputs[output + 1]
    limits = np.iinfo(zero.dtype)
    codes = np.rint(found / scale) + zero.astype(np.float32)
    return np.clip(codes, limits.min, limits.max).astype(np.int32)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weights": "uint8"},
    {"weights": "uint8", "per_channel": False},
    {"activations": "int8", "weights": "int8"},
    {"activation_symmetric": True},
    {"target": "x86-avx2"},
    {"target": "generic"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_within_a_step_of_its_qdq_form(
    name: str, options: dict[str, Any]
) -> None:
    _, data, _ = both(name, **options)
    proto = onnx.load_from_string(data)
    values = every_value(data, {"x": samples(CASES[name][2])[:1]})
    compared = 0
    for found in proto.graph.node:
        if found.op_type in LAYOUTS and (found.op_type != "QGemm" or len(found.input) > 7):
            codes = values[found.output[0]].astype(np.int32)
            assert np.abs(codes - in_qdq_form(found, values)).max() <= 1, found.op_type
            compared += 1
    assert compared or name in ("Gemm", "MatMul") or options


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_model_computes_what_the_qdq_form_computes(name: str, options: dict[str, Any]) -> None:
    qdq, qoperator, _ = both(name, **options)
    x = samples(CASES[name][2])[:1]
    exact = oracle.session(model(name), optimized=False).run(None, {"x": x})[0]
    expected = oracle.session(qdq, optimized=False).run(None, {"x": x})[0]
    error = float(np.abs(expected - exact).max())
    for optimized in (False, True):
        found = oracle.session(qoperator, optimized=optimized).run(None, {"x": x})[0]
        assert np.abs(found - exact).max() <= 1.5 * error + 1e-6
    assert quantize_rs.validate(model(name), qoperator).passed


@pytest.mark.parametrize("name", CASES)
def test_what_has_an_integer_operator_becomes_one(name: str) -> None:
    _, data, report = both(name)
    written = operators(data)
    for wanted in CASES[name][3]:
        assert any(found.startswith(wanted.rstrip("*")) for found in written), (wanted, written)
    assert not set(written) & {"Conv", "Gemm", "MatMul", "Add", "Mul", "Concat", "Relu", "Clip"}
    assert any("operators on integers" in note for note in report.notes)


def test_generic_has_only_operators_of_onnx() -> None:
    _, data, report = both("Add", target="generic")
    proto = onnx.load_from_string(data)
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert operators(data)["QLinearConv"] == 2
    assert any("compute on dequantized values" in note and "Add 1" in note for note in report.notes)


def test_weights_are_those_of_the_qdq_form() -> None:
    qdq, qoperator, _ = both("Add")

    def integers(data: bytes) -> list[bytes]:
        tensors = onnx.load_from_string(data).graph.initializer
        return sorted(
            onnx.numpy_helper.to_array(tensor).tobytes()
            for tensor in tensors
            if tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.INT32)
            and len(tensor.dims)
        )

    assert integers(qdq) == integers(qoperator)
    assert len(qoperator) < len(qdq)


def test_a_relu_above_the_zero_point_stays() -> None:
    """With a zero point in the middle, the integers do not clip at 0."""
    _, data, _ = both("Conv", activation_symmetric=True, activations="int8")
    assert operators(data)["Relu"] == 1


@pytest.mark.parametrize("name", ["Conv and Clip", "Add"])
def test_limits_that_the_integers_do_not_have_stay(name: str) -> None:
    """A range that reaches beyond a Clip, or below a Relu, does not limit the integers."""
    original, x = model(name), samples(CASES[name][2])
    plan = quantize_rs.open(original).plan(
        activations="uint8", output_format="qoperator", include=["*"], allow_larger=True
    )
    ranges = plan.calibrate(x)
    wide = dict.fromkeys(ranges.values, (-9.0, 9.0))
    made = plan.apply(ranges.with_values(wide)).to_bytes()
    exact = oracle.session(original, optimized=False).run(None, {"x": x[:1]})[0]
    found = oracle.session(made, optimized=False).run(None, {"x": x[:1]})[0]
    assert np.abs(found - exact).max() < 0.4


def test_a_clip_whose_bound_the_caller_may_replace_stays() -> None:
    original = onnx.load_from_string(model("Conv and Clip"))
    original.graph.input.append(helper.make_tensor_value_info("hi", onnx.TensorProto.FLOAT, []))
    x = samples(SHAPE)
    plan = quantize_rs.open(original.SerializeToString()).plan(
        activations="uint8", output_format="qoperator", include=["*"], allow_larger=True
    )
    made = plan.apply(plan.calibrate(x)).to_bytes()
    assert operators(made)["Clip"] == 1
    lower = {"x": x[:1], "hi": np.array(0.25, np.float32)}
    step = 1 / 255
    assert oracle.session(made, optimized=False).run(None, lower)[0].max() <= 0.25 + step / 2


def test_signed_activations_are_slow_on_x86() -> None:
    slow = "several times slower than with uint8"
    _, _, report = both("Conv", activations="int8", weights="int8")
    assert any(slow in warning for warning in report.warnings)
    _, _, report = both("Conv", activations="int8", weights="int8", target="arm")
    assert not any(slow in warning for warning in report.warnings)


def test_it_needs_quantized_activations_of_8_bits() -> None:
    with pytest.raises(quantize_rs.OptionError, match="calibrate, with samples"):
        quantize_rs.quantize(model("Conv"), None, output_format="qoperator")
    with pytest.raises(quantize_rs.OptionError, match="expected int8 or uint8"):
        both("Conv", activations="uint16")
    with pytest.raises(quantize_rs.OptionError, match="target is tensorrt"):
        both("Conv", target="tensorrt")
    with pytest.raises(quantize_rs.OptionError, match="weights is int4"):
        both("Conv", weights="int4")


def test_nothing_to_write_is_said() -> None:
    alone = graphs.built([node("Exp", "x", "y")], {}, [1, 4])
    data = samples([1, 4])
    report = quantize_rs.quantize_with_calibration(
        alone, None, data, output_format="qoperator", target="generic"
    )
    assert any("no node could be written" in warning for warning in report.warnings)


def test_a_node_that_nothing_reads_is_removed() -> None:
    unread = node("Conv", "x w", "unread", pads=[1, 1, 1, 1])
    model = graphs.built([CONV, unread, node("Relu", "c", "y")], FILTERS, SHAPE)
    report = quantize_rs.quantize_with_calibration(
        model, None, samples(SHAPE), output_format="qoperator"
    )
    assert report.model is not None
    written = Counter(found.op_type for found in onnx.load_from_string(report.model).graph.node)
    assert (written["QLinearConv"], written["Conv"]) == (1, 0)


def test_the_digits_example(tmp_path: Path) -> None:
    digits = quantize_rs.examples.digits()
    path = tmp_path / "digits.onnx"
    report = quantize_rs.quantize_with_calibration(
        digits.model, path, digits.calibration, output_format="qoperator", target="x86-avx2"
    )
    assert report.output_check is not None
    assert (report.output_check.sqnr_db or 0) > 25
    assert quantize_rs.validate(digits.model, path).passed
    assert "com.microsoft::QGemm" in quantize_rs.model_info(path).operators
    assert quantize_rs.model_info(path).quantized


def test_another_padding_value_is_found() -> None:
    _, data, _ = both("moves")
    proto = onnx.load_from_string(data)
    pad = next(node for node in proto.graph.node if node.op_type == "Pad")
    wrong = onnx.numpy_helper.from_array(np.array(7, np.uint8), "wrong")
    proto.graph.initializer.append(wrong)
    pad.input[2] = "wrong"
    found = quantize_rs.validate(model("moves"), proto.SerializeToString())
    assert not found.passed
    assert "not the zero point" in str(found)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pads"), [(5, 4, [1] * 4), (3, 2, [0] * 4), (3, 2, [1] * 4)]
)
def test_averages_of_cut_windows_with_padding_stay_float(
    kernel: int, stride: int, pads: list[int], form: str
) -> None:
    """ONNX Runtime's integer kernel divides by another count there."""
    pool = helper.make_node(
        "AveragePool",
        ["c"],
        ["l"],
        "pool",
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=pads,
        ceil_mode=1,
        count_include_pad=1,
    )
    constants = {name: FILTERS[name] for name in ("w", "b", "w2")}
    pooled = graphs.built([CONV, pool, LAST], constants, SHAPE)
    x = samples(SHAPE)
    report = quantize_rs.quantize_with_calibration(
        pooled, None, x, output_format=form, include=["*"], allow_larger=True
    )
    assert report.model is not None
    exact = oracle.session(pooled, optimized=False).run(None, {"x": x[:1]})[0]
    for optimized in (False, True):
        found = oracle.session(report.model, optimized=optimized).run(None, {"x": x[:1]})[0]
        assert np.abs(found - exact).max() < 0.1


def quantized_before(scale: list[float] | float, zero: int, between: onnx.NodeProto) -> bytes:
    """Make a model whose author has quantized the values around a node."""
    point = np.full(np.shape(scale), zero, np.uint8)
    constants = {"w": FILTERS["w"], "b": FILTERS["b"], "w2": FILTERS["w2"]}
    nodes = [CONV]
    for value in ("c", "m"):
        nodes.append(node("QuantizeLinear", f"{value} s z", f"{value}q"))
        nodes.append(node("DequantizeLinear", f"{value}q s z", f"{value}d"))
    nodes.insert(3, between)
    nodes.append(node("Conv", "md w2", "y"))
    proto = onnx.load_from_string(graphs.built(nodes, constants, SHAPE))
    for name, array in (("s", np.array(scale, np.float32)), ("z", point)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("scale", "zero", "between"),
    [
        (-0.05, 128, node("MaxPool", "cd", "m", kernel_shape=[2, 2])),
        ([0.05], 128, node("Add", "cd cd", "m")),
        ([0.05], 128, node("Mul", "cd cd", "m")),
        ([0.05], 128, node("LeakyRelu", "cd", "m", alpha=0.1)),
    ],
)
def test_odd_scales_of_the_original_are_not_read_as_integers(
    scale: list[float] | float, zero: int, between: onnx.NodeProto
) -> None:
    original, x = quantized_before(scale, zero, between), samples(SHAPE)
    runs = []
    for form in ("qdq", "qoperator"):
        report = quantize_rs.quantize_with_calibration(
            original, None, x, output_format=form, allow_larger=True, weight_algorithm="nearest"
        )
        assert report.model is not None
        runs.append(oracle.session(report.model, optimized=False).run(None, {"x": x[:1]})[0])
    assert np.abs(runs[0] - runs[1]).max() < 0.1
