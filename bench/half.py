"""Float16 models, and 4-bit weights in float16 models, and what they must reach."""

from __future__ import annotations

import figures
from case import Job, Target
from tools import OURS

FLOAT16 = Job("quantize_rs float16, with samples", OURS, "float16", "float16")

Q4 = {"bits": 4, "block_size": 32, "output_format": "matmul_nbits", "check": "none"}
Q4F32 = Job("quantize_rs q4 in float32, with samples", OURS, "correct", "q4", Q4)
Q4F16 = Job(
    "quantize_rs q4 in float16, with samples", OURS, "correct", "q4", Q4 | {"float_type": "float16"}
)

LANGUAGE_MODEL = "bytegpt/model"


def jobs(model: str) -> tuple[Job, ...]:
    return (FLOAT16, *((Q4F32, Q4F16) if model == LANGUAGE_MODEL else ()))


def targets(model: str) -> list[Target]:
    found = [
        Target(
            f"{FLOAT16.label}: SQNR of the worst output, dB",
            figures.worst_sqnr(FLOAT16.label),
            at_least=60,
        ),
        Target(f"{FLOAT16.label}: times smaller", figures.smaller(FLOAT16.label), at_least=1.8),
    ]
    if model == LANGUAGE_MODEL:
        found.append(
            Target(
                "q4 in float16: perplexity above that in float32",
                figures.metric_above(Q4F16.label, Q4F32.label, "perplexity"),
                at_most=0.002,
            )
        )
    return found
