"""What a case is: a model, its data, the jobs to run side by side, and what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import figures


@dataclass(frozen=True)
class Job:
    """One row of a case: a tool at work. Rows of one group do the same thing and are compared.

    `samples` changes the case's samples for this row. A row that needs more memory than the machine
    has is left out, and the report says so. `checked`: whether the output is loaded and evaluated;
    `thorough`: whether it is also timed, and evaluated by the model's own metric. `threads`: of our
    own tool, those of all cores by default.
    """

    label: str
    tool: str
    job: str
    group: str
    options: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    runs: int | None = None
    slow: bool = False
    memory_gb: float = 0
    writes: bool = True
    checked: bool = True
    thorough: bool = True
    threads: int | None = None


@dataclass(frozen=True)
class Target:
    """A promise about a case: a figure of its rows and the bound that it must keep."""

    text: str
    figure: figures.Figure
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Case:
    """A model, its data, the jobs to run on it and the targets.

    `peers` is a file with what peers reached on this model when it was prepared.
    """

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
    keep_model: bool = True
    peers: Path | None = None


ALL_VALID = Target("our outputs that do not load or are not valid", figures.bad_outputs, at_most=0)
