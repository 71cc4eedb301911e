"""Which constants are weights, in any scope and of any float type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from graphs import built
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

Array = npt.NDArray[Any]

RNG = np.random.default_rng(20)

# A step of 8 bits is 2/255 of the largest magnitude. The error of rounding is at most half a step,
# and 1/sqrt(12) of it on average: 40 dB for normal weights up to 4 sigma, which sums over
# independent errors keep. Recurrent layers accumulate errors: 10 dB are allowed for that.
EIGHT_BITS = 30.0


def normal(*shape: int, dtype: Any = np.float32, scale: float = 0.3) -> Array:
    made: Array = (RNG.standard_normal(shape) * scale).astype(dtype)
    return made


def model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    inputs: dict[str, Array],
    outputs: list[str],
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
) -> bytes:
    """A model whose inputs look like these arrays."""
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 9)
    whole: bytes = onnx.shape_inference.infer_shapes(made).SerializeToString()
    return whole


def quantized(source: bytes, **options: Any) -> tuple[bytes, quantize_rs.Report]:
    report = quantize_rs.quantize(source, None, **options)
    assert report.model is not None
    return report.model, report


def decibels(source: bytes, found: bytes, feeds: dict[str, Array]) -> float:
    """The SQNR of a model against its source: the worse of runs with and without optimizations."""
    expected = oracle.ort(source, feeds)
    return min(
        oracle.sqnr(expected, oracle.ort(found, feeds, optimized=optimized))
        for optimized in (True, False)
    )


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op_type: str, directions: int, hidden: int = 64) -> tuple[bytes, dict[str, Array]]:
    rows = GATES[op_type] * hidden
    constants = {
        "w": normal(directions, rows, 48),
        # Rows of very different magnitudes, for which one scale is too coarse.
        "r": normal(directions, rows, hidden, scale=0.1) * np.geomspace(0.1, 1, rows)[:, None],
        "b": normal(directions, 2 * rows),
    }
    constants["r"] = constants["r"].astype(np.float32)
    feeds = {"x": normal(7, 2, 48, scale=1)}
    node = helper.make_node(
        op_type,
        ["x", "w", "r", "b"],
        ["y"],
        name="cell",
        hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward",
    )
    return model([node], constants, feeds, ["y"]), feeds


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_weights_have_a_scale_for_each_direction_and_gate_row(
    op_type: str, directions: int, symmetric: bool
) -> None:
    source, feeds = recurrent(op_type, directions)
    found, report = quantized(source, per_channel=True, symmetric=symmetric)
    assert {value.name for value in report.weights if value.quantized} == {"w", "r"}
    scales = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(found).graph.initializer
        if tensor.name.endswith("_scale")
    }
    rows = directions * GATES[op_type] * 64
    assert [scales["w_scale"].size, scales["r_scale"].size] == [rows, rows]
    fine = decibels(source, found, feeds)
    coarse, _ = quantized(source, per_channel=False, symmetric=symmetric)
    assert fine > EIGHT_BITS
    assert fine > decibels(source, coarse, feeds)


def test_a_recurrent_file_is_a_quarter() -> None:
    source, feeds = recurrent("LSTM", 1, hidden=512)
    for per_channel in (False, True):
        found, _ = quantized(source, per_channel=per_channel)
        # Scales and zero points of 4096 rows take 1 % more.
        assert len(source) / len(found) > (3.85 if per_channel else 3.9)
        assert decibels(source, found, feeds) > EIGHT_BITS - 10 * (not per_channel)


def test_what_a_recurrent_node_remembers_stays_float_beside_quantized_activations() -> None:
    source, feeds = recurrent("GRU", 2)
    report = quantize_rs.quantize_with_calibration(source, None, [feeds], per_channel=True)
    assert report.model is not None
    assert {value.name for value in report.values if value.quantized} == {"w", "r"}
    assert decibels(source, report.model, feeds) > EIGHT_BITS


EQUATIONS = {
    # equation: shapes of what comes in and of the weight, its axis of output channels
    "bsd,dh->bsh": ((2, 5, 16), (16, 24), 1),
    "bsd,hd->bsh": ((2, 5, 16), (24, 16), 0),
    "bsd,dnh->bsnh": ((2, 5, 16), (16, 4, 6), 2),
    "bnd,ndh->bnh": ((2, 3, 16), (3, 16, 8), 2),
    "...d,dh->...h": ((2, 5, 16), (16, 24), 1),
    "bd,bd->b": ((3, 16), (3, 16), None),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_channels_of_an_einsum_follow_from_its_equation(equation: str) -> None:
    shape, weight, axis = EQUATIONS[equation]
    feeds = {"x": normal(*shape, scale=1)}
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    source = model([node], {"w": normal(*weight)}, feeds, ["y"])
    found, report = quantized(source, per_channel=True)
    assert report.weights[0].axis == axis
    assert decibels(source, found, feeds) > EIGHT_BITS


@pytest.mark.parametrize("opset", [13, 19, 21])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_weights_are_dequantized_to_the_floats_of_the_model(
    dtype: str, per_channel: bool, opset: int
) -> None:
    feeds = {"x": normal(4, 32, dtype=dtype, scale=1)}
    # Small ones too: their scales are below the normal numbers of float16.
    constants = {"w": normal(32, 24, dtype=dtype), "v": normal(24, 8, dtype=dtype, scale=1e-3)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    number = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.DOUBLE
    source = model(nodes, constants, feeds, ["y"], opset=opset, dtype=number)
    found, report = quantized(source, per_channel=per_channel)
    assert all(value.quantized for value in report.weights)
    oracle.check(found)
    made = onnx.load_from_string(found).graph
    # From opset 19 on, scales may be float16, and there are kernels. Before, the dequantized weight
    # is cast. There are no float64 scales.
    direct = dtype == "float16" and opset >= 19
    assert [node.op_type for node in made.node].count("Cast") == (0 if direct else 2)
    kinds = {t.data_type for t in made.initializer if t.name.endswith("_scale")}
    assert kinds == {TensorProto.FLOAT16 if direct else TensorProto.FLOAT}
    assert decibels(source, found, feeds) > EIGHT_BITS


def test_nothing_is_cut_off_by_a_scale_of_float16() -> None:
    """The scale is rounded up to a float16: the largest weight stays within half a step."""
    feeds = {"x": normal(4, 64, dtype=np.float16, scale=1)}
    for exponent in range(-6, 3):
        weight = normal(64, 40, dtype=np.float16, scale=10.0**exponent)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        source = model([node], {"w": weight}, feeds, ["y"], opset=21, dtype=TensorProto.FLOAT16)
        for symmetric in (False, True):
            found, _ = quantized(source, per_channel=False, symmetric=symmetric)
            parts = {t.name: t for t in onnx.load_from_string(found).graph.initializer}
            q, scale, zero = (
                numpy_helper.to_array(parts[f"w_{part}"]) for part in ("quantized", "scale", "zp")
            )
            back = (q.astype(np.float64) - zero) * np.float64(scale)
            far = np.abs(back - weight.astype(np.float64)).max()
            # A zero point that is rounded moves the ends by another half.
            assert far <= float(scale) * (0.5 if symmetric else 1.0)


def test_weights_of_bfloat16_are_dequantized_through_float32() -> None:
    weight = normal(16, 8)
    bits = (weight.view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, [16, 8], bits.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["half", "w"], ["h"]),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    feeds = {"x": normal(4, 16, scale=1)}
    made = onnx.load_from_string(model(nodes, {}, feeds, ["y"], opset=21))
    made.graph.initializer.append(tensor)
    found, report = quantized(made.SerializeToString(), per_channel=True)
    assert report.weights[0].quantized
    graph = onnx.load_from_string(found).graph
    # ONNX Runtime has no bfloat16 products on CPUs, so the dequantized weight is checked alone.
    parts = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    zero = parts["w_zp"].astype(np.float32)
    back = (parts["w_quantized"].astype(np.float32) - zero) * parts["w_scale"]
    assert oracle.sqnr([exact], [back]) > EIGHT_BITS
    made_of = {node.output[0]: node for node in graph.node}
    assert made_of[made_of["w"].input[0]].op_type == "DequantizeLinear"


def test_half_precision_weights_stay_quantized_beside_float_activations() -> None:
    feeds = {"x": normal(4, 32, dtype=np.float16, scale=1)}
    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["g"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["g", "h"], ["y"]),
    ]
    constants = {
        "table": normal(9, 24, dtype=np.float16),
        "rows": np.array([1, 8, 3, 3]),
        "w": normal(32, 24, dtype=np.float16),
    }
    source = model(nodes, constants, feeds, ["y"], opset=21, dtype=TensorProto.FLOAT16)
    # Passes would replace the lookup of constant rows.
    report = quantize_rs.quantize_with_calibration(source, None, [feeds], optimize=False)
    assert report.model is not None
    assert {value.name for value in report.values if value.quantized} == {"table", "w"}
    assert "float32" in next(value.why for value in report.values if value.name == "x")
    assert decibels(source, report.model, feeds) > EIGHT_BITS


def test_a_weight_that_others_need_in_float_stays_beside_its_integers() -> None:
    feeds = {"x": normal(4, 32, scale=1)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceL2", ["w"], ["norm"], keepdims=0),
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    source = model(nodes, {"w": normal(32, 24)}, feeds, ["y", "norm", "w"])
    found, report = quantized(source, layer_bits={"w": 8})
    assert report.weights[0].quantized
    assert any("`w`" in warning and "3072 bytes" in warning for warning in report.warnings)
    expected, results = oracle.ort(source, feeds), oracle.ort(found, feeds)
    assert oracle.sqnr(expected[:1], results[:1]) > EIGHT_BITS
    for exact, same in zip(expected[1:], results[1:], strict=True):
        np.testing.assert_array_equal(exact, same)
    made = onnx.load_from_string(found).graph
    assert [n.op_type for n in made.node].count("DequantizeLinear") == 1
    integers = [t for t in made.initializer if t.data_type == TensorProto.INT8 and len(t.dims) == 2]
    assert len(integers) == 1


def test_tied_weights_are_one_tensor_of_integers() -> None:
    feeds = {"tokens": np.array([[3, 1, 4, 1, 5]])}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["h"]),
        helper.make_node("Transpose", ["table"], ["head"]),
        helper.make_node("MatMul", ["h", "head"], ["y"]),
    ]
    source = model(nodes, {"table": normal(90, 64)}, feeds, ["y"])
    found, report = quantized(source, per_channel=True)
    assert report.weights[0].axis == 0
    assert len(source) / len(found) > 3
    assert decibels(source, found, feeds) > EIGHT_BITS


REARRANGED: dict[str, tuple[tuple[int, ...], list[tuple[str, list[Array], dict[str, Any]]]]] = {
    "squeeze": ((1, 32, 24), [("Squeeze", [np.array([0])], {})]),
    "squeeze_all": ((32, 1, 24), [("Squeeze", [], {})]),
    "unsqueeze": ((32, 24), [("Unsqueeze", [np.array([0])], {})]),
    "there_and_back": (
        (24, 32),
        [
            ("Unsqueeze", [np.array([1])], {}),
            ("Reshape", [np.array([24, -1])], {}),
            ("Transpose", [], {"perm": [1, 0]}),
            ("Identity", [], {}),
        ],
    ),
}


@pytest.mark.parametrize("activations", [False, True], ids=["weights", "activations"])
@pytest.mark.parametrize("case", REARRANGED)
def test_a_weight_is_found_behind_what_rearranges_it(case: str, activations: bool) -> None:
    shape, steps = REARRANGED[case]
    constants, nodes, value = {"w": normal(*shape)}, [], "w"
    for index, (op_type, reads, attributes) in enumerate(steps):
        names = [f"{op_type}{index}_{read}" for read in range(len(reads))]
        constants.update(zip(names, reads, strict=True))
        nodes.append(helper.make_node(op_type, [value, *names], [f"v{index}"], **attributes))
        value = f"v{index}"
    feeds = {"x": normal(2, 4, 32, scale=1)}
    nodes.append(helper.make_node("MatMul", ["x", value], ["y"]))
    source = model(nodes, constants, feeds, ["y"])
    if activations:
        report = quantize_rs.quantize_with_calibration(source, None, [feeds], per_channel=True)
        assert report.model is not None
        # Weights and activations have errors.
        assert decibels(source, report.model, feeds) > EIGHT_BITS - 5
    else:
        found, report = quantized(source, per_channel=True)
        assert decibels(source, found, feeds) > EIGHT_BITS
        assert report.weights[0].axis is not None
    assert report.weights[0].quantized


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize("activations", [False, True], ids=["weights", "activations"])
def test_transposed_convolutions_with_groups(groups: int, bias: bool, activations: bool) -> None:
    feeds = {"x": normal(2, 8, 7, 7, scale=1)}
    constants = {"w": normal(8, 6, 3, 3)} | ({"b": normal(6 * groups)} if bias else {})
    node = helper.make_node("ConvTranspose", ["x", *constants], ["y"], group=groups)
    source = model([node], constants, feeds, ["y"])
    if activations:
        report = quantize_rs.quantize_with_calibration(source, None, [feeds], per_channel=True)
        assert report.model is not None
        found, floor = report.model, EIGHT_BITS - 5
    else:
        (found, report), floor = quantized(source, per_channel=True), EIGHT_BITS
    assert report.weights[0].axis == 1
    assert decibels(source, found, feeds) > floor


def inner(name: str, nodes: list[onnx.NodeProto], constants: dict[str, Array], **ends: Any) -> Any:
    """A graph inside a node."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        nodes,
        name,
        [info(end, kind, shape) for end, (kind, shape) in ends.get("inputs", {}).items()],
        [info(end, kind, shape) for end, (kind, shape) in ends["outputs"].items()],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )


