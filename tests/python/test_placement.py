"""The placement of scales decides how accurate a model is and which operators run on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs

IMAGE_NETWORKS = [
    "avgpool_gap",
    "concat_branches",
    "conv_and_matmul",
    "conv1d",
    "conv2d_relu",
    "conv3d",
    "conv_bn_relu",
    "conv_clip6",
    "conv_depthwise",
    "conv_leaky_prelu",
    "conv_no_bias",
    "conv_same_upper",
    "conv_sigmoid",
    "dropout_ratio_input",
    "fixed_batch4",
    "graph_output_conv",
    "max_of_one_and_three",
    "maxpool_flatten_gemm",
    "overridable_addend",
    "residual_add",
    "shared_bias_two_convs",
    "shared_weight_two_convs",
    "softmax_head",
    "two_inputs",
]
"""Image networks among the fixtures: their products have constant weights."""

PRODUCTS = [
    "gather_embedding",
    "gemm_no_c",
    "gemm_plain",
    "gemm_transb",
    "infinite_constant",
    "matmul_2d",
    "matmul_3d_weight",
    "matmul_activations",
    "matmul_add_swapped",
    "matmul_batched_input",
    "mlp_relu",
    "nested_if",
    "shared_weight_axis_clash",
    "transformer_block",
    "two_towers",
    "weight_cast_fp16",
    "weight_identity",
    "weight_transpose",
]
"""Matrix products in the forms that exporters write them in."""

INTEGER = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}
FLOAT = {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}


def integer_share(found: Counter[str]) -> float:
    """The share of products and convolutions that are computed on integers."""
    integer = sum(found[op_type] for op_type in INTEGER)
    return integer / (integer + sum(found[op_type] for op_type in FLOAT))


def quantized(model: Any, data: Any, **options: Any) -> bytes:
    """The model with weights and activations in 8 bits."""
    report = quantize_rs.quantize_with_calibration(model, None, data, per_channel=True, **options)
    assert report.model is not None
    return report.model


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products_run_on_integers(name: str) -> None:
    found = oracle.kernels(quantized(oracle.model(name), [oracle.feeds(name)]))
    assert integer_share(found) == 1, found


def test_a_product_that_alone_is_asked_for_runs_on_integers_with_its_bias() -> None:
    model, data = oracle.model("matmul_2d"), [oracle.feeds("matmul_2d")]
    assert integer_share(oracle.kernels(quantized(model, data, op_types=["MatMul"]))) == 1


def test_what_joins_two_layers_runs_on_integers() -> None:
    found = oracle.kernels(quantized(oracle.model("two_towers"), [oracle.feeds("two_towers")]))
    assert found["QLinearConcat"] == found["QLinearSigmoid"] == 1, found


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_image_networks_multiply_on_integers(name: str) -> None:
    model = quantized(oracle.model(name), [oracle.feeds(name)])
    found = oracle.kernels(model)
    assert integer_share(found) >= 0.95, found


def test_the_digits_network_runs_on_integers(digits: Path, images: Path) -> None:
    found = oracle.kernels(quantized(digits, images))
    assert integer_share(found) == 1, found


def narrow_net(convolutions: int, *, branches: bool = False) -> onnx.ModelProto:
    """Convolutions of three taps a side, the first of them on an image of three channels."""
    rng = np.random.default_rng(convolutions)
    nodes, constants, last = [], [], "x"
    for index in range(convolutions):
        shape = (8, 3 if index == 0 else 8, 3, 3)
        weight = rng.normal(0, 0.2, shape).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{index}"))
        read = [last, f"w{index}"]
        nodes.append(helper.make_node("Conv", read, [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        last = f"r{index}"
    if branches:
        nodes.append(helper.make_node("Add", ["r0", last], ["sum"]))
        constants.append(numpy_helper.from_array(weight, "w_last"))
        nodes.append(helper.make_node("Conv", ["sum", "w_last"], ["end"]))
        last = "end"
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16]),
        helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 8, "h", "w"]),
    ]
    graph = helper.make_graph(nodes, "narrow", infos[:1], infos[1:], constants)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize(
    ("convolutions", "branches", "in_float"),
    [(19, False, 0), (20, False, 1), (40, False, 1), (40, True, 0)],
)
def test_one_narrow_convolution_in_twenty_stays_float_at_the_entry(
    convolutions: int, branches: bool, in_float: int
) -> None:
    images = np.random.default_rng(1).normal(0, 1, (4, 3, 16, 16)).astype(np.float32)
    found = oracle.kernels(quantized(narrow_net(convolutions, branches=branches), images))
    assert found["Conv"] == in_float
    assert found["QLinearConv"] == convolutions + branches - in_float
    assert integer_share(found) >= 0.95


def test_one_value_of_16_bits_adds_no_value_of_8_bits_at_the_entry() -> None:
    images = np.random.default_rng(1).normal(0, 1, (4, 3, 16, 16)).astype(np.float32)

    def types(**options: Any) -> dict[str, int]:
        graph = onnx.load_from_string(quantized(narrow_net(20), images, **options)).graph
        points = {tensor.name: tensor.data_type for tensor in graph.initializer}
        scaled = (node for node in graph.node if node.op_type == "QuantizeLinear")
        return {node.input[0].removesuffix("_float"): points[node.input[2]] for node in scaled}

    usual = types()
    assert "x" not in usual
    assert types(activation_types={"r0": "uint16"}) == {**usual, "r0": TensorProto.UINT16}


def pooled() -> bytes:
    """Two convolutions, and between them a MaxPool and a Transpose."""
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["p"], ["t"], "move", perm=[0, 1, 3, 2]),
        helper.make_node("Conv", ["t", "w"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    tensors = [
        numpy_helper.from_array(rng.normal(size=(8, 8, 3, 3)).astype(np.float32), name)
        for name in ("v", "w")
    ]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "pooled", infos[:1], infos[1:], tensors)
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("given", "passed_on", "warning"),
    [
        ({"r": "uint16"}, "uint16", None),
        ({"c": "uint16"}, "uint16", None),
        ({"p": "uint16"}, "uint16", None),
        ({"t": "uint16"}, "uint16", None),
        ({"pool": "uint16"}, "uint16", None),
        ({"r": "uint16", "t": "uint16"}, "uint16", None),
        ({"r": "uint8", "t": "uint16"}, "uint8", "names `t`, but `t` always has the type of `r`"),
        ({"r": "uint16", "p": "int16"}, "uint16", "names `p`, but `p` always has the type of `r`"),
    ],
)
def test_a_type_reaches_what_is_passed_on_or_a_warning_says_where_to_give_it(
    given: dict[str, str], passed_on: str, warning: str | None
) -> None:
    plan = quantize_rs.open(pooled()).plan(activations="uint8", activation_types=given)
    types = {value.name: value.qtype for value in plan.values}
    assert types["p"] == types["t"] == passed_on
    said = [text for text in plan.warnings if "activation_types names" in text]
    assert len(said) == (warning is not None)
    if warning is not None:
        assert warning in said[0]
        assert said[0].endswith("give the type to `r`")


def test_an_output_that_is_made_in_float_stays_as_it_was() -> None:
    """Two products; the value between them is an output too."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(rng.normal(0, 0.3, (8, 8)).astype(np.float32), "w")
    infos = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [4, 8]) for k in ("x", "t", "y")]
    graph = helper.make_graph(nodes, "between", infos[:1], infos[1:], [weight])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    data = rng.normal(0, 1, (4, 8)).astype(np.float32)
    graph = onnx.load_from_string(quantized(model, [{"x": data}])).graph
    producers = {name: node.op_type for node in graph.node for name in node.output}
    assert producers["t"] == "Tanh"
    readers = [node for node in graph.node if node.op_type == "MatMul"]
    assert all(producers[name] == "DequantizeLinear" for node in readers for name in node.input)


