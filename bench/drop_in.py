"""The calls of `onnxruntime.quantization` beside those of `quantize_rs.compat.onnxruntime`.

Both rows of a case run the same function with the same arguments; only the package differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import figures
import models
from case import ALL_VALID, Case, Job, Target
from tools import OURS
from ways import ORT_DYNAMIC_CHANNEL, ORT_NBITS, ORT_STATIC


def drop_in(theirs: Job) -> Job:
    """The same call with the import changed."""
    label = theirs.label.replace("onnxruntime", "quantize_rs.compat")
    return replace(theirs, label=label, tool=OURS, job=theirs.job.replace("ort", "drop_in"))


def case(
    name: str, title: str, model: str, samples: dict[str, Any], theirs: Job, faster: float
) -> Case:
    """One call on one model."""
    ours = drop_in(theirs)
    return Case(
        name=f"drop_in_{name}",
        title=title,
        model=lambda cache: models.built(model, cache),
        samples=samples,
        jobs=(ours, theirs),
        targets=(
            ALL_VALID,
            Target(
                "CPU time, theirs divided by ours",
                figures.ratio(theirs.label, ours.label, "cpu"),
                at_least=faster,
            ),
            Target(
                "anonymous memory, ours by theirs",
                figures.ratio(ours.label, theirs.label, "anonymous_peak"),
                at_most=0.25,
            ),
            Target(
                "SQNR of the worst output, dB ahead of theirs",
                figures.sqnr_margin(ours.label, theirs.label),
                at_least=-0.1,
            ),
        ),
        sqnr_samples=8,
        kernels=False,
        keep_outputs=False,
    )


ROWS = {"kind": "random", "input": "x", "shape": [4096], "count": 4}

CASES = (
    case(
        "dynamic",
        "BERT-base, 436 MB: quantize_dynamic(per_channel=True)",
        "bert_base",
        {"kind": "tokens", "count": 8},
        ORT_DYNAMIC_CHANNEL,
        faster=10,
    ),
    case(
        "nbits",
        "600 MB, 9 × MatMul 4096²: MatMulNBitsQuantizer(block_size=32)",
        "mlp_matmul",
        ROWS,
        ORT_NBITS,
        faster=10,
    ),
    case(
        "static",
        "ResNet-18: quantize_static(per_channel=True), MinMax",
        "resnet18",
        {"kind": "images", "count": 64},
        ORT_STATIC,
        faster=2,
    ),
)
