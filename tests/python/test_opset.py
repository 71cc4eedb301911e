"""A model of an older operator set means the same in a newer one."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    NotImplemented,  # noqa: A004
    get_all_opkernel_def,
)
from opset_cases import CASES, TARGETS, Case

import quantize_rs
from quantize_rs import OptionError, UnsupportedModelError

SOURCE = Path(__file__).resolve().parents[2] / "rust/quantize/src/transform/convert_opset/steps.rs"
NEWEST = 28


def table() -> dict[str, tuple[int, dict[int, str]]]:
    """Read the table of the source: since when there is an operator, and its steps."""
    rows = re.findall(
        r'row\(\s*"(\w+)",\s*(\d+),\s*&\[(.*?)\],?\s*\)', SOURCE.read_text("utf-8"), re.DOTALL
    )
    step = re.compile(r"(same|by|no)\(\s*(\d+)")
    return {
        name: (int(since), {int(version): how for how, version in step.findall(steps)})
        for name, since, steps in rows
    }


def schemas() -> dict[str, dict[int, defs.OpSchema]]:
    found: dict[str, dict[int, defs.OpSchema]] = defaultdict(dict)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= NEWEST:
            found[schema.name][schema.since_version] = schema
    return found


def test_every_step_of_every_operator_is_known() -> None:
    known = {name: [since, *steps] for name, (since, steps) in table().items()}
    # Of ONNX Runtime, which has it in the domain of ONNX.
    assert known.pop("SimplifiedLayerNormalization") == [1]
    assert known["LayerNormalization"].pop(0) == 1
    assert known == {name: sorted(versions) for name, versions in schemas().items()}


def test_operators_that_onnxruntime_does_not_run_in_a_newer_opset_are_known() -> None:
    kernels: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for kernel in get_all_opkernel_def():
        if (kernel.domain, kernel.provider) == ("", "CPUExecutionProvider"):
            kernels[kernel.op_name].add(kernel.version_range)
    forever = max(last for ranges in kernels.values() for _, last in ranges)

    def runs(name: str, version: int) -> bool:
        """Whether there is a kernel; one without a last version is for the first version alone."""
        ranges = kernels[name]
        return any(a == version or a < version <= b < forever for a, b in ranges)

    lost = {
        (name, version)
        for name, versions in schemas().items()
        for version, schema in versions.items()
        if not runs(name, version)
        and any(runs(name, older) for older in versions if older < version)
        and not (schema.has_function or schema.has_context_dependent_function)
        and not schema.deprecated
    }
    # It is expanded into a random operator.
    lost.add(("Bernoulli", 22))
    source = SOURCE.with_name("kernels.rs").read_text("utf-8")
    rows = re.findall(r'\("(\w+)", (\d+)\)', source)
    assert sorted((name, int(version)) for name, version in rows) == sorted(lost)


def _attributes(schema: defs.OpSchema) -> dict[str, object]:
    return {
        name: helper.get_attribute_value(said.default_value) if said.default_value.type else None
        for name, said in schema.attributes.items()
    }


def _only_adds(old: defs.OpSchema, new: defs.OpSchema) -> bool:
    """Whether a node of the old schema is one of the new, by attributes and inputs."""
    before, after = _attributes(old), _attributes(new)
    kept = all(name in after and after[name] == value for name, value in before.items())
    optional = defs.OpSchema.FormalParameterOption.Optional
    inputs = len(old.inputs) <= len(new.inputs) and all(
        said.option == optional for said in list(new.inputs)[len(old.inputs) :]
    )
    return kept and inputs and not new.deprecated


# Cases that `_only_adds` does not recognize: attributes that became optional or were never set, and
# an operator that ONNX Runtime had before ONNX.
SAME_ALL_THE_SAME = {
    ("Clip", 6),
    ("GRU", 3),
    ("LpPool", 2),
    ("GlobalLpPool", 2),
    ("LayerNormalization", 17),
}


def test_what_stands_as_it_is_only_gained_something() -> None:
    found = schemas()
    for name, (since, steps) in table().items():
        before = since
        for version, how in steps.items():
            if how == "same" and (name, version) not in SAME_ALL_THE_SAME:
                assert _only_adds(found[name][before], found[name][version]), (name, version)
            before = version


def _versions(case: Case) -> list[int]:
    """The first version of each schema in which the node has this form."""
    changes = sorted(schemas()[case.op])
    starts = {max(case.since, version) for version in changes}
    return sorted(v for v in starts if v <= min(case.until, TARGETS[-1]))


def _check(model: onnx.ModelProto, case: Case, made: list[Any]) -> None:
    """Run the ONNX checker, which needs the types of inputs and outputs."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    values = [*case.inputs.values(), *made]
    for info, value in zip([*model.graph.input, *model.graph.output], values, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, dtype, value.shape))
    onnx.checker.check_model(model)


