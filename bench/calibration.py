"""The cases about calibration itself: every method, few and many samples, both engines, two models.

What is compared: onnxruntime's own tool, and ONNX Runtime doing nothing but running the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import figures
import models
from case import ALL_VALID, Case, Job, Target
from tools import ORT, OURS
from ways import integer_share

COUNTS = (16, 64, 256)
METHODS = ("minmax", "moving_average", "percentile", "entropy", "mse", "auto")
FAST, BUILT_IN = "onnxruntime", "tract"
THREADS = 2

THEIR_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""The names of our methods in onnxruntime's tool."""

HISTOGRAMS = ("entropy", "percentile")
"""The methods for which onnxruntime's tool keeps every activation of every sample."""


@dataclass(frozen=True)
class Grid:
    """The methods that are run on a model, and the numbers of samples.

    `ours`: methods and counts by engine. `theirs`: counts by method of onnxruntime's tool.
    `sample_gb`: memory that its tool needs for a sample. `once`: counts that are run only once.
    """

    ours: dict[str, tuple[tuple[str, ...], tuple[int, ...]]]
    theirs: dict[str, tuple[int, ...]]
    sample_gb: float
    once: tuple[int, ...]

    def jobs(self) -> tuple[Job, ...]:
        """A row for each."""
        return (
            *(self.alone(count) for count in COUNTS),
            *(
                self.our_job(method, count, engine)
                for engine, (methods, counts) in self.ours.items()
                for method in methods
                for count in counts
            ),
            *(
                self.their_job(method, count)
                for method, counts in self.theirs.items()
                for count in counts
            ),
            *(
                self.their_job(method, count, slow=True)
                for method in self.theirs
                for count in COUNTS
                if method in HISTOGRAMS and count not in self.theirs[method]
            ),
        )

    def our_job(self, method: str, count: int, engine: str) -> Job:
        """Open, plan, calibrate, apply and save."""
        return Job(
            our_label(method, count, engine),
            OURS,
            "flow",
            f"{method} {count}",
            {"method": method, "engine": engine, "threads": THREADS},
            {"count": count},
            runs=self.runs(count),
            checked=count == COUNTS[0],
        )

    def their_job(self, method: str, count: int, *, slow: bool = False) -> Job:
        """`quantize_static`; histograms take the memory of all samples, and of joining them."""
        histograms = method in HISTOGRAMS
        return Job(
            their_label(method, count),
            ORT,
            "ort_static",
            f"{method} {count}",
            {"method": THEIR_METHODS[method]},
            {"count": count},
            runs=1 if slow else self.runs(count),
            slow=slow,
            memory_gb=1 + 1.2 * self.sample_gb * count if histograms else 0,
            checked=count == COUNTS[0],
        )

    def alone(self, count: int) -> Job:
        """ONNX Runtime with the same values exposed."""
        return Job(
            alone_label(count),
            ORT,
            "ort_alone",
            f"alone {count}",
            {"threads": THREADS},
            {"count": count},
            runs=self.runs(count),
            writes=False,
        )

    def runs(self, count: int) -> int | None:
        """The number of runs; None for that of the command line."""
        return 1 if count in self.once else None

    def targets(self) -> tuple[Target, ...]:
        """What calibration must keep on the model."""
        return (ALL_VALID, *self.memory(), *self.by_alone(), *self.by_their_cpu(), *self.by_wall())

    def memory(self) -> list[Target]:
        """Memory does not grow with the number of samples."""
        few, many = COUNTS[0], COUNTS[-1]
        return [
            Target(
                f"{engine}, {method}: peak memory at {many} samples by that at {few}",
                figures.ratio(
                    our_label(method, many, engine),
                    our_label(method, few, engine),
                    "anonymous_peak",
                ),
                at_most=1.05,
            )
            for engine, (methods, counts) in self.ours.items()
            if many in counts
            for method in methods
        ]

    def by_alone(self) -> list[Target]:
        """Calibrating costs little more than running the samples does."""
        methods, counts = self.ours[FAST]
        return [
            Target(
                f"{FAST}, {method}: CPU time of calibrating by running alone, the worst count",
                figures.over(
                    max,
                    *(
                        figures.part_ratio(
                            our_label(method, count, FAST), "calibrating", alone_label(count)
                        )
                        for count in counts
                    ),
                ),
                at_most=1.25,
            )
            for method in methods
        ]

    def by_their_cpu(self) -> list[Target]:
        """Histograms cost half of what they cost onnxruntime's tool."""
        return [
            Target(
                f"{FAST}, {method}: CPU time by onnxruntime's tool, the worst count",
                figures.over(
                    max,
                    *(
                        figures.ratio(
                            our_label(method, count, FAST), their_label(method, count), "cpu"
                        )
                        for count in self.theirs[method]
                    ),
                ),
                at_most=0.5,
            )
            for method in HISTOGRAMS
        ]

    def by_wall(self) -> list[Target]:
        """The built-in engine keeps up with onnxruntime's tool."""
        methods, counts = self.ours[BUILT_IN]
        return [
            Target(
                f"{BUILT_IN}, {method}: wall time by onnxruntime's tool, the worst count",
                figures.over(
                    max,
                    *(
                        figures.ratio(
                            our_label(method, count, BUILT_IN), their_label(method, count), "wall"
                        )
                        for count in self.theirs[method]
                        if count in counts
                    ),
                ),
                at_most=1,
            )
            for method in methods
        ]


def our_label(method: str, count: int, engine: str) -> str:
    """A row of ours."""
    return f"{OURS} {method} {count} on {engine}"


def their_label(method: str, count: int) -> str:
    """A row of onnxruntime's tool."""
    return f"onnxruntime's tool {method} {count}"


def alone_label(count: int) -> str:
    """A row of ONNX Runtime running the samples."""
    return f"onnxruntime alone {count}"


RESNET18 = Grid(
    ours={FAST: (METHODS, COUNTS), BUILT_IN: (("minmax", "entropy"), COUNTS)},
    theirs={"minmax": COUNTS, "entropy": (16, 64), "percentile": (16, 64)},
    sample_gb=0.03,
    once=(256,),
)

BERT_BASE = Grid(
    ours={
        FAST: (METHODS, COUNTS),
        BUILT_IN: (("minmax", "entropy"), (16,)),
    },
    theirs={"minmax": (16, 64), "entropy": (16,), "percentile": (16,)},
    sample_gb=0.267,
    once=COUNTS,
)

CASES = (
    Case(
        name="resnet18",
        title="calibrating a ResNet-18 of 224²: 47 MB, 20 × Conv, seeded weights and images",
        model=lambda cache: models.built("resnet18", cache),
        samples={"kind": "images", "count": COUNTS[0]},
        jobs=RESNET18.jobs(),
        targets=(*RESNET18.targets(), integer_share(our_label("minmax", COUNTS[0], FAST))),
        sqnr_samples=8,
        keep_outputs=False,
    ),
    Case(
        name="bert_base",
        title="calibrating a BERT-base of 1 × 128 tokens: 436 MB, seeded weights and tokens",
        model=lambda cache: models.built("bert_base", cache),
        samples={"kind": "tokens", "count": COUNTS[0]},
        jobs=BERT_BASE.jobs(),
        targets=BERT_BASE.targets(),
        sqnr_samples=8,
        keep_outputs=False,
    ),
)