def branches() -> tuple[bytes, dict[str, Array]]:
    """An If whose branches give their weights the same name; one has another If inside."""
    out = {"outputs": {"o": (TensorProto.FLOAT, None)}}
    deep = [
        inner(f"deep_{name}", [helper.make_node("MatMul", ["x", "w"], ["o"])], {"w": w}, **out)
        for name, w in [("then", normal(32, 16)), ("else", normal(32, 16))]
    ]
    for graph in deep:
        graph.output[0].name = graph.node[0].output[0] = f"{graph.name}_o"
    nested = helper.make_node("If", ["which"], ["o"], then_branch=deep[0], else_branch=deep[1])
    constant = numpy_helper.from_array(normal(32, 16))
    plain = [
        helper.make_node("Constant", [], ["w"], value=constant),
        helper.make_node("MatMul", ["x", "w"], ["h"], name="inside"),
        helper.make_node("MatMul", ["x", "outer"], ["i"]),
        helper.make_node("Add", ["h", "i"], ["p"]),
    ]
    branch = inner("plain", plain, {}, outputs={"p": (TensorProto.FLOAT, None)})
    node = helper.make_node(
        "If", ["condition"], ["y"], then_branch=branch, else_branch=inner("n", [nested], {}, **out)
    )
    feeds = {"x": normal(4, 32, scale=1), "condition": np.array(True), "which": np.array(False)}
    return model([node], {"outer": normal(32, 16)}, feeds, ["y"]), feeds


