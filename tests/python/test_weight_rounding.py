"""Weights that are rounded with samples: smaller output errors, on other samples too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import errors, validate
from quantize_rs.compat import onnxruntime as compat

F = np.float32
Arrays = dict[str, np.ndarray]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def model(nodes: list[Any], constants: Arrays, shape: list[Any]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(array.astype(F), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    opset = [helper.make_opsetid("", 21)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def correlated(shape: tuple[int, ...], axis: int, seed: int) -> np.ndarray:
    """Samples whose channels depend on each other and differ in size; one in six is always 0."""
    generator = rng(seed)
    channels = shape[axis]
    mixing = rng(9).normal(size=(channels, channels // 2 + 1))
    hidden = generator.normal(size=(*np.delete(shape, axis), channels // 2 + 1)) + 0.5
    made = hidden @ mixing.T * np.geomspace(0.1, 4, channels)
    made[..., ::6] = 0
    moved: np.ndarray = np.moveaxis(made, -1, axis).astype(F)
    return moved


def conv(**attributes: Any) -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    group = attributes.get("group", 1)
    made = model(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", **attributes)],
        {"w": rng(1).normal(size=(12, 12 // group, 3, 3)), "b": rng(2).normal(size=12)},
        [None, 12, 9, 10],
    )
    return made, (1, 12, 9, 10), 1


def product(op_type: str, **attributes: Any) -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    turned = attributes.get("transB", 0)
    weight = rng(1).normal(size=(24, 48) if turned else (48, 24))
    node = helper.make_node(op_type, ["x", "w"], ["y"], "product", **attributes)
    if attributes.get("transA", 0):
        return model([node], {"w": weight}, [48, 8]), (48, 8), 0
    return model([node], {"w": weight}, [8, 48]), (8, 48), 1


def left_factor() -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    node = helper.make_node("MatMul", ["w", "x"], ["y"], "product")
    return model([node], {"w": rng(1).normal(size=(24, 48))}, [48, 8]), (48, 8), 0


def turned_before() -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "product"),
    ]
    return model(nodes, {"w": rng(1).normal(size=(24, 48))}, [8, 48]), (8, 48), 1


def shared() -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "w"], ["y"], "second"),
    ]
    return model(nodes, {"w": rng(1).normal(size=(24, 24)) / 5}, [8, 24]), (8, 24), 1


def upsampling() -> tuple[onnx.ModelProto, tuple[int, ...], int]:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2, 2])
    return (
        model([node], {"w": rng(1).normal(size=(12, 6, 2, 2))}, [None, 12, 5, 5]),
        (
            1,
            12,
            5,
            5,
        ),
        1,
    )


LAYERS = {
    "conv": lambda: conv(pads=[1, 1, 1, 1]),
    "conv, strides and dilations": lambda: conv(
        strides=[2, 1], dilations=[1, 2], pads=[0, 2, 1, 0]
    ),
    "conv in groups": lambda: conv(group=3),
    "depthwise conv": lambda: conv(group=12, auto_pad="SAME_UPPER"),
    "matmul": lambda: product("MatMul"),
    "gemm": lambda: product("Gemm"),
    "gemm, transposed weight": lambda: product("Gemm", transB=1),
    "gemm, transposed input": lambda: product("Gemm", transA=1),
    "left factor": left_factor,
    "transposed before": turned_before,
    "shared weight": shared,
    "transposed conv": upsampling,
}


def error(original: onnx.ModelProto, quantized: bytes | None, feeds: list[Arrays]) -> float:
    """The squared error of the outputs on samples, relative to the outputs, without fusions."""
    assert quantized is not None
    pairs = [
        (oracle.ort(original.SerializeToString(), feed)[0], oracle.ort(quantized, feed)[0])
        for feed in feeds
    ]
    wrong = sum(float(np.sum((one - other).astype(float) ** 2)) for one, other in pairs)
    return wrong / sum(float(np.sum(one.astype(float) ** 2)) for one, _ in pairs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_error_of_the_output_falls_on_other_samples(layer: str, bits: int) -> None:
    made, shape, axis = LAYERS[layer]()
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(60)]
    others = [{"x": correlated(shape, axis, seed)} for seed in range(100, 120)]
    options: dict[str, Any] = {
        "bits": bits,
        "per_channel": True,
        "calibration_data": samples,
        "layer_bits": {"w": bits},
    }
    before = quantize_rs.quantize(made, None, weight_algorithm="nearest", **options)
    after = quantize_rs.quantize(made, None, **options)
    (weight,) = (row for row in after.weights if row.quantized)
    assert weight.rounded_by in {"scales", "gptq", "descent"}
    assert weight.rounding_gain_db is not None
    assert weight.rounding_gain_db > 0.2
    assert error(made, after.model, others) < 0.97 * error(made, before.model, others)
    assert after.model is not None
    assert quantize_rs.validate(made, after.model), layer
    # No more bytes but for the mark.
    assert after.bytes_after - before.bytes_after < 100


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 4, "block_size": 16},
        {"bits": 2, "block_size": 16, "symmetric": True},
        {"bits": 4, "block_size": 16, "output_format": "matmul_nbits"},
        {"bits": 8, "per_channel": False},
        {"bits": 8, "output_format": "dynamic"},
        {"bits": 4, "native_int4": False},
    ],
    ids=str,
)
def test_every_form_of_a_weight_is_rounded(options: dict[str, Any]) -> None:
    made, shape, axis = product("MatMul")
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(60)]
    others = [{"x": correlated(shape, axis, seed)} for seed in range(100, 120)]
    options = options | {"calibration_data": samples, "check": "none"}
    before = quantize_rs.quantize(made, None, weight_algorithm="nearest", **options)
    after = quantize_rs.quantize(made, None, **options)
    assert error(made, after.model, others) < 0.97 * error(made, before.model, others)
    assert after.model is not None
    assert quantize_rs.validate(made, after.model)


def test_each_algorithm_is_the_last_that_is_tried() -> None:
    made, shape, axis = product("MatMul")
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(40)]
    tried = {}
    for last in ("nearest", "scales", "gptq", "descent", "auto"):
        report = quantize_rs.quantize(
            made, None, bits=4, calibration_data=samples, weight_algorithm=last
        )
        (row,) = (row for row in report.to_dict()["values"] if row["role"] == "weight")
        tried[last] = list(row["quantized"].get("rounding", {"errors": {}})["errors"])
    assert tried["nearest"] == []
    assert tried["scales"] == ["nearest", "scales"]
    assert tried["gptq"] == ["gptq", "nearest", "scales"]
    assert tried["descent"] == tried["auto"] == ["descent", "gptq", "nearest", "scales"]
    fast = quantize_rs.quantize(made, None, bits=4, calibration_data=samples, effort="fast")
    assert {row.rounded_by for row in fast.weights} <= {"nearest", "scales"}
    with pytest.raises(errors.OptionError, match="expected one of auto, nearest, scales"):
        quantize_rs.quantize(made, None, calibration_data=samples, weight_algorithm="awq")


def test_options_for_scales_and_rounding_come_first() -> None:
    made, shape, axis = product("MatMul")
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(40)]
    cases: list[dict[str, Any]] = [{"weight_method": "minmax"}, {"rounding": "nearest"}]
    for options in cases:
        report = quantize_rs.quantize(made, None, calibration_data=samples, **options)
        assert {row.rounded_by for row in report.weights} == {None}
    both = quantize_rs.quantize(
        made, None, calibration_data=samples, rounding="nearest", weight_algorithm="gptq"
    )
    assert {row.rounded_by for row in both.weights} != {None}


def test_neither_order_nor_threads_change_the_file(digits: Path, images: Path) -> None:
    samples = np.load(images)
    made = [
        quantize_rs.quantize(digits, None, bits=4, calibration_data=data, threads=threads).model
        for data in (samples, samples[::-1])
        for threads in (1, 3)
    ]
    assert made[0] is not None
    assert len(set(made)) == 1


def test_padding_does_not_count() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"], "look"),
        helper.make_node("MatMul", ["e", "w"], ["y"], "product"),
    ]
    generator = rng(3)
    table = generator.normal(size=(50, 48)) * np.geomspace(0.1, 3, 48)
    table[0] = np.geomspace(30, 0.1, 48)  # the padding, as large as it is meaningless
    arrays = {"table": table.astype(F), "w": generator.normal(size=(48, 24)).astype(F)}
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "s"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes.append(helper.make_node("Identity", ["attention_mask"], ["unused"], "mask"))
    graph = helper.make_graph(nodes, "net", tokens, outputs, tensors)
    opset = [helper.make_opsetid("", 21)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)

    def sample(seed: int, length: int) -> Arrays:
        ids, mask = np.zeros((1, 32), np.int64), np.zeros((1, 32), np.int64)
        ids[:, :length], mask[:, :length] = rng(seed).integers(1, 50, (1, length)), 1
        return {"input_ids": ids, "attention_mask": mask}

    samples = [sample(seed, 4) for seed in range(40)]
    blind = [feed | {"attention_mask": np.ones((1, 32), np.int64)} for feed in samples]
    others = [sample(seed, 32) for seed in range(100, 120)]
    found = [
        quantize_rs.quantize(made, None, bits=4, exclude=["table"], calibration_data=data)
        for data in (samples, blind)
    ]
    seeing, ignoring = (error(made, report.model, others) for report in found)
    assert seeing < 0.8 * ignoring


def test_one_large_row_of_each_sample_does_not_decide_for_the_others() -> None:
    made, shape, axis = product("MatMul")
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(60)]
    for seed, sample in enumerate(samples):
        # In all directions, as the first token of a sentence may be.
        sample["x"][0] = 300 * rng(seed).normal(size=shape[1])
    others = [{"x": correlated(shape, axis, seed)} for seed in range(100, 120)]

    def lost(algorithm: str) -> float:
        options: dict[str, Any] = {"bits": 4, "symmetric": True, "calibration_data": samples}
        report = quantize_rs.quantize(
            made, None, layer_bits={"w": 4}, weight_algorithm=algorithm, **options
        )
        return error(made, report.model, others)

    assert lost("auto") < 0.5 * lost("nearest")


def test_few_samples_are_used_and_the_report_says_so() -> None:
    made, shape, axis = product("MatMul")
    samples = [{"x": correlated(shape, axis, 5)}]
    report = quantize_rs.quantize(made, None, bits=4, calibration_data=samples)
    assert any("too few to hold some back" in note for note in report.notes) or {
        row.rounded_by for row in report.weights
    } == {None}


def test_gptq_of_onnxruntime_takes_its_reader() -> None:
    made, shape, axis = product("MatMul")

    class Reader:
        def __init__(self) -> None:
            self.left = [{"x": correlated(shape, axis, seed)} for seed in range(60)]

        def get_next(self) -> Arrays | None:
            return self.left.pop() if self.left else None

    others = [{"x": correlated(shape, axis, seed)} for seed in range(100, 120)]
    plain = compat.MatMulNBitsQuantizer(made, block_size=16)
    plain.process()
    config = compat.GPTQWeightOnlyQuantConfig(calibration_data_reader=Reader())
    rounded = compat.MatMulNBitsQuantizer(made, block_size=16, algo_config=config)
    rounded.process()
    before, after = (
        error(made, quantizer.model.model.SerializeToString(), others)
        for quantizer in (plain, rounded)
    )
    assert after < 0.9 * before


def test_the_memory_of_second_moments_is_bounded() -> None:
    """Spans of long rows, and only mean squares where spans are not enough."""
    weight = rng(1).normal(size=(512, 16))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    made = model([node], {"w": weight}, [8, 512])
    feeds = [{"x": x} for x in correlated((160, 8, 512), 2, 3)]
    held_out = [{"x": x} for x in correlated((8, 8, 512), 2, 4)]
    proto = quantize_rs.open(made)
    triangle = 512 * 513 // 2 * 8
    spans = 2 * 256 * 257 // 2 * 8
    shown = {}
    errors_of = {}
    notes = {}
    for limit, bytes_taken in ((1 << 29, triangle), (spans, spans), (spans - 1, 512 * 8)):
        options: dict[str, Any] = {"bits": 4, "block_size": 32, "memory_limit": limit}
        shown[limit] = str(proto.plan(**options)).splitlines()[-1]
        unit, divisor = ("MB", 1e6) if bytes_taken >= 1e6 else ("kB", 1e3)
        size = f"{bytes_taken / divisor:.2f} {unit}"
        assert shown[limit].startswith("one weight is rounded with samples"), shown
        assert shown[limit].endswith(size), (shown, size)
        report = quantize_rs.quantize(made, None, calibration_data=feeds, **options)
        errors_of[limit] = error(made, report.model, held_out)
        notes[limit] = [note for note in report.notes if "memory_limit" in note]
    full, parts, mean_squares = errors_of.values()
    assert full < parts < mean_squares
    assert [len(said) for said in notes.values()] == [0, 0, 1]
    assert "scales alone" in notes[spans - 1][0]


def chain(layers: int = 5, width: int = 64) -> onnx.ModelProto:
    """Products with Relu between them, of a width for which few bits lose much."""
    constants = {
        f"w{at}": rng(20 + at).normal(size=(width, width)) * np.sqrt(2 / width)
        for at in range(layers)
    }
    nodes, x = [], "x"
    for at in range(layers):
        last = at + 1 == layers
        nodes.append(helper.make_node("MatMul", [x, f"w{at}"], ["y" if last else f"p{at}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"p{at}"], [f"r{at}"]))
        x = f"r{at}"
    return model(nodes, constants, [16, width])


def test_the_best_effort_makes_good_what_earlier_layers_lost() -> None:
    made = chain()
    feeds = [{"x": x} for x in correlated((128, 16, 64), 2, 3)]
    held_out = [{"x": x} for x in correlated((16, 16, 64), 2, 4)]
    options: dict[str, Any] = {
        "bits": 2,
        "block_size": 16,
        "calibration_data": feeds,
        "check": "none",
        "layer_bits": {"*": 2},
    }
    once = quantize_rs.quantize(made, None, **options)
    again = quantize_rs.quantize(made, None, effort="best", **options)
    assert len(again.weights) == 5
    assert error(made, again.model, held_out) < 0.8 * error(made, once.model, held_out)
    assert again.model is not None
    assert quantize_rs.validate(made, again.model)
    for threads in (1, 2):
        same = quantize_rs.quantize(
            made,
            None,
            effort="best",
            threads=threads,
            **(options | {"calibration_data": feeds[::-1]}),
        )
        assert same.model == again.model


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_can_be_rounded_again(layer: str) -> None:
    made, shape, axis = LAYERS[layer]()
    samples = [{"x": correlated(shape, axis, seed)} for seed in range(60)]
    others = [{"x": correlated(shape, axis, seed)} for seed in range(100, 120)]
    options: dict[str, Any] = {"bits": 4, "check": "none", "layer_bits": {"*": 4}}
    nearest = quantize_rs.quantize(made, None, **options)
    again = quantize_rs.quantize(made, None, calibration_data=samples, effort="best", **options)
    assert error(made, again.model, others) < error(made, nearest.model, others)
    assert again.model is not None
    assert quantize_rs.validate(made, again.model)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 24])
@pytest.mark.parametrize("seed", [1, 3, 6])
def test_few_rows_do_not_make_weights_worse_than_no_samples(count: int, seed: int) -> None:
    """Rows that are fewer than their elements can be fitted exactly, and say nothing of others."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["y"], "second"),
    ]
    weights = {
        "w": rng(0).normal(size=(64, 128)) / 8,
        "b": rng(1).normal(size=128) / 8,
        "v": rng(2).normal(size=(128, 24)) / 11,
    }
    made = model(nodes, weights, [None, 64]).SerializeToString()
    samples = rng(seed).normal(size=(count, 64)).astype(F)
    others = rng(99).normal(size=(256, 64)).astype(F)
    wanted = oracle.ort(made, {"x": others})

    def decibels(**options: Any) -> float:
        report = quantize_rs.quantize(made, None, bits=4, block_size=32, check="none", **options)
        assert report.model is not None
        return oracle.sqnr(wanted, oracle.ort(report.model, {"x": others}))

    assert decibels(calibration_data=samples, engine="tract") > decibels() - 0.5


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("seed", range(4))
def test_few_rows_of_few_factors_do_not_make_weights_worse(count: int, seed: int) -> None:
    """Rows that share few factors agree with each other by chance, and with no others."""
    nodes, weights, x = [], {}, "x"
    for at, (inputs, outputs) in enumerate([(64, 128), (128, 128), (128, 10)]):
        channels = np.exp(rng(100 * seed + at).normal(0, 0.5, size=outputs))
        weights[f"w{at}"] = rng(10 * seed + at).normal(size=(inputs, outputs)) * channels / 8
        weights[f"b{at}"] = rng(50 + at).normal(size=outputs) / 10
        nodes.append(helper.make_node("Gemm", [x, f"w{at}", f"b{at}"], [f"p{at}"], f"fc{at}"))
        x = f"p{at}"
        if at < 2:
            nodes.append(helper.make_node("Relu", [x], [f"r{at}"]))
            x = f"r{at}"
    nodes[-1].output[0] = "y"
    made = model(nodes, weights, [None, 64]).SerializeToString()
    factors = rng(99).normal(size=(12, 64)) / np.sqrt(12)

    def rows(number: int, seed: int) -> np.ndarray:
        found: np.ndarray = rng(seed).normal(size=(number, 12)) @ factors
        found += rng(seed + 1).normal(size=found.shape) / 10
        found[:, :3] *= 20
        return found.astype(F)

    others = rows(256, 777)
    wanted = oracle.ort(made, {"x": others})

    def decibels(**options: Any) -> float:
        report = quantize_rs.quantize(
            made, None, bits=8, check="none", calibration_data=rows(count, seed), **options
        )
        assert report.model is not None
        return oracle.sqnr(wanted, oracle.ort(report.model, {"x": others}))

    assert decibels() > decibels(weight_algorithm="nearest") - 1.0


