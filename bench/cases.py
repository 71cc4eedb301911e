"""The table of cases: which model, which jobs side by side, and what must hold.

To add a job, add a `Job` to a group; to add a promise, add a `Target` to a case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import figures
import models
from tools import ONNX, ORT, OURS, UPSTREAM


@dataclass(frozen=True)
class Job:
    """One row of a case: a tool at work. Rows of one group do the same thing and are compared."""

    label: str
    tool: str
    job: str
    group: str
    options: dict[str, Any] = field(default_factory=dict)
    runs: int | None = None
    slow: bool = False


@dataclass(frozen=True)
class Target:
    """A promise about a case: a figure of its rows and the bound that it must keep."""

    text: str
    figure: figures.Figure
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Case:
    """A model, its data, the jobs to run on it and the targets."""

    name: str
    title: str
    model: Callable[[Path], Path]
    samples: dict[str, Any]
    jobs: tuple[Job, ...]
    targets: tuple[Target, ...] = ()
    quality: bool = True
    kernels: bool = True
    sqnr_samples: int = 32
    latency: tuple[int, ...] = ()
    keep_outputs: bool = True


SYMMETRIC = {"per_channel": True, "symmetric": True}

OURS_INT8 = Job("quantize_rs int8", OURS, "quantize", "weights", SYMMETRIC)
OURS_INT8_ASYMMETRIC = Job(
    "quantize_rs int8 asymmetric", OURS, "quantize", "weights", {"per_channel": True}
)
OURS_INT4 = Job("quantize_rs int4", OURS, "quantize", "weights", SYMMETRIC | {"bits": 4})
OURS_STATIC = Job(
    "quantize_rs static", OURS, "calibrate", "static", SYMMETRIC | {"method": "minmax"}
)
OURS_INFO = Job("quantize_rs.model_info", OURS, "model_info", "info", runs=5)
ORT_DYNAMIC = Job("onnxruntime dynamic", ORT, "ort_dynamic", "weights")
ORT_DYNAMIC_CHANNEL = Job(
    "onnxruntime dynamic per channel", ORT, "ort_dynamic", "weights", {"per_channel": True}
)
ORT_STATIC = Job("onnxruntime static", ORT, "ort_static", "static")
ORT_STATIC_SLOW = Job("onnxruntime static", ORT, "ort_static", "static", runs=1, slow=True)
UPSTREAM_INT8 = Job("quantize_rs 0.10 int8", UPSTREAM, "quantize", "weights", SYMMETRIC)
UPSTREAM_STATIC = Job(
    "quantize_rs 0.10 static", UPSTREAM, "calibrate_npy", "static", SYMMETRIC | {"method": "minmax"}
)
UPSTREAM_INFO = Job("quantize_rs 0.10 model_info", UPSTREAM, "model_info", "info")
ONNX_LOAD = Job("onnx.load", ONNX, "onnx_load", "info")

EVERY_WAY = (
    OURS_INT8,
    OURS_INT4,
    ORT_DYNAMIC_CHANNEL,
    UPSTREAM_INT8,
    OURS_STATIC,
    ORT_STATIC,
    UPSTREAM_STATIC,
)


ALL_VALID = Target("our outputs that do not load or are not valid", figures.bad_outputs, at_most=0)


def as_good_as_onnxruntime(*batches: int) -> tuple[Target, ...]:
    """The promises about static quantization: as accurate and as fast as onnxruntime's own."""
    ours, theirs = OURS_STATIC.label, ORT_STATIC.label
    return (
        Target(
            "static: SQNR ahead of onnxruntime, dB", figures.sqnr_lead(ours, theirs), at_least=0
        ),
        *(
            Target(
                f"static: latency by onnxruntime's output, batch {batch}",
                figures.latency_ratio(ours, theirs, batch),
                at_most=1.05,
            )
            for batch in batches
        ),
    )


def weights_in_little_memory(job: Job) -> tuple[Target, ...]:
    """The promises about a large file, for one of our jobs."""
    return (
        *(
            Target(
                f"{job.label}: CPU time of {peer.label} by ours",
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

MODEL_LATENCY: dict[str, tuple[int, ...]] = {"ultraface/model_op17": (1,)}
"""Model files whose static output must keep up with onnxruntime's: batches to time."""


def all_cases(repository: Path, folder: Path | None) -> list[Case]:
    """Every case; the folder of models may be missing."""
    found = [] if folder is None else [model_case(path) for path in sorted(folder.glob("*/*.onnx"))]
    return [*BUILT, digits_case(repository / "examples" / "digits"), *found]


def digits_case(folder: Path) -> Case:
    """The model that this repository ships."""
    return Case(
        name="digits",
        title="the digits CNN of examples/",
        model=lambda _: folder / "digits_cnn.onnx",
        samples={"kind": "digits", "path": str(folder)},
        jobs=EVERY_WAY,
        targets=(ALL_VALID, *as_good_as_onnxruntime(1, 64)),
        sqnr_samples=400,
        latency=(1, 64),
    )


def model_case(path: Path) -> Case:
    """A file of a folder of models; what it is compared for is in `MODEL_LATENCY`."""
    name = f"{path.parent.name}/{path.stem}"
    batches = MODEL_LATENCY.get(name, ())
    return Case(
        name=name,
        title=name,
        model=lambda _: path,
        samples={"kind": "folder", "path": str(path.parent)},
        jobs=EVERY_WAY,
        targets=(ALL_VALID, *(as_good_as_onnxruntime(*batches) if batches else ())),
        latency=batches,
    )