def test_weights_in_branches_are_weights_of_the_model() -> None:
    source, feeds = branches()
    found, report = quantized(source, per_channel=True)
    names = sorted(value.name for value in report.weights)
    assert names == ["outer", "w_lifted", "w_lifted_1", "w_lifted_2"]
    assert all(value.quantized and value.axis == 1 for value in report.weights)
    for condition in (True, False):
        for which in (True, False):
            feeds |= {"condition": np.array(condition), "which": np.array(which)}
            assert decibels(source, found, feeds) > EIGHT_BITS
    assert len(found) < len(source) / 2


def test_weights_in_branches_are_excluded_by_name_and_by_node() -> None:
    source, _ = branches()
    _, report = quantized(source, excluded_layers=["w_lifted_1", "inside"])
    kept = {value.name: value.why for value in report.weights if not value.quantized}
    assert len(kept) == 2
    assert all("excluded" in why for why in kept.values())
    _, report = quantized(source, layer_bits={"inside": "uint8"})
    assert [value.qtype for value in report.weights].count("uint8") == 1


def loop(op_type: str) -> tuple[bytes, dict[str, Array]]:
    """A state that a weight inside, and one outside through a Transpose, are multiplied by."""
    state = {"s": (TensorProto.FLOAT, [4, 16])}
    nodes = [
        helper.make_node("Transpose", ["outer"], ["t"]),
        helper.make_node("MatMul", ["s", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "t"], ["b"]),
        helper.make_node("Tanh", ["b"], ["r"]),
    ]
    constants = {"outer": normal(16, 16)}
    if op_type == "Loop":
        nodes.append(helper.make_node("Identity", ["c"], ["go"]))
        made = {"go": (TensorProto.BOOL, []), "r": (TensorProto.FLOAT, [4, 16])}
        turn: dict[str, Any] = {"i": (TensorProto.INT64, []), "c": (TensorProto.BOOL, [])}
        body = inner("body", nodes, {"w": normal(16, 16)}, inputs=turn | state, outputs=made)
        node = helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=body)
        constants |= {"count": np.array(3), "yes": np.array(True)}
        return model([node], constants, feeds := {"x": normal(4, 16, scale=1)}, ["y"]), feeds
    nodes.append(helper.make_node("Add", ["r", "e"], ["out"]))
    body = inner(
        "body",
        nodes,
        {"w": normal(16, 16)},
        inputs=state | {"e": (TensorProto.FLOAT, [4, 16])},
        outputs={"r": (TensorProto.FLOAT, [4, 16]), "out": (TensorProto.FLOAT, [4, 16])},
    )
    node = helper.make_node("Scan", ["x", "xs"], ["last", "y"], body=body, num_scan_inputs=1)
    feeds = {"x": normal(4, 16, scale=1), "xs": normal(5, 4, 16, scale=1)}
    return model([node], constants, feeds, ["y", "last"]), feeds


