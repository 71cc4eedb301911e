"""The bench: every case of `cases.py`, each tool in its own processes, ratios in one run.

python bench/run.py --models FOLDER --markdown
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import figures
import machine
import measure
import models
import numpy as np
import peers
import report
import samples
import tools
from case import Case, Job, Target

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Settings:
    """How much to measure, and where to keep things."""

    cache: Path
    runs: int
    slow: bool
    jobs: list[str]
    metric_limit: int | None
    latency_rounds: int


def main() -> None:
    """Run the cases that were asked for, print their tables, write what was asked for."""
    options = arguments()
    settings = Settings(
        options.cache.resolve(),
        options.runs,
        options.slow,
        options.jobs,
        options.metric_samples or None,
        options.rounds,
    )
    chosen = select(cases.all_cases(REPOSITORY, options.models), options.only)
    found = tools.find(settings.cache)
    results: dict[str, Any] = {
        "machine": machine.describe(found),
        "runs": settings.runs,
        "cases": [],
    }
    names = {settings.cache: "bench", REPOSITORY: "quantize_rs"}
    if options.models:
        names[options.models] = "models"
    print(report.heading(results), flush=True)
    for case in chosen:
        results["cases"].append(without_paths(run_case(case, found, settings), names))
        print(report.case(results["cases"][-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(report.all_targets(results))
    if options.markdown:
        RESULTS.write_text(report.markdown(results))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure quantize_rs beside its peers.")
    parser.add_argument(
        "--models", type=existing_folder, help="folder of real models, one folder each"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="cases by name or pattern"
    )
    parser.add_argument(
        "--jobs", action="append", default=[], metavar="PATTERN", help="only such rows: '*auto*'"
    )
    parser.add_argument(
        "--out", type=Path, metavar="results.json", help="write every figure as JSON"
    )
    parser.add_argument(
        "--markdown", action="store_true", help=f"write {RESULTS.name} beside this script"
    )
    parser.add_argument("--slow", action="store_true", help="also run jobs that take minutes")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs per job, of which the median counts [3]"
    )
    parser.add_argument(
        "--metric-samples",
        type=int,
        default=0,
        help="at most N samples for the metric, 0 = all [0]",
    )
    parser.add_argument(
        "--rounds", type=int, default=150, help="rounds of interleaved inference [150]"
    )
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / "target" / "bench", help="[target/bench]"
    )
    return parser.parse_args()


def existing_folder(text: str) -> Path:
    """A path that is a folder."""
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"`{text}` is not a folder")
    return path


def select(every: list[Case], patterns: list[str]) -> list[Case]:
    """The cases that a pattern names, in the table's order: `mlp`, `ultraface`, `*/model_bn`."""
    if not patterns:
        return every
    chosen = [case for case in every if any(named(case.name, pattern) for pattern in patterns)]
    if not chosen:
        names = ", ".join(case.name for case in every)
        sys.exit(f"no case is named {' or '.join(patterns)}; there are {names}")
    return chosen


def named(name: str, pattern: str) -> bool:
    """Whether the pattern is the name, its folder, or matches it."""
    return fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/")


def run_case(case: Case, found: dict[str, tools.Tool], settings: Settings) -> dict[str, Any]:
    """All rows, checks, latencies and target results of one case."""
    model = case.model(settings.cache)
    files = models.files_of(model)
    for file in files:
        read_once(file)
    folder = settings.cache / "work" / case.name
    rows: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for job in [job for job in case.jobs if wanted(job, settings.jobs)]:
        if reason := why_not(job, settings):
            left_out[job.label] = reason
        else:
            rows[job.label] = run_job(case, job, model, folder, found[job.tool], settings)
    result: dict[str, Any] = {
        "name": case.name,
        "title": case.title,
        "model_bytes": sum(file.stat().st_size for file in files),
        "left_out": left_out,
        "peers": peers.best(case.peers) if case.peers else {},
        "float": checked(case, True, model, model, folder, settings) if case.quality else {},
        "rows": rows,
        "latency": latency(case, model, folder, rows, settings),
    }
    result["targets"] = [target_result(target, result) for target in case.targets]
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    if not case.keep_model:
        for file in files:
            file.unlink()
    return result


def wanted(job: Job, patterns: list[str]) -> bool:
    """Whether the row was asked for."""
    return not patterns or any(fnmatch.fnmatch(job.label, pattern) for pattern in patterns)


def why_not(job: Job, settings: Settings) -> str | None:
    """Why a row is left out, if it is."""
    if job.memory_gb > (free := machine.free_gb()):
        return f"needs about {job.memory_gb:.0f} GB of memory, {free:.0f} GB are free"
    return "`--slow` runs it" if job.slow and not settings.slow else None


