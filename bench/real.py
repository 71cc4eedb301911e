"""The cases of a folder of real models: every way to quantize, and what must hold for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import figures
import half
import models
import peers
import rounded
from case import ALL_VALID, Case, Job, Target
from graph import OPSET
from tools import OURS
from ways import (
    EVERY_WAY,
    METHODS_DIFFER,
    ORT_STATIC,
    OURS_AUTO,
    OURS_AUTO_TENSOR,
    OURS_DYNAMIC,
    OURS_DYNAMIC_TENSOR,
    OURS_INT4_BLOCKS,
    OURS_INT4_HQQ,
    OURS_INT4_NBITS,
    OURS_INT8,
    OURS_INT8_CORRECTED,
    OURS_INT8_NBITS,
    OURS_STATIC,
    SYMMETRIC,
    integer_share,
    latency,
    sqnr_ahead,
)


def metric(name: str, *, at_least: float | None = None, at_most: float | None = None) -> Target:
    """A bound on the model's own metric after static quantization."""
    return Target(
        f"{OURS_AUTO.label}: {name}",
        figures.metric(OURS_AUTO.label, name),
        at_least=at_least,
        at_most=at_most,
    )


def ahead(job: Job, kind: str, *names: str) -> list[Target]:
    """The promise that no recorded peer of the kind is better."""
    return [
        Target(
            f"{job.label}: {name} ahead of the best peer ({kind})",
            figures.metric_margin(job.label, kind, name),
            at_least=0,
        )
        for name in names
    ]


def as_good_as_peers(kind: str, ways: tuple[Job, ...], names: list[str]) -> list[Target]:
    """The promise that no recorded peer of the kind is better, or has a smaller file.

    The best peer has scales per channel or per tensor, so both of ours are compared. Only our
    outputs that are no larger than the peer's count.
    """
    labels = [job.label for job in ways]
    smallest = Target(
        f"{' or '.join(labels)}: bytes by those of the best peer ({kind})",
        figures.over(min, *(figures.size_by_peer(label, kind) for label in labels)),
        at_most=1,
    )
    return [
        smallest,
        *(
            Target(
                f"{' or '.join(labels)}, no larger: {name} ahead of the best peer ({kind})",
                figures.no_larger_margin(labels, kind, names, name),
                at_least=0,
            )
            for name in names
        ),
    ]


THIRTY_TWO_IMAGES = tuple(
    Job(
        f"quantize_rs static {method}, 32 images",
        OURS,
        "calibrate",
        "32 images",
        SYMMETRIC | {"method": method},
        {"count": 32},
        checked=False,
    )
    for method in ("minmax", "auto")
)
"""How long a user waits for a calibration. Where there are fewer images, they are repeated."""

TEXT = (OURS_DYNAMIC, OURS_INT8_NBITS, OURS_INT4_BLOCKS, OURS_INT4_NBITS, OURS_INT4_HQQ)
"""The usual ways to quantize text models, which consist mostly of weights."""

SENSITIVITY, SENSITIVITY_ALL_THREADS = (
    Job(
        f"quantize_rs sensitivity, 16 samples, {threads}",
        OURS,
        "sensitivity",
        "sensitivity",
        options,
        samples={"count": 16},
        writes=False,
    )
    for threads, options in (("one thread", {"threads": 1}), ("all threads", {}))
)
BY_HAND = Job(
    "layer by layer in onnxruntime, 16 samples, one thread",
    OURS,
    "layer_by_layer",
    "sensitivity",
    samples={"count": 16},
    writes=False,
)
"""Every layer quantized alone, by our function and by hand.

CPU seconds are compared on one thread: parallel threads take more CPU time for the same work, in
ONNX Runtime and in our code alike."""

MORE_JOBS: dict[str, tuple[Job, ...]] = {
    "ultraface/model_op17": (*THIRTY_TWO_IMAGES, SENSITIVITY, SENSITIVITY_ALL_THREADS, BY_HAND),
    "minilm/model": TEXT,
    "bytegpt/model": TEXT,
}

LATENCY = ("ultraface/model_op17", "minilm/model", "bytegpt/model")
"""Models whose static outputs are timed beside the float model, one sample at a time."""

