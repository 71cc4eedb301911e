"""Types and shapes of values: equal to those of onnx wherever onnx infers one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper, shape_inference

import quantize_rs

sys.path.append(str(Path(__file__).resolve().parents[1] / "edge_cases"))

import run  # noqa: F401 (fills the table)
from rows import ROWS

Fact: TypeAlias = tuple[int, "list[int | str | None] | None"]

BESIDE = ("external_",)
"""Rows of the edge cases whose weights lie in another file."""

SEQUENCES = {"sequence_values"}
"""Models with values that are not tensors, for which our inference has no rules."""


def facts(graph: GraphProto) -> dict[str, Fact]:
    """The declared type number and shape of each value of a graph."""
    found: dict[str, Fact] = {}
    for info in [*graph.value_info, *graph.output]:
        if not info.type.HasField("tensor_type"):
            continue
        said = info.type.tensor_type
        shape = None
        if said.HasField("shape"):
            shape = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in said.shape.dim
            ]
        found[info.name] = said.elem_type, shape
    return found


def silent(model: ModelProto) -> ModelProto:
    """Remove the declared types of values and the shapes of outputs from the model."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def ours(model: ModelProto) -> dict[str, Fact]:
    made = quantize_rs.infer_shapes(model).model
    assert made is not None
    return facts(onnx.load_from_string(made).graph)


def compare_with_onnx(model: ModelProto) -> None:
    """Our inference knows at least what that of onnx knows."""
    try:
        theirs = facts(shape_inference.infer_shapes(model, data_prop=True).graph)
    except shape_inference.InferenceError:
        pytest.skip("onnx refuses the model")
    constants = {tensor.name for tensor in model.graph.initializer}
    found = ours(model)
    for name, (dtype, shape) in theirs.items():
        if name in constants or not dtype:
            continue
        assert name in found, f"{name}: nothing, onnx knows {shape}"
        assert found[name][0] == dtype, name
        if shape is None:
            continue
        own = found[name][1]
        assert own is not None, f"{name}: no shape, onnx knows {shape}"
        assert len(own) == len(shape), f"{name}: {own}, onnx knows {shape}"
        for length, known in zip(own, shape, strict=True):
            said = f"{name}: {own}, onnx knows {shape}"
            if isinstance(known, int):
                assert length == known, said
            elif known is not None and not known.startswith("unk__"):
                assert length is not None, said


@pytest.mark.parametrize("name", sorted(oracle.FIXTURES.keys() - SEQUENCES))
def test_no_fixture_is_less_known_than_to_onnx(name: str) -> None:
    compare_with_onnx(silent(onnx.load(oracle.model(name))))


@pytest.mark.parametrize(
    "name", [name for name in ROWS if not name.startswith(BESIDE) and name not in SEQUENCES]
)
def test_every_edge_case_is_inferred_at_least_as_well_as_by_onnx(name: str) -> None:
    content, _ = ROWS[name].files()
    compare_with_onnx(silent(onnx.load_from_string(content)))


def examples() -> Iterator[Any]:
    """The test cases that onnx has for its operators, with their outputs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from collect_testcases(None)


def with_constants(case: Any) -> ModelProto:
    """The model of an example with small inputs as constants, so that their values are known."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for info, value in zip(list(model.graph.input), case.data_sets[0][0], strict=False):
        small = isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= 64
        if small and value.dtype in (np.int64, np.int32, np.float32) and model.ir_version >= 4:
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            model.graph.input.remove(info)
    return silent(model)


def test_what_is_known_of_every_example_of_onnx_is_what_comes_out() -> None:
    whole, some = 0, 0
    for case in examples():
        found = ours(with_constants(case))
        for info, value in zip(case.model.graph.output, case.data_sets[0][1], strict=False):
            if not isinstance(value, np.ndarray) or info.name not in found:
                continue
            dtype, shape = found[info.name]
            declared = info.type.tensor_type.elem_type
            assert dtype == declared, case.name
            if shape is None:
                continue
            assert len(shape) == value.ndim, case.name
            fits = (own in (None, length) for own, length in zip(shape, value.shape, strict=True))
            assert all(fits), f"{case.name}: {shape}, is {value.shape}"
            some += 1
            whole += None not in shape
    assert whole > 1700, whole
    assert some > 1800, some


def mask_model() -> ModelProto:
    """Shape arithmetic of a transformer: split heads, a mask expanded to the shape of a value."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Gather", ["shape", "one"], ["length"], axis=0),
        helper.make_node("Concat", ["batch", "length", "heads"], ["split"], axis=0),
        helper.make_node("Reshape", ["x", "split"], ["apart"]),
        helper.make_node("Transpose", ["apart"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["apart"], ["keys"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["turned", "keys"], ["scores"]),
        helper.make_node("Mul", ["batch", "length"], ["rows"]),
        helper.make_node("Concat", ["rows", "all"], ["flat_shape"], axis=0),
        helper.make_node("Reshape", ["x", "flat_shape"], ["flat"]),
        helper.make_node(
            "ConstantOfShape", ["two"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])
        ),
        helper.make_node("Mul", ["ones", "minus"], ["minuses"]),
        helper.make_node("Concat", ["batch", "length"], ["mask_shape"], axis=0),
        helper.make_node("Equal", ["mask_shape", "minuses"], ["is_minus"]),
        helper.make_node("Where", ["is_minus", "ones", "mask_shape"], ["spread"]),
        helper.make_node("Expand", ["mask", "spread"], ["masks"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    constants = {"zero": [0], "one": [1], "heads": [4, -1], "all": [32], "two": [2], "minus": [-1]}
    graph = helper.make_graph(
        nodes,
        "shapes",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 32]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in ("y", "scores", "masks")
        ],
        [numpy_helper.from_array(np.array(own, np.int64), name) for name, own in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_shapes_that_a_model_computes_are_known_by_the_names_of_its_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    done = quantize_rs.infer_shapes(mask_model(), path)
    assert (done.output, done.model) == (path, None)
    assert done.shaped == done.values == done.ranked == done.typed
    assert done.warnings == ()
    assert done.to_dict()["values"] == done.values
    known = facts(onnx.load(path).graph)
    assert known["apart"][1] == ["batch", "length", 4, 8]
    assert known["scores"][1] == ["batch", 4, "length", "length"]
    assert known["flat"][1] == ["batch*length", 32]
    assert known["masks"][1] == ["batch", "length"]
    onnx.checker.check_model(onnx.load(path), full_check=True)
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["if_subgraph", "loop_subgraph", "scan_subgraph", "nested_if"])
def test_subgraphs_are_reported_too(name: str) -> None:
    model = silent(onnx.load(oracle.model(name)))
    done = quantize_rs.infer_shapes(model)
    assert done.model is not None
    bodies = [
        attribute.g
        for node in onnx.load_from_string(done.model).graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]
    assert bodies
    for body in bodies:
        said = facts(body)
        made = {name for node in body.node for name in node.output}
        assert made <= said.keys()
    oracle.session(done.model)
