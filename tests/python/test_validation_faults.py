"""`validate` finds the mistakes of a faulty converter, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantize_rs
from quantize_rs import validate

Array: TypeAlias = Any  # numpy's, of any type and shape
SIDE, CHANNELS = 32, 8
F = np.float32

WAYS: dict[str, dict[str, Any]] = {
    "int8": {},
    "channels": {"per_channel": True, "symmetric": True},
    "uneven channels": {"per_channel": True},
    "int4": {"bits": 4, "block_size": 16},
    "dynamic": {"output_format": "dynamic"},
    "dynamic channels": {"output_format": "dynamic", "per_channel": True},
    "nbits": {"bits": 4, "output_format": "matmul_nbits", "block_size": 16},
    "symmetric nbits": {"bits": 8, "output_format": "matmul_nbits", "symmetric": True},
    "static": {"per_channel": True, "symmetric": True, "calibrated": True},
    "tensorrt": {"per_channel": True, "target": "tensorrt", "calibrated": True},
}


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(F)


def products() -> ModelProto:
    """Make products of square matrices, which look the same turned: all that a `Gemm` can do."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h1"], "first"),
        helper.make_node("Relu", ["h1"], ["h2"], "relu"),
        helper.make_node("Gemm", ["h2", "w2", "b2"], ["h3"], "second", transB=1),
        helper.make_node("Sigmoid", ["h3"], ["h4"], "sigmoid"),
        helper.make_node("Gemm", ["h4", "w3", "b3"], ["h5"], "third", alpha=0.5, beta=2.0),
        helper.make_node("Sub", ["h5", "h1"], ["h6"], "difference"),
        helper.make_node("MatMul", ["h6", "w4"], ["h7"], "fourth"),
        helper.make_node("Add", ["h7", "b4"], ["y"], "sum"),
    ]
    weights = {f"w{at}": normal(at, SIDE, SIDE) for at in (1, 2, 3, 4)}
    biases = {f"b{at}": normal(10 + at, SIDE) for at in (2, 3, 4)}
    return model(nodes, weights | biases, [4, SIDE], [4, SIDE])


def convolutions() -> ModelProto:
    """Make convolutions of one shape, one with groups."""
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h1"], "first", **same),
        helper.make_node("Relu", ["h1"], ["h2"], "relu"),
        helper.make_node("Conv", ["h2", "w2", "b2"], ["h3"], "second", **same),
        helper.make_node("Conv", ["h3", "w3"], ["y"], "third", group=CHANNELS, **same),
    ]
    weights = {f"w{at}": normal(at, CHANNELS, CHANNELS, 3, 3) for at in (1, 2)}
    rest = {
        "w3": normal(3, CHANNELS, 1, 3, 3),
        "b1": normal(11, CHANNELS),
        "b2": normal(12, CHANNELS),
    }
    shape = [1, CHANNELS, 5, 5]
    return model(nodes, weights | rest, shape, shape)


