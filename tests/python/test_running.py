"""How the package behaves in a process: threads, signals, logging, standard output."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import oracle
import pytest

import quantize_rs


def test_other_threads_go_on(digits: Path, images: Path) -> None:
    samples = np.concatenate([np.load(images)] * 20)
    gaps: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    begun = time.monotonic()
    quantize_rs.quantize_with_calibration(digits, None, samples)
    took = time.monotonic() - begun
    stop.set()
    ticker.join()
    assert max(gaps) < max(0.5, took / 2)
    assert len(gaps) > 20 * took


def test_several_at_once_give_what_one_gives(digits: Path, images: Path) -> None:
    model = quantize_rs.open(digits)
    plan = model.plan(activations="uint8")

    def both(number: int) -> tuple[bytes, bytes]:
        weights = quantize_rs.quantize(digits, f"q{number}.onnx", per_channel=True)
        assert weights.output == f"q{number}.onnx"
        activations = plan.apply(plan.calibrate(images, threads=2)).to_bytes()
        return Path(f"q{number}.onnx").read_bytes(), activations

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(both, range(8)))
    assert len(set(results)) == 1


INTERRUPTED = """
import itertools, sys, time, numpy as np, quantize_rs
form, engine, method, images = sys.argv[1:]
model = "examples/digits/digits_cnn.onnx"
images = np.load(images)
data = {
    "iterator": lambda: itertools.cycle(images),
    "array": lambda: np.concatenate([images] * 2000),
    "file": lambda: "many.npy",
    "evaluation": lambda: np.random.default_rng(0).normal(size=(130, 1024)).astype(np.float32),
}[form]()
if form == "evaluation":
    model = "large.onnx"

class Slow:
    def prepare(self, model, outputs):
        import onnxruntime
        self.session, self.outputs = onnxruntime.InferenceSession(model), outputs
    def run(self, feed):
        time.sleep(0.01)
        return dict(zip(self.outputs, self.session.run(self.outputs, feed)))

said = []
def progress(done, total):
    # With `auto`, all that comes after the last sample is evaluation.
    if done > 5 and not said and (form != "evaluation" or done == total):
        said.append(print("running", flush=True))
try:
    quantize_rs.quantize_with_calibration(
        model, "q.onnx", data, method=method, progress=progress,
        engine=Slow() if engine == "object" else engine,
    )
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(7)
"""


def large(path: Path) -> None:
    """Write a model that takes a while to evaluate."""
    import onnx

    rng, nodes, weights, value = np.random.default_rng(0), [], [], "x"
    for layer in range(6):
        weight = rng.normal(0, 1 / 32, (1024, 1024)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(onnx.helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        value = f"r{layer}"
    inputs = [onnx.helper.make_tensor_value_info("x", 1, [None, 1024])]
    outputs = [onnx.helper.make_tensor_value_info(value, 1, [None, 1024])]
    graph = onnx.helper.make_graph(nodes, "large", inputs, outputs, weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
@pytest.mark.parametrize(
    ("form", "engine", "method"),
    [
        ("iterator", "tract", "minmax"),
        ("array", "tract", "entropy"),
        ("file", "auto", "minmax"),
        ("iterator", "onnxruntime", "minmax"),
        ("array", "onnxruntime", "auto"),
        ("array", "object", "minmax"),
        ("evaluation", "tract", "auto"),
        ("evaluation", "onnxruntime", "auto"),
    ],
)
def test_ctrl_c_ends_a_calibration_within_a_second(
    images: Path, form: str, engine: str, method: str
) -> None:
    np.save("many.npy", np.concatenate([np.load(images)] * 2000))
    if form == "evaluation":
        large(Path("large.onnx"))
    files = set(Path.cwd().iterdir())
    command = [sys.executable, "-c", INTERRUPTED, form, engine, method, str(images)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "running\n"
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begun < 1
        assert process.wait(2) == 7
        assert time.monotonic() - begun < 2
        assert process.stderr.read() == ""
    assert set(Path.cwd().iterdir()) == files


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
@pytest.mark.parametrize("engine", ["tract", "onnxruntime", "auto"])
def test_ctrl_c_ends_the_command_within_a_second(digits: Path, images: Path, engine: str) -> None:
    np.save("many.npy", np.concatenate([np.load(images)] * 2000))
    files = set(Path.cwd().iterdir())
    command = ["calibrate", str(digits), "--data", "many.npy", "-o", "q.onnx", "-v"]
    with subprocess.Popen(
        [sys.executable, "-m", "quantize_rs", *command, "--engine", engine],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Processed 10/")
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
        assert time.monotonic() - begun < 1
        assert process.stderr.read().endswith("error: interrupted\n")
    assert set(Path.cwd().iterdir()) == files


def writes_into(folder: Path, process: int) -> bool:
    """Whether the process has a new file there, which on Linux has no name yet."""
    opened = Path(f"/proc/{process}/fd")
    if opened.exists():
        for link in opened.iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(f"{folder}/"):
                    return True
    return any(folder.iterdir())


def slow_to_write(path: Path) -> None:
    """Write a model of 320 MB."""
    import onnx

    weight = np.zeros((80, 1000, 1000), np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [onnx.helper.make_tensor_value_info("x", 1, [80, 1, 1000])],
        [onnx.helper.make_tensor_value_info("y", 1, [80, 1, 1000])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), path)


SAVING = """
import sys, quantize_rs
model, output = quantize_rs.open(sys.argv[1]), sys.argv[2]
# Nothing is quantized, so that the whole model is written.
made = model.plan(min_elements=1000000000).apply()
try:
    made.save(output)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(7)