def _run(model: bytes, inputs: oracle.Feeds) -> tuple[list[Any], float]:
    """Run a model; return its outputs and a tolerance: ONNX Runtime 1.31 lacks some kernels."""
    try:
        return oracle.ort(model, inputs, optimized=False), 0.0
    except NotImplemented:
        return oracle.reference(model, inputs), 1e-6


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_node_means_the_same(case: Case) -> None:
    for version in _versions(case):
        before = case.model(version)
        expected, far = _run(before.SerializeToString(), case.inputs)
        for target in (target for target in TARGETS if target > version):
            done = quantize_rs.convert_opset(before, opset=target)
            assert done.model is not None
            after = onnx.load_from_string(done.model)
            # GroupNormalization was deprecated, until another one took its place.
            if case.op != "GroupNormalization" or target >= 21:
                _check(after, case, expected)
            assert after.opset_import[0].version == target
            if not done.changed:
                assert after.graph == before.graph
            found, further = _run(done.model, case.inputs)
            assert bool(done.warnings) == (further > far), (version, target, done.warnings)
            atol = max(case.atol, far, further)
            for one, other in zip(expected, found, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(other, one, 0, atol, err_msg=f"{version} -> {target}")


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any] | None],
    outputs: list[str],
    opset: int,
    constants: dict[str, Any] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    ir: int = 8,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    tensors = [onnx.numpy_helper.from_array(v, name) for name, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, made, tensors)
    opsets = [helper.make_opsetid("", opset)]
    if functions:
        opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions or [])


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    done = quantize_rs.convert_opset(model, opset=opset)
    assert done.model is not None
    return onnx.load_from_string(done.model)


def test_graphs_inside_nodes_are_converted_with_values_from_outside() -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(nodes[-1].output[0], 1, None)
        return helper.make_graph(list(nodes), name, [], [info])

    innermost = branch("in", helper.make_node("Softmax", ["x"], ["deep"], axis=1))
    inner = branch(
        "then",
        helper.make_node("ReduceSum", ["x"], ["s"], axes=[2], keepdims=0),
        helper.make_node("If", ["c"], ["d"], then_branch=innermost, else_branch=innermost),
        helper.make_node("ReduceMax", ["d"], ["m"], axes=[2], keepdims=0),
        helper.make_node("Add", ["s", "m"], ["y_then"]),
    )
    other = branch("else", helper.make_node("Squeeze", ["x1"], ["y_else"], axes=[0]))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["c"]),
        helper.make_node("Unsqueeze", ["x0"], ["x1"], axes=[0]),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other),
    ]
    constants = {"zero": np.float32(0)}
    before = _model(nodes, {"x": [2, 3, 4], "x0": [2, 3]}, ["y"], 12, constants)
    after = _converted(before, 18)
    for sign in (1, -1):
        x = sign * np.abs(np.random.default_rng(1).normal(size=(2, 3, 4))).astype(np.float32)
        feeds = {"x": x, "x0": x[..., 0]}
        expected = oracle.ort(before.SerializeToString(), feeds)
        found = oracle.ort(after.SerializeToString(), feeds)
        np.testing.assert_array_equal(expected[0], found[0])


