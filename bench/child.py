"""The measured process: prepare one job, run its one call, write what it cost as JSON.

Started by `measure.py` as `python child.py request.json`. Imports and calibration data come before
the call and are not part of it. Only the standard library and the module of the job, `jobs.py` by
default, are needed here, so that the interpreter of any peer can run it.
"""

from __future__ import annotations

import gc
import importlib
import json
import resource
import sys
import time
from pathlib import Path

import jobs


def main(request_path: str) -> None:
    """Run the job that the request names; the result file is written whatever happens."""
    request = json.loads(Path(request_path).read_text())
    result: dict[str, object] = {}
    try:
        module = importlib.import_module(request.get("module", "jobs"))
        prepared = module.JOBS[request["job"]](request)
        result["notes"] = prepared.notes
        measured(prepared.call, result)
    except Exception as error:
        result["error"] = f"before the call: {said(error)}"
        result["error_types"] = types_of(error)
    Path(request["result"]).write_text(json.dumps(result))


def measured(call: jobs.Call, result: dict[str, object]) -> None:
    """Run the call once and put its times, memory and bytes into the result."""
    gc.collect()
    forget_peak()
    rss, anonymous, _ = memory()
    written = bytes_written()
    cpu = cpu_seconds()
    start = time.monotonic()
    try:
        result["value"] = call()
    except Exception as error:
        result["error"] = said(error)
        result["error_types"] = types_of(error)
    end = time.monotonic()
    result["cpu"] = cpu_seconds() - cpu
    peak_rss = memory()[2]
    result["written"] = bytes_written() - written
    result |= {"start": start, "end": end, "wall": end - start, "cpu_before": cpu}
    result |= {"anonymous_before": anonymous, "rss_growth": peak_rss - rss}


def cpu_seconds() -> float:
    """User and system time of every thread of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory() -> tuple[int, int, int]:
    """Bytes: resident, resident and anonymous, peak resident since `forget_peak`."""
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "RssAnon", "VmHWM"):
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes["VmRSS"], sizes["RssAnon"], sizes["VmHWM"]


def forget_peak() -> None:
    """Let the peak of resident memory begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def bytes_written() -> int:
    """Bytes given to write calls so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise OSError("no `wchar` in /proc/self/io")


def said(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def types_of(error: BaseException) -> list[str]:
    """Names of the error's class and of its bases, nearest first."""
    return [cls.__name__ for cls in type(error).__mro__]


if __name__ == "__main__":
    main(sys.argv[1])