@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_weights_in_bodies_are_quantized(op_type: str) -> None:
    source, feeds = loop(op_type)
    found, report = quantized(source, per_channel=True)
    axes = {value.name: value.axis for value in report.weights if value.quantized}
    assert axes == {"w": 1, "outer": 0}
    assert decibels(source, found, feeds) > EIGHT_BITS - 5  # errors of several iterations


@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_bodies_compute_in_float_beside_quantized_activations(op_type: str) -> None:
    source, feeds = loop(op_type)
    report = quantize_rs.quantize_with_calibration(source, None, [feeds], engine="onnxruntime")
    assert report.model is not None
    assert {value.name for value in report.values if value.quantized} == {"w", "outer"}
    assert decibels(source, report.model, feeds) > EIGHT_BITS - 5


def trained(qtype: str, axis: int | None, *, zero: bool) -> tuple[bytes, dict[str, Array]]:
    """What training with quantization in mind exports: Q and DQ around float weights."""
    weight = normal(32, 24)
    shape = () if axis is None else (weight.shape[axis],)
    scale = RNG.uniform(0.002, 0.004, shape).astype(np.float32)  # some weights are cut off
    point = RNG.integers(0, 9, shape).astype(qtype)
    constants = {"w": weight, "s": scale, "xs": np.float32(0.03), "xz": np.uint8(120)}
    around = ["s", "z"] if zero else ["s"]
    constants |= {"z": point} if zero else {}
    along = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("QuantizeLinear", ["w", *around], ["wq"], **along),
        helper.make_node("DequantizeLinear", ["wq", *around], ["wd"], **along),
        helper.make_node("MatMul", ["xd", "wd"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    feeds = {"x": normal(4, 32, scale=1)}
    return model(nodes, constants | {"v": normal(24, 8)}, feeds, ["y"], opset=21), feeds


TRAINED = [("uint8", None, True), ("int8", 0, True), ("int8", 1, True), ("uint8", 1, False)]


@pytest.mark.parametrize(("qtype", "axis", "zero"), [*TRAINED, ("int16", None, True)])
def test_weights_that_the_model_quantizes_itself_are_stored_as_its_integers(
    qtype: str, axis: int | None, zero: bool
) -> None:
    source, feeds = trained(qtype, axis, zero=zero)
    found, report = quantized(source, excluded_layers=["v"])
    assert not report.quantized
    assert not any("nothing was quantized" in warning for warning in report.warnings)
    graph = onnx.load_from_string(found).graph
    assert [node.op_type for node in graph.node].count("QuantizeLinear") == 1
    assert "w" not in {tensor.name for tensor in graph.initializer}
    # ONNX Runtime 1.31 cannot optimize a product with scales along the summed axis.
    for optimized in (True, False) if axis != 0 else (False,):
        before = oracle.ort(source, feeds, optimized=optimized)
        np.testing.assert_array_equal(before, oracle.ort(found, feeds, optimized=optimized))
    # Other weights are still quantized.
    found, report = quantized(source)
    assert [value.name for value in report.quantized] == ["v"]
    if axis != 0:
        assert decibels(source, found, feeds) > EIGHT_BITS


@pytest.mark.parametrize("activations", [False, True], ids=["weights", "activations"])
def test_what_is_quantized_is_not_quantized_again(activations: bool) -> None:
    feeds = {"x": normal(4, 32, scale=1)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "b"], ["y"]),
    ]
    constants = {"w": normal(32, 24), "v": normal(24, 8), "b": normal(8)}
    source = model(nodes, constants, feeds, ["y"], opset=21)

    def once(given: bytes) -> tuple[bytes, quantize_rs.Report]:
        if not activations:
            return quantized(given, per_channel=True)
        report = quantize_rs.quantize_with_calibration(given, None, [feeds], engine="onnxruntime")
        assert report.model is not None
        return report.model, report

    first, report = once(source)
    assert report.quantized
    second, report = once(first)
    assert not report.quantized
    assert second == first
    third, report = quantized(first)
    assert not report.quantized
    assert third == first