def test_an_output_of_an_integer_kernel_is_dequantized() -> None:
    feeds = oracle.feeds("graph_output_conv")
    model = quantized(oracle.model("graph_output_conv"), [feeds])
    graph = onnx.load_from_string(model).graph
    producers = {name: node.op_type for node in graph.node for name in node.output}
    assert {producers[output.name] for output in graph.output} == {"DequantizeLinear"}


def test_what_is_quantized_already_is_not_quantized_again() -> None:
    before = onnx.load(oracle.model("already_qdq")).graph
    feeds = oracle.feeds("already_qdq")
    report = quantize_rs.quantize_with_calibration(
        oracle.model("already_qdq"), None, [feeds], per_channel=True
    )
    assert report.model is not None
    after = onnx.load_from_string(report.model).graph
    count, again = (Counter(node.op_type for node in graph.node) for graph in (before, after))
    assert count == again


def test_equal_constants_are_kept_once_and_nothing_else_changes() -> None:
    rng = np.random.default_rng(0)
    grid = rng.normal(0, 1, (1, 4, 6, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Exp", ["c"], ["e"]),
        helper.make_node("Mul", ["e", "first"], ["m"]),
        helper.make_node("Sub", ["m", "second"], ["s"]),
        helper.make_node("Mul", ["s", "third"], ["y"]),
    ]
    constants = {"first": grid, "second": grid.copy(), "third": -grid}
    constants["w"] = rng.normal(0, 0.2, (4, 3, 3, 3)).astype(np.float32)
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6]),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "grids", infos[:1], infos[1:], tensors)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    images = rng.normal(0, 1, (4, 3, 8, 8)).astype(np.float32)
    after = quantized(model, images)
    kept = {tensor.name for tensor in onnx.load_from_string(after).graph.initializer}
    assert kept & {"first", "second", "third"} == {"first", "third"}
    feed = {"x": images[:1]}
    before = oracle.ort(model.SerializeToString(), feed)
    assert oracle.sqnr(before, oracle.ort(after, feed)) > 25


