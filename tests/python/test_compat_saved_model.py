"""The model of the quantizers of weights: what is changed in it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization.matmul_nbits_quantizer as their_quantizers
import oracle
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import quantize as their_quantize

from quantize_rs.compat import onnxruntime as ours


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
