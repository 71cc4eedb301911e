"""Writing: complete or not at all, where it was asked for, and nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

import quantize_rs
from quantize_rs import OptionError, distributed
from quantize_rs.compat import onnxruntime as compat

posix = pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")


@posix
def test_the_mode_of_an_existing_file_stays(digits: Path) -> None:
    target = Path("q.onnx")
    target.touch()
    for mode in (0o600, 0o640, 0o664):
        target.chmod(mode)
        quantize_rs.quantize(digits, target)
        assert stat.S_IMODE(target.stat().st_mode) == mode


@posix
def test_a_new_file_has_the_mode_of_a_new_file(digits: Path) -> None:
    quantize_rs.quantize(digits, "q.onnx")
    Path("other").touch()
    assert Path("q.onnx").stat().st_mode == Path("other").stat().st_mode


@posix
def test_a_link_is_followed(digits: Path) -> None:
    Path("deep").mkdir()
    for target in (Path("deep/there.onnx"), Path("deep/not_yet.onnx")):
        link = Path("link.onnx")
        link.symlink_to(target)
        if target.name == "there.onnx":
            target.write_bytes(b"old")
        quantize_rs.quantize(digits, link)
        assert link.is_symlink()
        assert quantize_rs.model_info(target).quantized
        link.unlink()


def test_the_model_itself_may_be_the_output(digits: Path) -> None:
    expected = quantize_rs.quantize(digits, None).model
    opened = quantize_rs.open(digits)
    report = quantize_rs.quantize(digits, digits)
    assert report.bytes_after < report.bytes_before
    assert digits.read_bytes() == expected
    assert opened.plan().apply().to_bytes() == expected, "an open model keeps what it was"


class Place:
    """An object that stands for a path, of text or of bytes."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __fspath__(self) -> Any:
        return self.name


DIGITS = quantize_rs.examples.digits()
PLAN = quantize_rs.open(DIGITS.model).plan(activations="uint8", weight_algorithm="nearest")
PLAN_OF_4_BITS = quantize_rs.open(DIGITS.model).plan(bits=4)
RANGES = PLAN.calibrate(DIGITS.calibration, limit=2)
REPORT = quantize_rs.quantize(DIGITS.model, None)
# By the name of the option, what writes to a path.
WRITERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("output_path", lambda to: quantize_rs.quantize(DIGITS.model, to)),
    (
        "output_path",
        lambda to: quantize_rs.quantize_with_calibration(DIGITS.model, to, DIGITS.calibration),
    ),
    ("output", lambda to: quantize_rs.optimize(DIGITS.model, to)),
    ("output", lambda to: quantize_rs.infer_shapes(DIGITS.model, to)),
    ("output", lambda to: quantize_rs.convert_opset(DIGITS.model, to, opset=21)),
    ("output", lambda to: quantize_rs.convert_float16(DIGITS.model, to)),
    ("output", lambda to: quantize_rs.prune(DIGITS.model, to, sparsity=0.5)),
    ("output", lambda to: quantize_rs.insert_fake_quant(DIGITS.model, to)),
    ("output_dir", lambda to: quantize_rs.variants(DIGITS.model, to, only=["fp16"])),
    ("path", lambda to: PLAN.apply(RANGES).save(to)),
    ("path", lambda to: RANGES.save(to)),
    ("path", lambda to: RANGES.save_tensorrt_cache(to)),
    ("path", lambda to: REPORT.save_html(to)),
    ("path", lambda to: quantize_rs.sensitivity(DIGITS.model).save_html(to)),
    ("path", lambda to: quantize_rs.trace(to).__enter__()),
    ("moments", lambda to: distributed.calibrate(PLAN_OF_4_BITS, [], 1, moments=to)),
    ("moments", lambda to: distributed.split(PLAN_OF_4_BITS, [], 1, moments=to)),
    ("model_output", lambda to: compat.quantize_dynamic(DIGITS.model, to)),
    ("model_output", lambda to: compat.quantize_static(DIGITS.model, to, None)),
    ("output_model_path", lambda to: compat.quant_pre_process(DIGITS.model, to)),
]


@pytest.mark.parametrize("number", range(len(WRITERS)))
def test_what_is_no_path_is_an_option_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option, write = WRITERS[number]
    for value in (b"there", 3, Place(b"there")):
        kind = type(value).__name__
        with pytest.raises(OptionError, match=f"^{option} is of type {kind}, expected") as caught:
            write(value)
        assert caught.value.option == option
    assert list(tmp_path.iterdir()) == []


