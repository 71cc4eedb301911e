"""The rule of each operator for each target: the model loads and computes correctly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
import rules
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError

TARGETS = ["x86", "x86-avx2", "arm", "web", "tensorrt", "openvino", "qnn", "generic"]

# Minimum SQNR against the float model. Errors of 8 bits are amplified by normalizations, and matter
# more where few numbers determine the result.
FLOOR = 20.0
LOWER = {("softmax", "qnn"): 15.0}


def quantized(name: str, target: str, **options: Any) -> bytes:
    """Quantize the model of a rule without passes, which would fold some of the nodes."""
    types = {"activations": "int8" if target == "tensorrt" else "uint8"}
    options = {"per_channel": True, "target": target, **types, **options}
    report = quantize_rs.quantize_with_calibration(
        rules.model(name), None, [rules.feeds()], optimize=False, **options
    )
    assert report.model is not None
    return report.model


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", rules.CASES)
def test_a_rule_is_right_for_a_target(name: str, target: str) -> None:
    model = quantized(name, target)
    oracle.check(model)
    feeds = rules.feeds()
    plain = oracle.ort(model, feeds, optimized=False)
    expected = oracle.ort(rules.model(name).SerializeToString(), feeds)
    assert oracle.sqnr(expected, plain) > LOWER.get((name, target), FLOOR)
    # The reference implementation of ONNX computes some operators in another way.
    assert oracle.sqnr(oracle.reference(model, feeds), plain) > 40
    # Fused kernels may round a sum halfway between two integers differently.
    assert oracle.sqnr(plain, oracle.ort(model, feeds)) > 25


@pytest.mark.parametrize("name", [name for name, case in rules.CASES.items() if case.kernel])
def test_the_kernel_that_a_rule_names_is_run(name: str) -> None:
    found = oracle.kernels(quantized(name, "x86"))
    kernel, outputs = rules.CASES[name].kernel, len(rules.model(name).graph.output)
    assert found[str(kernel)] or found[f"Nhwc{kernel}"], found
    # Only the input is quantized and only outputs besides that of the product are dequantized: a
    # node that moves data could also run on floats in between.
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (1, outputs - 1), found
    assert found["QLinearConv"] == sum(
        node.op_type == "Conv" for node in rules.model(name).graph.node
    )
    assert found["Conv"] == found["MatMul"] == 0, found


@pytest.mark.parametrize("name", [name for name, case in rules.CASES.items() if not case.kernel])
def test_what_has_no_kernel_leaves_the_rest_on_integers(name: str) -> None:
    found = oracle.kernels(quantized(name, "x86"))
    assert found["QLinearConv"] >= 1, found
    assert found["MatMulIntegerToFloat"] == 1, found


def _constants(model: bytes) -> oracle.Feeds:
    graph = onnx.load_from_string(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_tensorrt_has_only_zero_points_of_zero_and_float_biases() -> None:
    constants = _constants(quantized("add", "tensorrt"))
    integers = [array for array in constants.values() if array.dtype == np.int8]
    assert integers
    assert not any(array.dtype in (np.uint8, np.int32) for array in constants.values())
    assert all((array == 0).all() for name, array in constants.items() if "zp" in name)
    graph = onnx.load_from_string(quantized("add", "tensorrt")).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    (add,) = (node for node in graph.node if node.op_type == "Add")
    assert sorted(made[name] for name in add.input) == ["Conv", "DequantizeLinear"]


def test_weights_for_avx2_have_seven_bits() -> None:
    largest = {
        target: max(
            np.abs(array.astype(int)).max()
            for array in _constants(quantized("add", target)).values()
            if array.dtype == np.int8 and array.ndim == 4
        )
        for target in ("x86", "x86-avx2")
    }
    assert largest == {"x86": 127, "x86-avx2": 63}


@pytest.mark.parametrize("name", rules.CASES)
def test_everything_is_quantized_for_qnn(name: str) -> None:
    graph = onnx.load_from_string(quantized(name, "qnn")).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    node = next(node for node in graph.node if node.op_type == rules.CASES[name].op_type)
    flowing = set(node.input) & {"a", "b"}
    assert flowing
    assert {made[value] for value in flowing} == {"DequantizeLinear"}
    readers = [reader.op_type for reader in graph.node if node.output[0] in reader.input]
    assert readers == ["QuantizeLinear"]


def test_every_rule_has_a_case() -> None:
    folder = Path(__file__).parents[2] / "rust" / "quantize" / "src" / "graph" / "ops"
    text = "".join(path.read_text("utf-8") for path in folder.glob("*.rs"))
    row = r'(?:op_type: |\b(?:flows|within|of_two|of_any|norm)\()\s*"(\w+)"'
    known = set(re.findall(row, text))
    assert len(known) > 40
    assert known == {case.op_type for case in rules.CASES.values()} | rules.ELSEWHERE


def test_types_that_a_target_does_not_take_are_refused() -> None:
    with pytest.raises(OptionError, match="activations is uint8, expected int8"):
        quantized("add", "tensorrt", activations="uint8")
    with pytest.raises(OptionError, match="x86-avx2, arm, web, tensorrt"):
        quantized("add", "x68")


def test_only_the_operators_that_were_asked_for() -> None:
    graph = onnx.load_from_string(quantized("add", "x86", op_types=["MatMul"])).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type in ("Conv", "MatMul"):
            from_integers = [made.get(name) == "DequantizeLinear" for name in node.input]
            assert any(from_integers) == (node.op_type == "MatMul"), node.op_type
    with pytest.raises(OptionError, match="did you mean `Conv`"):
        quantized("add", "x86", op_types=["Cnov"])


@pytest.mark.parametrize("activations", ["uint16", "int16"])
def test_sixteen_bits_are_closer_than_eight(activations: str) -> None:
    feeds = rules.feeds()
    exact = oracle.ort(rules.model("add").SerializeToString(), feeds)
    near, far = (
        oracle.sqnr(exact, oracle.ort(quantized("add", "x86", activations=kind, bits=bits), feeds))
        for kind, bits in ((activations, 16), ("uint8", 8))
    )
    assert near > far + 20


def _types(model: bytes) -> dict[str, str]:
    """The type of each value that is quantized."""
    constants = _constants(model)
    graph = onnx.load_from_string(model).graph
    pairs = (node for node in graph.node if node.op_type == "QuantizeLinear")
    return {
        node.input[0].removesuffix("_float"): str(constants[node.input[2]].dtype) for node in pairs
    }


def test_one_layer_may_have_activations_of_sixteen_bits() -> None:
    feeds = rules.feeds()
    exact = oracle.ort(rules.model("add").SerializeToString(), feeds)
    plain = quantized("add", "x86")
    mixed = quantized("add", "x86", activation_types={"MatMul": "uint16"})
    oracle.check(mixed)
    assert _types(plain) == dict.fromkeys("xabo", "uint8")
    assert _types(mixed) == {**_types(plain), "o": "uint16"}
    assert oracle.sqnr(exact, oracle.ort(mixed, feeds)) > oracle.sqnr(
        exact, oracle.ort(plain, feeds)
    )
    found = oracle.kernels(mixed)
    assert found["QLinearConv"] == 2
    assert found["QLinearAdd"] == found["MatMulIntegerToFloat"] == 0


def test_requested_types_are_refused_by_name() -> None:
    for options, message in [
        ({"Conf": "uint16"}, "did you mean `Conv`"),
        ({"a": "uint3"}, "is `uint3`, expected one of"),
        ({"a": "int4"}, "gives `a` int4, expected uint8 or int8"),
        ({"a": 16}, "expected the name of a type"),
    ]:
        with pytest.raises(OptionError, match=message) as caught:
            quantized("add", "x86", activation_types=options)
        assert caught.value.option == "activation_types"
    model = quantize_rs.open(rules.model("add"))
    plan = model.plan(activations="uint8", activation_types={"w_a": "uint16"})
    assert any("`w_a`" in warning for warning in plan.warnings)
    with pytest.raises(OptionError, match="no activations are quantized"):
        model.plan(activation_types={"a": "uint16"})


@pytest.mark.parametrize("target", ["x86-avx2", "tensorrt", "qnn"])
def test_earlier_quantization_is_a_note_and_no_problem(target: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
    g(float[1, 3, 8, 8] x) => (float[1, 8, 8, 8] y) {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        w = DequantizeLinear(integers, t)
        a = Conv <pads = [1, 1, 1, 1]> (d, w)
        r = Relu(a)
        p = QuantizeLinear(r, u, o)
        e = DequantizeLinear(p, u, o)
        y = Conv <pads = [1, 1, 1, 1]> (e, v)
    }"""
    rng = np.random.default_rng(4)
    constants = {
        "s": np.float32(0.03),
        "z": np.uint8(128),
        "t": np.float32(0.01),
        "u": np.float32(0.1),
        "o": np.uint8(0),
        "integers": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "v": rng.standard_normal((8, 8, 3, 3)).astype(np.float32),
    }

    def built(text: str) -> bytes:
        model = onnx.parser.parse_model(text)
        tensors = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
        model.graph.initializer.extend(tensors)
        written: bytes = model.SerializeToString()
        return written

    partly = built(text)
    constants["v"] = rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
    wholly = built(
        text.replace("y = C", "f = DequantizeLinear(v, t) y = C").replace("e, v", "e, f")
    )
    samples = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(32)]
    for source in (partly, wholly):
        report = quantize_rs.quantize_with_calibration(source, None, samples, target=target)
        assert report.model is not None
        said = [text for text in report.warnings if "quantized before" in text]
        assert len(said) == (target != "qnn"), report.warnings
        assert (
            oracle.sqnr(oracle.ort(source, samples[0]), oracle.ort(report.model, samples[0])) > 25
        )


