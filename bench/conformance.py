"""The same calls of `onnxruntime.quantization` and of `quantize_rs.compat.onnxruntime`, compared.

python bench/conformance.py                        # every model and call, without costs
python bench/conformance.py --only encoder --calls 'dynamic*'
python bench/conformance.py --costs --write        # also CPU time and memory; docs/conformance.md
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import conformance_models
import conformance_page
import machine
import measure
import quality
import tools
import wild_jobs
from conformance_calls import CALLS, OURS, THEIRS
from conformance_models import Subject

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / "target" / "bench"

TESTED = ("digits", "convolutions", "perceptron", "encoder", "upsampler", "gather_embedding")
"""The models that the tests of the project run."""

EQUAL_DB = 110
"""From here on, outputs differ by the rounding of float32 alone."""

BRIEF = (
    "static s8s8",
    "static u8s8 channel",
    "static u8s8 channel, percentile",
    "static QOperator u8s8 channel",
    "dynamic s8",
    "dynamic s8 channel",
    "4 bits, blocks of 32",
    "4 bits, blocks of 32, RTN",
    "8 bits, blocks of 32",
    "NF4, blocks of 64",
)
"""The calls with the models of a folder, which may be large."""


@dataclass(frozen=True)
class Side:
    """What a call of one package gave: an error, or a result and what it cost."""

    error: str | None = None
    sqnr: float | None = None
    size: int | None = None
    cpu: float | None = None
    peak: float | None = None


@dataclass(frozen=True)
class Row:
    """A call on a model, by both packages. An SQNR of None: the outputs are those of the model."""

    subject: str
    call: str
    theirs: Side
    ours: Side


@dataclass
class Float:
    """The float model: its samples, the names, types and shapes of its ends, its outputs."""

    subject: Subject
    ends: list[tuple[str, str, list[Any]]]
    outputs: wild_jobs.Outputs


def main() -> int:
    """Compare what was asked for; the number of deviations without a reason is the exit code."""
    options = arguments()
    logging.disable(logging.CRITICAL)
    found = [*stored(options.read), *([] if options.read else rows(options))]
    if options.json:
        kinds = conformance_page.deviations
        written = [asdict(row) | {"deviations": list(kinds(row))} for row in found]
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    unexplained = conformance_page.unexplained(found)
    for row, kind in unexplained:
        print(f"{row.subject}: {row.call}: {kind}, and the page has no reason for it")
    if options.write:
        versions = {tool.name: tool for tool in found_tools()}
        conformance_page.PAGE.write_text(
            conformance_page.page(found, machine.describe(versions), options.command),
            encoding="utf-8",
        )
    return int(bool(unexplained))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, help="folder of trained models, as `make bench` has")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--calls", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--tested", action="store_true", help="the models that the tests run")
    parser.add_argument("--costs", action="store_true", help="measure, each call in a process")
    parser.add_argument("--runs", type=int, default=1, help="runs whose medians are taken [1]")
    parser.add_argument("--write", action="store_true", help="write docs/conformance.md")
    parser.add_argument("--command", default="make conformance", help="as the page names it")
    parser.add_argument("--json", type=Path, help="a file for every figure")
    parser.add_argument(
        "--read", type=Path, action="append", default=[], help="take the rows of such a file"
    )
    return parser.parse_args()


def found_tools() -> Iterator[tools.Tool]:
    """The two packages that take part."""
    yield tools.probed(tools.OURS, tools.HERE, "quantize_rs", "quantization-rs", "numpy")
    yield tools.probed(tools.ORT, tools.HERE, "onnxruntime.quantization", "onnxruntime", "onnx")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of the models and calls that were asked for."""
    known = conformance_models.subjects(options.models)
    own = conformance_models.subjects()
    for name, opened in known.items():
        if not wanted(name, options.only) or (options.tested and name not in TESTED):
            continue
        original = float_model(opened(CACHE))
        for call in CALLS if name in own else BRIEF:
            if wanted(call, options.calls):
                row = compared(name, call, original, options)
                print(conformance_page.line(row), flush=True)
                yield row


def stored(paths: list[Path]) -> Iterator[Row]:
    """The rows of earlier runs."""
    for path in paths:
        for row in json.loads(path.read_text()):
            sides = (Side(**row[side]) for side in ("theirs", "ours"))
            yield Row(row["subject"], row["call"], *sides)


def wanted(name: str, patterns: list[str]) -> bool:
    """Whether one of the patterns matches, or there are none."""
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def float_model(subject: Subject) -> Float:
    """Run the float model on the held-out samples."""
    outputs = wild_jobs.runs(str(subject.model), subject.held_out, optimise=True)
    return Float(subject, ends(subject.model), outputs)


def ends(model: Path) -> list[tuple[str, str, list[Any]]]:
    """Names, types and shapes of inputs and outputs."""
    session = quality.open_session(str(model), optimise=True)
    every = [*session.get_inputs(), *session.get_outputs()]
    return [(end.name, end.type, end.shape) for end in every]


def compared(name: str, call: str, original: Float, options: argparse.Namespace) -> Row:
    """One call by both packages."""
    sides = []
    for package in (THEIRS, OURS):
        with tempfile.TemporaryDirectory() as folder:
            # Fixtures are so small that only the start would be measured.
            costs = options.costs and name not in conformance_models.FIXED
            made = measured if costs else called
            sides.append(made(name, call, package, original, Path(folder), options))
    return Row(name, call, *sides)


def called(
    _: str, call: str, package: str, original: Float, folder: Path, __: argparse.Namespace
) -> Side:
    """The call in this process."""
    subject = original.subject
    # onnxruntime writes a file beside the model.
    model, out = folder / subject.model.name, folder / "out.onnx"
    model.write_bytes(subject.model.read_bytes())
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            CALLS[call](package, model, out, subject.calibration)
    except Exception as error:
        return Side(error=said(error))
    return evaluated(out, original)


def measured(
    name: str,
    call: str,
    package: str,
    original: Float,
    folder: Path,
    options: argparse.Namespace,
) -> Side:
    """The call in processes of their own."""
    out = folder / "out" / "out.onnx"
    request = {
        "module": "conformance_jobs",
        "job": "quantize",
        "subject": name,
        "call": call,
        "package": package,
        "models": str(options.models.resolve()) if options.models else None,
        "cache": str(CACHE),
        "output": str(out),
    }
    cost = measure.job(tools.HERE, request, folder / "scratch", options.runs)
    if cost.error is not None:
        return Side(error=cost.error)
    side = evaluated(out, original)
    return Side(side.error, side.sqnr, side.size, cost.cpu, cost.anonymous_peak)


def evaluated(out: Path, original: Float) -> Side:
    """What a written model is worth."""
    size = measure.folder_size(out.parent) if out.parent.name == "out" else out.stat().st_size
    try:
        if ends(out) != original.ends:
            return Side(error="other inputs or outputs than the float model")
        worst = wild_jobs.worst(
            original.outputs, str(out), original.subject.held_out, optimise=True
        )
    except Exception as error:
        return Side(error=f"the result does not run: {said(error)}")
    decibels = worst["sqnr"]
    return Side(sqnr=None if decibels is None or decibels > EQUAL_DB else decibels, size=size)


def said(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    sys.exit(main())