def test_a_plot_is_not_written_to_what_is_no_path() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match=r"^path is of type bytes, expected"):
        REPORT.plot(path=b"plot.png")  # type: ignore[arg-type]


def test_what_stands_for_a_path_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quantize_rs.quantize(DIGITS.model, Place("quantized.onnx"))
    RANGES.save(Place("ranges.json"))
    PLAN.apply(RANGES).save(Place("saved.onnx"))
    REPORT.save_html(Place("report.html"))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["quantized.onnx", "ranges.json", "report.html", "saved.onnx"]


def test_samples_are_not_overwritten(digits: Path, images: Path) -> None:
    Path("link.npy").symlink_to(images)
    before = images.read_bytes()
    for output in (images, "link.npy"):
        with pytest.raises(OptionError, match="would overwrite") as refused:
            quantize_rs.quantize_with_calibration(digits, output, images)
        assert refused.value.option == "output_path"
    with pytest.raises(OptionError, match="would overwrite"):
        quantize_rs.quantize(digits, images, verify=images)
    with pytest.raises(OptionError, match="would overwrite"):
        quantize_rs.quantize_with_calibration(
            digits, digits.with_name("test.npz"), images, verify=digits.with_name("test.npz")
        )
    assert images.read_bytes() == before


def test_two_runs_give_the_same_bytes(digits: Path, images: Path) -> None:
    for number in (1, 2):
        quantize_rs.quantize_with_calibration(digits, f"q{number}.onnx", images)
    assert Path("q1.onnx").read_bytes() == Path("q2.onnx").read_bytes()


def test_nothing_is_left_behind(digits: Path, images: Path) -> None:
    def files() -> set[Path]:
        return {path for path in Path.cwd().rglob("*") if path.is_file()}

    before = files()
    Path("folder").mkdir()
    for target in ("folder", "none/q.onnx", "/dev/null", "\0"):
        with pytest.raises((OSError, ValueError)):
            quantize_rs.quantize(digits, target)
        with pytest.raises((OSError, ValueError)):
            quantize_rs.open(digits).plan().apply().save(target)
    assert files() == before
    quantize_rs.quantize_with_calibration(digits, "q.onnx", images)
    assert files() == before | {Path.cwd() / "q.onnx"}
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_threads_may_write_to_one_path(digits: Path) -> None:
    report = quantize_rs.quantize(digits, None)
    found = compat.TensorData.of_range(0.0, 1.0)
    ranges = compat.TensorsData(
        compat.CalibrationMethod.MinMax, {f"x{index}": found for index in range(200)}
    )

    def save(_: int) -> None:
        compat.save_tensors_data(ranges, "ranges.json")
        report.save_html("report.html")

    before = {*Path.cwd().iterdir()}
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save, range(40)))
    assert len(compat.load_tensors_data("ranges.json")) == 200
    report.save_html("alone.html")
    assert Path("report.html").read_bytes() == Path("alone.html").read_bytes()
    written = {Path.cwd() / name for name in ("ranges.json", "report.html", "alone.html")}
    assert {*Path.cwd().iterdir()} == before | written


def test_a_name_of_any_length_that_the_system_takes_is_written(digits: Path) -> None:
    name = "r" * (255 - len(".html")) + ".html"
    quantize_rs.quantize(digits, None).save_html(name)
    assert Path(name).exists()


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_a_permission_error(digits: Path) -> None:
    Path("closed").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        quantize_rs.quantize(digits, "closed/q.onnx")


def test_external_data_of_the_model_is_not_overwritten(digits: Path) -> None:
    model = digits.with_name("model.onnx")
    data = digits.with_name("weights.bin")
    onnx.save(
        onnx.load(digits), model, save_as_external_data=True, location=data.name, size_threshold=0
    )
    before = data.read_bytes()
    Path("link.onnx").symlink_to(data)
    for target in (data, "link.onnx"):
        with pytest.raises(OptionError, match="would overwrite external data") as refused:
            quantize_rs.quantize(model, target)
        assert refused.value.option == "output_path"
    assert data.read_bytes() == before
    quantize_rs.quantize(model, model)
    assert quantize_rs.model_info(model).quantized