def test_functions_are_converted_from_their_own_version() -> None:
    axes = helper.make_node("Unsqueeze", ["a"], ["u"])
    given = onnx.AttributeProto(name="axes", ref_attr_name="where", type=onnx.AttributeProto.INTS)
    axes.attribute.append(given)
    nodes = [axes, helper.make_node("ReduceMean", ["u"], ["b"], axes=[-1])]
    old = helper.make_function(
        "local", "Old", ["a"], ["b"], nodes, [helper.make_opsetid("", 12)], ["where"]
    )
    new = helper.make_function(
        "local",
        "Softmax",  # a function takes precedence over an operator
        ["a"],
        ["b"],
        [helper.make_node("Identity", ["a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    calls = [
        helper.make_node("Old", ["x"], ["h"], domain="local", where=[1]),
        helper.make_node("Softmax", ["h"], ["y"], domain="local"),
    ]
    before = _model(calls, {"x": [2, 3]}, ["y"], 12, functions=[old, new])
    after = _converted(before, 18)
    versions = {f.name: {o.domain: o.version for o in f.opset_import} for f in after.functions}
    assert versions == {"Old": {"": 18}, "Softmax": {"": 21}}
    assert after.functions[1] == before.functions[1]
    assert list(after.graph.node) == list(before.graph.node)
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    found = oracle.reference(after.SerializeToString(), {"x": x})
    np.testing.assert_allclose(found[0], x[:, None].mean(-1, keepdims=True), rtol=1e-6)


def test_what_stays_keeps_its_bytes_and_names_that_are_taken_are_left_alone() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="kept", doc_string="as it was"),
        helper.make_node("Squeeze", ["h"], ["y"], name="first", axes=[0]),
        helper.make_node("Squeeze", ["y_axes"], ["z"], name="second", axes=[0]),
        helper.make_node("Custom", ["x"], ["w"], domain="acme"),
    ]
    before = _model(nodes, {"x": [1, 2], "y_axes": [1, 2]}, ["y", "z", "w"], 8, ir=3)
    before.opset_import.append(helper.make_opsetid("acme", 3))
    done = quantize_rs.convert_opset(before, opset=13)
    assert done.changed == ("node `first` (Squeeze)", "node `second` (Squeeze)")
    assert str(done) == "opset 8 → 13: 2 nodes changed"
    assert done.model is not None
    after = onnx.load_from_string(done.model)
    assert nodes[0].SerializeToString() in done.model
    assert nodes[3].SerializeToString() in done.model
    assert [o.version for o in after.opset_import] == [13, 3]
    assert after.ir_version == 7
    # Equal constants are stored once, under a name that no input has.
    assert [t.name for t in after.graph.initializer] == ["y_axes_1"]
    assert [list(n.input) for n in after.graph.node[1:3]] == [
        ["h", "y_axes_1"],
        ["y_axes", "y_axes_1"],
    ]
    assert after.graph.value_info == before.graph.value_info


@pytest.mark.parametrize(
    ("node", "opset", "to", "why"),
    [
        (helper.make_node("Warp", ["x"], ["y"], name="n"), 17, 21, "has no operator Warp"),
        (
            helper.make_node("Gelu", ["x"], ["y"], name="n"),
            17,
            21,
            "opset 17 has no operator Gelu",
        ),
        (
            helper.make_node("Tile", ["x", "a", "a"], ["y"], name="n"),
            5,
            13,
            "repeats a single axis",
        ),
        (helper.make_node("Scan", ["", "x"], ["y"], name="n", num_scan_inputs=1), 8, 9, "batch"),
        (
            helper.make_node("BatchNormalization", ["x", *"aaaa"], ["y"], name="n", spatial=0),
            *(8, 9, "spatial is 0"),
        ),
        (
            helper.make_node("BatchNormalization", ["x", *"aaaa"], [*"ymv"], name="n"),
            *(9, 14, "in training"),
        ),
        (helper.make_node("Dropout", ["x"], ["y", "a2"], name="n"), 11, 12, "mask `a2` is used"),
        (helper.make_node("Dropout", ["x"], ["y"], name="n"), 6, 7, "in training"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_nodes_that_cannot_be_converted_are_refused_by_name(
    node: onnx.NodeProto, opset: int, to: int, why: str, tmp_path: Path
) -> None:
    nodes = [node]
    if "a2" in node.output:
        nodes.append(helper.make_node("Identity", ["a2"], ["b"]))
    model = _model(nodes, {"x": [2, 3, 4], "a": [3]}, ["y"], opset, ir=6)
    with pytest.raises(UnsupportedModelError, match=re.escape(why)) as caught:
        quantize_rs.convert_opset(model, tmp_path / "out.onnx", opset=to)
    assert caught.value.op_type == node.op_type
    assert caught.value.node == f"node `n` ({node.op_type})"
    assert caught.value.feature == f"opset {to}"
    assert not list(tmp_path.iterdir())


def test_only_newer_versions_that_are_known_are_made() -> None:
    model = _model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], 17)
    with pytest.raises(OptionError, match="the model has 17"):
        quantize_rs.convert_opset(model, opset=13)
    with pytest.raises(OptionError, match="expected 1 to 28"):
        quantize_rs.convert_opset(model, opset=29)
    same = quantize_rs.convert_opset(model, opset=17)
    assert same.model == model.SerializeToString()
    assert (same.from_opset, same.to_opset, same.changed) == (17, 17, ())


def test_the_first_models_of_all_are_converted() -> None:
    """Versions 1 to 6, which ONNX Runtime does not run, against numpy."""
    rng = np.random.default_rng(2)
    x, by_channel = (
        rng.normal(size=(2, 3, 4, 5)).astype(np.float32),
        np.array([1, -2, 3], np.float32),
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], consumed_inputs=[0]),
        helper.make_node("Add", ["a", "c"], ["b"], broadcast=1, axis=1),
        helper.make_node("Mul", ["b", "half"], ["d"], broadcast=1),
        helper.make_node("PRelu", ["d", "c"], ["e"]),
        helper.make_node("Reshape", ["e"], ["f"], shape=[0, -1]),
        helper.make_node("Cast", ["f"], ["g"], to="FLOAT"),
        helper.make_node("Concat", ["g", "g"], ["y"]),
    ]
    constants = {"c": by_channel, "half": np.array([0.5], np.float32)}
    before = _model(nodes, {"x": [2, 3, 4, 5]}, ["y"], 1, constants, ir=3)
    for name in constants:
        tensor = helper.make_tensor_value_info(name, 1, [constants[name].size])
        before.graph.input.append(tensor)
    # Models of IR version 1 have no attribute types and do not import operator sets.
    before.ir_version = 1
    before.ClearField("opset_import")
    for node in before.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("type")
    channels = by_channel[:, None, None]
    d = (np.maximum(x, 0) + channels) * np.float32(0.5)
    g = np.where(d < 0, d * channels, d).reshape(2, -1)
    after = _converted(before, 13)
    assert [info.name for info in after.graph.input] == ["x"]
    found = oracle.ort(after.SerializeToString(), {"x": x})
    np.testing.assert_array_equal(found[0], np.concatenate([g, g], 1))


