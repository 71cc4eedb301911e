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
from quantize_rs.errors import OptionError

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


def scales(path: Path, weight: str) -> tuple[int, ...]:
    """Return the shape of the scales of a weight."""
    tensors = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    return tuple(tensors[f"{weight}_scale"].dims)


@pytest.mark.parametrize("axis", [None, 0, -4])
@pytest.mark.parametrize("per_channel", [False, True])
def test_scales_of_a_weight_have_the_axis_of_its_override_alone(
    tmp_path: Path, axis: int | None, per_channel: bool
) -> None:
    entry = {} if axis is None else {"axis": axis}
    found = {}
    for tool in (ours, theirs):
        out = tmp_path / f"{tool.__name__}.onnx"
        entries = {"w1": [entry | {"quant_type": tool.QuantType.QInt8}]}
        quantized(tool, out, entries, per_channel=per_channel)
        found[tool] = scales(out, "w0"), scales(out, "w1")
    assert found[ours] == found[theirs]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([{"axis": 1}], "its scales lie along axis 0: set axis to 0, or omit it for one scale"),
        ([{"axis": -1}], "its scales lie along axis 0"),
        ([{"axis": 4}], r"has axis 4, but the shape of the weight is \[8, 8, 3, 3\]"),
        ([{"axis": "0"}], "expected an integer"),
        ([{"axis": 0}] * 3, "has 3 entries, expected one, or 8 as axis 0 is long"),
        ([{"axis": 0}, {"axis": 1}], "has the axes 0, 1, expected one"),
        ([{}] * 8, "has 8 entries, one for each channel, but the first has no axis"),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_axis_that_a_weight_does_not_have_is_an_error(
    tmp_path: Path, entries: list[dict[str, Any]], why: str, dynamic: bool
) -> None:
    out, extra = tmp_path / "o.onnx", {"TensorQuantOverrides": {"w1": entries}}
    quantize: Any = ours.quantize_dynamic if dynamic else ours.quantize_static
    samples = {} if dynamic else {"calibration_data_reader": Reader()}
    with pytest.raises(OptionError, match=why) as caught:
        quantize(MODEL, out, extra_options=extra, **samples)
    assert caught.value.option == "extra_options"
    assert not out.exists()


def test_blocks_lie_along_the_axis_of_an_override(tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    types = {"weight_type": ours.QuantType.QInt4, "extra": {"BlockSize": 16}}
    with pytest.raises(OptionError, match="its blocks lie along axis 1"):
        quantized(ours, out, {"w1": [{"axis": 0}]}, **types)
    quantized(ours, out, {"w1": [{"axis": 1}]}, **types)
    assert len(scales(out, "w1")) > 1


def before_clip() -> bytes:
    """Make a convolution, a Clip and another convolution."""
    constants = {
        f"w{index}": RNG.normal(size=(8, channels, 1, 1)) for index, channels in enumerate((3, 8))
    }
    constants |= {"low": np.float32(0), "high": np.float32(6)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0"),
        helper.make_node("Clip", ["c0", "low", "high"], ["r0"], "clip"),
        helper.make_node("Conv", ["r0", "w1"], ["y"], "conv1"),
    ]
    return graphs.built(nodes, constants, ["N", 3, 8, 8])


@pytest.mark.parametrize("model", [MODEL, before_clip()])
def test_the_type_of_what_stays_float_is_no_type_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model: bytes
) -> None:
    source, found = tmp_path / "model.onnx", {}
    source.write_bytes(model)
    for tool in (ours, theirs):
        for name in (None, "c0", "r0"):
            out = tmp_path / f"{tool.__name__}.{name}.onnx"
            entry = {"quant_type": tool.QuantType.QUInt16}
            extra = {"TensorQuantOverrides": {name: [entry]} if name else {}}
            types = {"activation_type": tool.QuantType.QUInt8}
            tool.quantize_static(source, out, Reader(), extra_options=extra, **types)
            types_of = {item.name: item.data_type for item in onnx.load(out).graph.initializer}
            found[tool, name] = types_of["r0_zero_point"]
    for tool in (ours, theirs):
        assert found[tool, "c0"] == found[tool, None] == onnx.TensorProto.UINT8
        assert found[tool, "r0"] == onnx.TensorProto.UINT16
    (text,) = said(caplog)
    assert "['c0'] has no effect: it is not quantized: fused into node" in text


