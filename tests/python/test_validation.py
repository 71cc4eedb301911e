"""`validate` finds no problem in our files, and every change that is made to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import matmul_nbits_quantizer as theirs

import quantize_rs
from quantize_rs import ModelError, OptionError, Validation, validate
from quantize_rs.compat.onnxruntime import matmul_nbits_quantizer as ours

WAYS: dict[str, dict[str, Any]] = {
    "int8": {},
    "channels": {"per_channel": True, "symmetric": True},
    "int4": {"bits": 4, "block_size": 16},
    "nbits": {"bits": 4, "output_format": "matmul_nbits"},
    "dynamic": {"output_format": "dynamic", "per_channel": True},
}


@pytest.fixture
def quantized(digits: Path, images: Path) -> onnx.ModelProto:
    """The digits, weights and activations."""
    made = quantize_rs.quantize_with_calibration(
        digits, None, images, per_channel=True, limit=32, weight_algorithm="nearest"
    )
    assert made.model is not None
    return onnx.load_from_string(made.model)


def changed(model: onnx.ModelProto, name: str, change: Callable[[Any], None]) -> bytes:
    """The model with one constant changed."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    array = np.array(numpy_helper.to_array(tensor))
    change(array)
    comment = tensor.doc_string
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    tensor.doc_string = comment
    return bytes(model.SerializeToString())


def reader(model: onnx.ModelProto, weight: str) -> onnx.NodeProto:
    """The node that dequantizes a weight."""
    return next(node for node in model.graph.node if weight in node.output)


def problems(found: Validation) -> list[tuple[str, str]]:
    """The check and the name of each problem."""
    assert not found
    assert not found.passed
    return [(problem.check, problem.name) for problem in found.problems]


