"""Run a job in fresh processes and take the medians of what it cost.

The child reports times and bytes; its anonymous memory is watched from here, through /proc, so that
neither the watching nor an interpreter lock held by the call disturbs what is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools import Command

CHILD = Path(__file__).with_name("child.py")
INTERVAL_SECONDS = 0.002
LIMIT_SECONDS = 3600
REFUSAL = "QuantizeError"


@dataclass(frozen=True)
class Cost:
    """What a job cost: medians over its runs. Sizes are in bytes, times in seconds."""

    runs: int = 0
    cpu: float | None = None
    wall: float | None = None
    cpu_before: float | None = None
    anonymous_peak: float | None = None
    anonymous_before: float | None = None
    rss_growth: float | None = None
    written: float | None = None
    output: int | None = None
    error: str | None = None
    refused: bool = False
    notes: list[str] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    value: Any = None

    def to_dict(self) -> dict[str, Any]:
        """The cost as JSON values."""
        return asdict(self)


def job(python: Command, request: dict[str, Any], scratch: Path, runs: int = 1) -> Cost:
    """Run the job `runs` times; a job that fails is not repeated."""
    results: list[dict[str, Any]] = []
    for _ in range(runs):
        results.append(run_once(python, request, scratch))
        if "error" in results[-1]:
            break
    return summary(results, request.get("output"))


def run_once(python: Command, request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """One run in a process of its own, in an empty folder of its own."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if "output" in request:
        fresh_folder(Path(request["output"]).parent)
    result = scratch / "result.json"
    sent = scratch / "request.json"
    sent.write_text(json.dumps(request | {"result": str(result)}))
    log = scratch / "log.txt"
    with log.open("w") as stream:
        os.sync()  # flush what an earlier job wrote, so that it costs this one nothing
        threads = request.get("threads")
        child = subprocess.Popen(
            [*python, CHILD, sent],
            cwd=scratch,
            env=os.environ | ({"RAYON_NUM_THREADS": str(threads)} if threads else {}),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        limit = request.get("limit_seconds", LIMIT_SECONDS)
        begun = time.monotonic()
        seen = watch(child, limit)
        late = time.monotonic() - begun >= limit
    if not result.exists():
        return {"error": f"no result after {limit} s" if late else died(child.returncode, log)}
    return with_peak(json.loads(result.read_text()), seen)


def fresh_folder(folder: Path) -> None:
    """The folder, empty: an output is the only thing in its folder, external data included."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def watch(child: subprocess.Popen[bytes], limit: float) -> list[tuple[float, int]]:
    """Until the child ends: its anonymous memory every few milliseconds, with the time."""
    seen = []
    status = Path(f"/proc/{child.pid}/status")
    end = time.monotonic() + limit
    while child.poll() is None:
        seen.append((time.monotonic(), anonymous(status)))
        if time.monotonic() > end:
            child.kill()
        time.sleep(INTERVAL_SECONDS)
    return seen


def anonymous(status: Path) -> int:
    """Bytes of RssAnon; 0 while there are none or the process is ending."""
    try:
        text = status.read_text()
    except OSError:
        return 0
    _, found, rest = text.partition("RssAnon:")
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else 0


def with_peak(result: dict[str, Any], seen: list[tuple[float, int]]) -> dict[str, Any]:
    """The result with the largest anonymous memory seen during the call."""
    if "start" in result:
        during = [size for when, size in seen if result["start"] <= when <= result["end"]]
        result["anonymous_peak"] = max([result["anonymous_before"], *during])
    return result


def died(code: int, log: Path) -> str:
    """Why a child left no result."""
    reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    lines = log.read_text(errors="replace").strip().splitlines() or [""]
    return f"the process ended with {reason}: {lines[-1]}"


def summary(results: list[dict[str, Any]], output: str | None) -> Cost:
    """Medians of the runs, the notes of the first and the error of the last."""
    last = results[-1]
    if "error" in last:
        refused = REFUSAL in last.get("error_types", [])
        return Cost(len(results), error=last["error"], refused=refused, notes=last.get("notes", []))
    return Cost(
        runs=len(results),
        cpu=median(results, "cpu"),
        wall=median(results, "wall"),
        cpu_before=median(results, "cpu_before"),
        anonymous_peak=median(results, "anonymous_peak"),
        anonymous_before=median(results, "anonymous_before"),
        rss_growth=median(results, "rss_growth"),
        written=median(results, "written"),
        output=folder_size(Path(output).parent) if output else None,
        notes=results[0]["notes"],
        parts=parts(results),
        value=last["value"],
    )


def median(results: list[dict[str, Any]], name: str) -> float:
    """The median of one figure."""
    return float(statistics.median(result[name] for result in results))


def parts(results: list[dict[str, Any]]) -> dict[str, float]:
    """The medians of what the calls measured of themselves."""
    values = [result["value"] for result in results]
    found = [value.get("parts", {}) for value in values if isinstance(value, dict)]
    return {name: median(found, name) for name in found[0]} if found else {}


def folder_size(folder: Path) -> int:
    """Bytes of all the files in the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
