"""Weights of small magnitude become exactly 0, as numpy counts them, and stay so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError

Array = npt.NDArray[Any]

RNG = np.random.default_rng(8)


def net(dtype: Any = np.float32) -> tuple[bytes, dict[str, Array]]:
    """Two products, a bias, and a weight behind a Constant and a Transpose."""
    weights = {
        "w": RNG.standard_normal((32, 24)).astype(dtype),
        "v": (RNG.standard_normal((24, 8)) * np.geomspace(0.01, 1, 8)).astype(dtype),
    }
    weights["w"][0, :3] = 0
    constant = numpy_helper.from_array(np.ascontiguousarray(weights["v"].T))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["vt"], value=constant),
            helper.make_node("Transpose", ["vt"], ["v"]),
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first"),
            helper.make_node("MatMul", ["h", "v"], ["y"], name="second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [4, 32])],
        [helper.make_tensor_value_info("y", kind, [4, 8])],
        [
            numpy_helper.from_array(weights["w"], "w"),
            numpy_helper.from_array(np.full(24, 1e-6, dtype), "b"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), weights


def pruned(source: bytes, **options: Any) -> tuple[dict[str, Array], quantize_rs.Pruning]:
    """The pruned weights, and the report."""
    report = quantize_rs.prune(source, **options)
    assert report.model is not None
    graph = onnx.load_from_string(report.model).graph
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constant = next(node for node in graph.node if node.op_type == "Constant")
    found["v"] = numpy_helper.to_array(constant.attribute[0].t).T
    assert (found["b"] == np.asarray(1e-6, found["b"].dtype)).all(), "a bias is no weight"
    return found, report


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["absolute", "relative"])
@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.0, 1.0])
def test_what_is_below_a_threshold_is_0_as_numpy_has_it(
    dtype: str, mode: Any, per: Any, threshold: float
) -> None:
    source, weights = net(dtype)
    found, report = pruned(source, threshold=threshold, mode=mode, per=per)
    zeros = 0
    for name, before in weights.items():
        magnitude = np.abs(before)
        limit: Any = threshold
        if mode == "relative":
            # The columns of either weight are its output channels.
            largest = magnitude.max(axis=0 if per == "channel" else None)
            limit = (np.asarray(threshold, dtype) * largest).astype(dtype)
        expected = np.where(magnitude < limit, np.zeros((), dtype), before)
        np.testing.assert_array_equal(found[name], expected)
        zeros += int((expected == 0).sum())
    assert report.zeros == zeros
    assert report.zeros_before == 3
    assert report.elements == sum(weight.size for weight in weights.values())


def test_the_two_meanings_of_a_threshold_differ() -> None:
    """Below 0.01, and below one percent of the largest, are not the same."""
    source, _ = net()
    absolute, relative = (
        pruned(source, threshold=0.01, mode=mode)[1].zeros for mode in ("absolute", "relative")
    )
    assert absolute != relative


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("sparsity", [0.0, 0.001, 0.3, 0.5, 0.999, 1.0])
def test_sparsity_is_exact_and_ties_go_in_order(sparsity: float, per: Any) -> None:
    source, weights = net()
    found, report = pruned(source, sparsity=sparsity, per=per)
    for name, before in weights.items():
        columns = before.T if per == "channel" else [before.T if name == "v" else before]
        after = (
            found[name].T if per == "channel" else [found[name].T if name == "v" else found[name]]
        )
        for column, left in zip(columns, after, strict=True):
            flat, kept = np.ravel(column), np.ravel(left)
            count = max(round(sparsity * flat.size), int((flat == 0).sum()))
            smallest = np.argsort(np.abs(flat), kind="stable")[:count]
            expected = flat.copy()
            expected[smallest] = 0
            np.testing.assert_array_equal(kept, expected)
    assert {weight.name for weight in report.weights} == {"w", "vt"}


def test_of_equal_weights_those_that_stand_first_become_0() -> None:
    weight = np.array([[1, -1, 2, 1], [1, 3, -1, 1]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    report = quantize_rs.prune(helper.make_model(graph), sparsity=0.5)
    assert report.model is not None
    found = numpy_helper.to_array(onnx.load_from_string(report.model).graph.initializer[0])
    np.testing.assert_array_equal(found, [[0, 0, 2, 0], [0, 3, -1, 1]])


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
def test_zeros_stay_exactly_0_when_quantized(bits: int, symmetric: bool, per_channel: bool) -> None:
    source, weights = net()
    report = quantize_rs.prune(source, sparsity=0.4)
    made = onnx.load_from_string(report.model or b"")
    made.opset_import[0].version, made.ir_version = 25, 13
    given = quantize_rs.quantize(
        made, None, bits=bits, symmetric=symmetric, per_channel=per_channel
    )
    quantized = onnx.load_from_string(given.model or b"")
    parts = {t.name: t for t in quantized.graph.initializer}
    arrays = {name: numpy_helper.to_array(t).astype(np.float32) for name, t in parts.items()}
    back = (arrays["w_quantized"] - arrays["w_zp"]) * arrays["w_scale"]
    zeros = numpy_helper.to_array(next(t for t in made.graph.initializer if t.name == "w")) == 0
    assert zeros.sum() == round(0.4 * weights["w"].size)
    assert (back[zeros] == 0).all()


@pytest.mark.parametrize("effort", ["balanced", "best"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zeros_stay_exactly_0_when_samples_round_the_rest(bits: int, effort: str) -> None:
    source, _ = net()
    samples = RNG.standard_normal((64, 4, 32)).astype(np.float32)
    samples[..., 1:] += samples[..., :-1]
    report = quantize_rs.quantize(
        source,
        None,
        calibration_data=samples,
        bits=bits,
        sparsity=0.4,
        include=["*"],
        layer_bits={"*": bits},
        rounding_effort=effort,
        engine="tract",
        check="none",
    )
    assert any(row.rounded_by not in (None, "nearest") for row in report.weights)
    assert report.model is not None
    made = onnx.load_from_string(report.model)
    made.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    back = oracle.ort(made.SerializeToString(), {"x": samples[0]})[-1]
    found, _ = pruned(source, sparsity=0.4)
    assert (back[found["w"] == 0] == 0).all()


def test_what_is_excluded_or_needed_is_left_alone_and_says_why() -> None:
    source, weights = net()
    made = onnx.load_from_string(source)
    made.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [32, 24]))
    found, report = pruned(made.SerializeToString(), sparsity=0.5, exclude=["second"])
    for name, before in weights.items():
        np.testing.assert_array_equal(found[name], before)
    kept = {weight.name: weight.kept for weight in report.weights}
    assert "output" in (kept["w"] or "")
    assert "second" in (kept["vt"] or "")
    assert report.model == made.SerializeToString(), "nothing was done: the bytes are the same"
    with pytest.raises(OptionError, match="secnd"):
        quantize_rs.prune(source, sparsity=0.5, exclude=["secnd"])


def test_a_model_runs_as_its_pruned_weights_say(tmp_path: Path, digits: Path) -> None:
    target = tmp_path / "sparse.onnx"
    report = quantize_rs.prune(digits, target, sparsity=0.3, per="channel")
    assert report.output == target
    assert report.model is None
    assert abs(report.sparsity - 0.3) < 0.02
    oracle.check(target)
    images = np.load(digits.with_name("calibration.npy"))[:8]
    name = onnx.load(digits).graph.input[0].name
    before, after = (oracle.ort(model, {name: images}) for model in (digits, target))
    assert oracle.sqnr(before, after) > 10  # dB: 30 % of the smallest hold 1 % of the energy
    again = quantize_rs.prune(target, sparsity=0.3, per="channel")
    assert again.zeros == again.zeros_before == report.zeros
    assert again.model == target.read_bytes()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "threshold"),
    ({"threshold": 0.1, "sparsity": 0.1}, "sparsity"),
    ({"threshold": -0.1}, "threshold"),
    ({"threshold": float("nan")}, "threshold"),
    ({"threshold": 1.5, "mode": "relative"}, "threshold"),
    ({"sparsity": 1.5}, "sparsity"),
    ({"sparsity": 0.1, "mode": "relative"}, "mode"),
    ({"threshold": 0.1, "mode": "sparsity"}, "mode"),
    ({"threshold": 0.1, "per": "row"}, "per"),
    ({"threshold": "much"}, "threshold"),
]


@pytest.mark.parametrize(("options", "named"), WRONG, ids=lambda value: str(value))
def test_options_that_make_no_sense_are_named(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    source, _ = net()
    with pytest.raises(OptionError) as error:
        quantize_rs.prune(source, tmp_path / "out.onnx", **options)
    assert error.value.option == named
    assert not list(tmp_path.iterdir())


def test_nan_is_named_with_its_place() -> None:
    source, _ = net()
    made = onnx.load_from_string(source)
    weight = numpy_helper.to_array(made.graph.initializer[0]).copy()
    weight[1, 2] = np.nan
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    with pytest.raises(quantize_rs.QuantizeError, match=r"`w`.*element 26.*exclude"):
        quantize_rs.prune(made, threshold=0.1)
    assert quantize_rs.prune(made, threshold=0.1, exclude=["w"]).zeros > 0


@pytest.mark.parametrize(
    ("asked", "how"),
    [({"prune": 0.3}, {"threshold": 0.3}), ({"sparsity": 0.4}, {"sparsity": 0.4})],
)
def test_one_call_is_both_steps(digits: Path, asked: dict[str, Any], how: dict[str, Any]) -> None:
    source, _ = net()
    for excluded in ([], ["second"]):
        options: dict[str, Any] = {"per_channel": True, "excluded_layers": excluded}
        sparse = quantize_rs.prune(source, exclude=excluded, **how)
        assert sparse.model is not None
        two = quantize_rs.quantize(sparse.model, None, **options)
        one = quantize_rs.quantize(source, None, **options, **asked)
        assert one.model == two.model
        assert one.bytes_before == len(source)
        step = one.steps[0]
        assert step.name == "prune"
        lines = [
            f"`{w.name}`: {w.zeros} of {w.elements} are 0, {w.zeros_before} before"
            for w in sparse.weights
            if w.zeros > w.zeros_before
        ]
        assert list(step.did) == lines
        assert "prepared: prune" in str(one)
    samples = digits.with_name("calibration.npy")
    sparse = quantize_rs.prune(digits, **how)
    assert sparse.model is not None
    two, one = (
        quantize_rs.quantize_with_calibration(
            model, None, samples, limit=20, check="none", **options
        )
        for model, options in ((sparse.model, {}), (digits, asked))
    )
    assert one.model == two.model


WAYS: list[dict[str, Any]] = [
    {},
    {"bits": 4, "block_size": 16},
    {"bits": 2, "per_channel": True},
    {"weights": "uint8", "weight_method": "mse"},
    {"weights": "float8"},
    {"weights": "bfloat16"},
    {"output_format": "dynamic", "weights": "uint8"},
    {"output_format": "matmul_nbits", "bits": 4},
    {"output_format": "matmul_nbits", "bits": 4, "symmetric": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_one_call_sets_to_0_multiplies_as_0(way: dict[str, Any]) -> None:
    weight = RNG.standard_normal((32, 32)).astype(np.float32)
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", float32, [32, 32])],
        [helper.make_tensor_value_info("y", float32, [32, 32])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = quantize_rs.quantize(model, None, sparsity=0.5, **way)
    assert report.model is not None
    assert report.quantized
    # The product with the identity is the dequantized weight, unless fused kernels round it.
    (back,) = oracle.ort(report.model, {"x": np.eye(32, dtype=np.float32)}, optimized=False)
    smallest = np.argsort(np.abs(weight), axis=None)[:512]
    assert (np.ravel(back)[smallest] == 0).all()
    assert np.count_nonzero(back) > 256


def test_zero_points_between_integers_are_refused_beside_pruning() -> None:
    source, _ = net()
    between: dict[str, Any] = {"output_format": "matmul_nbits", "weight_method": "hqq", "bits": 4}
    with pytest.raises(OptionError, match="would not stay 0") as refused:
        quantize_rs.quantize(source, None, prune=0.1, **between)
    assert refused.value.option == "weight_method"
    for options, option in (
        ({"prune": -1}, "prune"),
        ({"prune": float("nan")}, "prune"),
        ({"sparsity": 2}, "sparsity"),
        ({"prune": 0.1, "sparsity": 0.1}, "sparsity"),
        ({"prune": "much"}, "prune"),
    ):
        wrong: dict[str, Any] = options
        with pytest.raises(OptionError) as refused:
            quantize_rs.quantize(source, None, **wrong)
        assert refused.value.option == option


def test_criteria_compare_with_the_unpruned_model(digits: Path) -> None:
    images = digits.with_name("calibration.npy")
    verified = [
        quantize_rs.quantize(digits, None, sparsity=part, verify=images).accuracy_control
        for part in (0.0, 0.5)
    ]
    dense, sparse = (found.sqnr_db for found in verified if found is not None)
    assert dense is not None
    assert sparse is not None
    assert sparse < dense - 10
    with pytest.raises(quantize_rs.AccuracyCriteriaError, match="prune fewer weights"):
        quantize_rs.quantize(digits, None, sparsity=0.5, verify=images, min_sqnr=dense)


@pytest.mark.parametrize("options", [{"prune": 0.05}, {"sparsity": 0.1}], ids=str)
@pytest.mark.parametrize("static", [True, False])
def test_layers_that_fall_back_are_pruned_too(options: dict[str, Any], static: bool) -> None:
    """What is pruned does not depend on which layers stay float."""
    source, _ = net()
    data = RNG.standard_normal((12, 4, 32)).astype(np.float32)
    quantize = quantize_rs.quantize_with_calibration if static else quantize_rs.quantize
    given: dict[str, Any] = {"calibration_data": data, "check": "none", **options}
    given |= {"target": "x86"} if static else {"bits": 4, "symmetric": True}
    plain = quantize(source, None, **given)
    assert plain.model is not None
    reached = quantize_rs.compare(source, plain.model, data, latency=False).sqnr_db
    assert reached is not None
    report = quantize(source, None, min_sqnr=reached + 0.05, **given)
    verified = report.accuracy_control
    assert verified is not None
    assert verified.float_layers
    assert report.model is not None
    constants = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(report.model).graph.initializer
    }
    for layer in verified.float_layers:
        assert (constants[layer.name] == 0).mean() > 0.02, layer.name


@pytest.mark.parametrize("other", ["reader", "output", "cast"])
def test_what_others_read_before_a_cast_stays(other: str) -> None:
    half = np.array([[0.1, 1], [0.2, -2], [0.3, 0.01], [-0.4, 3]], np.float16)
    nodes = [
        helper.make_node("Cast", ["half"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])]
    if other == "reader":
        nodes.append(helper.make_node("Identity", ["half"], ["z"]))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, [4, 2]))
    elif other == "output":
        outputs.append(helper.make_tensor_value_info("half", TensorProto.FLOAT16, [4, 2]))
    else:
        nodes.append(helper.make_node("Cast", ["half"], ["v"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("MatMul", ["x", "v"], ["z"]))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 2]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph(nodes, "g", [x], outputs, [numpy_helper.from_array(half, "half")])
    opsets = [helper.make_opsetid("", 17)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    excluded = ["v"] if other == "cast" else None
    report = quantize_rs.prune(source, None, threshold=0.35, exclude=excluded)
    assert report.model is not None
    feeds = {"x": np.eye(4, dtype=np.float32)}
    (before, stays), (after, stayed) = oracle.ort(source, feeds), oracle.ort(report.model, feeds)
    np.testing.assert_array_equal(stayed, stays)
    np.testing.assert_array_equal(after, np.where(np.abs(before) < 0.35, 0, before))
    assert [weight.zeros for weight in report.weights if weight.name == "w"] == [4]


@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_scales_of_a_quantized_table_are_no_weights(way: str) -> None:
    """A table that a head shares is looked up as integers, and its scales beside it."""
    table = RNG.standard_normal((60, 32)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Tanh", ["rows"], ["h"]),
            helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "head"], ["y"], name="head"),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 60])],
        [numpy_helper.from_array(table, "table")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    ids = [{"ids": RNG.integers(0, 60, (4, 8))} for _ in range(8)]
    if way == "dynamic":
        made = quantize_rs.quantize(model, None, output_format="dynamic", allow_larger=True).model
    else:
        made = quantize_rs.quantize_with_calibration(model, None, ids, allow_larger=True).model
    assert made is not None
    assert "table_scale" in {each.name for each in onnx.load_from_string(made).graph.initializer}
    report = quantize_rs.prune(made, sparsity=0.5)
    assert [weight.name for weight in report.weights] == ["table_quantized"]
    assert report.weights[0].kept is not None
    assert "int8" in report.weights[0].kept
    assert report.model == made
    again = quantize_rs.quantize(made, None, bits=4, include=["*"], allow_larger=True)
    assert "table_scale" not in {value.name for value in again.values if value.quantized}
