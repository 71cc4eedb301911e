"""`TensorQuantOverrides`: what they change, and what is said where they change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime.quantization as theirs
import pytest
from onnx import helper

from quantize_rs.compat import onnxruntime as ours

RNG = np.random.default_rng(0)


def convolutions() -> bytes:
    """Make two convolutions with a bias and a Relu each."""
    nodes, constants, value, channels = [], {}, "x", 3
    for index in range(2):
        constants[f"w{index}"] = RNG.normal(size=(8, channels, 3, 3)) * 0.3
        constants[f"b{index}"] = RNG.normal(size=8) * 0.1
        last = "y" if index else "r0"
        inputs = [value, f"w{index}", f"b{index}"]
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], f"conv{index}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [last], f"relu{index}"))
        value, channels = last, 8
    return graphs.built(nodes, constants, ["N", 3, 8, 8])


MODEL = convolutions()
FEEDS = [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]


class Reader:
    """Samples as onnxruntime reads them."""

    def __init__(self) -> None:
        self.left = iter(FEEDS)

    def get_next(self) -> Any:
        return next(self.left, None)


def quantized(tool: Any, out: Path, overrides: dict[str, Any], **options: Any) -> Any:
    extra = {"TensorQuantOverrides": overrides} | options.pop("extra", {})
    model = out.with_name("model.onnx")
    model.write_bytes(MODEL)
    return tool.quantize_static(model, out, Reader(), extra_options=extra, **options)


def grids(path: Path) -> dict[str, tuple[float, int]]:
    """Return scale and zero point of each activation."""
    graph = onnx.load(path).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {
        node.input[0]: (float(constants[node.input[1]]), int(constants[node.input[2]]))
        for node in graph.node
        if node.op_type == "QuantizeLinear" and len(node.input) > 2
    }


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8", "QInt16", "QUInt16"])
@pytest.mark.parametrize("range_", [{}, {"rmin": np.float32(-1), "rmax": np.float32(3)}])
def test_one_symmetric_activation_has_the_zero_point_of_onnxruntime(
    tmp_path: Path, kind: str, range_: dict[str, Any]
) -> None:
    found = {}
    for tool in (ours, theirs):
        out = tmp_path / "o.onnx"
        types = {"activation_type": tool.QuantType[kind]}
        quantized(tool, out, {"x": [{"symmetric": True} | range_]}, **types)
        found[tool] = grids(out)["x"]
    assert found[ours][1] == found[theirs][1]
    assert found[ours][0] == pytest.approx(found[theirs][0], rel=1e-5)


def test_the_type_of_a_symmetric_activation_may_be_its_own(tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    entry = {"symmetric": True, "quant_type": ours.QuantType.QUInt16}
    quantized(ours, out, {"x": [entry]})
    assert grids(out)["x"][1] == 32768


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "TensorQuantOverrides" in text]


WIDE = {"quant_type": ours.QuantType.QInt16}
RANGE = {"rmin": np.float32(-50), "rmax": np.float32(50)}


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"b0": [WIDE]}, "it is int32 where it is read, and not int16"),
        ({"b0": [{"axis": 0}]}, "it has one scale"),
        ({"c0": [RANGE]}, "it is not quantized: fused into node `relu0` (Relu)"),
        (
            {"c0": [{"scale": 0.5, "zero_point": 3}]},
            "it is not quantized: fused into node `relu0` (Relu)",
        ),
        ({"c0": [{"symmetric": True}]}, "it is not quantized: fused into node `relu0` (Relu)"),
    ],
)
def test_an_override_that_changes_nothing_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overrides: dict[str, Any], why: str
) -> None:
    out = tmp_path / "o.onnx"
    # A range turns the rescaling of channels off, whatever it is for.
    quantized(ours, out, {"x": [{"symmetric": None}]}, extra={"ActivationSymmetric": False})
    plain = grids(out)
    caplog.clear()
    quantized(ours, out, overrides)
    (name,) = overrides
    (text,) = said(caplog)
    assert text == f"extra_options['TensorQuantOverrides'][{name!r}] has no effect: {why}"
    assert grids(out) == plain


def test_an_override_with_an_effect_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = {"quant_type": ours.QuantType.QUInt8}
    entries = {"x": [RANGE], "w0": [{"axis": 0}], "w1": [narrow], "r0": [{"symmetric": True}]}
    quantized(ours, tmp_path / "o.onnx", entries)
    assert not said(caplog)


def test_an_override_of_what_stays_float_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "o.onnx"
    entries = {"c1": [RANGE], "w1": [WIDE], "x": [RANGE], "r0": [{"symmetric": True}]}
    quantized(ours, out, entries, nodes_to_exclude=["conv1", "relu1"])
    texts = said(caplog)
    assert [text.split("'")[3] for text in texts] == ["c1", "w1"]
    assert all("has no effect: it is not quantized" in text for text in texts)
    assert grids(out)["x"][0] == pytest.approx(100 / 255)
    caplog.clear()
    entries = {"b0": [{"quant_type": ours.QuantType.QUInt8}]}
    ours.quantize_dynamic(MODEL, out, extra_options={"TensorQuantOverrides": entries})
    assert len(said(caplog)) == 1


def test_a_symmetric_type_for_all_cannot_be_left_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"ActivationSymmetric": True}
    quantized(ours, tmp_path / "o.onnx", {"x": [{"symmetric": False}]}, extra=extra)
    assert "it is symmetric" in said(caplog)[0]
