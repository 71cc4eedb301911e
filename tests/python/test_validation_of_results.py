"""`validate` passes what `quantize` writes, whatever the format and the samples made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import built
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import validate

RNG = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def perceptron() -> bytes:
    """Two layers whose weights `dynamic` stores transposed."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"], "second", transB=1),
    ]
    constants = {"w": normal(64, 64, scale=0.125), "v": normal(32, 64, scale=0.125)}
    return built(nodes, constants | {"b": normal(64), "c": normal(32)}, ["n", 64])


def samples(width: int = 64) -> list[dict[str, Any]]:
    sizes = np.linspace(0.05, 3, width, dtype=np.float32)
    return [{"x": normal(4, width) * sizes} for _ in range(40)]


def passes(model: bytes | Path, report: quantize_rs.results.Report) -> None:
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)
    assert {weight.name for weight in found.weights} == {value.name for value in report.quantized}


@pytest.mark.parametrize("options", [{}, {"per_channel": False}, {"weights": "uint8"}], ids=str)
def test_integers_that_a_format_transposes_keep_their_mark(options: dict[str, Any]) -> None:
    model = perceptron()
    report = quantize_rs.quantize(
        model, None, output_format="dynamic", calibration_data=samples(), **options
    )
    assert any(weight.rounded_by for weight in report.weights)
    passes(model, report)
    assert report.model is not None
    changed = onnx.load_from_string(report.model)
    integers = next(it for it in changed.graph.initializer if "rounded with" in it.doc_string)
    values = np.array(numpy_helper.to_array(integers))
    values.flat[7] ^= 1
    integers.raw_data = values.tobytes()
    assert not validate(model, changed).passed


@pytest.mark.parametrize("width", [24, 48, 64])
@pytest.mark.parametrize("bits", [3, 4])
def test_rows_of_a_table_without_their_padding_keep_their_mark(width: int, bits: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "rows"], ["y"], "table"),
    ]
    model = built(nodes, {"w": normal(50, width)}, ["n"])
    passes(model, quantize_rs.quantize(model, None, bits=bits, output_format="matmul_nbits"))


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_a_bias_that_is_subtracted_may_be_corrected(operator: str) -> None:
    if operator == "MatMul":
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
            helper.make_node("Add", ["h", "b"], ["y"], "sum"),
        ]
        bias = normal(32)
    else:
        nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product")]
        bias = np.array(0.7, np.float32)
    model = built(nodes, {"w": normal(64, 32, scale=0.125), "b": bias}, ["n", 64])
    report = quantize_rs.quantize(model, None, calibration_data=samples())
    assert [step.name for step in report.steps][-1] == "subtract_bias"
    passes(model, report)
    assert report.model is not None
    wrong = onnx.load_from_string(report.model)
    tensor = next(it for it in wrong.graph.initializer if it.name.endswith("_corrected"))
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(32, np.float32), tensor.name))
    assert not validate(model, wrong).passed


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_16_bits_are_as_exact_as_float32(seed: int) -> None:
    weight = (np.random.default_rng(seed).normal(size=(256, 1024)) / 16).astype(np.float32)
    model = built([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, ["n", 256])
    passes(model, quantize_rs.quantize(model, None, weights="uint16", check="none"))


@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bits": 4, "block_size": 32}, {"bits": 16}, {"weights": "float16"}, {"samples": True}],
    ids=str,
)
def test_results_in_16_bit_floats_pass(
    float_type: str, options: dict[str, Any], digits: Path, images: Path
) -> None:
    given = {name: value for name, value in options.items() if name != "samples"}
    if "samples" in options:
        given["calibration_data"] = images
    report = quantize_rs.quantize(digits, None, float_type=float_type, allow_larger=True, **given)
    assert report.model is not None
    found = validate(digits, report.model)
    assert found.passed, str(found)


@pytest.mark.parametrize("weights", ["int8", "float16"])
def test_a_table_in_16_bit_floats_passes(weights: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "rows"], ["y"], "table"),
    ]
    model = built(nodes, {"w": normal(50, 64)}, ["n"])
    report = quantize_rs.quantize(model, None, weights=weights, float_type="float16")
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)