def test_integers_of_an_earlier_quantization_are_a_warning_beside_new_ones() -> None:
    """Alone, a weight with many scales beside floats violates no rule of QNN."""
    rng = np.random.default_rng(6)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 64] x) => (float[n, 32] y) {
        h = MatMul(x, w)
        r = Relu(h)
        y = MatMul(r, v)
    }""")
    for name, shape in (("w", (64, 64)), ("v", (64, 32))):
        values = (rng.normal(size=shape) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    samples = [{"x": rng.normal(size=(4, 64)).astype(np.float32)} for _ in range(8)]
    weights = quantize_rs.quantize(model, None, allow_larger=True).model
    assert weights is not None
    report = quantize_rs.quantize_with_calibration(
        weights, None, samples, target="qnn", allow_larger=True
    )
    (warning,) = (text for text in report.warnings if "quantized before" in text)
    assert "scales for its weight instead of one" in warning
    source = model.SerializeToString()
    assert report.model is not None
    assert oracle.sqnr(oracle.ort(source, samples[0]), oracle.ort(report.model, samples[0])) > 25


def test_a_normalization_of_a_constant_keeps_its_float_bias() -> None:
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 15]>
    g(float[3] mean) => (float[2, 3, 4, 5] y) {
        y = BatchNormalization(constant, scale, bias, mean, variance)
    }""")
    shapes = {"constant": (2, 3, 4, 5), "scale": (3,), "bias": (3,), "variance": (3,)}
    for name, shape in shapes.items():
        values = (np.abs(rng.normal(size=shape)) + 0.5).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    samples = [{"mean": rng.normal(size=3).astype(np.float32)} for _ in range(8)]
    report = quantize_rs.quantize_with_calibration(
        model, None, samples, target="qnn", allow_larger=True
    )
    source = model.SerializeToString()
    assert report.model is not None
    assert oracle.sqnr(oracle.ort(source, samples[0]), oracle.ort(report.model, samples[0])) > 25