def test_a_table_of_attention_biases_with_minus_infinity_stays_float() -> None:
    table = normal(8, 24)
    table[7] = -np.inf  # the row of a masked position, which no sample reads
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "v"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    feeds = {"ids": np.arange(7, dtype=np.int64)}
    source = model(nodes, {"table": table, "v": normal(24, 16)}, feeds, ["y"])
    samples = [{"ids": np.roll(feeds["ids"], shift)} for shift in range(4)]
    report = quantize_rs.quantize_with_calibration(source, None, samples, target="x86-avx2")
    rows = {value.name: value for value in report.weights}
    assert (rows["table"].quantized, rows["v"].quantized) == (False, True)
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    assert report.output_check.sqnr_db > 35


def test_two_bits_in_rows_that_are_no_whole_bytes_stay_right_in_onnxruntime() -> None:
    feeds = {"x": normal(16, 64, scale=1)}
    for columns, quantized in ((12, True), (10, False), (13, False)):
        for op_type in ("MatMul", "Gemm"):
            node = helper.make_node(op_type, ["x", "w"], ["y"])
            source = model([node], {"w": normal(64, columns)}, feeds, ["y"], opset=25)
            report = quantize_rs.quantize(source, None, bits=2)
            (weight,) = report.weights
            assert weight.quantized == quantized
            assert quantized or "matmul_nbits" in weight.why
            assert report.model is not None
            wanted = oracle.ort(report.model, feeds, optimized=False)
            assert oracle.sqnr(wanted, oracle.ort(report.model, feeds)) > 30


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_weights_that_are_not_finite_stay_float_with_a_warning(bad: float) -> None:
    weight = normal(32, 24)
    weight[3, 5] = bad
    feeds = {"x": normal(4, 32, scale=1)}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    source = model(nodes, {"w": weight, "v": normal(32, 24)}, feeds, ["y", "r"])
    report = quantize_rs.quantize(source, None)
    rows = {value.name: value for value in report.weights}
    assert (rows["w"].quantized, rows["v"].quantized) == (False, True)
    assert rows["w"].why.startswith("not quantized: is not finite: element 77")
    assert any("not finite: `w` (element 77" in warning for warning in report.warnings)
    assert report.model is not None
    stored = onnx.load_from_string(report.model).graph.initializer
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in stored}
    assert np.array_equal(kept["w"], weight, equal_nan=True)
    # What was asked for by name cannot be done.
    for named in ({"include": ["w"]}, {"layer_bits": {"w": 8}}):
        with pytest.raises(quantize_rs.QuantizeError, match=r"(?s)`w`.*77.*exclude"):
            quantize_rs.quantize(source, None, **named)


