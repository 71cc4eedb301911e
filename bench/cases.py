"""The table of cases: which model, which jobs side by side, and what must hold.

To add a job, add a `Job` to a group; to add a promise, add a `Target` to a case.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import calibration
import drop_in
import figures
import models
import real
import weights
from case import ALL_VALID, Case, Job, Target
from tools import ONNX, OURS, UPSTREAM
from ways import (
    EVERY_WAY,
    METHODS_DIFFER,
    ORT_DYNAMIC,
    ORT_DYNAMIC_CHANNEL,
    ORT_STATIC,
    OURS_INT8,
    OURS_STATIC,
    UPSTREAM_INT8,
    UPSTREAM_STATIC,
    integer_share,
    latency,
    sqnr_ahead,
)

OURS_INT8_ASYMMETRIC = Job(
    "quantize_rs int8 asymmetric", OURS, "quantize", "weights", {"symmetric": False}
)
OURS_INFO = Job("quantize_rs.model_info", OURS, "model_info", "info", runs=5, writes=False)
UPSTREAM_INFO = Job("quantize_rs 0.10 model_info", UPSTREAM, "model_info", "info", writes=False)
ONNX_LOAD = Job("onnx.load", ONNX, "onnx_load", "info", writes=False)
ORT_STATIC_SLOW = replace(ORT_STATIC, runs=1, slow=True)


def weights_in_little_memory(job: Job) -> tuple[Target, ...]:
    """The promises about a large file, for one of our jobs."""
    return (
        *(
            Target(
                f"{job.label}: CPU time of {peer.label} divided by ours",
                figures.ratio(peer.label, job.label, "cpu"),
                at_least=15,
            )
            for peer in (ORT_DYNAMIC_CHANNEL, ORT_DYNAMIC)
        ),
        Target(
            f"{job.label}: anonymous peak beyond 1.2 × output, MB",
            figures.memory_over_output(job.label, 1.2),
            at_most=64,
        ),
    )


BUILT = (
    Case(
        name="mlp",
        title="600 MB: 9 × Gemm 4096², weights only",
        model=lambda cache: models.built("mlp", cache),
        samples={"kind": "random", "input": "x", "shape": [4096], "count": 4},
        jobs=(OURS_INT8, OURS_INT8_ASYMMETRIC, ORT_DYNAMIC, ORT_DYNAMIC_CHANNEL, UPSTREAM_INT8),
        targets=(
            ALL_VALID,
            *weights_in_little_memory(OURS_INT8),
            *weights_in_little_memory(OURS_INT8_ASYMMETRIC),
        ),
        kernels=False,
        keep_outputs=False,
    ),
    Case(
        name="info",
        title="looking into the 600 MB file",
        model=lambda cache: models.built("mlp", cache),
        samples={},
        jobs=(OURS_INFO, UPSTREAM_INFO, ONNX_LOAD),
        targets=(
            Target(
                "model_info: wall ms",
                figures.times(1e3, figures.cost(OURS_INFO.label, "wall")),
                at_most=20,
            ),
            Target(
                "model_info: growth of resident memory, MB",
                figures.times(1e-6, figures.cost(OURS_INFO.label, "rss_growth")),
                at_most=50,
            ),
        ),
        quality=False,
    ),
    Case(
        name="many_nodes",
        title="3,000 nodes: 1,000 × MatMul, Add, Relu of 16 × 16",
        model=lambda cache: models.built("many_nodes", cache),
        samples={"kind": "random", "input": "x", "shape": [16], "count": 2},
        jobs=(OURS_INT8, ORT_DYNAMIC, UPSTREAM_INT8, OURS_STATIC, ORT_STATIC_SLOW, UPSTREAM_STATIC),
        targets=(
            ALL_VALID,
            Target("weights only: CPU s", figures.cost(OURS_INT8.label, "cpu"), at_most=0.2),
        ),
    ),
)


def all_cases(repository: Path, folder: Path | None) -> list[Case]:
    """Every case; the folder of models may be missing."""
    files = [] if folder is None else sorted(folder.glob("*/*.onnx"))
    digits = digits_case(repository / "examples" / "digits")
    return [
        *BUILT,
        *calibration.CASES,
        *weights.CASES,
        *drop_in.CASES,
        digits,
        *(case for file in files for case in real.cases_of(file)),
    ]


def digits_case(folder: Path) -> Case:
    """The model that this repository ships."""
    return Case(
        name="digits",
        title="the digits CNN of examples/",
        model=lambda _: folder / "digits_cnn.onnx",
        samples={"kind": "digits", "path": str(folder)},
        jobs=EVERY_WAY,
        targets=(
            ALL_VALID,
            sqnr_ahead(OURS_STATIC, ORT_STATIC),
            *(latency(OURS_STATIC, ORT_STATIC.label, batch, at_most=1.05) for batch in (1, 64)),
            *METHODS_DIFFER,
            integer_share(OURS_STATIC.label),
        ),
        sqnr_samples=400,
        latency=(1, 64),
    )