def test_a_type_for_a_value_whose_channels_would_be_rescaled_has_an_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Channels of very different sizes, which the next weights make up for.
    model, sizes = onnx.load_from_string(MODEL), 4.0 ** np.arange(8)
    factors = {"w0": 1 / sizes[:, None, None, None], "b0": 1 / sizes, "w1": sizes[:, None, None]}
    for tensor in model.graph.initializer:
        scaled = onnx.numpy_helper.to_array(tensor) * factors.get(tensor.name, 1)
        tensor.CopyFrom(onnx.numpy_helper.from_array(scaled.astype(np.float32), tensor.name))
    out = tmp_path / "o.onnx"
    ours.quantize_static(model.SerializeToString(), out, Reader())
    assert "r0_equalized" in grids(out)
    extra = {"TensorQuantOverrides": {"r0": [WIDE]}}
    ours.quantize_static(model.SerializeToString(), out, Reader(), extra_options=extra)
    assert not said(caplog)
    assert "r0" in grids(out)


def before_leaky() -> bytes:
    """Make a convolution that LeakyRelu reads, and another one."""
    weights = {f"w{index}": RNG.normal(size=(8, 3 if index == 0 else 8, 3, 3)) for index in (0, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1] * 4),
        helper.make_node("LeakyRelu", ["c0"], ["r0"], "leaky"),
        helper.make_node("Conv", ["r0", "w1"], ["y"], "conv1", pads=[1] * 4),
    ]
    return graphs.built(nodes, weights, ["N", 3, 8, 8])


@pytest.mark.parametrize("kind", ["QUInt16", "QInt8"])
def test_a_type_that_leaves_its_value_float_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    # onnxruntime writes the value with that type, for which no operator here has a kernel.
    out = tmp_path / "o.onnx"
    types: dict[str, Any] = {"activation_type": ours.QuantType.QUInt8}
    ours.quantize_static(before_leaky(), out, Reader(), **types)
    assert "c0" in grids(out)
    caplog.clear()
    extra = {"TensorQuantOverrides": {"c0": [{"quant_type": ours.QuantType[kind]}]}}
    report = ours.quantize_static(before_leaky(), out, Reader(), extra_options=extra, **types)
    assert "c0" not in grids(out)
    (text,) = (text for text in said(caplog) if "c0" in text)
    name = kind.removeprefix("Q").lower()
    assert text == (
        "extra_options['TensorQuantOverrides']['c0'] leaves it float, as nothing computes on "
        f"integers with {name} there: read by LeakyRelu, which takes it in float"
    )
    assert not any("activation_types" in text for text in (*said(caplog), *report.warnings))


def test_a_type_that_another_value_decides_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("MaxPool", ["c"], ["m"], "pool", kernel_shape=[2, 2]),
        helper.make_node("Conv", ["m", "v"], ["y"], "last"),
    ]
    weights = {"w": RNG.normal(size=(8, 3, 3, 3)), "v": RNG.normal(size=(8, 8, 3, 3))}
    model = graphs.built(nodes, weights, ["N", 3, 8, 8])
    types: dict[str, Any] = {"activation_type": ours.QuantType.QUInt8}
    extra = {
        "TensorQuantOverrides": {
            "c": [{"quant_type": ours.QuantType.QUInt8}],
            "m": [WIDE],
        }
    }
    ours.quantize_static(model, tmp_path / "o.onnx", Reader(), extra_options=extra, **types)
    (text,) = (text for text in said(caplog) if "'m'" in text or "`m`" in text)
    assert text == (
        "extra_options['TensorQuantOverrides']['m'] has no effect: `m` always has the type of "
        "`c`: give the type to `c`"
    )
