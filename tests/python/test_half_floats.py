"""Models of float16 and bfloat16 compute on integers like those of float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import quantize_rs

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
RNG = np.random.default_rng(1611)


def halves(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.normal(size=shape) * scale).astype(np.float16)


def value(name: str, shape: list[Any], dtype: int = HALF) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def made(
    nodes: list[NodeProto],
    constants: dict[str, np.ndarray],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int = 17,
    **graph: Any,
) -> ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    proto = helper.make_graph(nodes, "half", inputs, outputs, tensors, **graph)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    name = f"n_{outputs.split()[0]}"
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def image_net() -> ModelProto:
    """Convolutions with biases, one with a normalization that is folded, a skip, a classifier."""
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 scale shift mean var", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
        node("Add", "c2 r1", "a"),
        node("Relu", "a", "r2"),
        node("GlobalAveragePool", "r2", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w3 b3", "y", transB=1),
    ]
    constants = {
        "w1": halves(16, 3, 3, 3, scale=0.2),
        "scale": 1 + halves(16, scale=0.1),
        "shift": halves(16, scale=0.1),
        "mean": halves(16, scale=0.1),
        "var": np.abs(halves(16)) + np.float16(0.5),
        "w2": halves(16, 16, 3, 3, scale=0.1),
        "b2": halves(16, scale=0.1),
        "w3": halves(10, 16),
        "b3": halves(10),
    }
    return made(nodes, constants, [value("x", ["N", 3, 16, 16])], [value("y", ["N", 10])])


def exported_block() -> ModelProto:
    """A feed-forward block as exporters write it: constants in nodes, types in attributes."""
    half = numpy_helper.from_array(np.array(0.5, np.float16))
    like = numpy_helper.from_array(np.ones(1, np.float16))
    nodes = [
        helper.make_node("Constant", [], ["half"], value=half),
        node("MatMul", "x w1", "m1"),
        node("Add", "m1 b1", "h"),
        node("Erf", "h", "e"),
        node("Mul", "e half", "g"),
        node("Mul", "g h", "k"),
        node("MatMul", "k w2", "m2"),
        node("Add", "m2 x", "s"),
        node("LayerNormalization", "s gain offset", "l"),
        node("Shape", "l", "shape"),
        node("ConstantOfShape", "shape", "ones", value=like),
        node("Add", "l ones", "y"),
    ]
    constants = {
        "w1": halves(32, 64, scale=0.2),
        "b1": halves(64),
        "w2": halves(64, 32, scale=0.2),
        "gain": 1 + halves(32, scale=0.1),
        "offset": halves(32, scale=0.1),
    }
    return made(nodes, constants, [value("x", ["N", 5, 32])], [value("y", ["N", 5, 32])])


def autocast() -> ModelProto:
    """Products in float16 between normalizations in float32, as torch.autocast leaves them."""
    nodes = [
        node("Cast", "x", "x16", to=HALF),
        node("MatMul", "x16 w1", "m1"),
        node("Cast", "m1", "m32", to=SINGLE),
        node("LayerNormalization", "m32 gain", "l"),
        node("Cast", "l", "l16", to=HALF),
        node("MatMul", "l16 w2", "m2"),
        node("Cast", "m2", "y", to=SINGLE),
    ]
    gain = 1 + RNG.normal(size=48).astype(np.float32) * np.float32(0.1)
    constants = {"w1": halves(32, 48), "gain": gain, "w2": halves(48, 32)}
    ends = [value("x", ["N", 5, 32], SINGLE)], [value("y", ["N", 5, 32], SINGLE)]
    return made(nodes, constants, *ends)


def chosen_branch() -> ModelProto:
    """Graphs inside a node read what is around them as float16, and a weight besides."""
    outs = [[value("t", [])], [value("e", [])]]
    then = helper.make_graph([helper.make_node("MatMul", ["h", "w2"], ["t"])], "then", [], outs[0])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["e"])], "else", [], outs[1])
    for graph in (then, other):
        graph.output[0].type.tensor_type.ClearField("shape")
    nodes = [
        node("MatMul", "x w1", "h"),
        node("MatMul", "h w2", "k"),
        node("ReduceSum", "h", "sum", keepdims=0),
        node("Cast", "sum", "single", to=SINGLE),
        node("Greater", "single zero", "cond"),
        helper.make_node("If", ["cond"], ["z"], name="choice", then_branch=then, else_branch=other),
        node("Add", "z k", "y"),
    ]
    constants = {"w1": halves(32, 32), "w2": halves(32, 32), "zero": np.float32(0)}
    shape = ["N", 5, 32]
    return made(nodes, constants, [value("x", shape)], [value("y", shape), value("h", shape)])


def foreign() -> ModelProto:
    """Between products an operator that ONNX does not know."""
    nodes = [
        node("MatMul", "x w1", "h"),
        helper.make_node("QuickGelu", ["h"], ["g"], name="gelu", domain="com.microsoft"),
        node("MatMul", "g w2", "y"),
    ]
    shape = ["N", 5, 32]
    info = [value("g", shape)]
    constants = {"w1": halves(32, 32, scale=0.2), "w2": halves(32, 32)}
    return made(nodes, constants, [value("x", shape)], [value("y", shape)], value_info=info)


def read_twice() -> ModelProto:
    """A weight and an input that are outputs too, a bias that another node reads in float16."""
    nodes = [
        node("Gemm", "x w b", "y"),
        node("Identity", "x", "same"),
        node("Cast", "b", "b32", to=SINGLE),
        node("Size", "w", "count"),
    ]
    outputs = [value("y", ["N", 32]), value("w", [32, 32]), value("same", ["N", 32])]
    outputs += [value("b32", [32], SINGLE), value("count", [], TensorProto.INT64)]
    return made(nodes, {"w": halves(32, 32), "b": halves(32)}, [value("x", ["N", 32])], outputs)


def looked_up() -> ModelProto:
    """A table that is looked up, a product, a type that an attribute says."""
    nodes = [
        node("Gather", "table ids", "rows"),
        node("RandomNormalLike", "rows", "noise", dtype=HALF, scale=0.001),
        node("Add", "rows noise", "h"),
        node("MatMul", "h w", "y"),
    ]
    constants = {"table": halves(50, 32), "w": halves(32, 32)}
    ids = value("ids", ["N", 5], TensorProto.INT64)
    return made(nodes, constants, [ids], [value("y", ["N", 5, 32])])


def old_initializers() -> ModelProto:
    """IR 3: constants stand among the inputs."""
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c", "y")]
    constants = {"w": halves(8, 3, 3, 3), "b": halves(8)}
    inputs = [value("x", ["N", 3, 8, 8]), value("w", [8, 3, 3, 3]), value("b", [8])]
    model = made(nodes, constants, inputs, [value("y", ["N", 8, 6, 6])], opset=13)
    model.ir_version = 3
    return model


def given_bias() -> ModelProto:
    """A constant that the caller may replace."""
    nodes = [node("Gemm", "x w b", "h"), node("Gemm", "h w2", "y")]
    inputs = [value("x", ["N", 32]), value("b", [8])]
    constants = {"w": halves(32, 8), "b": halves(8), "w2": halves(8, 8)}
    return made(nodes, constants, inputs, [value("y", ["N", 8])])


BOTH, ONE = ("tract", "onnxruntime"), ("onnxruntime",)
CASES: dict[Callable[[], ModelProto], tuple[dict[str, int], tuple[str, ...]]] = {
    image_net: ({"QLinearConv": 2, "QGemm": 1, "QLinearAdd": 1}, BOTH),
    exported_block: ({"MatMulIntegerToFloat": 2}, BOTH),
    autocast: ({"MatMulIntegerToFloat": 2}, BOTH),
    chosen_branch: ({"MatMulIntegerToFloat": 1}, ONE),
    foreign: ({"MatMulIntegerToFloat": 2}, ONE),
    read_twice: ({"QGemm": 1}, BOTH),
    looked_up: ({"MatMulIntegerToFloat": 1}, ONE),
    old_initializers: ({"QLinearConv": 1}, BOTH),
    given_bias: ({"QGemm": 1}, BOTH),
}
"""Models, the kernels on integers that ONNX Runtime has of them, and what runs them."""

RUNS = [
    pytest.param(build, kernels, engine, id=f"{build.__name__}-{engine}")
    for build, (kernels, engines) in CASES.items()
    for engine in engines
]


def samples(model: ModelProto, count: int) -> list[dict[str, np.ndarray]]:
    constant = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constant]

    def sample() -> dict[str, np.ndarray]:
        feeds = {}
        for info in inputs:
            shape = [dim.dim_value or 2 for dim in info.type.tensor_type.shape.dim]
            kind = info.type.tensor_type.elem_type
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            whole = kind == TensorProto.INT64
            numbers = RNG.integers(0, 50, shape) if whole else RNG.normal(size=shape)
            feeds[info.name] = np.asarray(numbers).astype(dtype)
        return feeds

    return [sample() for _ in range(count)]


def types(model: ModelProto) -> list[tuple[str, int]]:
    return [(end.name, end.type.tensor_type.elem_type) for end in model.graph.output]


def near(
    model: ModelProto,
    quantized: Path,
    least: float = 30,
    feeds: dict[str, np.ndarray] | None = None,
) -> None:
    """Outputs are of the types they were of, and near what they were."""
    feeds = feeds or samples(model, 1)[0]
    wanted, found = judge.ort(model.SerializeToString(), feeds), judge.ort(quantized, feeds)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        assert judge.sqnr([one], [other]) > least


@pytest.mark.parametrize(("build", "kernels", "engine"), RUNS)
def test_products_of_float16_run_on_integers(
    build: Callable[[], ModelProto], kernels: dict[str, int], engine: str, tmp_path: Path
) -> None:
    model, out = build(), tmp_path / "q.onnx"
    given = samples(model, 16)
    report = quantize_rs.quantize_with_calibration(
        model, out, given, engine=engine, method="minmax"
    )
    assert "widen_floats" in [step.name for step in report.steps]
    judge.check(out)
    assert types(onnx.load(out)) == types(model)
    found = judge.kernels(out)
    assert {kernel: found[kernel] for kernel in kernels} == kernels
    # One that was seen: the ranges of so few numbers end where others go on.
    near(model, out, feeds=given[0])
    validation = quantize_rs.validate(model, out)
    assert validation, validation


def single(model: ModelProto) -> ModelProto:
    """The same numbers in float32."""
    twin = ModelProto()
    twin.CopyFrom(model)
    for tensor in twin.graph.initializer:
        if tensor.data_type == HALF:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for info in [*twin.graph.input, *twin.graph.output]:
        info.type.tensor_type.elem_type = SINGLE
    return twin


def plain_net() -> ModelProto:
    """Convolutions behind rectifiers, and a product behind a normalization with large channels."""
    gain = halves(16, scale=0.1) + np.float16(0.2)
    gain[:2] = 40
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2"),
        node("Transpose", "r2", "t", perm=[0, 2, 3, 1]),
        node("LayerNormalization", "t gain", "l"),
        node("MatMul", "l w3", "y"),
    ]
    constants = {
        "w1": halves(16, 3, 3, 3, scale=0.2),
        "w2": halves(16, 16, 3, 3, scale=0.1),
        "b2": halves(16, scale=0.1),
        "gain": gain,
        "w3": halves(16, 10),
    }
    return made(nodes, constants, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 8, 8, 10])])


@pytest.mark.parametrize("wishes", [{}, {"excluded_layers": ["w2"]}], ids=str)
def test_what_comes_of_float16_is_what_comes_of_float32(
    wishes: dict[str, Any], tmp_path: Path
) -> None:
    """Smoothing, corrected biases and wishes by the name of a weight included."""
    model = plain_net()
    twin, given = single(model), samples(model, 32)
    wide = [{name: array.astype(np.float32) for name, array in sample.items()} for sample in given]
    ours = quantize_rs.quantize_with_calibration(model, tmp_path / "h.onnx", given, **wishes)
    theirs = quantize_rs.quantize_with_calibration(twin, tmp_path / "s.onnx", wide, **wishes)
    assert ours.corrected_biases == theirs.corrected_biases > 0
    smoothed = "1 values are smoothed"
    assert smoothed in " ".join(theirs.notes)
    assert smoothed in " ".join(ours.notes)
    x = samples(model, 1)[0]
    expected = judge.ort(tmp_path / "s.onnx", {"x": x["x"].astype(np.float32)})
    found = [array.astype(np.float32) for array in judge.ort(tmp_path / "h.onnx", x)]
    # One rounding to float16, which is what comes out.
    assert judge.sqnr(expected, found) > 60


def test_what_stays_float_takes_two_bytes_as_before(tmp_path: Path) -> None:
    model, out = image_net(), tmp_path / "q.onnx"
    report = quantize_rs.quantize_with_calibration(
        model, out, samples(model, 16), excluded_layers=["n_c2"]
    )
    near(model, out)
    quantized = onnx.load(out)
    stored = {tensor.name: tensor.data_type for tensor in quantized.graph.initializer}
    assert stored["w2_float16"] == HALF
    # 16 x 16 x 3 x 3 elements of 2 bytes, and vectors of 16 channels.
    assert 4608 <= report.sizes.kept < 4608 + 300


def test_weights_alone_stay_beside_float16(tmp_path: Path) -> None:
    model = image_net()
    for out, optimize in [("w.onnx", True), ("none.onnx", False)]:
        report = quantize_rs.quantize(model, tmp_path / out, optimize=optimize)
        assert "widen_floats" not in [step.name for step in report.steps]
        near(model, tmp_path / out)


def test_a_model_of_which_nothing_runs_on_integers_stays_float16(tmp_path: Path) -> None:
    """A recurrent operator has weights, and nothing that calibration looks at."""
    nodes = [node("LSTM", "x w r b", "y", hidden_size=8)]
    constants = {"w": halves(1, 32, 6), "r": halves(1, 32, 8), "b": halves(1, 64)}
    model = made(nodes, constants, [value("x", [5, 2, 6])], [value("y", [5, 1, 2, 8])])
    report = quantize_rs.quantize_with_calibration(
        model, tmp_path / "q.onnx", samples(model, 16), engine="onnxruntime"
    )
    assert not report.steps
    assert "no operator of the model can run on integers" in " ".join(report.warnings)


@pytest.mark.parametrize(
    ("dtype", "mend"),
    [(np.float16, "the pass widen_floats makes it so"), (np.float64, "export it so")],
)
def test_what_stays_as_wide_as_it_is_is_told_why(dtype: Any, mend: str, tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = RNG.normal(size=(32, 48)).astype(dtype)
    ends = [value("x", ["N", 32], kind)], [value("y", ["N", 48], kind)]
    model = made([node("MatMul", "x w", "y")], {"w": weight}, *ends)
    report = quantize_rs.quantize_with_calibration(
        model, tmp_path / "q.onnx", samples(model, 16), optimize=False
    )
    warning = " ".join(report.warnings)
    assert f"computes in {np.dtype(dtype)}" in warning
    assert mend in warning


@pytest.mark.parametrize("build", [image_net, exported_block])
def test_dynamic_products_of_float16(build: Callable[[], ModelProto], tmp_path: Path) -> None:
    model, out = build(), tmp_path / "q.onnx"
    quantize_rs.quantize(model, out, output_format="dynamic")
    found = judge.kernels(out)
    assert found["DynamicQuantizeLinear"] + found["DynamicQuantizeMatMul"] >= 1, found
    near(model, out)


def test_optimizing_leaves_float16_alone_unless_asked(tmp_path: Path) -> None:
    model = exported_block()
    for passes in (None, ["widen_floats"]):
        quantize_rs.optimize(model, tmp_path / "o.onnx", passes=passes)
        judge.check(tmp_path / "o.onnx")
        near(model, tmp_path / "o.onnx", 55)
        nodes = onnx.load(tmp_path / "o.onnx").graph.node
        assert (nodes[0].op_type == "Cast") == (passes is not None)


def test_bfloat16_is_widened_too(tmp_path: Path) -> None:
    """ONNX Runtime has no products of bfloat16: what comes of the model runs all the same."""
    nodes = [
        node("Cast", "x", "x16", to=TensorProto.BFLOAT16),
        node("MatMul", "x16 w", "m"),
        node("Cast", "m", "y", to=SINGLE),
    ]
    weight = RNG.normal(size=(32, 48)).astype(ml_dtypes.bfloat16)
    ends = [value("x", ["N", 32], SINGLE)], [value("y", ["N", 48], SINGLE)]
    model = made(nodes, {"w": weight}, *ends)
    quantize_rs.quantize_with_calibration(model, tmp_path / "q.onnx", samples(model, 64))
    (x,) = samples(model, 1)
    (found,) = judge.ort(tmp_path / "q.onnx", x)
    assert judge.sqnr([x["x"] @ weight.astype(np.float32)], [found]) > 30
    assert judge.kernels(tmp_path / "q.onnx")["MatMulIntegerToFloat"] == 1


def test_methods_are_judged_by_outputs_of_float16() -> None:
    model = exported_block()
    plan = quantize_rs.open(model).plan(activations="uint8")
    found = plan.compare_methods(samples(model, 64))
    assert all(row.sqnr_db is not None for row in found.rows)


def test_values_of_float16_have_errors_of_their_own(tmp_path: Path) -> None:
    model, given = exported_block(), samples(exported_block(), 16)
    quantize_rs.quantize_with_calibration(model, tmp_path / "q.onnx", given)
    found = quantize_rs.layer_errors(model, tmp_path / "q.onnx", given)
    named = {value.name for value in found.values}
    assert {"m1", "h", "m2", "l"} <= named
    assert found.samples == 32


def test_a_weight_that_the_caller_may_replace_is_left_alone() -> None:
    inputs = [value("x", ["N", 32]), value("w", [32, 8])]
    outputs = [value("y", ["N", 8])]
    model = made([node("MatMul", "x w", "y")], {"w": halves(32, 8)}, inputs, outputs)
    only = [{"x": sample["x"]} for sample in samples(model, 16)]
    report = quantize_rs.quantize_with_calibration(model, None, only)
    assert not report.quantized
    assert not report.steps


def test_a_weight_that_is_cast_too_is_stored_once(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Cast", "w", "w32", to=SINGLE),
        node("Cast", "x", "x32", to=SINGLE),
        node("MatMul", "x32 w32", "z"),
        node("Cast", "z", "z16", to=HALF),
        node("Add", "h z16", "y"),
    ]
    ends = [value("x", ["N", 32])], [value("y", ["N", 32])]
    model, out = made(nodes, {"w": halves(32, 32)}, *ends), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16))
    near(model, out)
    graph = onnx.load(out).graph
    read = {name for node in graph.node for name in node.input}
    assert all(tensor.name in read for tensor in graph.initializer)
    sizes = [np.prod(tensor.dims) for tensor in graph.initializer]
    assert sizes.count(32 * 32) == 1


@pytest.mark.parametrize("build", [chosen_branch, read_twice])
def test_what_others_know_keeps_the_name_that_options_mean(
    build: Callable[[], ModelProto],
) -> None:
    model = build()
    name = "w2" if build is chosen_branch else "w"
    report = quantize_rs.quantize_with_calibration(
        model, None, samples(model, 16), excluded_layers=[name], engine="onnxruntime"
    )
    names = (name, f"{name}_float32")
    assert not [value.name for value in report.weights if value.name in names and value.qtype]
    assert not any("folded away" in said for said in report.warnings)


def test_what_is_rounded_between_two_products_is_not(tmp_path: Path) -> None:
    """Casts to float16 and back, which autocast leaves where nothing computes in float16."""
    nodes = [
        node("MatMul", "x w1", "m"),
        node("Relu", "m", "r"),
        node("Cast", "r", "r16", to=HALF),
        node("Cast", "r16", "r32", to=SINGLE),
        node("MatMul", "r32 w2", "y"),
    ]
    weights = {name: halves(32, 32).astype(np.float32) for name in ("w1", "w2")}
    ends = [value("x", ["N", 32], SINGLE)], [value("y", ["N", 32], SINGLE)]
    model, out = made(nodes, weights, *ends), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16))
    near(model, out)
    kernels = judge.kernels(out)
    assert kernels["QLinearMatMul"] + kernels["MatMulIntegerToFloat"] == 2
    assert not kernels["Cast"]


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "SimplifiedLayerNormalization"])
def test_products_behind_operators_of_onnx_runtime(operator: str, tmp_path: Path) -> None:
    """Of what type they make something is known, though the file does not say."""
    runtime = {
        "MultiHeadAttention": helper.make_node(
            "MultiHeadAttention", ["x"] * 3, ["h"], domain="com.microsoft", num_heads=4
        ),
        "SimplifiedLayerNormalization": node("SimplifiedLayerNormalization", "x gain", "h"),
    }
    constants = {"w": halves(32, 32), "gain": 1 + halves(32, scale=0.1)}
    if operator == "MultiHeadAttention":
        del constants["gain"]
    shape = ["N", 5, 32]
    graph = helper.make_graph(
        [runtime[operator], node("MatMul", "h w", "y")],
        "half",
        [value("x", shape)],
        [value("y", shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model, out = helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "q.onnx"
    quantize_rs.quantize_with_calibration(model, out, samples(model, 16), engine="onnxruntime")
    assert judge.kernels(out)["MatMulIntegerToFloat"] == 1
    near(model, out)


@pytest.mark.parametrize("inputs", ["x c", "c x"])
def test_a_sparse_constant_is_not_looked_at(inputs: str, tmp_path: Path) -> None:
    """ONNX Runtime hands it out as something else than a tensor."""
    numbers = numpy_helper.from_array(np.arange(1, 65, dtype=np.float32) / 64, "numbers")
    places = numpy_helper.from_array(np.arange(64) * 7, "places")
    sparse = helper.make_sparse_tensor(numbers, places, [32, 32])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        node("MatMul", inputs, "h"),
        node("MatMul", "h w", "y"),
    ]
    ends = [value("x", [32, 32], SINGLE)], [value("y", [32, 32], SINGLE)]
    model, out = made(nodes, {"w": RNG.normal(size=(32, 32)).astype(np.float32)}, *ends), tmp_path
    given = samples(model, 8)
    quantize_rs.quantize_with_calibration(model, out / "q.onnx", given, engine="onnxruntime")
    near(model, out / "q.onnx")
    assert judge.kernels(out / "q.onnx")["MatMulIntegerToFloat"] == 1