def test_what_a_max_pool_hides_sets_no_scale() -> None:
    """Large negative numbers that the pool discards must not make the scale coarser."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((8, 3, 3, 3)) * 0.2).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["m"]),
        helper.make_node("MaxPool", ["m"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    shapes = {"x": [1, 3, 16, 16], "y": [1, 8, 6, 6]}
    infos = {k: helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()}
    constants = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.float32(1), "one"),
    ]
    graph = helper.make_graph(nodes, "pool", [infos["x"]], [infos["y"]], constants)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    images = rng.standard_normal((8, 3, 16, 16)).astype(np.float32)
    images[:, :, ::2, ::2] = -100

    report = quantize_rs.quantize_with_calibration(model, None, images, per_channel=True)
    assert report.model is not None
    feed = {"x": images[:1]}
    before = oracle.ort(model.SerializeToString(), feed)
    assert oracle.sqnr(before, oracle.ort(report.model, feed)) > 30
    onnx.checker.check_model(onnx.load_from_string(report.model), full_check=True)


def runs_between_integer_convolutions(
    node: onnx.NodeProto,
    constants: dict[str, np.ndarray[Any, Any]],
    wanted: str,
    batch: str | int = 1,
) -> None:
    """A pass rewrites a node from `before` to `after`, so that ONNX Runtime runs the result."""
    rng = np.random.default_rng(2)
    filters = {
        f"w{at}": rng.standard_normal((8, channels, 3, 3)).astype(np.float32) / 5
        for at, channels in enumerate((3, 8))
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["c"], pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["before"]),
            node,
            helper.make_node("Conv", ["after", "w1"], ["y"], pads=[1] * 4),
        ],
        "between",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 12, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (filters | constants).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    samples = [{"x": rng.standard_normal((1, 3, 12, 16)).astype(np.float32)} for _ in range(4)]
    report = quantize_rs.quantize_with_calibration(
        model, None, samples, per_channel=True, symmetric=True
    )
    assert report.model is not None
    assert [step.name for step in report.steps] == [wanted]
    expected = oracle.ort(model.SerializeToString(), samples[0])
    for optimized in (True, False):
        found = oracle.ort(report.model, samples[0], optimized=optimized)
        assert oracle.sqnr(expected, found) > 30
    assert oracle.kernels(report.model)["QLinearConv"] == 2


@pytest.mark.parametrize("by", ["scales", "sizes", "sizes, any batch", "negative axes"])
def test_a_resize_of_some_axes_runs_between_convolutions_of_integers(by: str) -> None:
    given = {
        "scales": ["", "by"],
        "sizes": ["", "", "by"],
        "sizes, any batch": ["", "", "by"],
        "negative axes": ["", "by"],
    }[by]
    lengths = by.startswith("sizes")
    to = np.array([24, 20], np.int64) if lengths else np.array([2, 1.25], np.float32)
    axes = [-1, -2] if by == "negative axes" else [2, 3]
    runs_between_integer_convolutions(
        helper.make_node("Resize", ["before", *given], ["after"], axes=axes, mode="linear"),
        {"by": to},
        "resize_all_axes",
        batch="n" if by.endswith("any batch") else 1,
    )


def test_a_pad_of_some_axes_between_integer_convolutions_runs() -> None:
    runs_between_integer_convolutions(
        helper.make_node("Pad", ["before", "pads", "", "axes"], ["after"], mode="reflect"),
        {"pads": np.array([1, 1]), "axes": np.array([-2])},
        "pad_all_axes",
    )


@pytest.mark.parametrize("opset", [10, 18])
def test_room_for_other_samples_stays_within_a_clip(tmp_path: Path, opset: int) -> None:
    rng = np.random.default_rng(5)
    filters = [rng.standard_normal((4, c, 3, 3)).astype(np.float32) * 0.2 for c in (3, 4)]
    ends = {} if opset >= 11 else {"min": 0.0, "max": 6.0}
    names = ["a", "low", "high"] if opset >= 11 else ["a"]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Clip", names, ["b"], **ends),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]),
        helper.make_node("Conv", ["c", "w1"], ["y"]),
    ]
    limits = [np.array(0, np.float32), np.array(6, np.float32)]
    constants = dict(zip(("w0", "w1", "low", "high"), filters + limits, strict=True))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "clipped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, name) for name, v in constants.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    # The samples differ in magnitude; none exceeds the limits of the Clip.
    samples = [
        {"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32) * loudness}
        for loudness in np.linspace(0.4, 2.0, 12, dtype=np.float32)
    ]
    # With one scale per weight, the older model needs no conversion.
    plan = quantize_rs.open(model).plan(activations="uint8", per_channel=False)
    ranges = plan.calibrate(samples, method="mse")
    largest = ranges.using("minmax").values["b"][1]
    assert largest < 5.9, "the Clip cuts off nothing"
    assert ranges.values["b"] == (0, 6), "there is room for 9, of which the Clip lets 6 through"
    made = plan.apply(ranges).to_bytes()
    assert onnx.load_from_string(made).opset_import[0].version == opset
    assert oracle.kernels(made)["QLinearConv"] == 2
    ranges.save(tmp_path / "ranges.json")
    again = quantize_rs.Ranges.load(tmp_path / "ranges.json")
    assert again.using("mse").values == ranges.values


def tied(words: int, *heads: str) -> onnx.ModelProto:
    """Almost a language model: the table that embeds words is also the weight of the output."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g(int64[1, s] ids) => (float[1, s, {words}] y) {{
        x = Gather(table, ids)
        z = Gather(table, ids)
        xz = Add(x, z)
        h = MatMul(xz, w)
        {" ".join(heads)}
    }}"""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    for name, shape in (("table", (words, 128)), ("w", (128, 128))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


GEMM = [
    "lines = Constant <value_ints = [-1, 128]> ()",
    "flat = Reshape(h, lines)",
    "o = Gemm <transB = 1> (flat, table)",
    "words = Constant <value_ints = [1, -1, 3000]> ()",
    "y = Reshape(o, words)",
]
HEAD = ["t = Transpose <perm = [1, 0]> (table)", "y = MatMul(h, t)"]
TWO = [
    "a = MatMul(h, t)",
    "u = Transpose <perm = [1, 0]> (table)",
    "b = MatMul(h, u)",
    "y = Add(a, b)",
]


def word_samples(words: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"ids": rng.integers(0, words, (1, 6))} for _ in range(32)]


def table_is_dequantized(path: Path) -> bool:
    """Whether a `Gather` reads a table that is dequantized as a whole."""
    graph = onnx.load(path).graph
    dequantized = {
        node.output[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] == "table_quantized"
    }
    return any(node.op_type == "Gather" and node.input[0] in dequantized for node in graph.node)


@pytest.mark.parametrize(
    "options",
    [{}, {"per_channel": False}, {"engine": "onnxruntime"}, {"target": "arm"}],
    ids=str,
)
@pytest.mark.parametrize("head", [HEAD, GEMM], ids=["MatMul", "Gemm"])
def test_a_table_that_is_multiplied_by_too_is_kept_once_as_integers(
    head: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    """The table is also the head, as in a language model with tied embeddings."""
    words, out = 3000, tmp_path / "tied.onnx"
    model = tied(words, *head)
    report = quantize_rs.quantize_with_calibration(model, out, word_samples(words), **options)
    assert not any("dequantized" in said for said in report.warnings)
    oracle.check(out)
    kernels = oracle.kernels(out)
    products = ("MatMulIntegerToFloat", "QLinearMatMul", "QGemm")
    assert sum(kernels[name] for name in products) == 2
    # Only rows, or the result of the product, are dequantized: never the whole table.
    assert table_is_dequantized(out) is False
    # A byte an element, and a scale a row for the Gather and for the product. A Gemm also has an
    # int32 bias and its scales.
    numbers = 4 if head == GEMM else 2
    assert report.bytes_after < (words + 128) * 128 + numbers * 4 * (words + 128) + 4000
    feeds = word_samples(words)[0]
    assert oracle.sqnr(oracle.ort(model.SerializeToString(), feeds), oracle.ort(out, feeds)) > 30
    validation = quantize_rs.validate(model, out)
    assert validation, validation


@pytest.mark.parametrize(("words", "large"), [(3000, True), (300, False)])
def test_a_table_with_two_consumers_gives_a_warning_of_slowness(words: int, large: bool) -> None:
    model, samples = tied(words, HEAD[0], *TWO), word_samples(words)
    report = quantize_rs.quantize_with_calibration(model, None, samples)
    assert any("`table` is dequantized" in said for said in report.warnings) == large
    quiet = quantize_rs.quantize_with_calibration(model, None, samples, excluded_layers=["table"])
    assert not any("dequantized" in said for said in quiet.warnings)


@pytest.mark.parametrize("output_format", ["qdq", "dynamic"])
def test_a_gemm_with_factors_runs_on_integers(output_format: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    stored = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"w": (48, 32), "b": (1, 48), "v": (48, 8)}.items()
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.3, beta=-1.7, transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "v"], ["y"], alpha=0.25),
        ],
        "factors",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": rng.standard_normal((4, 32)).astype(np.float32)} for _ in range(32)]
    out = tmp_path / "q.onnx"
    if output_format == "qdq":
        quantize_rs.quantize_with_calibration(model, out, samples, target="x86")
    else:
        quantize_rs.quantize(model, out, output_format=output_format, target="x86")
    kernels = oracle.kernels(out)
    assert (
        kernels["QGemm"] + kernels["MatMulIntegerToFloat"] + kernels["DynamicQuantizeMatMul"] == 2
    )
    assert not kernels["Gemm"]
    expected = oracle.ort(model.SerializeToString(), samples[0])
    assert oracle.sqnr(expected, oracle.ort(out, samples[0])) > 35


@pytest.mark.parametrize("output_format", ["qdq", "dynamic"])
def test_a_gelu_that_is_written_out_stays_one_kernel(output_format: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    stored = {
        "w": rng.standard_normal((32, 64)).astype(np.float32) / 8,
        "b": rng.standard_normal(64).astype(np.float32),
        "root": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "v": rng.standard_normal((64, 32)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["h"]),
        helper.make_node("Div", ["h", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["o"]),
        helper.make_node("Mul", ["h", "o"], ["p"]),
        helper.make_node("Mul", ["p", "half"], ["q"]),
        helper.make_node("MatMul", ["q", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    out = tmp_path / "q.onnx"
    if output_format == "qdq":
        samples = [{"x": rng.standard_normal((1, 16, 32)).astype(np.float32)} for _ in range(32)]
        quantize_rs.quantize_with_calibration(model, out, samples)
    else:
        quantize_rs.quantize(model, out, output_format=output_format)
    kernels = oracle.kernels(out)
    assert kernels["MatMulIntegerToFloat"] + kernels["DynamicQuantizeMatMul"] == 2
    assert kernels["Gelu"] + kernels["BiasGelu"] == 1
    assert not kernels["Erf"]


def test_what_keeps_all_activations_float_is_said(digits: Path) -> None:
    samples = np.load(digits.with_name("calibration.npy"))[:4]
    absent = quantize_rs.quantize_with_calibration(digits, None, samples, op_types=["LSTM"])
    assert "op_types allows LSTM, and the model has no such operator" in absent.warnings[0]
    once = quantize_rs.quantize_with_calibration(digits, None, samples)
    assert once.model is not None
    twice = quantize_rs.quantize_with_calibration(once.model, None, samples)
    assert "the model is quantized already" in twice.warnings[0]


@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_what_a_function_clips_takes_no_integers(activations: str) -> None:
    """With symmetric types the function is not fused, and its input is quantized too."""
    name = "shared_bias_two_convs"
    samples = [oracle.feeds(name, count) for count in (4, 8)]
    plan = quantize_rs.open(oracle.model(name)).plan(
        activations=activations, activation_symmetric=True, weight_algorithm="nearest"
    )
    done = plan.apply(plan.calibrate(samples, engine="tract"))
    scales = {value.name: value.scale for value in done.report.values if value.quantized}
    assert scales["conv1_y"] == scales["relu1_y"]
    feeds = oracle.feeds(name, 16)
    exact, found = (oracle.ort(model, feeds) for model in (oracle.model(name), done.to_bytes()))
    assert oracle.sqnr(exact, found) > 26