"""


LEARNING = """
import sys
import numpy as np
from quantize_rs import training

x = np.random.default_rng(0).normal(size=6_000_000).astype(np.float32)
print("running", flush=True)
try:
    training.learn_scale(x, 0.05, steps=100_000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
def test_ctrl_c_ends_learn_scale_within_a_second() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEARNING], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        time.sleep(0.3)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10) == 7
        finally:
            process.kill()
        assert time.monotonic() - begun < 1
        assert process.stdout.read() == "interrupted\n"


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
def test_ctrl_c_ends_a_save(tmp_path: Path) -> None:
    slow_to_write(tmp_path / "large.onnx")
    folder = tmp_path / "out"
    folder.mkdir()
    # A link: nothing but the new file is in the folder.
    (tmp_path / "link.onnx").symlink_to(folder / "q.onnx")
    command = [sys.executable, "-c", SAVING, "large.onnx", "link.onnx"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        while not writes_into(folder, process.pid):
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(60) == 7
    assert not any(folder.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
def test_ctrl_c_leaves_no_half_written_file(tmp_path: Path) -> None:
    slow_to_write(tmp_path / "large.onnx")
    folder = tmp_path / "out"
    folder.mkdir()
    command = ["quantize", str(tmp_path / "large.onnx"), "-o", str(folder / "q.onnx")]
    # Nothing is quantized, so that the whole model is written.
    command += ["--min-elements", "1000000000", "--allow-unquantized"]
    with subprocess.Popen(
        [sys.executable, "-m", "quantize_rs", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not writes_into(folder, process.pid):
            assert process.poll() is None
            time.sleep(0.001)
        assert all(path.name.startswith(".quantize-rs-") for path in folder.iterdir())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not any(folder.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="no SIGALRM on Windows")
def test_a_signal_handler_runs_during_a_calibration(digits: Path, images: Path) -> None:
    class Enough(Exception):
        pass

    def handler(_signal: int, _frame: object) -> None:
        raise Enough

    samples = np.concatenate([np.load(images)] * 1000)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Enough):
            quantize_rs.quantize_with_calibration(digits, "q.onnx", samples)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not Path("q.onnx").exists()


def test_warnings_are_logged_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    report = quantize_rs.quantize(oracle.model("no_weights"), None)
    assert report.warnings
    logged = [(r.name, r.levelno, r.getMessage()) for r in caplog.records]
    assert logged == [("quantize_rs", logging.WARNING, warning) for warning in report.warnings]
    assert capfd.readouterr() == ("", "")


def test_the_work_prints_nothing(
    digits: Path, images: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize_rs.quantize(digits, "q.onnx")
    quantize_rs.quantize_with_calibration(digits, "q.onnx", images)
    with pytest.raises(quantize_rs.ModelError):
        quantize_rs.quantize(b"\xff" * 100, "q.onnx")
    assert capfd.readouterr() == ("", "")


def test_importing_configures_no_logging_and_imports_no_onnx() -> None:
    code = (
        "import sys, logging, quantize_rs; assert not logging.root.handlers;"
        "assert not logging.getLogger('quantize_rs').handlers;"
        "quantize_rs.quantize('examples/digits/digits_cnn.onnx', 'q.onnx');"
        "assert not {'onnx', 'onnxruntime', 'tqdm'} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code.replace("'q.onnx'", "None")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("setup", ["", "logger.setLevel(logging.CRITICAL)"])
def test_warnings_reach_standard_error_unless_logging_is_configured(setup: str) -> None:
    code = (
        "import logging, sys, quantize_rs; logger = logging.getLogger('quantize_rs');"
        f"{setup or 'pass'}; quantize_rs.quantize(sys.stdin.buffer.read(), None)"
    )
    model = oracle.model("no_weights").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", code], input=model, capture_output=True, check=True
    )
    assert done.stdout == b""
    assert (b"nothing was quantized" in done.stderr) == (setup == "")


def test_looking_at_a_model_is_quick(tmp_path: Path) -> None:
    import onnx

    # 200 MB of weights, which are never read.
    weight = np.zeros((50, 1000, 1000), np.float32)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
            "large",
            [onnx.helper.make_tensor_value_info("x", 1, [50, 1, 1000])],
            [onnx.helper.make_tensor_value_info("y", 1, [50, 1, 1000])],
            [onnx.numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    onnx.save(proto, tmp_path / "large.onnx")
    quantize_rs.model_info(tmp_path / "large.onnx")
    begun = time.perf_counter()
    info = quantize_rs.model_info(tmp_path / "large.onnx")
    took = time.perf_counter() - begun
    assert info.parameters == weight.size
    assert took < 0.02


def test_ranges_are_one_line_of_json_and_a_limit_is_at_least_one(
    digits: Path, images: Path, tmp_path: Path
) -> None:
    def run(*command: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "quantize_rs", *map(str, command)]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    ranges = quantize_rs.open(digits).plan(activations="uint8").calibrate(images)
    ranges.save(tmp_path / "r.json")
    shown = run("ranges", "show", tmp_path / "r.json", "--format", "json")
    assert shown.stdout.count("\n") == 1
    assert json.loads(shown.stdout) == ranges.to_dict()
    assert ranges.to_json() == shown.stdout.strip()
    for flag, data in (("--limit", images), ("--num-samples", "random")):
        none = run("calibrate", digits, "--data", data, flag, 0, "-o", tmp_path / "o.onnx")
        assert none.returncode == 2
        assert f"error: {flag} is 0, expected 1 or more\n" in none.stderr


FORKED = """
import hashlib, multiprocessing, sys
import quantize_rs

digits, engine = quantize_rs.examples.digits(), sys.argv[1]

def work(pipe):
    weights = quantize_rs.quantize(digits.model, None, bits=4)
    static = quantize_rs.quantize_with_calibration(
        digits.model, None, digits.calibration, engine=engine, bits=4
    )
    ranking = quantize_rs.sensitivity(digits.model, digits.calibration, engine=engine, limit=4)
    files = [hashlib.sha256(made.model).hexdigest() for made in (weights, static)]
    pipe.send((files, [layer.name for layer in ranking.layers]))

here, there = multiprocessing.Pipe(duplex=False)
work(there)
child = multiprocessing.get_context("fork").Process(target=work, args=(there,))
own = here.recv()
child.start()
print("same" if here.poll(100) and here.recv() == own else "another answer, or none")
child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("engine", ["tract", "onnxruntime"])
def test_a_forked_process_answers_as_its_parent(engine: str) -> None:
    """The threads that compute are in the parent alone."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "same\n", done.stderr