@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "options", [{}, {"weights": "float16"}, {"bits": 4, "output_format": "matmul_nbits"}], ids=str
)
def test_what_is_cast_around_a_subgraph_passes(float_type: str, options: dict[str, Any]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 64] x, bool c) => (float[n, 16] y) {
        h = MatMul(x, w)
        y = If (c) <
            then_branch = t() => (float[n, 16] p) { p = MatMul(h, v) },
            else_branch = e() => (float[n, 16] q) { q = Neg(h) }
        >
    }""")
    for name, shape in (("w", (64, 16)), ("v", (16, 16))):
        tensor = numpy_helper.from_array(normal(*shape, scale=0.25), name)
        model.graph.initializer.append(tensor)
    report = quantize_rs.quantize(model, None, float_type=float_type, allow_larger=True, **options)
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)
    # A branch that reads something else is still found.
    wrong = onnx.load_from_string(report.model)
    (choice,) = (node for node in wrong.graph.node if node.op_type == "If")
    product = next(node for node in wrong.graph.node if node.op_type.startswith("MatMul"))
    branch = next(it for it in choice.attribute if it.name == "else_branch")
    branch.g.node[0].input[0] = product.input[0]
    assert not validate(model, wrong).passed


PRUNED: list[dict[str, Any]] = [
    {"sparsity": 0.5},
    {"prune": 0.05},
    {"sparsity": 0.5, "bits": 4, "block_size": 16},
    {"sparsity": 0.5, "bits": 4, "output_format": "matmul_nbits"},
    {"sparsity": 0.5, "output_format": "dynamic"},
    {"sparsity": 0.5, "weights": "float16"},
]


@pytest.mark.parametrize("options", PRUNED, ids=str)
def test_pruned_weights_are_to_be_compared_with_the_pruned_model(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = perceptron()
    report = quantize_rs.quantize(model, None, **options)
    assert report.model is not None
    found = validate(model, report.model)
    assert len(found.problems) == 2
    assert all("compare with the pruned model" in problem.what for problem in found.problems)
    below = {"sparsity": options.get("sparsity"), "threshold": options.get("prune")}
    given: Any = {name: value for name, value in below.items() if value is not None}
    quantize_rs.prune(model, tmp_path / "pruned.onnx", **given)
    passes(tmp_path / "pruned.onnx", report)


def test_a_wrong_integer_beside_pruned_ones_is_named() -> None:
    model = perceptron()
    report = quantize_rs.quantize(model, None, sparsity=0.5)
    assert report.model is not None
    changed = onnx.load_from_string(report.model)
    integers = next(it for it in changed.graph.initializer if it.name == "w_quantized")
    values = np.array(numpy_helper.to_array(integers))
    values.flat[np.argmax(np.abs(values))] //= 2
    integers.CopyFrom(numpy_helper.from_array(values, integers.name))
    problems = [it for it in validate(model, changed).problems if it.name.startswith("w_")]
    assert problems
    assert not any("pruned" in problem.what for problem in problems)


def test_one_matrix_may_be_read_as_integers_and_dequantized() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "rows"], ["h"], "table"),
        helper.make_node("Transpose", ["w"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["a"], "scores"),
        helper.make_node("Gemm", ["h", "w"], ["b"], "product", transB=1),
        helper.make_node("Add", ["a", "b"], ["y"], "sum"),
    ]
    model = built(nodes, {"w": normal(64, 64, scale=0.3)}, ["n"])
    rows = [{"x": np.arange(at, at + 5, dtype=np.float32)} for at in range(8)]
    report = quantize_rs.quantize_with_calibration(model, None, rows, output_format="qoperator")
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)
    wrong = onnx.load_from_string(report.model)
    tensor = next(it for it in wrong.graph.initializer if it.name.startswith("w_bias"))
    values = np.array(numpy_helper.to_array(tensor))
    values[3] += 100_000
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    assert not validate(model, wrong).passed


def embedded(reader: str) -> bytes:
    """A table whose rows are multiplied, and read in float by another node."""
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["rows"], "embed"),
        helper.make_node("MatMul", ["rows", "w"], ["m"], "first"),
    ]
    if reader == "Shape":
        nodes.append(helper.make_node("Shape", ["rows"], ["shape"]))
        nodes.append(helper.make_node("ConstantOfShape", ["shape"], ["zeros"]))
        nodes.append(helper.make_node("Add", ["zeros", "m"], ["h"]))
    else:
        nodes.append(helper.make_node("Add", ["rows", "m"], ["h"]))
    nodes.append(helper.make_node("MatMul", ["h", "head"], ["y"], "last"))
    constants = {"table": normal(200, 32), "w": normal(32, 32), "head": normal(32, 200)}
    return built(nodes, constants, ["n", 4])


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
@pytest.mark.parametrize("reader", ["Add", "Shape"])
def test_rows_of_a_table_may_be_read_in_float_too(reader: str, output_format: str) -> None:
    model = embedded(reader)
    data = [{"x": RNG.integers(0, 200, (1, 4)).astype(np.float32)} for _ in range(32)]
    report = quantize_rs.quantize_with_calibration(model, None, data, output_format=output_format)
    assert report.model is not None
    made = onnx.load_from_string(report.model)
    assert any("rows_quantized" in node.output for node in made.graph.node)
    found = validate(model, report.model)
    assert found.passed, str(found)
    # A scale for each row has to be that of the row.
    scales = next(n for n in made.graph.node if n.op_type == "Gather" and "scale" in n.input[0])
    made.graph.node.add(op_type="Add", input=[scales.input[1]] * 2, output=["others"])
    scales.input[1] = "others"
    wrong = quantize_rs.open(sorted_nodes(made).SerializeToString())
    assert "connectivity" in {problem.check for problem in validate(model, wrong).problems}


def sorted_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its last node before the node that reads its output."""
    last = model.graph.node.pop()
    at = next(i for i, node in enumerate(model.graph.node) if last.output[0] in node.input)
    model.graph.node.insert(at, last)
    return model