@pytest.mark.parametrize("way", WAYS)
def test_what_we_write_passes(digits: Path, way: str) -> None:
    report = quantize_rs.quantize(digits, "q.onnx", **WAYS[way])
    found = validate(digits, "q.onnx")
    assert found
    assert found.passed
    assert not found.problems
    assert {weight.name for weight in found.weights} == {value.name for value in report.quantized}
    by_name = {value.name: value for value in report.quantized}
    for weight in found.weights:
        value = by_name[weight.name]
        assert weight.shape == value.shape
        assert weight.error.sqnr_db == pytest.approx(value.sqnr_db, abs=1e-3)
        assert weight.error.max_abs == pytest.approx(value.max_abs_error, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_long_chains_of_products_pass(way: str) -> None:
    """The check of a product does not search the inputs of the multiplied value."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {}
    for layer in range(40):
        constants[f"w{layer}"] = rng.normal(size=(8, 8)).astype(np.float32) / 3
        constants[f"b{layer}"] = rng.normal(size=8).astype(np.float32)
        read, made = f"y{layer}" if layer else "x", f"y{layer + 1}"
        nodes.append(onnx.helper.make_node("MatMul", [read, f"w{layer}"], [f"h{layer}"]))
        nodes.append(onnx.helper.make_node("Add", [f"b{layer}", f"h{layer}"], [made]))
    shape = ["n", 4, 8]
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name in ("x", "y40")
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "chain", infos[:1], infos[1:], tensors)
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    source = bytes(model.SerializeToString())
    written = quantize_rs.quantize(source, None, **WAYS[way]).model
    assert written is not None
    assert validate(source, written).problems == ()


def test_one_wrong_integer_is_named(digits: Path, quantized: onnx.ModelProto) -> None:
    weights = validate(digits, quantized).weights
    assert weights
    for weight in weights:

        def one_further(integers: Any) -> None:
            at = integers.size // 2
            integers.flat[at] += 1 if integers.flat[at] < 100 else -1

        wrong = validate(digits, changed(quantized, weight.integers, one_further))
        assert problems(wrong) == [("weights", weight.integers)]
        assert f"`{weight.name}` of the original" in wrong.problems[0].what


def test_one_wrong_scale_is_named(digits: Path, quantized: onnx.ModelProto) -> None:
    weights = validate(digits, quantized).weights
    assert weights
    for weight in weights:
        scale = reader(quantized, weight.name).input[1]

        def larger(scales: Any) -> None:
            scales.flat[0] *= 1.2

        wrong = validate(digits, changed(quantized, scale, larger))
        assert ("weights", scale) in problems(wrong), wrong
        assert "scale 0, " in str(wrong)

        def nothing(scales: Any) -> None:
            scales.flat[0] = np.nan

        wrong = validate(digits, changed(quantized, scale, nothing))
        assert ("scale", scale) in problems(wrong), wrong


def test_one_wrong_name_is_named(digits: Path, quantized: onnx.ModelProto, tmp_path: Path) -> None:
    (first, second) = (weight.name for weight in validate(digits, quantized).weights[:2])
    # The name of another weight: its integers are read in the wrong place.
    model = onnx.ModelProto.FromString(quantized.SerializeToString())
    user = next(node for node in model.graph.node if first in node.input)
    user.input[list(user.input).index(first)] = second
    wrong = validate(digits, model)
    assert ("connectivity", user.name or user.output[0]) in problems(wrong)
    assert f"`{second}`" in str(wrong)
    # A name that does not exist: the model is invalid.
    model = onnx.ModelProto.FromString(quantized.SerializeToString())
    reader(model, first).input[1] = "none_of_them"
    path = tmp_path / "wrong.onnx"
    path.write_bytes(model.SerializeToString())
    for source, name in ((path, str(path)), (path.read_bytes(), "")):
        wrong = validate(digits, source)
        assert problems(wrong) == [("structure", name)]
        assert "none_of_them" in wrong.problems[0].what
        assert wrong.quantized == (path if name else None)
    assert problems(validate(digits, b"no model"))[0][0] == "structure"


def test_inputs_and_outputs_are_those_of_the_original(
    digits: Path, quantized: onnx.ModelProto
) -> None:
    quantized.graph.output[0].name = reader(quantized, "logits").output[0]
    quantized.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert ("interface", "logits") in problems(validate(digits, quantized))


def products() -> bytes:
    """Two products, one weight of which is square."""
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        onnx.helper.make_node("MatMul", ["h", "v"], ["y"], "last"),
    ]
    constants = {"w": rng.normal(size=(64, 64)), "v": rng.normal(size=(64, 96))}
    return graphs.built(nodes, constants, ["n", 64])


def garbled(model: onnx.ModelProto, name: str) -> bytes:
    """The model with other integers."""
    rng = np.random.default_rng(1)

    def change(integers: Any) -> None:
        integers[...] = np.frombuffer(rng.bytes(integers.nbytes), integers.dtype).reshape(
            integers.shape
        )

    return changed(model, name, change)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("package", [ours, theirs], ids=["ours", "theirs"])
def test_blocks_of_onnxruntime_are_compared(package: Any, bits: int) -> None:
    source = products()
    quantizer = package.MatMulNBitsQuantizer(
        onnx.load_from_string(source), bits=bits, block_size=32
    )
    quantizer.process()
    model = onnx.load_from_string(quantizer.model.model.SerializeToString())
    found = validate(source, model)
    assert found, found
    assert {weight.name for weight in found.weights} == {"w", "v"}
    assert not found.not_compared
    for weight in found.weights:
        wrong = validate(source, garbled(model, weight.integers))
        named = {weight.integers, weight.integers.replace(f"_Q{bits}", "_scales")}
        assert named & {name for _, name in problems(wrong)}, wrong


def test_weights_that_could_not_be_compared_are_counted() -> None:
    """A weight of a subgraph is one: whatever its integers are, the result says so."""
    rng = np.random.default_rng(0)

    def branch(weight: str) -> onnx.GraphProto:
        shape = ["n", 64]
        return onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", weight], [f"{weight}_y"], weight)],
            weight,
            [],
            [onnx.helper.make_tensor_value_info(f"{weight}_y", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), weight)],
        )

    nodes = [
        onnx.helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        onnx.helper.make_node("Cast", ["largest"], ["is_any"], to=TensorProto.BOOL),
        onnx.helper.make_node(
            "If", ["is_any"], ["y"], then_branch=branch("v"), else_branch=branch("w")
        ),
    ]
    source = graphs.built(nodes, {}, ["n", 64])
    quantizer = theirs.MatMulNBitsQuantizer(
        onnx.load_from_string(source), block_size=32, is_symmetric=True
    )
    quantizer.process()
    found = validate(source, quantizer.model.model.SerializeToString())
    assert found.passed, found
    assert {row.name for row in found.not_compared if row.weight} == {"v_Q4", "w_Q4"}
    assert "nothing is known about the integers" in found.notes[0]
    assert str(found).endswith("\npassed, but 2 stored weights could not be compared")
    assert repr(found) == "<Validation: passed, 0 stored weights compared, 2 not>"


@pytest.mark.parametrize("name", ["loop_subgraph", "nested_if"])
def test_weights_that_bodies_of_onnxruntime_read_are_compared(name: str) -> None:
    source = oracle.model(name)
    quantizer = theirs.MatMulNBitsQuantizer(onnx.load(source), block_size=16)
    quantizer.process()
    model = onnx.load_from_string(quantizer.model.model.SerializeToString())
    found = validate(source, model)
    assert found, found
    # The weights of the main graph, and one of a body.
    outer = {it.name for it in model.graph.initializer if it.name.endswith("_Q4")}
    assert {weight.integers for weight in found.weights} == outer
    assert len(found.not_compared) == 1, found
    for weight in found.weights:
        assert not validate(source, garbled(model, weight.integers)), weight


@pytest.mark.parametrize("way", WAYS)
def test_constants_of_a_weight_may_have_any_name(digits: Path, way: str) -> None:
    """The node that reads it tells which weight it is."""
    report = quantize_rs.quantize(digits, None, **WAYS[way])
    assert report.model is not None
    model = onnx.load_from_string(report.model)
    own = validate(digits, model)
    stored = tuple(weight.name for weight in own.weights if "int" in weight.dtype)
    outputs = {name for node in model.graph.node for name in node.output}
    kept = {value.name for value in [*model.graph.input, *model.graph.output]}
    new = {
        name: f"value_{index}"
        for index, name in enumerate(sorted(outputs | {it.name for it in model.graph.initializer}))
        if name.startswith(stored) and name not in kept
    }
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
    for tensor in model.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    found = validate(digits, model)
    assert found, found
    assert not found.not_compared, found
    assert {(weight.name, weight.error) for weight in found.weights} == {
        (weight.name, weight.error) for weight in own.weights
    }
    for weight in (weight for weight in found.weights if weight.name in stored):
        assert not validate(digits, garbled(model, weight.integers)), weight


def test_another_tools_file_is_understood(digits: Path, images: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter([{"image": image[None]} for image in np.load(images)[:8]])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(digits, "peer.onnx", Reader(), per_channel=True)
    found = validate(digits, "peer.onnx")
    assert len(found.weights) == 5
    assert min(weight.error.sqnr_db for weight in found.weights) > 35


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_equalized_operators_on_integers_pass(output_format: str) -> None:
    model = (oracle.MODELS / "conv_depthwise.onnx").read_bytes()
    samples = np.random.default_rng(0).normal(size=(16, 1, 3, 12, 12)).astype(np.float32)
    made = quantize_rs.quantize_with_calibration(
        model, None, [{"x": x} for x in samples], output_format=output_format, allow_larger=True
    )
    assert "equalize" in [step.name for step in made.steps]
    assert made.model is not None
    found = validate(model, made.model)
    assert found.passed, found


def test_passes_may_be_said() -> None:
    model = oracle.model("conv_bn_relu")
    folded = quantize_rs.quantize(model, None).model
    plain = quantize_rs.quantize(model, None, optimize=False).model
    assert folded is not None
    assert plain is not None
    for made, options in (
        (folded, {}),
        (folded, {"optimize": ["fold_batch_norm"]}),
        (plain, {}),
        (plain, {"optimize": False}),
    ):
        assert validate(model, made, **options), options
    found = validate(model, folded)
    assert [step.name for step in found.prepared] == ["fold_batch_norm"]
    assert not validate(model, folded, optimize=False)


def test_a_target_says_what_it_does_not_take(digits: Path, images: Path) -> None:
    options: dict[str, Any] = {"per_channel": True, "limit": 16}
    made = quantize_rs.quantize_with_calibration(digits, None, images, **options)
    assert made.model is not None
    assert validate(digits, made.model).target is None
    assert validate(digits, made.model, target="x86").target == "x86"
    wrong = validate(digits, made.model, target="tensorrt")
    checks = {check for check, _ in problems(wrong)}
    assert checks == {"target"}
    assert "uint8 instead of int8" in str(wrong)
    for target in ("x86", "arm", "tensorrt", "openvino", "qnn", "generic", "x86-avx2"):
        report = quantize_rs.quantize_with_calibration(
            digits, None, images, target=target, **options
        )
        assert report.model is not None
        assert validate(digits, report.model, target=target), target


def test_what_runs_slower_is_a_note(digits: Path, images: Path) -> None:
    made = quantize_rs.quantize_with_calibration(
        digits, None, images, excluded_layers=["conv2.weight"], limit=16
    )
    assert made.model is not None
    found = validate(digits, made.model, target="x86")
    assert found.passed, found
    assert [note for note in found.notes if "`conv2`" in note and "x86 runs slower" in note]


def test_the_result_is_frozen_and_has_every_form(digits: Path, quantized: onnx.ModelProto) -> None:
    found = validate(digits, quantized)
    with pytest.raises(AttributeError):
        found.passed = False  # type: ignore[misc]
    assert found.to_dict() == json.loads(found.to_json())
    assert found.to_dict()["passed"] is True
    assert str(found).endswith("\npassed")
    assert repr(found) == f"<Validation: passed, {len(found.weights)} stored weights compared>"
    page = found._repr_html_()
    assert all(weight.name in page for weight in found.weights)
    assert found.worst(1)[0].error.sqnr_db == min(w.error.sqnr_db for w in found.weights)
    assert found.original == digits
    assert any("corrected" in row.why for row in found.not_compared)
    assert found == validate(digits, quantized)

    name = found.weights[0].integers
    wrong = validate(digits, changed(quantized, name, lambda integers: integers.fill(0)))
    assert "problems" in wrong._repr_html_()
    assert repr(wrong).startswith("<Validation: failed, ")
    assert name in wrong._repr_html_()


def test_what_cannot_be_looked_at_is_an_error(digits: Path, quantized: onnx.ModelProto) -> None:
    with pytest.raises(OptionError, match="fold_batch_normm"):
        validate(digits, quantized, optimize=["fold_batch_normm"])
    with pytest.raises(OptionError, match="x87"):
        validate(digits, quantized, target="x87")
    with pytest.raises(ModelError):
        validate(b"no model", quantized)
    with pytest.raises(FileNotFoundError):
        validate(digits, "none.onnx")


def test_a_model_that_was_opened_is_taken(digits: Path, quantized: onnx.ModelProto) -> None:
    opened = quantize_rs.open(quantized.SerializeToString())
    assert validate(quantize_rs.open(digits), opened) == validate(digits, opened)


BODIES = ["if_subgraph", "loop_subgraph", "scan_subgraph", "nested_if"]


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", WAYS)
def test_weights_that_bodies_read_are_compared(name: str, way: str) -> None:
    model = oracle.model(name)
    report = quantize_rs.quantize(model, None, **WAYS[way])
    assert report.model is not None
    found = validate(model, report.model)
    assert found, found
    assert not found.not_compared, found
    assert {weight.name for weight in found.weights} == {value.name for value in report.quantized}
    made = onnx.load_from_string(report.model)
    for weight in found.weights:

        def one_further(integers: Any) -> None:
            integers.flat[0] ^= 1 << 3  # the end of a block may be filled up

        if weight.dtype in ("uint8", "int8", "uint4") and way != "int4":
            wrong = validate(model, changed(made, weight.integers, one_further))
            # One of few integers with the same scale may as well mean that the scale is wrong.
            places = {("weights", weight.integers), ("weights", f"{weight.name}_scale")}
            assert places & set(problems(wrong)), wrong


def reader_of(feeds: list[dict[str, Any]]) -> Any:
    """Samples in the form that the other tool reads."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    return Reader()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "name", ["conv2d_relu", "residual_add", "concat_branches", "maxpool_flatten_gemm", "mlp_relu"]
)
def test_operators_with_scales_as_inputs_are_understood(
    name: str, per_channel: bool, tmp_path: Path
) -> None:
    from onnxruntime.quantization import QuantFormat, quantize_static

    model = oracle.model(name)
    peer = str(tmp_path / "peer.onnx")
    quantize_static(
        model,
        peer,
        reader_of([oracle.feeds(name)]),
        quant_format=QuantFormat.QOperator,
        per_channel=per_channel,
    )
    made = onnx.load(peer)
    integer_ops = [node for node in made.graph.node if node.op_type in ("QLinearConv", "QGemm")]
    assert integer_ops
    found = validate(model, made)
    assert not [problem for problem in found.problems if problem.check != "weights"], found
    names = {weight.integers for weight in found.weights}
    assert {node.input[3] for node in integer_ops} <= names, found
    assert all(weight.error.sqnr_db > 30 for weight in found.weights)

    weight = integer_ops[0].input[3]

    def one_further(integers: Any) -> None:
        integers.flat[integers.size // 2] ^= 1 << 6

    wrong = validate(model, changed(made, weight, one_further))
    assert ("weights", weight) in problems(wrong), wrong
    # Another weight of the same shape is found too.
    others = {tensor.name: tensor for tensor in made.graph.initializer}
    same = [
        node.input[3]
        for node in integer_ops[1:]
        if list(others[node.input[3]].dims) == list(others[weight].dims)
    ]
    if same:
        integer_ops[0].input[3] = same[0]
        assert ("connectivity", integer_ops[0].name) in problems(validate(model, made))


@pytest.mark.parametrize("options", [{"weights": "fp16"}, {"output_format": "dynamic"}])
@pytest.mark.parametrize("to", [TensorProto.UINT8, TensorProto.INT64, TensorProto.DOUBLE])
def test_a_cast_to_an_unsupported_type_is_found(
    digits: Path, options: dict[str, Any], to: int
) -> None:
    made = quantize_rs.quantize(digits, None, **options).model
    assert made is not None
    count = [node.op_type for node in onnx.load_from_string(made).graph.node].count("Cast")
    assert count > 1
    for at in range(count):
        model = onnx.load_from_string(made)
        [node for node in model.graph.node if node.op_type == "Cast"][at].attribute[0].i = to
        found = quantize_rs.validate(digits, model)
        assert not found.passed, at
        assert any(problem.check == "structure" for problem in found.problems), found


@pytest.mark.parametrize("block_size", [8, 33, 64])
def test_blocks_that_no_kernel_reads_are_found(digits: Path, block_size: int) -> None:
    report = quantize_rs.quantize(digits, None, bits=4, block_size=32, output_format="matmul_nbits")
    assert report.model is not None
    model = onnx.load_from_string(report.model)
    assert quantize_rs.validate(digits, model).passed
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    next(found for found in node.attribute if found.name == "block_size").i = block_size
    assert not quantize_rs.validate(digits, model).passed


def test_weights_that_were_rounded_with_samples_are_found_by_their_checksum(
    digits: Path, images: Path
) -> None:
    report = quantize_rs.quantize(digits, None, calibration_data=images, include=["*"])
    assert report.model is not None
    model = onnx.load_from_string(report.model)
    found = validate(digits, model)
    assert found, found
    assert max(weight.max_steps for weight in found.weights) > 0.8
    for weight in found.weights:

        def one_further(integers: Any) -> None:
            at = integers.size // 2
            integers.flat[at] += 1 if integers.flat[at] < 100 else -1

        wrong = validate(digits, changed(model, weight.integers, one_further))
        assert ("weights", weight.integers) in problems(wrong)
        scale = reader(model, weight.name).input[1]

        def larger(scales: Any) -> None:
            scales.flat[0] *= 1.2

        assert not validate(digits, changed(model, scale, larger))
