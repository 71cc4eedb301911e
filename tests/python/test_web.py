"""The target `web`: what it writes is in the published lists of ONNX Runtime Web."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import oracle
import pytest
from test_fused import transformer

import quantize_rs
from quantize_rs import OptionError, validate

# Operators of js/web/docs/webgpu-operators.md in the repository of ONNX Runtime that models of the
# tests have, or that quantization adds.
WEBGPU = {
    *("Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv"),
    *("ConvTranspose", "DequantizeLinear", "Div", "Erf", "Exp", "Expand", "Flatten", "Gather"),
    *("GatherBlockQuantized", "Gemm", "GlobalAveragePool", "LayerNormalization", "LeakyRelu"),
    *("MatMul", "MatMulNBits", "MaxPool", "Mul", "Pad", "Pow", "ReduceMean", "Relu", "Reshape"),
    *("Shape", "Sigmoid", "SkipLayerNormalization", "Slice", "Softmax", "Split", "Sqrt"),
    *("Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"),
}
# What WebAssembly has beside them: the operators on integers of ONNX Runtime on a CPU.
INTEGERS = {
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear", "QLinearConv"),
    *("MatMulIntegerToFloat", "QGemm", "QLinearAdd", "QLinearConcat", "QLinearMatMul"),
    *("QLinearMul", "QLinearSigmoid", "QLinearSoftmax"),
}
MODELS = ["residual_add", "concat_branches", "conv_sigmoid", "transformer_block", "mlp_relu"]
SAID = "WebGPU has none"


def added(name: str, written: bytes) -> set[str]:
    """The types of operators that quantization added to a model."""
    there = {node.op_type for node in onnx.load(oracle.model(name)).graph.node}
    return {node.op_type for node in onnx.load_from_string(written).graph.node} - there


def made(name: str, samples: Any = None, **options: Any) -> tuple[bytes, quantize_rs.Report]:
    """Quantize a fixture for the target."""
    path = oracle.model(name)
    if samples is None:
        report = quantize_rs.quantize(path, None, target="web", **options)
    else:
        report = quantize_rs.quantize_with_calibration(path, None, samples, target="web", **options)
    assert report.model is not None
    return report.model, report


@pytest.mark.parametrize("name", MODELS)
def test_weights_alone_are_read_by_operators_of_webgpu(name: str) -> None:
    for options in ({"output_format": "matmul_nbits", "bits": 4}, {}, {"bits": 4}):
        written, report = made(name, **options)
        assert added(name, written) <= WEBGPU
        assert not [warning for warning in report.warnings if SAID in warning]
        assert validate(oracle.model(name), written)


@pytest.mark.parametrize("name", MODELS)
def test_integers_are_for_web_assembly_which_a_warning_says(name: str) -> None:
    feeds = oracle.feeds(name)
    for samples, options in (
        (None, {"output_format": "dynamic"}),
        ([feeds] * 4, {}),
        ([feeds] * 4, {"output_format": "qoperator"}),
    ):
        written, report = made(name, samples, **options)
        assert added(name, written) <= WEBGPU | INTEGERS
        assert added(name, written) & INTEGERS
        assert [warning for warning in report.warnings if SAID in warning]
        assert oracle.sqnr(oracle.ort(oracle.model(name), feeds), oracle.ort(written, feeds)) > 15


def test_weights_have_eight_bits_and_positive_scales() -> None:
    written, _ = made("residual_add", [oracle.feeds("residual_add")] * 4)
    graph = onnx.load_from_string(written).graph
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    weights = [array for array in arrays if array.dtype == np.int8 and array.ndim == 4]
    assert max(np.abs(array.astype(int)).max() for array in weights) == 127
    four, _ = made("residual_add", bits=4, symmetric=True)
    scales = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(four).graph.initializer
        if tensor.name.endswith("_scale")
    }
    assert scales
    assert all((scale > 0).all() for scale in scales.values())


def convolutions(channels: int, groups: int) -> bytes:
    """Two convolutions of 3 by 3 with this number of channels and of groups."""
    rng = np.random.default_rng(0)
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g(float[1, {channels}, 12, 12] x) => (float[1, {channels}, 12, 12] y) {{
            c = Conv <group = {groups}, pads = [1, 1, 1, 1]> (x, v)
            r = Relu (c)
            y = Conv <group = {groups}, pads = [1, 1, 1, 1]> (r, w)
        }}"""
    )
    shape = (channels, channels // groups, 3, 3)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name in "vw"}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(w, name) for name, w in weights.items()
    )
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(("channels", "groups", "slow"), [(32, 1, False), (32, 32, True)])
def test_small_filters_on_integers_are_slow_in_web_assembly(
    channels: int, groups: int, slow: bool
) -> None:
    samples = np.random.default_rng(1).standard_normal((4, channels, 12, 12)).astype(np.float32)
    model = convolutions(channels, groups)
    options: dict[str, Any] = {"engine": "tract", "check": "none"}
    for target in ("web", "x86"):
        report = quantize_rs.quantize_with_calibration(
            model, None, samples, target=target, **options
        )
        said = [warning for warning in report.warnings if "small filters" in warning]
        assert bool(said) == (slow and target == "web")
        if said:
            assert said[0].startswith("2 of 2 convolutions")


def test_what_it_refuses() -> None:
    feeds = [oracle.feeds("residual_add")]
    with pytest.raises(OptionError, match="uint8 or int8 for target web"):
        made("residual_add", feeds, activations="uint16")


def test_a_transformer_of_onnxruntime_in_blocks() -> None:
    model, feeds = transformer()
    report = quantize_rs.quantize(model, None, target="web", output_format="matmul_nbits", bits=4)
    assert report.model is not None
    types = {node.op_type for node in onnx.load_from_string(report.model).graph.node}
    assert {"MatMulNBits", "GatherBlockQuantized"} <= types
    assert oracle.sqnr(oracle.ort(model, feeds), oracle.ort(report.model, feeds)) > 10
