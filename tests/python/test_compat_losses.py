"""`qdq_loss_debug` finds the losses that onnxruntime's module finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime.quantization.qdq_loss_debug as theirs
import pytest
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


def test_lists_of_another_length_have_no_error() -> None:
    one, two = [np.ones(6)], [np.ones(3), np.ones(3)]
    with pytest.raises(OptionError, match="y has 1 arrays, expected 2"):
        debug.compute_signal_to_quantization_noice_ratio(two, one)