@pytest.mark.parametrize(
    "options",
    [
        {"symmetric": True, "per_channel": True},
        {"bits": 4, "block_size": 16},
        {"bits": 16},
        {"weights": "float8"},
    ],
    ids=str,
)
def test_the_largest_numbers_of_float16_stay_finite(options: dict[str, Any]) -> None:
    w = normal(64, 24, dtype=np.float16)
    w[0, 0], w[5, 3] = 65504, -65504
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3, 24])],
        [numpy_helper.from_array(w, "w")],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    report = quantize_rs.quantize(source, None, **options)
    assert report.model is not None
    assert [value.quantized for value in report.weights] == [True]
    found = onnx.load_from_string(report.model)
    (back,) = (node for node in found.graph.node if node.op_type == "DequantizeLinear")
    del found.graph.node[:], found.graph.output[:], found.graph.input[:]
    found.graph.node.append(back)
    found.graph.output.append(
        helper.make_tensor_value_info(back.output[0], TensorProto.FLOAT16, None)
    )
    (floats,) = oracle.ort(found.SerializeToString(), {}, optimized=False)
    assert np.isfinite(floats).all()
    assert floats[0, 0] > 60000
    assert floats[5, 3] < -60000


def test_a_model_of_which_nothing_is_quantized_comes_out_as_it_was() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Conv", ["same", "w"], ["y"]),
    ]
    source = model(nodes, {"w": normal(4, 3, 3, 3)}, {"x": normal(1, 3, 8, 8)}, ["y"])
    found, report = quantized(source, output_format="matmul_nbits")
    assert not report.quantized
    assert not report.steps
    assert found == source