def test_axes_and_types_follow_from_the_nodes_before() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=10),
        helper.make_node("Conv", ["h", "w"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("Clip", ["a"], ["b"], max=0.5),
        helper.make_node("Softmax", ["b"], ["c"], axis=3),
        helper.make_node("Cast", ["c"], ["y"], to=1),
    ]
    weight = np.random.default_rng(3).normal(size=(4, 3, 1, 1)).astype(np.float16)
    before = _model(nodes, {"x": None}, ["y"], 10, {"w": weight})
    after = _converted(before, 13)
    assert [n.op_type for n in after.graph.node] == ["Cast", "Conv", "Clip", "Softmax", "Cast"]
    assert [t.data_type for t in after.graph.initializer] == [10, 10]
    x = np.random.default_rng(4).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = oracle.ort(before.SerializeToString(), {"x": x}, optimized=False)
    found = oracle.ort(after.SerializeToString(), {"x": x}, optimized=False)
    # The last bit of sums in float32 of numbers below 1, which another kernel adds up.
    np.testing.assert_allclose(expected[0], found[0], 0, 2.0**-23)


@pytest.mark.parametrize("opset", [17, 21, 25])
def test_the_operator_set_of_the_result_may_be_asked_for(digits: Path, opset: int) -> None:
    images = digits.with_name("calibration.npy")
    calibrated = quantize_rs.quantize_with_calibration(
        digits, digits.with_name("o.onnx"), images, per_channel=True, opset=opset
    )
    assert quantize_rs.model_info(digits.with_name("o.onnx")).opset_version == opset
    assert [step.name for step in calibrated.steps] == ([f"opset 17 → {opset}"] * (opset > 17))
    oracle.ort(digits.with_name("o.onnx").read_bytes(), {"image": np.load(images)[:2]})
    validated = quantize_rs.validate(digits, digits.with_name("o.onnx"))
    assert validated.passed, validated


def test_an_operator_without_a_kernel_in_the_newer_opset_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weight = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("RandomNormalLike", ["h"], ["noise"], "noise", scale=1e-30, seed=1.0),
        helper.make_node("Add", ["h", "noise"], ["y"]),
    ]
    model = _model(nodes, {"x": [2, 8]}, ["y"], 21, {"w": weight}, ir=10)
    out = tmp_path / "out.onnx"
    made = quantize_rs.quantize(model, out, 2, min_elements=1)
    said = r"as per-channel int2 needs opset 25; .*node `noise` .*opset 22"
    assert any(re.search(said, warning) for warning in made.warnings), made.warnings
    with pytest.raises(NotImplemented):
        oracle.ort(out.read_bytes(), {"x": np.zeros((2, 8), np.float32)})
    assert not any("kernel" in said for said in quantize_rs.quantize(model, out, 4).warnings)
    (warning,) = quantize_rs.convert_opset(model, opset=22).warnings
    assert "no kernel for node `noise`" in warning
    assert warning in caplog.text


