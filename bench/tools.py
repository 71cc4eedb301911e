"""The tools that are compared, and the interpreter in which each runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OURS = "quantize_rs"
ORT = "onnxruntime"
UPSTREAM = "quantize_rs 0.10"
ONNX = "onnx"

UPSTREAM_REQUIREMENT = "quantization-rs==0.10.0"

PROBE = """
import importlib.metadata as metadata, json, sys
__import__(sys.argv[1])
print(json.dumps({name: metadata.version(name) for name in sys.argv[2:]}))
"""


Command = tuple[str | Path, ...]

HERE: Command = (sys.executable,)


@dataclass(frozen=True)
class Tool:
    """A tool and how its interpreter is called, or the reason why it is not there."""

    name: str
    python: Command
    versions: dict[str, str]
    missing: str | None = None


def find(cache: Path) -> dict[str, Tool]:
    """Every tool by name; quantization-rs 0.10.0 gets an environment of its own in the cache."""
    return {
        OURS: probed(OURS, HERE, "quantize_rs", "quantization-rs", "numpy"),
        ORT: probed(ORT, HERE, "onnxruntime.quantization", "onnxruntime", "onnx", "numpy"),
        UPSTREAM: upstream(cache / "venv-0.10"),
        ONNX: probed(ONNX, HERE, "onnx", "onnx"),
    }


def probed(name: str, python: Command, module: str, *distributions: str) -> Tool:
    """The tool, if its module can be imported by this interpreter."""
    try:
        found = output(*python, "-c", PROBE, module, *distributions)
    except ToolMissing as reason:
        return Tool(name, python, {}, str(reason))
    return Tool(name, python, json.loads(found.splitlines()[-1]))


def upstream(folder: Path) -> Tool:
    """The previous release, installed from the registry once.

    `-E` ignores PYTHONPATH: it may point to our package, which the peer must not import.
    """
    python: Command = (folder / "bin" / "python", "-E")
    try:
        if not (folder / "bin" / "python").exists():
            output(sys.executable, "-m", "venv", folder)
        tool = probed(UPSTREAM, python, "quantize_rs", "quantization-rs")
        if tool.missing is None:
            return tool
        output(*python, "-m", "pip", "install", *PIP_OPTIONS, UPSTREAM_REQUIREMENT)
    except ToolMissing as reason:
        return Tool(UPSTREAM, python, {}, str(reason))
    return probed(UPSTREAM, python, "quantize_rs", "quantization-rs")


PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--only-binary", ":all:")


class ToolMissing(Exception):
    """A command on the way to a tool failed; the message is its last line."""


def output(*command: str | Path) -> str:
    """What the command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ToolMissing(lines[-1])
    return done.stdout