@pytest.mark.parametrize("output_format", ["qdq", "matmul_nbits"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_weights_of_float16_models_are_rounded_too(dtype: Any, output_format: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    w = (rng(0).normal(size=(64, 48)) / 8).astype(dtype)
    shapes = [("x", ["n", 64]), ("y", ["n", 48])]
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [x],
        [y],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 21)]
    made = bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    mixed = rng(1).normal(size=(8, 64))  # inputs that depend on each other
    samples = [{"x": (rng(seed).normal(size=(64, 8)) @ mixed).astype(dtype)} for seed in range(40)]
    others = {"x": (rng(99).normal(size=(256, 8)) @ mixed).astype(dtype)}
    wanted = oracle.ort(made, others)

    def decibels(**options: Any) -> float:
        report = quantize_rs.quantize(
            made,
            None,
            bits=4,
            block_size=32,
            output_format=output_format,
            allow_larger=True,
            check="none",
            **options,
        )
        assert report.model is not None
        assert validate(made, report.model)
        return oracle.sqnr(wanted, oracle.ort(report.model, others))

    assert decibels(calibration_data=samples) > decibels() + 6


def test_a_rounded_weight_is_evaluated_by_the_output_of_its_layer() -> None:
    """Integers that make good each other's errors are far from the weight they belong to."""
    normal = rng(0).normal
    weight = normal(size=(64, 32))
    weight[[5, 9]] = [[25], [-25]]
    x = normal(size=(256, 3)) @ normal(size=(3, 64)) + normal(size=(256, 64)) * 0.01
    x[:, [5, 9]] = normal(size=(256, 2)) * 0.01
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, ["n", 64])
    data = x.astype(np.float32)
    rounded = quantize_rs.quantize(made, None, bits=4, calibration_data=data, engine="tract")
    tall = normal(size=(4096, 4))
    tall[5] = 60
    other = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": tall}, ["n", 4096])
    alone = quantize_rs.quantize(other, None, bits=4, weight_method="minmax", check="none")
    for report in (rounded, alone):
        sqnr = report.weights[0].sqnr_db
        assert sqnr is not None
        assert sqnr < 6
    low = "dB is low for 4 bits"
    assert not any(low in warning for warning in rounded.warnings)
    assert any(low in warning for warning in alone.warnings)
