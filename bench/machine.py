"""The machine on which the figures were taken."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tools import Tool

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")


def describe(tools: dict[str, Tool]) -> dict[str, object]:
    """Processor, memory, load, and the version of everything that took part."""
    cpu = fields(Path("/proc/cpuinfo"))
    memory = int(fields(Path("/proc/meminfo"))["MemTotal"].split()[0]) * 1024
    flags = set(cpu.get("flags", "").split())
    return {
        "processor": cpu.get("model name", platform.processor()),
        "features": [flag for flag in CPU_FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "tools": {
            name: tool.versions or f"missing: {tool.missing}" for name, tool in tools.items()
        },
    }


def free_gb() -> float:
    """Memory that a new process can have without anything being pushed out."""
    return int(fields(Path("/proc/meminfo"))["MemAvailable"].split()[0]) * 1024 / 1e9


def fields(path: Path) -> dict[str, str]:
    """`name: value` lines; the first of each name counts."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