@pytest.mark.parametrize("target", ["tensorrt", "openvino", "x86"])
def test_scales_that_a_float_bias_raised_are_valid(target: str) -> None:
    """ONNX Runtime quantizes float biases itself, also in models for other targets."""
    rng = np.random.default_rng(8)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g(float[n, 3, 12, 12] x) => (float[n, 16, 12, 12] y) {
        h = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        d = Sub(h, c)
        y = Mul(d, k)
    }""")
    bias = np.full(16, 100, np.float32)
    constants = {
        "w": (rng.normal(size=(16, 3, 3, 3)) * 1e-6).astype(np.float32),
        "b": bias,
        "c": bias.reshape(1, 16, 1, 1),
        "k": np.array(1e6, np.float32),
    }
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    samples = [{"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(8)]
    report = quantize_rs.quantize_with_calibration(
        model,
        None,
        samples,
        target=target,
        quantize_bias=False,
        optimize=False,
        allow_larger=True,
    )
    assert report.model is not None
    assert quantize_rs.validate(model, report.model, optimize=False).passed


def test_a_pair_without_a_zero_point_has_the_type_that_it_names() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["xq"], output_dtype=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["xq", "s"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["y"]),
    ]
    integers = np.random.default_rng(0).integers(-127, 127, (4, 3, 1, 1), np.int8)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.float32(0.02), "s"),
            numpy_helper.from_array(integers, "w"),
            numpy_helper.from_array(np.full(4, 0.01, np.float32), "ws"),
        ],
    )
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    found = quantize_rs.validate(model, model, target="tensorrt")
    assert not [problem for problem in found.problems if problem.name == "xq"]


def resized(kind: str) -> onnx.ModelProto:
    """Convolutions around a Resize whose sizes or scales are computed in float, as exported."""
    rng = np.random.default_rng(1)
    constants: dict[str, Any] = {
        "first": rng.normal(size=(8, 3, 3, 3)) * 0.3,
        "second": rng.normal(size=(8, 8, 3, 3)) * 0.2,
        "third": rng.normal(size=(4, 8, 1, 1)),
        "two": 2.0,
        "ones": np.ones(2),
        "roi": np.zeros(0),
    }
    places: dict[str, Any] = {"at0": [0], "at2": [2], "at4": [4]}
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["large"], pads=[1] * 4),
        helper.make_node("Conv", ["large", "second"], ["small"], strides=[3, 3]),
        helper.make_node("Shape", ["large"], ["of_large"]),
        helper.make_node("Slice", ["of_large", "at2", "at4", "at0"], ["wanted"]),
        helper.make_node("Cast", ["wanted"], ["wanted_float"], to=TensorProto.FLOAT),
    ]
    if kind == "sizes":
        nodes += [
            helper.make_node("Mul", ["wanted_float", "two"], ["doubled"]),
            helper.make_node("Floor", ["doubled"], ["rounded"]),
            helper.make_node("Cast", ["rounded"], ["lengths"], to=TensorProto.INT64),
            helper.make_node("Slice", ["of_large", "at0", "at2", "at0"], ["batch"]),
            helper.make_node("Concat", ["batch", "lengths"], ["sizes"], axis=0),
        ]
        inputs = ["small", "roi", "", "sizes"]
    else:
        nodes += [
            helper.make_node("Shape", ["small"], ["of_small"]),
            helper.make_node("Slice", ["of_small", "at2", "at4", "at0"], ["given"]),
            helper.make_node("Cast", ["given"], ["given_float"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["wanted_float", "given_float"], ["ratio"]),
            helper.make_node("Concat", ["ones", "ratio"], ["scales"], axis=0),
        ]
        inputs = ["small", "roi", "scales"]
    nodes += [
        helper.make_node("Resize", inputs, ["resized"], mode="nearest"),
        helper.make_node("Conv", ["resized", "third"], ["y"]),
    ]
    floats = [numpy_helper.from_array(np.float32(v), name) for name, v in constants.items()]
    integers = [numpy_helper.from_array(np.int64(v), name) for name, v in places.items()]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", channels, "h", "w"])
        for name, channels in (("x", 3), ("y", 4))
    )
    graph = helper.make_graph(nodes, "g", [x], [y], floats + integers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["sizes", "scales"])
def test_sizes_that_are_computed_in_float_stay_exact(kind: str, target: str) -> None:
    model = resized(kind)
    rng = np.random.default_rng(2)
    samples = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
    options: dict[str, Any] = {"target": target, "allow_larger": True}
    report = quantize_rs.quantize_with_calibration(model, None, samples, **options)
    assert report.model is not None
    # Other sizes than those of the samples.
    feeds = {"x": rng.normal(size=(2, 3, 30, 18)).astype(np.float32)}
    [expected], [found] = (
        oracle.ort(model.SerializeToString(), feeds),
        oracle.ort(report.model, feeds),
    )
    assert expected.shape == found.shape
    assert oracle.sqnr([expected], [found]) > FLOOR