@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_an_output_that_another_layer_reads_may_be_cast(bits: int, float_type: str) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["features"], "encoder"),
        helper.make_node("Gemm", ["features", "v", "c"], ["y"], "head"),
    ]
    constants = {"w": normal(64, 64), "b": normal(64), "v": normal(64, 96), "c": normal(96)}
    model = onnx.load_from_string(built(nodes, constants, ["n", 64]))
    model.graph.output.add(name="features").type.tensor_type.elem_type = TensorProto.FLOAT
    source = bytes(model.SerializeToString())
    report = quantize_rs.quantize(
        source,
        None,
        bits=bits,
        output_format="matmul_nbits",
        float_type=float_type,
        allow_larger=True,
    )
    passes(source, report)
    assert report.model is not None
    made = onnx.load_from_string(report.model)
    (head,) = (
        it for it in made.graph.node if it.op_type == "MatMulNBits" and "v_quantized" in it.input
    )
    assert head.input[0].startswith("features")
    head.input[0] = next(it.input[0] for it in made.graph.node if "w_quantized" in it.input)
    assert not validate(source, made)


@pytest.mark.parametrize("float_type", ["float16", "bfloat16"])
def test_casts_without_an_effect_may_disappear(float_type: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Cast", ["h"], ["c"], "same", to=TensorProto.FLOAT),
        helper.make_node("Less", ["c", "zero"], ["low"], "less"),
        helper.make_node("Cast", ["low"], ["mask"], "mask", to=TensorProto.BOOL),
        helper.make_node("Where", ["mask", "zero", "c"], ["y"], "where"),
    ]
    model = built(nodes, {"w": normal(64, 64), "zero": np.zeros(())}, ["n", 64])
    report = getattr(quantize_rs, f"convert_{float_type}")(model)
    found = validate(model, report.model)
    assert found.passed, str(found)
    wrong = onnx.load_from_string(report.model)
    next(node for node in wrong.graph.node if node.op_type == "Where").input[2] = "zero"
    assert not validate(model, wrong)


@pytest.mark.parametrize("bias", [1.0, 0.0])
def test_a_smoothed_scale_may_be_stored_as_integers(bias: float) -> None:
    """Accelerators quantize the scale of a normalization, and so the factors that it took."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "w"], ["y"], "product"),
    ]
    scale = np.linspace(0.1, 2, 64)
    constants = {"g": scale, "b": bias * normal(64), "w": normal(64, 32) / scale[:, None]}
    model = built(nodes, constants, ["n", 64])
    report = quantize_rs.quantize_with_calibration(
        model, None, samples(), target="qnn", allow_larger=True
    )
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)
    wrong = onnx.load_from_string(report.model)
    stored = next(it for it in wrong.graph.initializer if it.name == "g_quantized")
    integers = numpy_helper.to_array(stored).astype(np.int32)
    change = np.where(integers > 0, integers - 40, integers + 40).astype(np.int8)
    stored.CopyFrom(numpy_helper.from_array(change, stored.name))
    if bias:
        assert not validate(model, wrong)


def test_what_optimizing_folds_passes() -> None:
    """A normalization before a convolution that adds no padding."""
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "o", "m", "v"], ["a"], "norm"),
        helper.make_node("Conv", ["a", "w", "b"], ["y"], "conv"),
    ]
    constants = {name: 1 + np.abs(normal(8)) for name in "somv"}
    constants |= {"w": normal(8, 8, 3, 3), "b": normal(8)}
    model = built(nodes, constants, ["n", 8, 12, 12])
    report = quantize_rs.optimize(model)
    assert report.nodes_after == 1
    assert report.model is not None
    found = validate(model, report.model)
    assert found.passed, str(found)
    wrong = onnx.load_from_string(report.model)
    tensor = next(it for it in wrong.graph.initializer if it.dims == [8, 8, 3, 3])
    values = numpy_helper.to_array(tensor).copy()
    values.flat[5] *= 1.1
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    assert not validate(model, wrong)


def test_a_scale_may_be_a_vector_of_one() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = built(nodes, {"w": normal(8, 4)}, [3, 8])
    report = quantize_rs.quantize(model, None, per_channel=False)
    assert report.model is not None
    made = onnx.load_from_string(report.model)
    for tensor in made.graph.initializer:
        if tensor.name.startswith("w_") and not tensor.dims:
            tensor.dims.append(1)
    found = validate(model, made.SerializeToString())
    assert not found.problems, found


def test_scales_along_an_axis_that_a_weight_does_not_have_do_not_fit() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = built(nodes, {"w": normal(8, 4)}, [3, 8])
    report = quantize_rs.quantize(model, None, per_channel=True)
    assert report.model is not None
    made = onnx.load_from_string(report.model)
    (node,) = (node for node in made.graph.node if node.op_type == "DequantizeLinear")
    (axis,) = (found for found in node.attribute if found.name == "axis")
    axis.i = 2
    found = validate(model, made.SerializeToString())
    assert ["do not fit" in problem.what for problem in found.problems] == [True], found
