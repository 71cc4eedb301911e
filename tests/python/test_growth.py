"""A result is smaller than its model, or the call says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from odd import Array, ints, node
from onnx import TensorProto, helper, numpy_helper

import quantize_rs
from quantize_rs import UnsupportedModelError

HIDDEN = 160
"""Two gates of 160 x 160 floats take more than 64 KiB."""


def weight(rng: np.random.Generator, *shape: int) -> Array:
    made: Array = (rng.normal(0, 1, shape) / np.sqrt(shape[-1])).astype(np.float32)
    return made


def value(name: str, kind: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def reordered(prefix: str, source: str, constants: dict[str, Array]) -> list[onnx.NodeProto]:
    """The gates of a weight in the order of ONNX, as PyTorch exports them: i, o, then f and c."""
    nodes = []
    for at, (start, end) in enumerate(((0, 1), (3, 4), (1, 3))):
        constants[f"{prefix}start{at}"] = ints(start * HIDDEN)
        constants[f"{prefix}end{at}"] = ints(end * HIDDEN)
        reads = f"{source} {prefix}start{at} {prefix}end{at} {prefix}axis"
        nodes.append(node("Slice", reads, f"{prefix}part{at}"))
    constants[f"{prefix}axis"] = ints(0)
    parts = " ".join(f"{prefix}part{at}" for at in range(3))
    nodes.append(node("Concat", parts, f"{prefix}joined", axis=0))
    nodes.append(node("Unsqueeze", f"{prefix}joined {prefix}axis", f"{prefix}gates"))
    return nodes


def lstm(name: str, weights: dict[str, Array], *, outside: bool) -> onnx.GraphProto:
    """A branch with an LSTM whose gates it brings into order."""
    constants = {} if outside else {f"{name}_{key}": array for key, array in weights.items()}
    nodes = []
    for key in ("w", "r"):
        source = key if outside else f"{name}_{key}"
        nodes += reordered(f"{name}_{key}_", source, constants)
    nodes.append(
        node("LSTM", f"x {name}_w_gates {name}_r_gates", f"{name}_out", hidden_size=HIDDEN)
    )
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    return helper.make_graph(nodes, name, [], [value(f"{name}_out")], tensors)


def branches(*, outside: bool) -> bytes:
    """An LSTM in both branches of an If, with weights of their own or with shared ones."""
    rng = np.random.default_rng(3)
    made = [{"w": weight(rng, 4 * HIDDEN, 40), "r": weight(rng, 4 * HIDDEN, HIDDEN)}]
    made.append(made[0] if outside else {key: -array for key, array in made[0].items()})
    then, other = (
        lstm(name, weights, outside=outside)
        for name, weights in zip(("then", "else"), made, strict=True)
    )
    nodes = [node("If", "when", "y", then_branch=then, else_branch=other)]
    given = made[0] if outside else {}
    tensors = [numpy_helper.from_array(array, key) for key, array in given.items()]
    inputs = [value("x", shape=["time", "batch", 40]), value("when", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "branches", inputs, [value("y")], tensors)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize("outside", [False, True])
def test_gates_in_branches_leave_no_source_behind(outside: bool) -> None:
    model = branches(outside=outside)
    better = quantize_rs.optimize(model)
    assert better.model is not None
    assert len(better.model) < 1.01 * len(model)
    report = quantize_rs.quantize(model, None)
    assert report.model is not None
    assert len(report.model) < 0.35 * len(model)
    assert all(row.quantized for row in report.weights)
    for when in (True, False):
        x = np.random.default_rng(1).normal(0, 1, (5, 2, 40)).astype(np.float32)
        feeds: oracle.Feeds = {"x": x, "when": np.array(when)}
        for optimize in (False, True):
            (expected,) = oracle.ort(model, feeds, optimized=optimize)
            (same,) = oracle.ort(better.model, feeds, optimized=optimize)
            # ONNX Runtime packs constant weights, and adds in another order then.
            np.testing.assert_allclose(same, expected, rtol=2e-5, atol=2e-6)
            (found,) = oracle.ort(report.model, feeds, optimized=optimize)
            error = np.mean((found - expected) ** 2) / np.mean(expected**2)
            assert 10 * np.log10(error) < -35


def table(*, shared: bool) -> bytes:
    """A table of 256 KiB of which a half is read, and all of it if it is shared."""
    rng = np.random.default_rng(4)
    nodes = [node("Slice", "w start end", "half"), node("MatMul", "x half", "y0")]
    nodes.append(node("Gemm", "y0 w" if shared else "y0 v", "y"))
    rows = {"w": weight(rng, 256, 256), "start": ints(0), "end": ints(128)}
    if not shared:
        rows["v"] = weight(rng, 256, 8)
    tensors = [numpy_helper.from_array(array, key) for key, array in rows.items()]
    inputs = [value("x", shape=["batch", 128])]
    graph = helper.make_graph(nodes, "table", inputs, [value("y")], tensors)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_a_part_of_a_weight_is_computed_in_advance_only_if_that_replaces_the_weight() -> None:
    alone = quantize_rs.optimize(table(shared=False))
    assert alone.model is not None
    assert len(alone.model) < 0.6 * len(table(shared=False))
    assert [step.name for step in alone.steps] == ["fold_constants"]
    shared = quantize_rs.optimize(table(shared=True))
    assert shared.steps == ()


def carried(op_type: str, *, by_identity: bool, swapped: bool = False) -> bytes:
    """A Loop or a Scan whose two weights come in as state and go out as they came."""
    rng = np.random.default_rng(5)
    weights = {"v": weight(rng, 64, 256), "w": weight(rng, 256, 64)}
    state: dict[str, Any] = {"h": [3, 64], "v_in": [64, 256], "w_in": [256, 64]}
    nodes = [
        node("MatMul", "h v_in", "up"),
        node("Tanh", "up", "bent"),
        node("MatMul", "bent w_in", "h_out"),
    ]
    ends = ["v_in", "w_in"]
    if by_identity:
        nodes += [node("Identity", "v_in", "v_out"), node("Identity", "w_in", "w_out")]
        ends = ["v_out", "w_out"]
    if swapped:
        ends.reverse()
        state = {key: [None, None] for key in state}
    given = [value(key, shape=shape) for key, shape in state.items()]
    made = [value(name) for name in ("h_out", *ends)]
    tensors = {key: numpy_helper.from_array(array, key) for key, array in weights.items()}
    if op_type == "Loop":
        tensors["steps"] = numpy_helper.from_array(np.array(3, np.int64), "steps")
        ahead = [value("step", TensorProto.INT64, []), value("on", TensorProto.BOOL, [])]
        nodes.append(node("Identity", "on", "on_out"))
        made.insert(0, value("on_out", TensorProto.BOOL, []))
        body = helper.make_graph(nodes, "body", [*ahead, *given], made)
        loop = node("Loop", "steps - x v w", "y v_last w_last", body=body)
    else:
        nodes[0] = node("MatMul", "added v_in", "up")
        nodes.insert(0, node("Add", "h one", "added"))
        body = helper.make_graph(nodes, "body", [*given, value("one", shape=[3, 64])], made)
        loop = node("Scan", "x v w many", "y v_last w_last", body=body, num_scan_inputs=1)
        many = rng.normal(0, 1, (3, 3, 64)).astype(np.float32)
        tensors["many"] = numpy_helper.from_array(many, "many")
    outputs = [value("y"), value("w_last")]
    inputs = [value("x", shape=[3, 64])]
    graph = helper.make_graph([loop], "carried", inputs, outputs, list(tensors.values()))
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
@pytest.mark.parametrize("by_identity", [False, True])
def test_weights_that_a_loop_carries_are_quantized(op_type: str, by_identity: bool) -> None:
    model = carried(op_type, by_identity=by_identity)
    better = quantize_rs.optimize(model)
    assert better.model is not None
    assert "lift_carried" in [step.name for step in better.steps]
    # One of the weights is an output, too.
    report = quantize_rs.quantize(model, None, exclude=["w"])
    assert report.model is not None
    assert {row.name: row.quantized for row in report.weights} == {"v": True, "w": False}
    x = np.random.default_rng(1).normal(0, 1, (3, 64)).astype(np.float32)
    # ONNX Runtime 1.32 returns zeros for the state of a Scan whose body outputs an input directly.
    right = oracle.reference if op_type == "Scan" else oracle.ort
    expected = right(model, {"x": x})
    for optimize in (False, True):
        for one, other in zip(
            expected, oracle.ort(better.model, {"x": x}, optimized=optimize), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
        found = oracle.ort(report.model, {"x": x}, optimized=optimize)
        np.testing.assert_array_equal(found[1], expected[1])
        error = np.mean((found[0] - expected[0]) ** 2) / np.mean(expected[0] ** 2)
        assert 10 * np.log10(error) < -35


def test_a_loop_of_weights_takes_a_quarter() -> None:
    proto = onnx.load_from_string(carried("Loop", by_identity=True))
    del proto.graph.output[1]
    report = quantize_rs.quantize(proto.SerializeToString(), None)
    assert report.model is not None
    assert len(report.model) < 0.3 * len(proto.SerializeToString())


def test_weights_that_change_places_stay_in_the_loop() -> None:
    model = carried("Loop", by_identity=False, swapped=True)
    assert "lift_carried" not in [step.name for step in quantize_rs.optimize(model).steps]


def read_twice(rows: int) -> bytes:
    """Two products with one weight: without one of them, integers are stored beside the floats."""
    rng = np.random.default_rng(6)
    nodes = [node("MatMul", "x w", "y"), helper.make_node("MatMul", ["x", "w"], ["z"], "other")]
    tensors = [numpy_helper.from_array(weight(rng, rows, 64), "w")]
    inputs = [value("x", shape=["batch", rows])]
    outputs = [value("y"), value("z")]
    graph = helper.make_graph(nodes, "twice", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_a_larger_result_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    model, out = read_twice(8192), tmp_path / "out.onnx"
    with pytest.raises(UnsupportedModelError, match="would be larger than the model") as caught:
        quantize_rs.quantize(model, out, exclude=["other"])
    assert 'exclude=["w"]' in str(caught.value)
    assert "allow_larger=True" in str(caught.value)
    assert not out.exists()
    report = quantize_rs.quantize(model, out, exclude=["other"], allow_larger=True)
    assert report.bytes_after > report.bytes_before
    assert any("is not smaller" in warning for warning in report.warnings)
    # A small model has other purposes than its size.
    report = quantize_rs.quantize(read_twice(64), None, exclude=["other"])
    assert any("is not smaller" in warning for warning in report.warnings)


def test_long_names_are_not_repeated() -> None:
    rng = np.random.default_rng(8)
    nodes, tensors, last = [], [], "x"
    for layer in range(12):
        name = f"StatefulPartitionedCall/backbone/stage_{layer:02}/depthwise_convolution"
        made = f"{name}/BiasAdd:0" if layer < 11 else "y"
        arrays = {
            f"{name}/kernel": weight(rng, 4, 4, 1, 1),
            f"{name}/bias": weight(rng, 4),
        }
        tensors += [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        nodes.append(helper.make_node("Conv", [last, *arrays], [made], name))
        last = made
    inputs = [value("x", shape=["batch", 4, 8, 8])]
    graph = helper.make_graph(nodes, "long", inputs, [value("y")], tensors)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = rng.normal(0, 1, (16, 4, 8, 8)).astype(np.float32)
    report = quantize_rs.quantize_with_calibration(proto.SerializeToString(), None, data)
    assert report.model is not None
    after = onnx.load_from_string(report.model)
    assert _names(after) < 1.5 * _names(proto)
    # The names that the model has stay, and so does the link from a weight to its integers.
    produced = {name for one in after.graph.node for name in one.output}
    assert {name for one in nodes for name in one.output} <= produced
    constants = {tensor.name for tensor in after.graph.initializer}
    assert {f"{row.name}_quantized" for row in report.weights} <= constants
    assert not quantize_rs.validate(proto.SerializeToString(), report.model).problems


def _names(model: onnx.ModelProto) -> int:
    """The bytes of all names."""
    nodes = model.graph.node
    names = [name for one in nodes for name in (one.name, *one.input, *one.output)]
    return sum(map(len, [*names, *(tensor.name for tensor in model.graph.initializer)]))


def test_the_report_counts_the_weights_that_branches_keep() -> None:
    rng = np.random.default_rng(9)
    branches = {
        name: helper.make_graph(
            [node("MatMul", f"x {name}_w", f"{name}_y")],
            name,
            [],
            [value(f"{name}_y"), value(f"{name}_w")],
            [numpy_helper.from_array(weight(rng, 64, 32), f"{name}_w")],
        )
        for name in ("then", "other")
    }
    made = {"then_branch": branches["then"], "else_branch": branches["other"]}
    nodes = [node("MatMul", "x v", "z"), node("If", "when", "y w", **made)]
    inputs = [value("x", shape=["batch", 64]), value("when", TensorProto.BOOL, [])]
    tensors = [numpy_helper.from_array(weight(rng, 64, 32), "v")]
    outputs = [value("y"), value("w"), value("z")]
    graph = helper.make_graph(nodes, "kept", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    report = quantize_rs.quantize(model, None)
    assert {row.name: row.quantized for row in report.weights} == {
        "v": True,
        "then_w": False,
        "other_w": False,
    }
    why = next(row.why for row in report.weights if row.name == "then_w")
    assert "subgraph `then`" in why
    assert report.sizes.kept == 2 * 64 * 32 * 4
    assert "1 of 3 weights quantized" in str(report)