PROMISES: dict[str, tuple[Target, ...]] = {
    "ultraface/model_op17": (
        sqnr_ahead(OURS_STATIC, ORT_STATIC),
        Target(
            f"{OURS_INT8_CORRECTED.label}: sqnr_db scores",
            figures.metric(OURS_INT8_CORRECTED.label, "sqnr_db scores"),
            at_least=56.3,
        ),
        metric("sqnr_db scores", at_least=44),
        metric("sqnr_db boxes", at_least=46),
        Target(
            f"{OURS_AUTO.label}: output, MB",
            figures.times(1e-6, figures.cost(OURS_AUTO.label, "output")),
            at_most=0.46,
        ),
        *(
            Target(f"{job.label}: wall s", figures.cost(job.label, "wall"), at_most=1)
            for job in THIRTY_TWO_IMAGES
        ),
        latency(OURS_AUTO, ORT_STATIC.label, 1, at_most=1),
        latency(OURS_AUTO, "float", 1, at_most=1),
        Target(
            "sensitivity: CPU time by that of a full run for each layer",
            figures.ratio(SENSITIVITY.label, BY_HAND.label, "cpu"),
            at_most=0.5,
        ),
    ),
    "minilm/model": (
        metric("mean_cosine", at_least=0.985),
        metric("top1_neighbour_agreement", at_least=0.87),
        *ahead(OURS_DYNAMIC, "dynamic", "mean_cosine", "top1_neighbour_agreement"),
        *ahead(OURS_INT4_BLOCKS, "4 bits", "mean_cosine", "top1_neighbour_agreement"),
        *ahead(OURS_INT4_NBITS, "4 bits", "mean_cosine", "top1_neighbour_agreement"),
        *ahead(OURS_INT4_HQQ, "4 bits", "mean_cosine", "top1_neighbour_agreement"),
        latency(OURS_AUTO, "float", 1, at_most=1),
    ),
    "bytegpt/model": (
        metric("perplexity", at_most=1.02 * 4.938),
        *ahead(OURS_DYNAMIC, "dynamic", "perplexity"),
        *ahead(OURS_INT4_BLOCKS, "4 bits, to the nearest", "perplexity"),
        *ahead(OURS_INT4_NBITS, "4 bits, to the nearest", "perplexity"),
        *ahead(OURS_INT4_HQQ, "4 bits", "perplexity"),
        latency(OURS_AUTO, "float", 1, at_most=1),
    ),
}
"""Targets of single models, in addition to those of all models."""


def cases_of(path: Path) -> list[Case]:
    """The cases of a model file. A model with an old opset is also converted, as for the peers."""
    name = f"{path.parent.name}/{path.stem}"
    cases = [case_of(path, name, lambda _: path)]
    if 1 < models.opset(path) < SCALES_PER_CHANNEL:
        newer = f"{name}@op{OPSET}"
        cases.append(case_of(path, newer, lambda cache: models.converted(path, newer, cache)))
    return cases


SCALES_PER_CHANNEL = 13
"""The first opset in which DequantizeLinear takes a scale for each channel."""


def case_of(path: Path, name: str, model: Callable[[Path], Path]) -> Case:
    """A model, with the data that lies beside the file."""
    meta_path = path.with_name("meta.json")
    meta = json.loads(meta_path.read_text())
    convolutional = "Conv" in meta["model"].get("ops", {})
    return Case(
        name=name,
        title=name,
        model=model,
        samples={"kind": "folder", "path": str(path.parent)},
        jobs=(*EVERY_WAY, *MORE_JOBS.get(name, ()), *rounded.jobs(name), *half.jobs(name)),
        targets=(
            ALL_VALID,
            *as_good_as_peers("static", (OURS_AUTO, OURS_AUTO_TENSOR), peers.figures_of(meta)),
            *as_good_as_peers("dynamic", (OURS_INT8, OURS_DYNAMIC_TENSOR), peers.figures_of(meta)),
            *METHODS_DIFFER,
            *([integer_share(OURS_AUTO.label)] if convolutional else []),
            *PROMISES.get(name, ()),
            *rounded.targets(name),
            *half.targets(name),
        ),
        sqnr_samples=512,
        latency=(1,) if name in LATENCY else (),
        peers=meta_path,
    )