def tables() -> ModelProto:
    """Make two `Gather` of tables of one shape, one of which is the weight of a product as well."""
    nodes = [
        helper.make_node("Gather", ["t1", "i"], ["a"], "words"),
        helper.make_node("Gather", ["t2", "i"], ["b"], "places"),
        helper.make_node("Add", ["a", "b"], ["h"], "sum"),
        helper.make_node("Transpose", ["t1"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["y"], "back"),
    ]
    tensors = {"t1": normal(1, SIDE, SIDE), "t2": normal(2, SIDE, SIDE)}
    return model(nodes, tensors, [4], [4, SIDE], ("i", TensorProto.INT64))


def model(
    nodes: list[NodeProto],
    tensors: dict[str, Array],
    shape: list[int],
    made: list[int],
    given: tuple[str, int] = ("x", TensorProto.FLOAT),
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*given, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


MODELS = {"products": products, "convolutions": convolutions, "tables": tables}


def written(original: ModelProto, way: str) -> ModelProto:
    """The model as a way writes it."""
    options = dict(WAYS[way])
    if options.pop("calibrated", False):
        # Rounding with samples leaves the nearest integers; its checksum finds other changes.
        options |= {"weight_algorithm": "nearest", "check": "none"}
        (given,) = original.graph.input
        shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        whole = given.type.tensor_type.elem_type == TensorProto.INT64
        feeds = [{given.name: np.arange(4) if whole else normal(at, *shape)} for at in range(4)]
        report = quantize_rs.quantize_with_calibration(
            original.SerializeToString(), None, feeds, **options
        )
    else:
        report = quantize_rs.quantize(original.SerializeToString(), None, **options)
    assert report.model is not None
    return onnx.load_from_string(report.model)


def tensor(made: ModelProto, name: str) -> TensorProto | None:
    return next((found for found in made.graph.initializer if found.name == name), None)


def array(made: ModelProto, name: str) -> Array:
    found = tensor(made, name)
    assert found is not None, name
    return np.array(numpy_helper.to_array(found))


def put(made: ModelProto, name: str, value: Array) -> None:
    found = tensor(made, name)
    assert found is not None, name
    found.CopyFrom(numpy_helper.from_array(value, name))


def node(made: ModelProto, name: str) -> NodeProto:
    return next(found for found in made.graph.node if found.name == name)


def set_attribute(found: NodeProto, name: str, value: Any) -> None:
    kept = [attribute for attribute in found.attribute if attribute.name != name]
    del found.attribute[:]
    found.attribute.extend(kept)
    if value is not None:
        found.attribute.append(helper.make_attribute(name, value))


def exchanged(made: ModelProto, one: str, other: str) -> None:
    values = array(made, one), array(made, other)
    put(made, other, values[0])
    put(made, one, values[1])


def reads_instead(name: str, at: int, value: str) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        node(made, name).input[at] = value

    return change


def says_instead(name: str, attribute: str, value: Any) -> Callable[[ModelProto], None]:
    return lambda made: set_attribute(node(made, name), attribute, value)


def without(name: str, at: int) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        del node(made, name).input[at:]

    return change


def turned(name: str) -> Callable[[ModelProto], None]:
    return lambda made: put(made, name, np.ascontiguousarray(array(made, name).T))


def rolled(name: str) -> Callable[[ModelProto], None]:
    return lambda made: put(made, name, np.roll(array(made, name), 1, axis=0))


def left_out(name: str) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        gone = node(made, name)
        if gone.output[0] == made.graph.output[0].name:
            producer = next(found for found in made.graph.node if gone.input[0] in found.output)
            producer.output[0] = gone.output[0]
        for other in made.graph.node:
            for at, value in enumerate(other.input):
                if value == gone.output[0]:
                    other.input[at] = gone.input[0]
        made.graph.node.remove(gone)

    return change


MISREAD: dict[str, dict[str, Callable[[ModelProto], None]]] = {
    "products": {
        "a square matrix turned": turned("w1"),
        "a square matrix turned twice": turned("w2"),
        "rows moved": rolled("w4"),
        "two weights exchanged": lambda made: exchanged(made, "w1", "w4"),
        "two biases exchanged": lambda made: exchanged(made, "b2", "b4"),
        "another weight": reads_instead("first", 1, "w4"),
        "another bias": reads_instead("second", 2, "b3"),
        "no bias": without("second", 2),
        "no bias with a factor": without("third", 2),
        "another value": reads_instead("fourth", 0, "h5"),
        "a difference turned": lambda made: (
            reads_instead("difference", 0, "h1")(made),
            reads_instead("difference", 1, "h5")(made),
        )[0],
        "not turned": says_instead("second", "transB", None),
        "no alpha": says_instead("third", "alpha", None),
        "no beta": says_instead("third", "beta", None),
        "alpha on what has none": says_instead("second", "alpha", 0.5),
        "no Relu": left_out("relu"),
        "no sum": left_out("sum"),
    },
    "convolutions": {
        "two weights exchanged": lambda made: exchanged(made, "w1", "w2"),
        "another weight": reads_instead("second", 1, "w1"),
        "two biases exchanged": lambda made: exchanged(made, "b1", "b2"),
        "another bias": reads_instead("second", 2, "b1"),
        "no bias": without("second", 2),
        "channels moved": rolled("w3"),
        "other pads": says_instead("second", "pads", [0, 0, 2, 2]),
        "dilated": lambda made: (
            says_instead("second", "pads", [2, 2, 2, 2])(made),
            says_instead("second", "dilations", [2, 2])(made),
        )[0],
        "no Relu": left_out("relu"),
    },
    "tables": {
        "two tables exchanged": lambda made: exchanged(made, "t1", "t2"),
        "another table": reads_instead("words", 0, "t2"),
        "another matrix": reads_instead("turn", 0, "t2"),
        "rows moved": rolled("t2"),
        "not turned": left_out("turn"),
        "along another axis": says_instead("words", "axis", 1),
    },
}
"""Mistakes of a converter that misreads the model, as changes of the model."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_misread_is_found(name: str, way: str) -> None:
    original = MODELS[name]()
    found = validate(original, written(original, way))
    assert found, found
    assert found.weights or "nbits" in way  # which has nothing for convolutions
    for fault, misread in MISREAD[name].items():
        other = MODELS[name]()
        misread(other)
        found = validate(original, written(other, way))
        assert not found, f"{fault}: {found}"


def weights(original: ModelProto, made: ModelProto) -> list[Any]:
    return list(validate(original, made).weights)


def scale_of(integers: str) -> str:
    return integers.replace("_quantized", "_scale")


def scales_exchanged(made: ModelProto, weight: Any) -> bool:
    scales = array(made, scale_of(weight.integers))
    if scales.size < 2 or scales.flat[0] == scales.flat[1]:
        return False
    flat = scales.reshape(-1)
    flat[[0, 1]] = flat[[1, 0]]
    put(made, scale_of(weight.integers), scales)
    return True


def scales_turned(made: ModelProto, weight: Any) -> bool:
    scales = array(made, scale_of(weight.integers))
    if scales.ndim != 2 or min(scales.shape) < 2:
        return False
    put(made, scale_of(weight.integers), np.ascontiguousarray(scales.T))
    return True


def scales_cut(made: ModelProto, weight: Any) -> bool:
    scales = array(made, scale_of(weight.integers))
    if scales.ndim == 0 or len(scales) < 2:
        return False
    put(made, scale_of(weight.integers), scales[:-1])
    return True


def integers_cut(made: ModelProto, weight: Any) -> bool:
    found = tensor(made, weight.integers)
    assert found is not None
    if found.data_type not in (TensorProto.UINT8, TensorProto.INT8):
        return False
    put(made, weight.integers, array(made, weight.integers)[:-1])
    return True


def zero_point_moved(made: ModelProto, weight: Any) -> bool:
    name = weight.integers.replace("_quantized", "_zp")
    found = tensor(made, name)
    if found is None or found.data_type not in (TensorProto.UINT8, TensorProto.INT8):
        return False
    points = array(made, name)
    points.flat[0] ^= 1
    put(made, name, points)
    return True


def along_another_axis(made: ModelProto, weight: Any) -> bool:
    for found in made.graph.node:
        if found.op_type == "DequantizeLinear" and found.input[0] == weight.integers:
            scales = array(made, scale_of(weight.integers))
            if scales.ndim == 0 or len(set(weight.shape[:2])) > 1:
                return False
            axis = next((a.i for a in found.attribute if a.name == "axis"), 1)
            set_attribute(found, "axis", 1 - axis)
            return True
    return False


def nothing_left(made: ModelProto, weight: Any) -> bool:
    """All integers are zero and the scale is huge: no element is more than half a step off."""
    found = tensor(made, weight.integers)
    assert found is not None
    if found.data_type != TensorProto.INT8:
        return False
    put(made, weight.integers, array(made, weight.integers) * 0)
    scale = scale_of(weight.integers)
    put(made, scale, np.full_like(array(made, scale), 1e4))
    return True


def coarser(made: ModelProto, weight: Any) -> bool:
    """Integers that fit a scale which is five times as large as it should be."""
    found = tensor(made, weight.integers)
    assert found is not None
    if found.data_type != TensorProto.INT8:
        return False
    codes = array(made, weight.integers).astype(F) / 5
    put(made, weight.integers, np.rint(codes).astype(np.int8))
    scale = scale_of(weight.integers)
    put(made, scale, array(made, scale) * F(5))
    return True


MISWRITTEN = [
    scales_exchanged,
    scales_turned,
    scales_cut,
    integers_cut,
    zero_point_moved,
    along_another_axis,
    nothing_left,
    coarser,
]


@pytest.mark.parametrize("fault", MISWRITTEN)
def test_what_was_miswritten_is_found(fault: Callable[[ModelProto, Any], bool]) -> None:
    tried = 0
    for name, way in ((name, way) for name in MODELS for way in WAYS):
        original = MODELS[name]()
        made = written(original, way)
        for weight in weights(original, made):
            wrong = ModelProto.FromString(made.SerializeToString())
            if fault(wrong, weight):
                found = validate(original, wrong)
                assert not found, f"{name}, {way}, {weight.name}: {found}"
                tried += 1
    assert tried > 3, tried


def makes(made: ModelProto, value: str) -> NodeProto:
    return next(found for found in made.graph.node if value in found.output)


def of_type(made: ModelProto, op_type: str, at: int = 0) -> NodeProto:
    return [found for found in made.graph.node if found.op_type == op_type][at]


def turned_when_it_runs(made: ModelProto) -> None:
    """A weight is transposed."""
    found = node(made, "first")
    turn = helper.make_node("Transpose", [found.input[1]], ["w1_turned"], "turn", perm=[1, 0])
    found.input[1] = "w1_turned"
    made.graph.node.insert(list(made.graph.node).index(found), turn)


def read_with_another_scale(made: ModelProto) -> None:
    """A weight is dequantized a second time, with another scale."""
    found = node(made, "first")
    back = makes(made, found.input[1])
    other = NodeProto()
    other.CopyFrom(back)
    other.input[1], other.output[0] = "another_scale", "another"
    scale = array(made, back.input[1]) * F(1.5)
    made.graph.initializer.append(numpy_helper.from_array(scale, "another_scale"))
    user = node(made, "fourth")
    user.input[1] = "another"
    back.output[0], found.input[1] = "w1", "w1"
    made.graph.node.insert(0, other)


def never_dequantized(made: ModelProto) -> None:
    """A product reads the integers of its input."""
    found = node(made, "first")
    found.input[0] = makes(made, found.input[0]).input[0]


def never_quantized(made: ModelProto) -> None:
    """Floats are dequantized."""
    back = makes(made, node(made, "first").input[0])
    back.input[0] = makes(made, back.input[0]).input[0]


def without_zero_point(made: ModelProto) -> None:
    del makes(made, node(made, "first").input[0]).input[2:]


def quantized_without_zero_point(made: ModelProto) -> None:
    del makes(made, makes(made, node(made, "first").input[0]).input[0]).input[2:]


def of_another(op_type: str, at: int, output: int) -> Callable[[ModelProto], None]:
    """An integer product reads what belongs to another."""

    def change(made: ModelProto) -> None:
        other = of_type(made, "DynamicQuantizeLinear", 1).output[output]
        of_type(made, op_type).input[at] = other

    return change


def scaled_by_another(made: ModelProto) -> None:
    one, other = (of_type(made, "DynamicQuantizeLinear", at).output[1] for at in (0, 1))
    user = next(found for found in made.graph.node if one in found.input)
    user.input[list(user.input).index(one)] = other


def scaled_once(made: ModelProto) -> None:
    """The scale of the weight is forgotten."""
    scale = of_type(made, "DynamicQuantizeLinear").output[1]
    product = next(found for found in made.graph.node if scale in found.input)
    for found in made.graph.node:
        for at, value in enumerate(found.input):
            if value == product.output[0]:
                found.input[at] = scale
    made.graph.node.remove(product)


def number_of(op_type: str, name: str, value: int) -> Callable[[ModelProto], None]:
    return lambda made: set_attribute(of_type(made, op_type), name, value)


MISWIRED: dict[str, list[tuple[str, Callable[[ModelProto], None]]]] = {
    "int8": [("products", turned_when_it_runs), ("products", read_with_another_scale)],
    "static": [
        ("products", turned_when_it_runs),
        ("products", never_dequantized),
        ("products", never_quantized),
        ("products", without_zero_point),
        ("products", quantized_without_zero_point),
    ],
    "dynamic": [
        ("products", of_another("MatMulInteger", 0, 0)),
        ("products", of_another("MatMulInteger", 2, 2)),
        ("products", scaled_by_another),
        ("products", scaled_once),
        ("convolutions", of_another("ConvInteger", 2, 2)),
        ("convolutions", number_of("ConvInteger", "group", 2)),
        ("convolutions", scaled_once),
    ],
    "nbits": [
        ("products", number_of("MatMulNBits", "N", SIDE * 2)),
        ("products", number_of("MatMulNBits", "K", SIDE // 2)),
        ("products", number_of("MatMulNBits", "block_size", 32)),
        ("products", number_of("MatMulNBits", "bits", 8)),
        ("tables", number_of("GatherBlockQuantized", "gather_axis", 1)),
    ],
}


@pytest.mark.parametrize("way", MISWIRED)
def test_what_was_miswired_is_found(way: str) -> None:
    for name, change in MISWIRED[way]:
        original = MODELS[name]()
        made = written(original, way)
        change(made)
        found = validate(original, made)
        assert not found, f"{change}: {found}"


def test_a_scale_may_be_as_large_as_a_bias_needs() -> None:
    """The scale of an int32 bias is a product of two scales, which must be large enough."""
    huge = convolutions()
    bias = array(huge, "b2")
    bias[:3] = 3e7, -4e7, 1e9
    put(huge, "b2", bias)
    made = written(huge, "static")
    (name,) = (w.integers for w in validate(huge, made).weights if w.name == "w2")
    found = validate(huge, made)
    assert found, found
    assert array(made, scale_of(name))[2] > 100 * array(made, scale_of(name))[3]
    # Without such a bias, the same scale is wrong.
    assert coarser(made, next(w for w in found.weights if w.name == "w1"))
    assert not validate(huge, made)


def test_a_zero_point_may_be_a_scalar_beside_a_scale_of_one_element(tmp_path: Path) -> None:
    """As `quantize_static` of onnxruntime writes those of biases."""

    class Samples(CalibrationDataReader):  # type: ignore[misc] # not typed
        left = iter([{"x": normal(seed, 4, SIDE)} for seed in range(3)])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    source, target = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save(products(), source)
    quantize_static(source, target, Samples(), per_channel=False)
    shapes = {tensor.name: tensor.dims for tensor in onnx.load(target).graph.initializer}
    nodes = [node for node in onnx.load(target).graph.node if node.op_type == "DequantizeLinear"]
    assert any(shapes[node.input[1]] != shapes[node.input[2]] for node in nodes)
    found = validate(source, target)
    # What is found is wrong: the bias of a Gemm with factors is rounded for a product without.
    assert not [problem for problem in found.problems if "of shape" in problem.what], found
