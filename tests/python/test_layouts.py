"""Layouts of blocks with scales of 8 bits: what is written against numpy and onnx.reference.

ONNX Runtime has no kernels for them on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_formats import BLOCKED, Case, Floats, constant, feeds, floats, model

import quantize_rs
from quantize_rs import OptionError, Report

Numbers = npt.NDArray[Any]


class Layout(NamedTuple):
    """What a name stands for."""

    block: int
    values: Any
    scales: Any
    opset: int

    @property
    def largest(self) -> float:
        """The largest value."""
        finfo: Any = ml_dtypes.finfo
        return float(finfo(self.values).max)


LAYOUTS = {
    "mxfp4": Layout(32, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu, 24),
    "mxfp8": Layout(32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 24),
    "nvfp4": Layout(16, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, 23),
}


def quantized(name: str, source: bytes, **options: Any) -> tuple[bytes, Report]:
    """The model with weights of a layout, and its report."""
    report = quantize_rs.quantize(source, None, weights=name, target="generic", **options)
    assert report.model is not None
    oracle.check(report.model)
    return report.model, report


def choices(layout: Layout, block: Floats, whole: np.float32) -> list[np.float32]:
    """The scales that a block may take."""
    absmax = float(np.abs(block).max())
    if layout.scales == ml_dtypes.float8_e8m0fnu:
        floor = int(np.floor(np.log2(absmax))) - int(np.floor(np.log2(layout.largest)))
        return [np.float32(2.0**power) for power in (floor, floor + 1)]
    codes = np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = []
    for divisor in (6, 4):
        wanted = np.float32(absmax) / np.float32(divisor) / whole
        below = int(np.searchsorted(codes, wanted, side="right")) - 1
        near = codes[np.clip([below, below + 1], 0, len(codes) - 1)]
        found += [code * whole for code in near]
    return found


def stored(layout: Layout, block: Floats, scale: np.float32) -> Floats:
    """The dequantized values of a block."""
    steps = np.clip(block / scale, -layout.largest, layout.largest)
    return np.asarray(steps.astype(layout.values).astype(np.float32) * scale)


def squared(x: Floats, y: Floats) -> float:
    """The sum of the squared differences."""
    return float(((x.astype(np.float64) - y.astype(np.float64)) ** 2).sum())


def scales(written: bytes, layout: Layout) -> tuple[Floats, np.float32]:
    """The scales of the file as numbers, and what all of them are multiplied by."""
    codes = constant(written, "W_scale")
    assert codes.dtype == layout.scales
    if layout.scales == ml_dtypes.float8_e8m0fnu:
        return codes.astype(np.float32), np.float32(1)
    whole = constant(written, "W_tensor_scale")
    assert whole.dtype == np.float32
    assert whole.shape == ()
    return codes.astype(np.float32) * whole, np.float32(whole)


def expanded(along: Floats, shape: tuple[int, ...], axis: int, block: int) -> Floats:
    """One scale for each element."""
    return np.repeat(along, block, axis).take(range(shape[axis]), axis)


@pytest.mark.parametrize("case", BLOCKED)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_is_what_numpy_and_the_reference_make_of_it(name: str, case: str) -> None:
    layout, made = LAYOUTS[name], BLOCKED[case][0]
    written, report = quantized(name, model(made))
    nodes = onnx.load_from_string(written).graph.node
    [node] = [n for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] == "W_quantized"]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    codes = constant(written, "W_quantized")
    assert codes.dtype == layout.values
    assert codes.size == made.weight.size
    found, whole = scales(written, layout)
    axis, block = attributes["axis"], attributes.get("block_size", 0)
    if block == 0:  # no axis is as long as a block
        assert max(made.weight.shape) < layout.block
        found = found.reshape([-1 if at == axis else 1 for at in range(codes.ndim)])
        np.testing.assert_array_equal(floats(written), codes.astype(np.float32) * found)
        return
    assert block == layout.block
    each = expanded(found, codes.shape, axis, block)
    decoded = (codes.astype(np.float32) * each).reshape(made.weight.shape)
    np.testing.assert_array_equal(floats(written), decoded)
    [value] = report.weights
    assert value.scales == {"mxfp4": "float8e8m0", "mxfp8": "float8e8m0"}.get(name, "float8e4m3fn")
    assert value.kind.endswith(f"with scales of {value.scales}")
    noise = 10 * np.log10(
        np.sum(made.weight.astype(np.float64) ** 2) / squared(made.weight, decoded)
    )
    assert value.sqnr_db == pytest.approx(noise, abs=1e-6)

    rows = np.moveaxis(made.weight.reshape(codes.shape), axis, -1).reshape(-1, codes.shape[axis])
    along = np.moveaxis(found, axis, -1).reshape(rows.shape[0], -1)
    for row, of_row in zip(rows, along, strict=True):
        for at, scale in enumerate(of_row):
            part = row[at * block : (at + 1) * block]
            tried = choices(layout, part, whole)
            assert scale in tried
            least = min(squared(part, stored(layout, part, other)) for other in tried)
            assert squared(part, stored(layout, part, scale)) == pytest.approx(least, rel=1e-9)

    expected = oracle.reference(model(made._replace(weight=decoded)), feeds(made))
    np.testing.assert_array_equal(oracle.reference(written, feeds(made))[0], expected[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_smallest_and_the_largest_numbers_round_trip(name: str) -> None:
    layout = LAYOUTS[name]
    w = np.random.default_rng(5).normal(size=(70, 6)).astype(np.float32)
    w[:, 0] *= 0
    w[:32, 1] *= 1e-44
    w[:, 2] = 3.4e38
    w[32:, 3] *= 1e-30
    w[:, 4] = np.finfo(np.float32).smallest_normal
    written, _ = quantized(name, model(Case(w)))
    back = floats(written)
    found, whole = scales(written, layout)
    assert np.isfinite(back).all()
    assert (found >= np.finfo(np.float32).smallest_normal).all()
    assert (back[:, 0] == 0).all()
    assert (found[:, 0] == whole).all()
    # Twice the scale of the specification would overflow float32.
    np.testing.assert_allclose(back[:, 2], w[:, 2], rtol=0.26)
    if name != "nvfp4":  # whose scales reach over 18 powers of two
        assert squared(w[:, 5], back[:, 5]) < 0.03 * float((w[:, 5] ** 2).sum())
        np.testing.assert_allclose(back[32:, 3], w[32:, 3], atol=np.abs(w[32:, 3]).max() / 4)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_other_floats_are_dequantized_to_their_type(name: str, dtype: str) -> None:
    kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    w = np.random.default_rng(6).normal(size=(40, 8)).astype(kind)
    w[:, 0] = {"float16": 65504, "bfloat16": 1e30, "float64": 1e38}[dtype]
    w[:, 1] = 3e-7
    if name == "nvfp4":  # whose scales reach over 18 powers of two
        w[:, 0] = 1e3
    onnx_kind = helper.np_dtype_to_tensor_dtype(w.dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "floats",
        [helper.make_tensor_value_info("x", onnx_kind, (2, 40))],
        [helper.make_tensor_value_info("y", onnx_kind, (2, 8))],
        [numpy_helper.from_array(w, "W")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=12)
    written, _ = quantized(name, made.SerializeToString())
    back = floats(written)
    assert back.dtype == w.dtype
    assert np.isfinite(back.astype(np.float64)).all()
    close = np.abs(back.astype(np.float64) - w.astype(np.float64))[:, 2:]
    assert close.max() < 0.7
    oracle.reference(written, {"x": np.zeros((2, 40), w.dtype)})


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_as_small_as_it_says(name: str) -> None:
    w = np.random.default_rng(7).normal(size=(512, 512)).astype(np.float32)
    written, report = quantized(name, model(Case(w), 13))
    bits = {"mxfp4": 4.25, "mxfp8": 8.25, "nvfp4": 4.5}[name]
    assert report.bytes_after < w.size * bits / 8 + 1000
    assert [entry.version for entry in onnx.load_from_string(written).opset_import] == [
        LAYOUTS[name].opset
    ]
    floor = {"mxfp4": 19.0, "mxfp8": 31.4, "nvfp4": 21.5}[name]
    [value] = report.weights
    assert value.sqnr_db is not None
    assert value.sqnr_db > floor
    # Quantizing again changes nothing.
    again = quantize_rs.quantize(written, None, target="generic", weights=name)
    assert again.model == written


@pytest.mark.parametrize("name", [*LAYOUTS, "float4e2m1"])
@pytest.mark.parametrize("option", ["weights", "layer_dtype", "layer_bits"])
def test_what_onnx_runtime_cannot_open_is_refused_for_it(name: str, option: str) -> None:
    w = np.random.default_rng(8).normal(size=(64, 8)).astype(np.float32)
    asked: dict[str, Any] = {option: name if option == "weights" else {"MatMul": name}}
    for target in (None, "x86", "x86-avx2", "arm", "openvino", "qnn"):
        with pytest.raises(OptionError, match=f"{name}.*generic"):
            quantize_rs.quantize(model(Case(w)), None, target=target, **asked)
    written = quantize_rs.quantize(model(Case(w)), None, target="generic", **asked).model
    assert written is not None
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_of_some_layers_leaves_the_others(name: str) -> None:
    rng = np.random.default_rng(9)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["h"], name="body"),
            helper.make_node("MatMul", ["h", "V"], ["y"], name="classifier"),
        ],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 16))],
        [
            numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), "W"),
            numpy_helper.from_array(rng.normal(size=(64, 16)).astype(np.float32), "V"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    report = quantize_rs.quantize(
        made.SerializeToString(),
        None,
        bits=4,
        block_size=64,
        target="generic",
        layer_dtype={"body": name},
    )
    assert {value.name: (value.scales, value.block_size) for value in report.weights} == {
        "W": ("float8e4m3fn" if name == "nvfp4" else "float8e8m0", LAYOUTS[name].block),
        "V": ("float", 64),
    }


def test_a_layout_has_blocks_of_its_own() -> None:
    w = np.random.default_rng(10).normal(size=(64, 8)).astype(np.float32)
    with pytest.raises(OptionError, match="block_size is 16, but mxfp4 has blocks of 32"):
        quantized("mxfp4", model(Case(w)), block_size=16)
    with pytest.raises(OptionError, match="cannot be used with activations"):
        quantize_rs.open(model(Case(w))).plan("nvfp4", "float8", target="generic")
