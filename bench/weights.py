"""The cases about weights alone: shapes of text and speech, files of gigabytes, four bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import figures
import models
from case import ALL_VALID, Case, Target
from ways import (
    ORT_DYNAMIC,
    ORT_DYNAMIC_CHANNEL,
    ORT_NBITS,
    OURS_DYNAMIC,
    OURS_INT4,
    OURS_INT4_BLOCKS,
    OURS_INT4_NBITS,
    OURS_INT8,
    sqnr_ahead,
)

SMALLER = {OURS_INT8.label: 3.9, OURS_DYNAMIC.label: 3.9, OURS_INT4.label: 7.0}
"""How many times smaller a file becomes that is nearly all weights."""

SHAPES = (OURS_INT8, OURS_DYNAMIC, OURS_INT4, OURS_INT4_BLOCKS, ORT_DYNAMIC, ORT_DYNAMIC_CHANNEL)
FOUR_BITS = (OURS_INT4_BLOCKS, OURS_INT4_NBITS, ORT_NBITS)

BESIDE = {"use_external_data_format": True}
THEIRS_LARGE = (
    replace(ORT_DYNAMIC, options=ORT_DYNAMIC.options | BESIDE, memory_gb=11, runs=1),
    replace(
        ORT_DYNAMIC_CHANNEL, options=ORT_DYNAMIC_CHANNEL.options | BESIDE, memory_gb=11, runs=1
    ),
)


def shape(name: str, title: str, samples: dict[str, Any]) -> Case:
    """A network whose weights alone are quantized, beside onnxruntime's `quantize_dynamic`."""
    return Case(
        name=f"{name}_weights",
        title=f"{title}, weights only and dynamic",
        model=lambda cache: models.built(name, cache),
        samples=samples,
        jobs=SHAPES,
        targets=(
            ALL_VALID,
            *(
                sqnr_ahead(ours, theirs)
                for ours in (OURS_INT8, OURS_DYNAMIC)
                for theirs in (ORT_DYNAMIC, ORT_DYNAMIC_CHANNEL)
            ),
            *(
                Target(f"{label}: times smaller", figures.smaller(label), at_least=bound)
                for label, bound in SMALLER.items()
            ),
        ),
        sqnr_samples=32,
        keep_outputs=False,
    )


def large() -> Case:
    """A file of gigabytes, its data beside it."""
    return Case(
        name="large",
        title="2.4 GB with external data: 36 × Gemm 4096², weights only",
        model=lambda cache: models.built("large", cache),
        samples={"kind": "random", "input": "x", "shape": [4096], "count": 2},
        jobs=(OURS_INT8, *THEIRS_LARGE),
        targets=(
            ALL_VALID,
            *(
                Target(
                    f"CPU time by {theirs.label}",
                    figures.ratio(OURS_INT8.label, theirs.label, "cpu"),
                    at_most=0.1,
                )
                for theirs in THEIRS_LARGE
            ),
            Target(
                "anonymous peak, MB",
                figures.times(1e-6, figures.cost(OURS_INT8.label, "anonymous_peak")),
                at_most=300,
            ),
        ),
        sqnr_samples=2,
        kernels=False,
        keep_outputs=False,
        keep_model=False,
    )


def larger_than_memory() -> Case:
    """A language model of which no more than some layers fit into memory."""
    jobs = tuple(
        replace(job, label=f"{job.label}, {threads} thread{'s' * (threads > 1)}", threads=threads)
        for job in (OURS_INT8, OURS_INT4_BLOCKS, OURS_INT4_NBITS)
        for threads in (1, 2)
    )
    return Case(
        name="decoder",
        title="7.2 GB with external data: a decoder of 16 layers of 3072, weights only",
        model=lambda cache: models.built("decoder", cache),
        samples={
            "kind": "random",
            "input": "input_ids",
            "shape": [64],
            "below": 32000,
            "count": 1,
        },
        jobs=jobs,
        targets=(
            ALL_VALID,
            *(
                Target(
                    f"{job.label}: anonymous peak, MB",
                    figures.times(1e-6, figures.cost(job.label, "anonymous_peak")),
                    at_most=400,
                )
                for job in jobs
            ),
        ),
        sqnr_samples=1,
        kernels=False,
        keep_outputs=False,
        keep_model=False,
    )


def four_bits(name: str, op: str) -> Case:
    """The 600 MB of `mlp` at 4 bits, blocks of 32, as Gemm or as MatMul and Add."""
    return Case(
        name=f"{name}_int4",
        title=f"600 MB: 9 × {op} 4096², 4 bits in blocks of 32",
        model=lambda cache: models.built(name, cache),
        samples={"kind": "random", "input": "x", "shape": [4096], "count": 4},
        jobs=FOUR_BITS,
        targets=(
            ALL_VALID,
            *(
                Target(
                    f"{job.label}: CPU time by {ORT_NBITS.label}",
                    figures.ratio(job.label, ORT_NBITS.label, "cpu"),
                    at_most=0.5,
                )
                for job in (OURS_INT4_BLOCKS, OURS_INT4_NBITS)
            ),
            *(
                Target(f"{job.label}: times smaller", figures.smaller(job.label), at_least=6.2)
                for job in (OURS_INT4_BLOCKS, OURS_INT4_NBITS)
            ),
            *(
                sqnr_ahead(job, ORT_NBITS)
                for job in (OURS_INT4_BLOCKS, OURS_INT4_NBITS)
                if op == "MatMul"
            ),
        ),
        kernels=False,
        keep_outputs=False,
    )


def sequence(width: int) -> dict[str, Any]:
    """Samples of 32 steps."""
    return {"kind": "random", "input": "x", "shape": [32, width], "count": 8}


CASES = (
    shape("bert_base", "BERT-base, 436 MB", {"kind": "tokens", "count": 8}),
    shape("lstm", "two LSTM layers in both directions, 1024 states", sequence(512)),
    shape("gru", "two GRU layers, 1024 states", sequence(512)),
    large(),
    larger_than_memory(),
    four_bits("mlp_matmul", "MatMul"),
    four_bits("mlp", "Gemm"),
)