def test_a_table_that_a_slice_reads_is_quantized() -> None:
    """Position embeddings, of which a model takes as many rows as there are tokens."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.normal(0, 1, (512, 64)),
        "w": rng.normal(0, 0.1, (64, 64)),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "one", "two"], ["length"]),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["y"]),
    ]
    model = built(nodes, constants, ["n", "length", 64])
    data = rng.normal(0, 1, (8, 9, 64)).astype(np.float32)
    expected = oracle.ort(model, {"x": data})
    made = {
        "weights": quantize_rs.quantize(model, None),
        "dynamic": quantize_rs.quantize(model, None, output_format="dynamic"),
        "static": quantize_rs.quantize_with_calibration(model, None, data),
        "qnn": quantize_rs.quantize_with_calibration(model, None, data, target="qnn"),
    }
    for way, report in made.items():
        (row,) = (value for value in report.values if value.name == "table")
        assert row.quantized, way
        assert report.bytes_after < 0.3 * report.bytes_before, way
        assert report.model is not None
        assert oracle.sqnr(expected, oracle.ort(report.model, {"x": data})) > 30, way
        assert quantize_rs.validate(model, report.model).passed, way


def heavy_tailed() -> bytes:
    """Six convolutions whose weights have outliers, for which 4 bits are too few."""
    rng = np.random.default_rng(0)
    constants, nodes, value = {}, [], "x"
    for layer in range(6):
        inputs = 16 if layer else 3
        constants[f"w{layer}"] = 0.1 * rng.standard_t(2.5, (16, inputs, 3, 3))
        nodes += [
            helper.make_node("Conv", [value, f"w{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{layer}"], ["y" if layer == 5 else f"r{layer}"]),
        ]
        value = f"r{layer}"
    return built(nodes, constants, ["n", 3, 16, 16])


def test_convolutions_get_8_bits_where_4_are_measured_to_be_too_few() -> None:
    model = heavy_tailed()
    report = quantize_rs.quantize(model, None, bits=4)
    assert {row.qtype for row in report.values if row.role == "weight"} == {"int8"}
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    assert report.output_check.sqnr_db > 20
    (warning,) = report.warnings
    assert warning.startswith("5 weights of Conv get 8 bits: with 4 bits an output had an SQNR of")
    assert "block_size=32 of `quantize` makes 4 bits more accurate" in warning
    (warning,) = quantize_rs.quantize(model, None, bits=2, block_size=16).warnings
    assert "block_size" not in warning
    bytes_each = quantize_rs.quantize(model, None, bits=4, native_int4=False).warnings
    assert any(text.startswith("5 weights of Conv get 8 bits") for text in bytes_each)
    # An option for convolutions decides, and without a check nothing is known.
    asked = quantize_rs.quantize(model, None, bits=4, layer_bits={"Conv": 4})
    assert [row.qtype for row in asked.values if row.role == "weight"] == ["int4"] * 6
    # The first kernel sums few elements.
    asked = quantize_rs.quantize(model, None, bits=4, check="none")
    assert [row.qtype for row in asked.values if row.role == "weight"] == ["int8", *["int4"] * 5]


def chooser(seed: int) -> bytes:
    """The best 100 boxes by scores whose order the least error changes."""
    rng = np.random.default_rng(seed)
    shapes = {"w0": (32, 3, 3, 3), "w1": (64, 32, 3, 3), "ws": (8, 64, 1, 1), "wb": (32, 64, 3, 3)}
    constants: dict[str, Any] = {
        name: rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        for name, shape in shapes.items()
    }
    constants |= {"flat": np.array([-1]), "four": np.array([-1, 4]), "k": np.array([100])}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "ws"], ["s"]),
        helper.make_node("Reshape", ["s", "flat"], ["scores"]),
        helper.make_node("Conv", ["r1", "wb"], ["b"], pads=[1] * 4),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["t", "four"], ["boxes"]),
        helper.make_node("TopK", ["scores", "k"], ["best", "rows"], axis=0),
        helper.make_node("Gather", ["boxes", "rows"], ["y"], axis=0),
    ]
    return built(nodes, constants, [1, 3, 32, 32])


def test_convolutions_keep_4_bits_where_8_gain_little() -> None:
    model = chooser(1)
    report = quantize_rs.quantize(model, None, bits=4)
    assert report.output_check is not None
    assert report.output_check.sqnr_db is not None
    assert report.output_check.sqnr_db < 10
    types = {row.name: row.qtype for row in report.values if row.role == "weight"}
    # The first kernel sums few elements.
    assert types == {"w0": "int8", "w1": "int4", "ws": "int4", "wb": "int4"}
    assert not any("get 8 bits" in warning for warning in report.warnings)


@pytest.mark.parametrize(("bits", "symmetric"), [(2, True), (3, False), (4, False), (8, False)])
def test_weights_alone_have_zero_points(bits: int, symmetric: bool) -> None:
    """Nothing computes on their integers. Two bits are worse with zero points."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    made = built(nodes, {"w": normal(64, 64)}, ["n", 64])
    report = quantize_rs.quantize(made, None, bits=bits, layer_bits={"w": bits})
    (row,) = report.weights
    assert row.symmetric is symmetric


def test_indices_that_two_tables_share_stay_where_scales_of_rows_are_taken() -> None:
    indices = np.arange(1 << 17, dtype=np.int64) % 20
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["a"]),
        helper.make_node("Gather", ["u", "j"], ["b"]),
        helper.make_node("MatMul", ["a", "w"], ["c"]),
        helper.make_node("Mul", ["b", "x"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["e"]),
        helper.make_node("Add", ["c", "e"], ["y"]),
    ]
    tables = {"t": normal(3000, 16), "u": normal(3000, 16)}
    constants = {"i": indices, "j": indices, "w": normal(16, 4), "v": normal(16, 4)}
    model, x = built(nodes, tables | constants, [16]), {"x": normal(16)}
    report = quantize_rs.quantize_with_calibration(model, None, x, check="none")
    assert report.model is not None
    assert {value.name for value in report.quantized} >= {"t", "u"}
    assert oracle.sqnr(oracle.ort(model, x), oracle.ort(report.model, x)) > EIGHT_BITS