def without_paths(result: dict[str, Any], names: dict[Path, str]) -> dict[str, Any]:
    """The result with the folders of this machine, which errors quote, under neutral names."""
    text = json.dumps(result)
    for folder, name in names.items():
        text = text.replace(json.dumps(str(folder))[1:-1], name)
    shown: dict[str, Any] = json.loads(text)
    return shown


def read_once(model: Path) -> None:
    """Bring a file into the page cache, so that the first tool does not pay for the disk."""
    with model.open("rb") as stream:
        while stream.read(1 << 24):
            pass


def run_job(
    case: Case,
    job: Job,
    model: Path,
    folder: Path,
    tool: tools.Tool,
    settings: Settings,
) -> dict[str, Any]:
    """One row: what the job cost and what its output is worth."""
    row: dict[str, Any] = {
        "tool": job.tool,
        "group": job.group,
        "thorough": job.thorough,
        "missing": tool.missing is not None,
    }
    if tool.missing is not None:
        return row | {"cost": measure.Cost(error=tool.missing).to_dict()}
    request = request_of(case, job, model, folder, settings)
    cost = measure.job(tool.python, request, folder / "scratch", job.runs or settings.runs)
    row["cost"] = cost.to_dict()
    if not job.writes:
        return row
    output = Path(request["output"])
    if case.quality and job.checked and cost.error is None:
        row["quality"] = checked(case, job.thorough, output, model, folder, settings)
    if not case.keep_outputs:
        shutil.rmtree(output.parent)
    return row


def request_of(
    case: Case, job: Job, model: Path, folder: Path, settings: Settings
) -> dict[str, Any]:
    """What the child has to know."""
    request: dict[str, Any] = {"job": job.job, "model": str(model), "options": job.options}
    request["samples"] = source_of(case, settings) | job.samples
    if job.threads is not None:
        request["threads"] = job.threads
    if job.writes:
        request["output"] = str(folder / job.label.replace(" ", "_") / "model.onnx")
    if job.job == "calibrate_npy":
        request["npy"] = str(npy_of(case.samples, folder))
    return request


def source_of(case: Case, settings: Settings) -> samples.Source:
    """Where the samples of a case come from, made ones from the cache."""
    return case.samples | {"cache": str(settings.cache)}


def npy_of(source: samples.Source, folder: Path) -> Path:
    """The calibration data of the first input as one .npy file."""
    data = samples.of(source).calibration()
    arrays = data if isinstance(data, dict) else next(iter(data))
    path = folder / "calibration.npy"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(path, next(iter(arrays.values())))
    return path


def checked(
    case: Case,
    thorough: bool,
    output: Path,
    model: Path,
    folder: Path,
    settings: Settings,
) -> dict[str, Any] | None:
    """The quality of an output, found in a process of its own because a bad model may crash it."""
    request = {
        "job": "quality",
        "model": str(output),
        "reference": str(model),
        "samples": source_of(case, settings),
        "sqnr_samples": case.sqnr_samples,
        "metric": thorough,
        "metric_limit": settings.metric_limit,
        "kernels": case.kernels,
    }
    cost = measure.job(tools.HERE, request, folder / "scratch")
    failed = {"error": cost.error}
    return cost.value or {"checker": failed, "optimised": failed, "plain": failed}


def latency(
    case: Case, model: Path, folder: Path, rows: dict[str, dict[str, Any]], settings: Settings
) -> list[dict[str, Any]]:
    """Inference times of the float model and of the static outputs that load."""
    loads = [
        label
        for label, row in rows.items()
        if row["group"] == "static" and row["thorough"] and figures.valid(row)
    ]
    paths = {label: folder / label.replace(" ", "_") / "model.onnx" for label in loads}
    shared = {"float": str(model)} | {label: str(path) for label, path in paths.items()}
    batches = []
    for batch in case.latency:
        request = {"job": "latency", "models": shared, "batch": batch}
        request["samples"] = source_of(case, settings)
        request["rounds"] = settings.latency_rounds
        cost = measure.job(tools.HERE, request, folder / "scratch")
        batches.append(
            cost.value or {"batch": batch, "error": cost.error, "models": {}, "ratios": {}}
        )
    return batches


def target_result(target: Target, result: figures.Result) -> dict[str, Any]:
    """The figure of a target, its bound, and whether it is kept."""
    figure = target.figure(result)
    least, most = target.at_least, target.at_most
    kept = (
        figure is not None
        and (least is None or figure >= least)
        and (most is None or figure <= most)
    )
    bound = f"≥ {least:g}" if least is not None else f"≤ {most:g}"
    said = "not measured" if figure is None else "PASS" if kept else "FAIL"
    return {"text": target.text, "figure": figure, "bound": bound, "result": said}


if __name__ == "__main__":
    main()
