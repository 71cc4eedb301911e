"""The ways in which every model of the edge cases is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from census import rows_and_columns
from onnx import ModelProto

import quantize_rs
from quantize_rs import Report

Feeds: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """How a model is quantized, and the minimum SQNR of its outputs by default, in decibels.

    For normally distributed numbers, one scale for thousands of them gives a step of about 1/30 of
    the standard deviation at 8 bits, which is 40 dB. One scale for 32 of them gives about 1/4 at
    4 bits, which is 22 dB. The errors of several layers add up.

    `holds` counts the weights that the format can represent, where that is not all of them.
    `decoded` weights are given to ONNX Runtime as the floats that onnx.reference dequantizes them
    to, because ONNX Runtime has no kernel for them.
    """

    title: str
    floor: float
    options: Mapping[str, Any] = field(default_factory=dict)
    calibrated: bool = False
    holds: Callable[[ModelProto], int] | None = None
    decoded: bool = False

    def __call__(self, model: Any, target: Any, samples: Callable[[], Feeds]) -> Report:
        if self.calibrated:
            return quantize_rs.quantize_with_calibration(model, target, samples(), **self.options)
        return quantize_rs.quantize(model, target, **self.options)


WAYS = {
    "int8": Way("INT8 weights", 30),
    "channel": Way(
        "INT8 weights, symmetric, one scale per channel",
        30,
        {"per_channel": True, "symmetric": True},
    ),
    "int4": Way("INT4 weights, blocks of 32", 12, {"bits": 4, "block_size": 32}),
    "static": Way(
        "INT8 weights and UINT8 activations, 8 samples",
        25,
        {"per_channel": True, "symmetric": True},
        calibrated=True,
    ),
    "nbits": Way(
        "INT4 weights, blocks of 32, in `MatMulNBits` and `GatherBlockQuantized`",
        12,
        {"bits": 4, "block_size": 32, "output_format": "matmul_nbits"},
        holds=rows_and_columns,
    ),
    "dynamic": Way(
        "INT8 weights, activations quantized at run time",
        25,
        {"per_channel": True, "symmetric": True, "output_format": "dynamic"},
    ),
    "mxfp4": Way(
        "FLOAT4E2M1 weights, blocks of 32 with FLOAT8E8M0 scales, decoded by `onnx.reference`",
        12,
        {"weights": "mxfp4", "target": "generic"},
        decoded=True,
    ),
    "nvfp4": Way(
        "FLOAT4E2M1 weights, blocks of 16 with FLOAT8E4M3FN scales, decoded by `onnx.reference`",
        12,
        {"weights": "nvfp4", "target": "generic"},
        decoded=True,
    ),
}