def test_a_result_that_needs_a_newer_operator_set_is_refused(digits: Path) -> None:
    out = digits.with_name("o.onnx")
    for bits, opset, said in [
        (4, 17, "needs opset 21"),
        (8, 13, "to a newer opset"),
        (8, 0, "opset is 0"),
    ]:
        with pytest.raises(OptionError, match=said) as caught:
            quantize_rs.quantize(digits, out, bits, opset=opset)
        assert caught.value.option == "opset"
    assert not out.exists()


@pytest.mark.parametrize("name", sorted(oracle.FIXTURES))
def test_every_fixture_means_the_same(name: str) -> None:
    said = oracle.FIXTURES[name]
    target = min(26, max(25, said["opset"]))
    if said["opset"] > target:
        return
    done = quantize_rs.convert_opset(oracle.model(name), opset=target)
    assert done.model is not None
    if not said["runs"] or name == "external_data":
        return
    inputs = oracle.feeds(name)
    before = oracle.ort(oracle.model(name), inputs, optimized=False)
    after = oracle.ort(done.model, inputs, optimized=False)
    if said["finite"]:
        assert oracle.sqnr(before, after) > 120  # dB: the last bits of sums in another order


def test_the_report_has_the_opset_of_the_result(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("opset13", {}, 13),
        ("opset10_conv", {"opset": 21}, 21),
    ]
    for name, options, opset in cases:
        path = tmp_path / "quantized.onnx"
        report = quantize_rs.quantize(oracle.model(name), path, **options)
        (written,) = (entry.version for entry in onnx.load(path).opset_import if not entry.domain)
        assert report.opset == written == opset


def convolutions_with_addends(opset: int) -> bytes:
    """Conv, Add and Relu, twice, where the addends broadcast as the opset says."""
    rng = np.random.default_rng(0)
    beside = (8,) if opset < 7 else (8, 1, 1)
    tensors = {
        "w": rng.normal(0, 0.3, (8, 4, 3, 3)),
        "b": rng.normal(0, 1, 8).reshape(beside),
        "v": rng.normal(0, 0.3, (8, 8, 3, 3)),
        "c": rng.normal(0, 1, 8).reshape(beside),
    }
    attributes = {"broadcast": 1, "axis": 1} if opset < 7 else {}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["q"], **attributes),
            helper.make_node("Relu", ["q"], ["r"]),
            helper.make_node("Conv", ["r", "v"], ["s"]),
            helper.make_node("Add", ["s", "c"], ["y"], **attributes),
        ],
        "addends",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 5, 5])],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in tensors.items()
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=4).SerializeToString())


def test_passes_see_the_addends_of_opset_6_as_those_of_newer_models() -> None:
    old, new = (
        quantize_rs.quantize(convolutions_with_addends(opset), None, check="none")
        for opset in (6, 12)
    )
    steps = [step.name for step in old.steps]
    assert [step for step in steps if "opset" in step] == ["opset 6 → 13"]
    assert "fold_batch_norm" in steps
    graphs = [onnx.load_from_string(report.model).graph for report in (old, new)]
    kinds = [[node.op_type for node in graph.node] for graph in graphs]
    assert "Add" not in kinds[0]
    assert kinds[0] == kinds[1]
    x = np.random.default_rng(1).normal(size=(1, 4, 9, 9)).astype(np.float32)
    models = [report.model for report in (old, new) if report.model is not None]
    outputs = [oracle.ort(model, {"x": x})[0] for model in models]
    np.testing.assert_array_equal(*outputs)


def test_a_result_that_needs_no_newer_opset_keeps_its_own() -> None:
    report = quantize_rs.quantize(convolutions_with_addends(6), None, weights="float16")
    assert onnx.load_from_string(report.model).opset_import[0].version == 6


@pytest.mark.parametrize("opset", [11, 14])
def test_the_normalization_of_onnx_runtime_is_converted(opset: int) -> None:
    """It is in the domain of ONNX, and was there before ONNX had one."""
    rng = np.random.default_rng(0)
    constants = {
        "g": np.ones(32, np.float32),
        "b": np.zeros(32, np.float32),
        "w": rng.normal(size=(32, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("MatMul", ["n", "w"], ["y"]),
    ]
    before = _model(nodes, {"x": [4, 32]}, ["y"], opset, constants).SerializeToString()
    report = quantize_rs.quantize(before, None, bits=4, block_size=16)
    assert report.model is not None
    x = {"x": rng.normal(size=(4, 32)).astype(np.float32)}
    assert oracle.sqnr(oracle.ort(before, x), oracle.ort(report.model, x)) > 15
