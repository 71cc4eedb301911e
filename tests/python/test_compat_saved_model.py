"""The model of the quantizers of weights: what is changed in it is saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization.matmul_nbits_quantizer as their_quantizers
import oracle
import pytest
from graphs import built
from onnx import helper, numpy_helper
from onnxruntime.quantization import onnx_model as their_model
from onnxruntime.quantization import quantize as their_quantize

from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import onnx_model as ours_model
from quantize_rs.compat.onnxruntime._saved_model import SavedModel


def quantized(digits: Path) -> Any:
    quantizer = ours.MatMulNBitsQuantizer(digits, block_size=32, op_types_to_quantize=["Gemm"])
    quantizer.process()
    return quantizer


@pytest.mark.parametrize("external", [False, True])
def test_changes_of_the_model_are_saved(digits: Path, tmp_path: Path, external: bool) -> None:
    quantizer, out = quantized(digits), tmp_path / "o.onnx"
    before = quantizer.model.save_model_to_file(out, external)
    model = quantizer.model.model
    assert quantizer.model.model is model
    model.metadata_props.add(key="bits", value="4")
    quantizer.model.set_opset_import("", 18)
    quantizer.model.set_opset_import("ai.onnx.ml", 3)
    report = quantizer.model.save_model_to_file(tmp_path / "edited.onnx", external)
    assert (tmp_path / "edited.onnx.data").exists() == external
    found = onnx.load(tmp_path / "edited.onnx")
    for tensor in found.graph.initializer:
        tensor.ClearField("data_location")
    assert found == model
    assert {opset.domain: opset.version for opset in model.opset_import}["ai.onnx.ml"] == 3
    assert report.weights == before.weights
    assert report.bytes_after == (tmp_path / "edited.onnx").stat().st_size + sum(
        path.stat().st_size for path in tmp_path.glob("edited.onnx.data")
    )
    feeds = {"image": np.load(digits.with_name("calibration.npy"))[:4]}
    assert oracle.sqnr(oracle.ort(out, feeds), oracle.ort(tmp_path / "edited.onnx", feeds)) > 100
    quantizer.process()
    assert quantizer.model.model is not model
    assert not quantizer.model.model.metadata_props


def test_the_model_has_the_usual_methods(digits: Path, tmp_path: Path) -> None:
    model, out = quantized(digits).model, tmp_path / "o.onnx"
    proto = model.model
    assert model.graph() == proto.graph
    assert list(model.nodes()) == list(proto.graph.node)
    assert list(model.initializer()) == list(proto.graph.initializer)
    assert list(model.opset_import()) == list(proto.opset_import)
    assert model.ir_version() == proto.ir_version
    # A factor before the output, whose node stands in front of those that it follows.
    result = proto.graph.output[0].name
    last = next(node for node in model.nodes() if result in node.output)
    last.output[list(last.output).index(result)] = "halved"
    factor = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    model.add_initializer(factor)
    model.add_initializer(factor)
    assert model.get_initializer("half") == factor
    assert sum(tensor.name == "half" for tensor in model.initializer()) == 1
    model.add_node(helper.make_node("Mul", ["halved", "half"], [result], name="halve"))
    proto.graph.node.insert(0, proto.graph.node[-1])
    del proto.graph.node[-1]
    model.add_initializer(numpy_helper.from_array(np.zeros(3, np.float32), "unread"))
    model.clean_initializers()
    assert model.get_initializer("unread") is None
    model.save_model_to_file(out)
    assert [node.name for node in onnx.load(out).graph.node][-1] == "halve"
    feeds = {"image": np.load(digits.with_name("calibration.npy"))[:4]}
    quantized(digits).model.save_model_to_file(tmp_path / "plain.onnx")
    halves, whole = (oracle.ort(path, feeds)[0] for path in (out, tmp_path / "plain.onnx"))
    np.testing.assert_allclose(halves, whole / 2, rtol=1e-5)
    halve = next(node for node in model.nodes() if node.name == "halve")
    model.remove_nodes([halve, halve])
    model.remove_initializers([factor, factor])
    assert all(node.name != "halve" for node in model.nodes())
    assert model.get_initializer("half") is None


def test_nodes_in_a_cycle_are_refused(digits: Path) -> None:
    model = quantized(digits).model
    order = [node.name for node in model.nodes()]
    model.topological_sort()
    assert [node.name for node in model.nodes()] == order
    model.add_node(helper.make_node("Relu", ["round"], ["round"], name="loop"))
    with pytest.raises(ValueError, match="'loop' is in a cycle"):
        model.topological_sort()


def test_a_configuration_of_weights_writes_external_data(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", 1, ["n", 512])],
            [helper.make_tensor_value_info("y", 1, ["n", 512])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    names = []
    for quantize, module in ((ours.quantize, ours), (their_quantize, their_quantizers)):
        folder = tmp_path / module.__name__
        folder.mkdir()
        config = module.DefaultWeightOnlyQuantConfig(block_size=32)
        quantize(model, folder / "o.onnx", config)
        names.append(sorted(path.name for path in folder.iterdir()))
        assert onnx.load(folder / "o.onnx").graph.node[0].op_type == "MatMulNBits"
    assert names[0] == names[1] == ["o.onnx", "o.onnx.data"]


def both(digits: Path) -> tuple[ours_model.ONNXModel, Any]:
    return ours_model.ONNXModel(onnx.load(digits)), their_model.ONNXModel(onnx.load(digits))


def test_the_methods_are_those_of_theirs() -> None:
    own, other = ours_model.ONNXModel, their_model.ONNXModel
    public = {name for name in dir(other) if not name.startswith("_")}
    assert public - {*dir(own)} == {"replace_gemm_with_matmul"}
    assert issubclass(SavedModel, own)
    for name in public & {*dir(own)}:
        mine, yours = (inspect.signature(getattr(kind, name)) for kind in (own, other))
        assert [*mine.parameters] == [*yours.parameters], name


FOUND: list[Callable[[Any], Any]] = [
    lambda model: model.find_graph_input("image"),
    lambda model: model.find_graph_input("none"),
    lambda model: model.find_graph_output("logits"),
    lambda model: model.is_graph_input("image"),
    lambda model: model.is_graph_input("logits"),
    lambda model: model.is_graph_output("logits"),
    lambda model: model.get_non_initializer_inputs(),
    lambda model: model.get_initializer_name_set(),
    lambda model: model.get_initializer("conv1.weight"),
    lambda model: model.get_tensor_type("image"),
    lambda model: model.get_tensor_type("logits"),
    lambda model: model.get_tensor_type("none"),
    lambda model: model.get_constant_value("conv1.bias"),
    lambda model: model.get_constant_value("none"),
    lambda model: model.input_name_to_nodes(),
    lambda model: model.output_name_to_node(),
    lambda model: model.get_children(model.nodes()[0]),
    lambda model: model.get_children(model.nodes()[0], model.input_name_to_nodes()),
    lambda model: model.get_parents(model.nodes()[1]),
    lambda model: model.get_parents(model.nodes()[1], model.output_name_to_node()),
    lambda model: model.get_parent(model.nodes()[1], 0),
    lambda model: model.get_parent(model.nodes()[1], 9),
    lambda model: model.get_parent(model.nodes()[0], 0),
    lambda model: model.find_node_by_name("conv1", [], model.graph()),
    lambda model: model.find_node_by_name("none", [model.nodes()[0]], model.graph()),
    lambda model: model.get_largest_node_name_suffix("conv"),
    lambda model: model.get_largest_node_name_suffix("other"),
    lambda model: model.get_largest_initializer_name_suffix("conv"),
    lambda model: model.find_nodes_by_initializer(model.graph(), model.initializer()[0]),
]


@pytest.mark.parametrize("find", FOUND)
def test_what_is_found_is_what_theirs_find(digits: Path, find: Callable[[Any], Any]) -> None:
    own, other = map(find, both(digits))
    if isinstance(other, np.ndarray):
        assert np.array_equal(own, other)
    else:
        assert own == other


def rename(model: Any) -> None:
    model.replace_input_of_all_nodes("relu1_out", "a")
    model.replace_output_of_all_nodes("relu1_out", "a")
    first, second = model.nodes()[:2]
    model.replace_node_output(first, first.output[0], "b")
    model.replace_node_input(second, second.input[0], "b")
    model.replace_input_of_nodes("a", "c", {model.get_children(second)[0].name})
    model.replace_output_of_nodes("a", "c", {second.name})


def add_and_remove(model: Any) -> None:
    value = numpy_helper.from_array(np.zeros(3, np.float32), "unread")
    model.initializer_extend([value])
    model.add_node(helper.make_node("Constant", [], ["never"], value=value))
    model.remove_unused_constant()


@pytest.mark.parametrize("change", [rename, add_and_remove])
@pytest.mark.parametrize("external", [False, True])
def test_changes_are_those_of_theirs(
    digits: Path, tmp_path: Path, change: Any, external: bool
) -> None:
    before = onnx.load(digits)
    found = []
    for name, model in zip(("own", "other"), both(digits), strict=True):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "o.onnx"
        change(model)
        model.save_model_to_file(out, external)
        assert (tmp_path / name / "o.onnx.data").exists() == external
        found.append(onnx.load(out))
        for tensor in found[-1].graph.initializer:
            tensor.ClearField("data_location")
    assert found[0] == found[1]
    assert (found[0].graph == before.graph) == (change is add_and_remove)


def test_no_initializers_cannot_be_added(digits: Path) -> None:
    with pytest.raises(ValueError, match="inits is empty"):
        both(digits)[0].initializer_extend([])


def test_a_quantizer_has_the_attributes_of_theirs(digits: Path) -> None:
    proto = onnx.load(digits)
    given: dict[str, Any] = {"block_size": 32, "is_symmetric": True, "nodes_to_exclude": ["fc1"]}
    own = ours.MatMulNBitsQuantizer(proto, accuracy_level=4, **given)
    other = their_quantizers.MatMulNBitsQuantizer(proto, accuracy_level=4, **given)
    names = ["bits", "block_size", "is_symmetric", "accuracy_level", "model_path"]
    for name in [*names, "nodes_to_exclude", "nodes_to_include"]:
        assert getattr(own, name) == getattr(other, name), name
    for name in ("algorithm", "bits", "block_size", "is_symmetric", "accuracy_level"):
        assert getattr(own.algo_config, name) == getattr(other.algo_config, name), name
    config = ours.HQQWeightOnlyQuantConfig()
    assert ours.MatMulNBitsQuantizer(str(digits), algo_config=config).algo_config is config
    assert ours.MatMulNBitsQuantizer(str(digits)).model_path == str(digits)


@pytest.mark.parametrize("kind", ["nbits", "bnb4"])
def test_the_model_is_there_before_it_is_quantized(digits: Path, kind: str) -> None:
    proto = onnx.load(digits)
    proto.graph.node[0].name = "changed"
    quantizer: Any = ours.MatMulNBitsQuantizer(proto, block_size=32)
    if kind == "bnb4":
        proto = onnx.load_from_string(decoder_of_products())
        quantizer = ours.MatMulBnb4Quantizer(proto, 1, 64, nodes_to_exclude=iter(["none"]))
        assert (quantizer.quant_type, quantizer.block_size) == (1, 64)
        assert quantizer.nodes_to_exclude == {"none"}
    before = quantizer.model
    assert isinstance(before, ours_model.ONNXModel)
    assert before.model == proto
    assert before.model is not proto
    quantizer.process()
    assert quantizer.model is not before
    assert any("MatMul" in node.op_type for node in quantizer.model.nodes())


def decoder_of_products() -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return built(nodes, {"w": np.ones((64, 64))}, ["n", 64])
