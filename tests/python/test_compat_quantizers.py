"""The quantizers as objects, as older scripts make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as theirs
import oracle
import pytest
from onnxruntime.quantization import onnx_quantizer as their_onnx
from onnxruntime.quantization import qdq_quantizer as their_qdq
from readers import Reader

from quantize_rs import OptionError
from quantize_rs.compat import onnxruntime as ours
from quantize_rs.compat.onnxruntime import onnx_quantizer, qdq_quantizer
from quantize_rs.compat.onnxruntime.onnx_model import ONNXModel
from quantize_rs.errors import CalibrationError

U8, S8 = ours.QuantType.QUInt8, ours.QuantType.QInt8
MODES = ours.QuantizationMode


def ranges(digits: Path, images: Path, package: Any = ours) -> Any:
    calibrater = package.create_calibrator(digits, None, digits.with_name("augmented.onnx"))
    calibrater.collect_data(Reader(images))
    return calibrater.compute_data()


@pytest.mark.parametrize("number", [False, True])
@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("options", [{}, {"ActivationSymmetric": True}])
def test_a_static_quantizer_is_quantize_static(
    digits: Path,
    images: Path,
    tmp_path: Path,
    operators: bool,
    number: bool,
    options: dict[str, Any],
) -> None:
    found, model = ranges(digits, images), onnx.load(digits)
    kept = model.SerializeToString()
    mode = [MODES.QLinearOps, True] if operators else []
    types = [kind.tensor_type if number else kind for kind in (S8, U8)]
    make: Callable[..., Any] = (
        onnx_quantizer.ONNXQuantizer if operators else qdq_quantizer.QDQQuantizer
    )
    quantizer = make(
        model, True, False, *mode, *types, found, [], ["fc2"], ["Conv", "Gemm"], options
    )
    assert isinstance(quantizer.model, ONNXModel)
    assert quantizer.model.model == model
    made = quantizer.quantize_model()
    assert quantizer.model.model is made
    assert model.SerializeToString() == kept
    quantizer.model.save_model_to_file(tmp_path / "object.onnx")

    cache, out = tmp_path / "ranges.json", tmp_path / "function.onnx"
    ours.save_tensors_data(found, cache)
    ours.quantize_static(
        digits,
        out,
        quant_format=ours.QuantFormat.QOperator if operators else ours.QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "Gemm"],
        per_channel=True,
        activation_type=U8,
        weight_type=S8,
        nodes_to_exclude=["fc2"],
        extra_options=options,
        calibration_cache_path=cache,
    )
    assert onnx.load(tmp_path / "object.onnx") == onnx.load(out)


def test_a_dynamic_quantizer_is_quantize_dynamic(digits: Path, tmp_path: Path) -> None:
    quantizer = onnx_quantizer.ONNXQuantizer(
        onnx.load(digits), False, False, MODES.IntegerOps, False, S8, U8, None, [], [], ["MatMul"]
    )
    made, out = quantizer.quantize_model(), tmp_path / "o.onnx"
    ours.quantize_dynamic(digits, out, ["MatMul"])
    assert made == onnx.load(out)


@pytest.mark.parametrize("operators", [False, True])
def test_the_two_packages_take_the_same_call(digits: Path, images: Path, operators: bool) -> None:
    classes: list[Callable[..., Any]] = [qdq_quantizer.QDQQuantizer, their_qdq.QDQQuantizer]
    if operators:
        classes = [onnx_quantizer.ONNXQuantizer, their_onnx.ONNXQuantizer]
    feeds = {"image": np.load(images)[:16]}
    for package, make in zip((ours, theirs), classes, strict=True):
        types = [package.QuantType.QInt8, package.QuantType.QUInt8]
        mode = [package.QuantizationMode.QLinearOps, True] if operators else []
        given = ranges(digits, images, package)
        quantizer = make(
            onnx.load(digits), False, False, *mode, *types, given, [], [], ["Conv", "Gemm"], {}
        )
        quantizer.quantize_model()
        found = oracle.ort(quantizer.model.model.SerializeToString(), feeds)
        assert oracle.sqnr(oracle.ort(digits, feeds), found) > 15


def test_what_cannot_be_is_refused(digits: Path, images: Path) -> None:
    model, found = onnx.load(digits), ranges(digits, images)
    lists: list[Any] = [[], [], []]
    with pytest.raises(OptionError, match="mode is QLinearOps, expected IntegerOps"):
        onnx_quantizer.ONNXQuantizer(
            model, False, False, MODES.QLinearOps, False, S8, U8, None, *lists
        )
    with pytest.raises(OptionError, match="activation_qType is not QUInt8"):
        onnx_quantizer.ONNXQuantizer(
            model, False, False, MODES.IntegerOps, False, S8, S8, None, *lists
        )
    with pytest.raises(OptionError, match="weight_qType is 'int8', expected one of QInt8"):
        qdq_quantizer.QDQQuantizer(model, False, False, "int8", U8, found, *lists)
    with pytest.raises(OptionError, match="tensors_range is None"):
        qdq_quantizer.QDQQuantizer(model, False, False, S8, U8, None, *lists).quantize_model()
    fewer = {name: value for name, value in found.items() if name != "image"}
    with pytest.raises(CalibrationError, match="has no range of 'image'"):
        qdq_quantizer.QDQQuantizer(model, False, False, S8, U8, fewer, *lists).quantize_model()
