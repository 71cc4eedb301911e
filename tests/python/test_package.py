"""The package itself: version, types, documentation, command."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantize_rs

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["quantize_rs"] + [
    module.name
    for module in pkgutil.walk_packages(quantize_rs.__path__, "quantize_rs.")
    if module.name not in ("quantize_rs._core", "quantize_rs.__main__")
]


def test_the_version_is_that_of_the_workspace() -> None:
    found = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text("utf-8"), re.MULTILINE)
    assert found
    assert quantize_rs.__version__ == found[1]
    assert importlib.metadata.version("quantization-rs") == found[1]


def test_the_package_is_typed() -> None:
    folder = Path(quantize_rs.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_core.pyi").exists()


def test_the_stub_of_the_extension_module_is_what_it_has() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "quantize_rs._core"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("repository")
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, raise_on_error=False).failed == 0


def test_everything_public_is_documented() -> None:
    assert sorted(quantize_rs.__all__) == sorted(set(quantize_rs.__all__))
    for name in quantize_rs.__all__:
        thing = getattr(quantize_rs, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing):
                if not member.startswith("_") and callable(value) and member != "with_traceback":
                    assert inspect.getdoc(value), f"{name}.{member}"


def test_the_one_liners_show_an_example_and_their_errors() -> None:
    for function in (
        quantize_rs.quantize,
        quantize_rs.quantize_with_calibration,
        quantize_rs.convert_opset,
        quantize_rs.infer_shapes,
        quantize_rs.prune,
        quantize_rs.model_info,
        quantize_rs.open,
    ):
        doc = inspect.getdoc(function) or ""
        for section in ("Parameters", "Returns", "Raises", "Examples"):
            assert f"\n{section}\n---" in doc
        for name in inspect.signature(function).parameters:
            assert re.search(rf"\b{name}\b", doc), f"{function.__name__} says nothing of {name}"


def commands() -> list[list[str]]:
    script = shutil.which("quantize-rs", path=str(Path(sys.executable).parent))
    return [[sys.executable, "-m", "quantize_rs"], *([[script]] if script else [])]


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_results_are_drawn_for_who_looks_at_them(digits: Path, images: Path) -> None:
    import pty

    def seen(*arguments: str) -> str:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "quantize_rs", *arguments]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 0, done.stderr
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # what Linux says at the end
            while more := os.read(ours, 1 << 16):
                text += more
        os.close(ours)
        return text.decode()

    data = ["--data", str(images), "--limit", "4", "-q"]
    assert "█" in seen("sensitivity", str(digits))
    run = seen("calibrate", str(digits), *data, "-o", "q.onnx", "--ranges-out", "ranges.json")
    assert "█" not in run
    assert "█" in seen("layer-errors", str(digits), "q.onnx", *data)
    assert re.search(r"relu4_out: \[0, .*\]  \[.*[▁-█]", seen("ranges", "show", "ranges.json"))


@pytest.mark.parametrize("command", commands(), ids=lambda command: Path(command[-1]).stem)
def test_the_command_runs(command: list[str], digits: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=60
        )

    version = run("--version")
    assert version.returncode == 0
    assert version.stdout.strip() == f"quantize-rs {quantize_rs.__version__}"
    done = run("quantize", str(digits), "-o", "q.onnx")
    assert done.returncode == 0, done.stderr
    assert quantize_rs.model_info("q.onnx").quantized
    assert run("quantize", "none.onnx", "-o", "other.onnx").returncode == 1
    assert run("no-such-command").returncode == 2
