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
from types import ModuleType

import pytest

import quantize_rs
from quantize_rs import results

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
def test_examples_run_in_an_empty_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = sorted((ROOT / "python/quantize_rs/examples/data").iterdir())
    module = importlib.import_module(name)
    assert doctest.testmod(module, raise_on_error=False).failed == 0
    assert sorted((ROOT / "python/quantize_rs/examples/data").iterdir()) == data


@pytest.mark.parametrize("module", [quantize_rs, results], ids=lambda module: module.__name__)
def test_everything_public_is_documented(module: ModuleType) -> None:
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        thing = getattr(module, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing):
                if not member.startswith("_") and callable(value) and member != "with_traceback":
                    assert inspect.getdoc(value), f"{name}.{member}"


# Every name that `from quantize_rs import` found before result classes moved to `results`.
FORMER_NAMES = """
    Accuracy Alternative CalibrationError Comparison ErrorMetrics ExternalDataError ImageFolder
    Latency LayerError LayerErrors LayerSensitivity LayerWidth MethodComparison MethodRow
    MissingPackageError MixedPrecision Model ModelError ModelFormatError ModelInfo
    OptimizationReport OptionError OutlierChannel OutlierElement Outliers OutputRow Plan
    PlannedValue Problem PrunedWeight Pruning QConfig QConfigDict QuantizeError Quantized Ranges
    RangesDiff Reason Recommendation Report Sensitivity Sizes Speed Step StoredWeight TensorSpec
    Uncompared UnsupportedModelError Validation WeightOutliers __version__ compare compat
    convert_opset errors infer_shapes insert_fake_quant kernels layer_errors mixed_precision
    model_info observers open optimize outliers prepare prune quantize quantize_with_calibration
    recommend sensitivity training validate
"""

RENAMED = {
    "Attempt": "Candidate",
    "Bar": "AccuracyCriteria",
    "BelowBarError": "AccuracyCriteriaError",
    "Conversion": "OpsetConversion",
    "Difference": "RangeDifference",
    "FloatLayer": "RevertedLayer",
    "Inference": "ShapeInference",
    "Kernels": "KernelCounts",
    "Prepared": "CalibrationSession",
    "Seconds": "Timings",
    "Value": "ReportRow",
    "Verified": "Evaluation",
}


def test_every_former_name_imports_from_the_root() -> None:
    assert len(FORMER_NAMES.split()) + len(RENAMED) == 85
    for name in FORMER_NAMES.split():
        assert getattr(quantize_rs, name) is not None, name


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_class_imports_with_a_warning_that_has_the_new_name(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"\.{RENAMED[name]}$"):
        assert getattr(quantize_rs, name).__name__ == RENAMED[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quantised'"):
        quantize_rs.Quantised  # type: ignore[attr-defined]  # noqa: B018


def test_the_root_lists_few_names_and_results_the_rest() -> None:
    assert len(quantize_rs.__all__) < 50
    assert dir(quantize_rs) == sorted(quantize_rs.__all__)
    assert all(inspect.isclass(getattr(results, name)) for name in results.__all__)
    assert set(quantize_rs.__all__) & set(results.__all__) == {"Ranges"}


def test_the_report_keeps_the_earlier_name_of_its_accuracy_control(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None, verify=digits.with_name("calibration.npy"))
    assert report.accuracy_control is not None
    assert report.verified is report.accuracy_control


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
def test_results_are_drawn_in_a_terminal_only(digits: Path, images: Path) -> None:
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
    into = ["-o", "q.onnx", "--ranges-out", "ranges.json", "--method", "minmax"]
    run = seen("calibrate", str(digits), *data, *into)
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