@posix
def test_external_data_may_be_linked_as_the_model_is(digits: Path) -> None:
    blobs, snapshot, other = Path("blobs"), Path("snapshots/main/onnx"), Path("other")
    for folder in (blobs, snapshot, other):
        folder.mkdir(parents=True)
    onnx.save(
        onnx.load(digits),
        blobs / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    expected = quantize_rs.quantize(blobs / "model.onnx", None).model
    for number, name in enumerate(("model.onnx", "model.onnx_data")):
        (blobs / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(f"../../../blobs/{number}")
    model, data = snapshot / "model.onnx", snapshot / "model.onnx_data"
    assert quantize_rs.quantize(model, None).model == expected
    with pytest.raises(OptionError, match="would overwrite external data"):
        quantize_rs.quantize(model, blobs / "1")
    data.unlink()
    (blobs / "1").rename(other / "1")
    data.symlink_to("../../../other/1")
    with pytest.raises(quantize_rs.ExternalDataError, match=r"is a link to `.*other/1`") as refused:
        quantize_rs.quantize(model, None)
    assert "replace the link by a copy of that file" in str(refused.value)


Words = list[str | Path]


def _command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "quantize_rs", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_command_writes_over_no_file_that_it_reads(digits: Path, images: Path) -> None:
    model, ranges, data = Path("model.onnx"), Path("r.json"), Path("weights.bin")
    onnx.save(
        onnx.load(digits), model, save_as_external_data=True, location=data.name, size_threshold=0
    )
    recipe = Path("wanted.yaml")
    recipe.write_text(f"html: {recipe}\nmodels:\n  - input: {model}\n    output: q.onnx\n")
    calibrate: Words = ["calibrate", model, "--data", images, "--limit", "2", "-o", "q.onnx"]
    assert _command(*calibrate, "--ranges-out", ranges).returncode == 0
    both: Words = [digits, "q.onnx"]
    given: Words = ["--data", images, "--limit", "2"]
    before = {path: path.read_bytes() for path in (data, images, ranges, recipe)}
    commands: list[Words] = [
        ["quantize", model, "-o", "o.onnx", "--html", data],
        [*calibrate, "--ranges-out", data],
        ["compare", *both, *given, "--html", images],
        ["compare", model, "q.onnx", *given, "--html", data],
        ["layer-errors", *both, *given, "--html", images],
        ["sensitivity", digits, *given, "--html", images],
        ["float16", digits, *given, "-o", images],
        ["calibrate", model, "--ranges", ranges, "-o", "o.onnx", "--trace", ranges],
        [*calibrate, "--ranges-out", "s.json", "--trace", "s.json"],
        ["config", recipe],
    ]
    for words in commands:
        answer = _command(*words)
        assert answer.returncode == 2, (words, answer)
        assert "would overwrite" in answer.stderr, (words, answer)
        assert {path: path.read_bytes() for path in before} == before
    assert not Path("s.json").exists()


# A limit of 2000 bytes stands for a disk that is full.
FULL = """
import resource, sys
import quantize_rs
made = quantize_rs.open(sys.argv[1]).plan().apply()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
for name, write in (
    ("old.onnx", made.save),
    ("new.onnx", made.save),
    ("report.html", made.report.save_html),
):
    try:
        write(name)
    except OSError as error:
        assert error.filename.endswith(name), error
    else:
        raise AssertionError(name)
"""


@posix
def test_what_does_not_fit_on_the_disk_is_not_written(digits: Path) -> None:
    Path("old.onnx").write_bytes(b"old")
    before = sorted(Path.cwd().iterdir())
    subprocess.run([sys.executable, "-c", FULL, str(digits)], check=True)
    assert sorted(Path.cwd().iterdir()) == before
    assert Path("old.onnx").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["new/", "new/."])
def test_a_path_that_ends_with_a_separator_is_a_directory(digits: Path, name: str) -> None:
    for write in (
        lambda: quantize_rs.quantize(digits, name),
        lambda: quantize_rs.optimize(digits, name),
        lambda: quantize_rs.open(digits).plan().apply().save(name),
        lambda: quantize_rs.quantize(digits, None).save_html(name),
    ):
        with pytest.raises(IsADirectoryError):
            write()
    assert not Path("new").exists()


def test_what_needs_no_change_is_written_byte_for_byte(digits: Path) -> None:
    report = quantize_rs.quantize(digits, "q.onnx", excluded_layers=["*"])
    assert not report.quantized
    assert report.ratio == 1
    assert Path("q.onnx").read_bytes() == digits.read_bytes()


def test_names_of_any_language(digits: Path) -> None:
    target = Path("größe 模型 🙂.onnx")
    assert quantize_rs.quantize(digits, target).output == str(target)
    assert quantize_rs.model_info(target).quantized
