"""The ways to quantize that many cases compare, and the promises that many cases share."""

from __future__ import annotations

import figures
from case import Job, Target
from tools import ORT, OURS, UPSTREAM

SYMMETRIC = {"per_channel": True, "symmetric": True}

OURS_INT8 = Job("quantize_rs int8", OURS, "quantize", "weights")
OURS_INT8_CORRECTED = Job(
    "quantize_rs int8, biases corrected", OURS, "correct", "weights", SYMMETRIC
)
OURS_INT4 = Job("quantize_rs int4", OURS, "quantize", "weights", SYMMETRIC | {"bits": 4})
ORT_DYNAMIC = Job("onnxruntime dynamic", ORT, "ort_dynamic", "weights")
ORT_DYNAMIC_CHANNEL = Job(
    "onnxruntime dynamic per channel", ORT, "ort_dynamic", "weights", {"per_channel": True}
)
OURS_DYNAMIC = Job(
    "quantize_rs int8 dynamic",
    OURS,
    "quantize",
    "weights",
    SYMMETRIC | {"output_format": "dynamic"},
)
OURS_DYNAMIC_TENSOR = Job(
    "quantize_rs int8 dynamic, per tensor",
    OURS,
    "quantize",
    "weights",
    {"per_channel": False, "output_format": "dynamic"},
)
BLOCKS = {"bits": 4, "block_size": 32}
OURS_INT4_BLOCKS = Job("quantize_rs int4 blocks of 32", OURS, "quantize", "int4", BLOCKS)
OURS_INT4_NBITS = Job(
    "quantize_rs int4 blocks of 32, matmul_nbits",
    OURS,
    "quantize",
    "int4",
    BLOCKS | {"output_format": "matmul_nbits"},
)
OURS_INT4_HQQ = Job(
    "quantize_rs int4 blocks of 32, hqq, products alone",
    OURS,
    "quantize",
    "int4",
    BLOCKS | {"output_format": "matmul_nbits", "weight_method": "hqq", "op_types": ["MatMul"]},
)
"""What MatMulNBitsQuantizer quantizes, and as its best entry does it."""

OURS_INT8_NBITS = Job(
    "quantize_rs int8 blocks of 32, matmul_nbits",
    OURS,
    "quantize",
    "weights",
    BLOCKS | {"bits": 8, "output_format": "matmul_nbits"},
)
ORT_NBITS = Job(
    "onnxruntime MatMulNBits blocks of 32", ORT, "ort_nbits", "int4", {"block_size": 32}
)
ORT_STATIC = Job("onnxruntime static", ORT, "ort_static", "static")
UPSTREAM_INT8 = Job("quantize_rs 0.10 int8", UPSTREAM, "quantize", "weights", SYMMETRIC)
UPSTREAM_STATIC = Job(
    "quantize_rs 0.10 static", UPSTREAM, "calibrate_npy", "static", SYMMETRIC | {"method": "minmax"}
)


def ours_static(method: str, *, thorough: bool = True) -> Job:
    """Static quantization with a method of calibration."""
    return Job(
        f"quantize_rs static {method}",
        OURS,
        "calibrate",
        "static",
        SYMMETRIC | {"method": method},
        thorough=thorough,
    )


OURS_STATIC = ours_static("minmax")
OURS_AUTO = ours_static("auto")
OURS_AUTO_TENSOR = Job(
    "quantize_rs static auto, per tensor",
    OURS,
    "calibrate",
    "static",
    {"per_channel": False, "symmetric": True, "method": "auto"},
)
OTHER_METHODS = tuple(
    ours_static(method, thorough=False)
    for method in ("moving_average", "percentile", "entropy", "mse")
)

EVERY_WAY = (
    OURS_INT8,
    OURS_INT8_CORRECTED,
    OURS_INT4,
    OURS_DYNAMIC_TENSOR,
    ORT_DYNAMIC_CHANNEL,
    UPSTREAM_INT8,
    OURS_STATIC,
    OURS_AUTO,
    OURS_AUTO_TENSOR,
    *OTHER_METHODS,
    ORT_STATIC,
    UPSTREAM_STATIC,
)

METHODS_DIFFER = (
    Target(
        "entropy and minmax: SQNR apart, dB",
        figures.sqnr_apart("quantize_rs static entropy", OURS_STATIC.label),
        at_least=0.001,
    ),
    Target(
        "auto: SQNR ahead of the best other method, dB",
        figures.over(
            min,
            *(
                figures.sqnr_margin(OURS_AUTO.label, job.label)
                for job in (OURS_STATIC, *OTHER_METHODS)
            ),
        ),
        at_least=-0.1,
    ),
)
"""The targets that the methods differ, and that `auto` is about as good as the best."""


def integer_share(label: str) -> Target:
    """The promise that a convolutional network runs on integers."""
    return Target(
        f"{label}: share of Conv and Gemm on integers",
        figures.integer_share(label),
        at_least=0.95,
    )


def latency(ours: Job, theirs: str, batch: int, at_most: float) -> Target:
    """The promise that an output is not slower than another model."""
    return Target(
        f"{ours.label}: latency by {theirs}, batch {batch}",
        figures.latency_ratio(ours.label, theirs, batch),
        at_most=at_most,
    )


def sqnr_ahead(ours: Job, theirs: Job) -> Target:
    """The promise that an output is closer to the float model than another tool's."""
    return Target(
        f"{ours.label}: SQNR ahead of {theirs.label}, dB",
        figures.sqnr_margin(ours.label, theirs.label),
        at_least=0,
    )
