"""`qdq_loss_debug` finds the losses that onnxruntime's module finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime.quantization.qdq_loss_debug as theirs
import pytest
from onnx import helper
from readers import Reader

import quantize_rs
from quantize_rs import OptionError
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import qdq_loss_debug as debug


def test_losses_of_inputs_and_16_bit_floats_are_found(
    digits: Path, images: Path, tmp_path: Path
) -> None:
    out, shown = tmp_path / "q.onnx", tmp_path / "shown.onnx"
    ours.quantize_static(digits, out, Reader(images))
    names = {}
    for tool in (debug, theirs):
        values = []
        for path in (digits, out):
            tool.modify_model_output_intermediate_tensors(path, shown, op_types_for_saving=[])
            values.append(tool.collect_activations(str(shown), Reader(images, 4)))
        names[tool] = set(tool.create_activation_matching(values[1], values[0]))
    assert "image" in names[debug]
    assert names[theirs] <= names[debug]
    half = tmp_path / "half.onnx"
    quantize_rs.convert_float16(digits, half, keep_io=False)
    debug.modify_model_output_intermediate_tensors(half, shown)
    feeds = [{"image": image[None].astype(np.float16)} for image in Reader(images, 2).images]
    found = debug.collect_activations(shown, Feeds(feeds))
    assert {array.dtype for arrays in found.values() for array in arrays} == {np.dtype("float16")}
    assert "image" in found
    with pytest.raises(quantize_rs.errors.CalibrationError, match="no samples"):
        debug.collect_activations(shown, Feeds([]))


class Feeds:
    """A reader of some samples."""

    def __init__(self, feeds: list[dict[str, Any]]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.left, None)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_weights_are_no_activations(tmp_path: Path, kind: str) -> None:
    gates, random = {"LSTM": 4, "GRU": 3}[kind], np.random.default_rng(0)
    shapes = {"w": (2, gates * 32, 16), "r": (2, gates * 32, 32), "head": (32, 32)}
    sizes = {"hidden_size": 32, "direction": "bidirectional"}
    nodes = [
        helper.make_node(kind, ["x", "w", "r"], ["h"], "recurrent", **sizes),
        helper.make_node("MatMul", ["h", "head"], ["product"], "head"),
        helper.make_node("Relu", ["product"], ["y"], "relu"),
    ]
    weights = {name: random.normal(size=shape) for name, shape in shapes.items()}
    source, out, shown = (tmp_path / f"{name}.onnx" for name in ("float", "q", "shown"))
    source.write_bytes(graphs.built(nodes, weights, [8, "n", 16]))
    feeds = [{"x": random.normal(size=(8, 1, 16)).astype(np.float32)} for _ in range(4)]
    ours.quantize_static(source, out, Feeds(feeds), per_channel=True)
    assert {"w_quantized", "r_quantized"} <= {t.name for t in onnx.load(out).graph.initializer}
    debug.modify_model_output_intermediate_tensors(out, shown)
    found = debug.create_activation_matching(debug.collect_activations(shown, Feeds(feeds)))
    assert "h" in found
    assert not found.keys() & weights.keys()


def uneven() -> bytes:
    """Make convolutions with normalizations, whose channels have very different sizes."""
    random, sizes = np.random.default_rng(0), 4.0 ** np.arange(8)
    constants = {
        "w0": random.normal(size=(8, 3, 3, 3)) / sizes[:, None, None, None],
        "w1": random.normal(size=(8, 8, 3, 3)) * sizes[:, None, None],
        "w2": random.normal(size=(8, 8, 1, 1)),
        "b2": random.normal(size=8),
    }
    nodes, value = [], "x"
    for index in range(3):
        last = "y" if index == 2 else f"r{index}"
        names = {
            f"scale{index}": random.uniform(0.2, 5, 8),
            f"shift{index}": random.normal(size=8) / (sizes if index == 0 else 1),
            f"mean{index}": np.zeros(8),
            f"variance{index}": np.ones(8),
        }
        constants |= names
        given = [value, f"w{index}", *(["b2"] if index == 2 else [])]
        nodes += [
            helper.make_node("Conv", given, [f"c{index}"], f"conv{index}"),
            helper.make_node("BatchNormalization", [f"c{index}", *names], [f"n{index}"]),
            helper.make_node("Relu", [f"n{index}"], [last], f"relu{index}"),
        ]
        value = last
    return graphs.built(nodes, constants, ["N", 3, 12, 12])


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_are_compared_as_they_were_prepared(tmp_path: Path, per_channel: bool) -> None:
    source, out = tmp_path / "float.onnx", tmp_path / "q.onnx"
    source.write_bytes(uneven())
    random = np.random.default_rng(1)
    feeds = [{"x": random.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(8)]
    ours.quantize_static(source, out, Feeds(feeds), per_channel=per_channel)
    assert "r0_equalized" in {name for node in onnx.load(out).graph.node for name in node.output}
    weights = debug.compute_weight_error(debug.create_weight_matching(source, out))
    assert {"w0", "w1", "w2"} <= weights.keys()
    assert min(weights.values()) > 30
    values = []
    for path in (out, source):
        shown = path.with_suffix(".shown.onnx")
        debug.modify_model_output_intermediate_tensors(path, shown)
        values.append(debug.collect_activations(shown, Feeds(feeds[:4])))
    rows = debug.create_activation_matching(*values)
    assert "r0" in rows
    assert not any("equalized" in name for name in rows)
    for errors in debug.compute_activation_error(rows).values():
        assert min(errors["qdq_err"], errors["xmodel_err"]) > 25


def test_a_wrong_weight_has_its_error(tmp_path: Path) -> None:
    source, out = tmp_path / "float.onnx", tmp_path / "q.onnx"
    source.write_bytes(uneven())
    ours.quantize_static(
        source, out, Feeds([{"x": np.ones((1, 3, 12, 12), np.float32)}] * 8), per_channel=True
    )
    model = onnx.load(out)
    for tensor in model.graph.initializer:
        if tensor.name == "w1_quantized":
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array[::-1], tensor.name))
    onnx.save(model, out)
    weights = debug.compute_weight_error(debug.create_weight_matching(source, out))
    assert weights["w1"] < 5 < 30 < weights["w2"]


def test_lists_of_another_length_have_no_error() -> None:
    one, two = [np.ones(6)], [np.ones(3), np.ones(3)]
    with pytest.raises(OptionError, match="y has 1 arrays, expected 2"):
        debug.compute_signal_to_quantization_noice_ratio(two, one)
