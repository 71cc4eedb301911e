"""Calibration with executors: the ranges of one process, whatever runs where."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import workers
from decoders import decoder, prompts
from image_data import conv

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Samples, distributed
from quantize_rs._inputs.samples import part_source
from quantize_rs.distributed import Processes

DIGITS = quantize_rs.examples.digits()
IMAGES = workers.images()
PLAN = quantize_rs.open(DIGITS.model).plan(activations="uint8", weight_algorithm="nearest")
WHOLE = PLAN.calibrate(IMAGES, engine="tract")


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as executor:
        yield executor


def calibrated(executor: Any, samples: Any = IMAGES, **options: Any) -> quantize_rs.Ranges:
    return distributed.calibrate(PLAN, samples, executor, engine="tract", **options)


def assert_same(found: quantize_rs.Ranges, samples: Any) -> None:
    whole = PLAN.calibrate(samples, engine="tract")
    assert found == whole
    assert PLAN.apply(found).to_bytes() == PLAN.apply(whole).to_bytes()


REMARKS = {
    "few": (IMAGES[:5], ["only 5 samples: give at least 128, as varied as production inputs"]),
    "identical": (np.repeat(IMAGES[:1], 64, 0), ["all 64 samples are identical"]),
    "repeated": (np.tile(IMAGES[:4], (16, 1, 1, 1)), ["only 4 of 64 samples are distinct"]),
    "constant": (
        np.repeat(np.full_like(IMAGES[:1], 0.5), 40, 0),
        [
            "all 40 samples are identical",
            "all values of input `image` are the same in all samples",
        ],
    ),
    "of another type": (IMAGES[:40].astype(np.float64), None),
    "all": (IMAGES, []),
    # Each part is constant, and all of them are not.
    "constant in parts": (np.stack([IMAGES[0] * 0, IMAGES[0] * 0 + 1] * 20), None),
}


@pytest.mark.parametrize("name", REMARKS)
@pytest.mark.parametrize("shards", [2, 3])
def test_remarks_on_samples_are_those_of_one_process(
    name: str, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    samples, expected = REMARKS[name]
    whole = PLAN.calibrate(samples, engine="tract")
    said = [record.getMessage() for record in caplog.records]
    assert expected in (None, said)
    caplog.clear()
    with ThreadPoolExecutor(2) as executor:
        found = calibrated(executor, samples, shards=shards)
    assert found == whole
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile", "entropy", "mse"])
def test_ranges_are_those_of_one_process(method: str, shards: int, tmp_path: Path) -> None:
    whole = PLAN.calibrate(IMAGES, engine="tract", method=method)
    with ThreadPoolExecutor(2) as executor:
        found = calibrated(executor, method=method, shards=shards)
    for name, ranges in (("whole", whole), ("found", found)):
        ranges.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "found").read_bytes()
    assert PLAN.apply(found).to_bytes() == PLAN.apply(whole).to_bytes()


@pytest.mark.parametrize("options", [{"activations": "uint8"}, {"bits": 4}])
def test_weights_are_rounded_by_the_workers(
    options: dict[str, Any], processes: Processes, tmp_path: Path
) -> None:
    plan = quantize_rs.open(DIGITS.model).plan(**options)
    whole = plan.calibrate(IMAGES, engine="tract")
    calls: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        calls.append((done, total))

    found = distributed.calibrate(plan, IMAGES, processes, 3, engine="tract", progress=progress)
    assert found == whole
    assert calls == [(done, 5) for done in range(1, 6)], "three parts, two groups of weights"
    # An executor of which nothing is known may be elsewhere.
    found = distributed.calibrate(plan, IMAGES, Pool(), 3, engine="tract", moments=tmp_path)
    assert found == whole
    assert not [*tmp_path.iterdir()]
    found = distributed.calibrate(plan, IMAGES, Pool(), 3, engine="tract")
    assert found.values == whole.values
    assert any("the workers had no folder for second moments" in note for note in found.notes)


def test_what_rounding_by_workers_cannot_do_is_refused(tmp_path: Path) -> None:
    plan = quantize_rs.open(DIGITS.model).plan(bits=4, resume_rounding=str(tmp_path / "state"))
    with pytest.raises(OptionError, match="resume_rounding: workers round at the same time"):
        distributed.calibrate(plan, IMAGES, 2)
    plan = quantize_rs.open(DIGITS.model).plan(bits=4)
    with pytest.raises(OptionError, match=r"moments is '.*none', expected a folder"):
        distributed.calibrate(plan, IMAGES, 2, moments=tmp_path / "none")
    with pytest.raises(OptionError, match=r"moments is '.*none', expected a folder"):
        distributed.split(plan, IMAGES, 2, moments=tmp_path / "none")


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_the_weights_of_a_dead_worker_are_rounded_again(
    processes: Processes, tmp_path: Path
) -> None:
    plan = quantize_rs.open(DIGITS.model).plan(bits=4)
    died = tmp_path / "died"
    pool = workers.Killing(processes, "Solve", died)
    found = distributed.calibrate(plan, IMAGES, pool, 3, engine="tract", moments=tmp_path)
    assert died.exists()
    assert found == plan.calibrate(IMAGES, engine="tract")


def test_parts_with_moments_travel_without_an_executor(tmp_path: Path) -> None:
    plan = quantize_rs.open(DIGITS.model).plan(bits=4)
    shards = distributed.split(plan, IMAGES, 3, engine="tract", moments=tmp_path)
    returned = [shard() for shard in shards]
    assert all(Path(path).parent == tmp_path for path in returned)
    expected = plan.apply(plan.calibrate(IMAGES, engine="tract")).to_bytes()
    assert plan.apply(distributed.merge(returned)).to_bytes() == expected


def test_processes_read_the_samples_themselves(processes: Processes, tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", IMAGES)
    forms: list[Any] = [
        IMAGES,
        {"image": IMAGES},
        tmp_path / "s.npy",
        str(tmp_path / "s.npy"),
        workers.images,
        workers.part,
        Samples(IMAGES / 2, workers.doubled),
        functools.partial(workers.images, 61),
    ]
    for number, samples in enumerate(forms):
        assert calibrated(processes, samples) == WHOLE, number
    assert_same(calibrated(processes, limit=20, shards=3), IMAGES[:20])


def test_other_parts_are_not_read(tmp_path: Path, image_folder: Path) -> None:
    """What is wrong in one part does not show in the others."""
    plan = quantize_rs.open(conv(["n", 3, 8, 6])).plan(
        activations="uint8", weight_algorithm="nearest"
    )
    rng = np.random.default_rng(0)
    array = rng.random((40, 3, 8, 6), np.float32)
    np.save(tmp_path / "s.npy", array)
    lines = [json.dumps({"x": one.tolist()}) + "\n" for one in array]
    (tmp_path / "s.jsonl").write_text("".join(lines))
    whole = plan.calibrate(array, engine="tract", method="moving_average")
    of_images = plan.calibrate(image_folder, engine="tract", method="moving_average")
    folder = quantize_rs.ImageFolder(image_folder, mean=0.5, limit=36)
    of_folder = plan.calibrate(folder, engine="tract", method="moving_average")

    def parts(samples: Any) -> list[distributed.Shard]:
        return distributed.split(plan, samples, 4, method="moving_average", engine="tract")

    for samples, expected in [
        (array, whole),
        (tmp_path / "s.npy", whole),
        (tmp_path / "s.jsonl", whole),
        (Samples(array / 2, workers.doubled), whole),
        ({"x": array}, whole),
        (image_folder, of_images),
        (f"{image_folder}/*.png", of_images),
        (folder, of_folder),
    ]:
        assert distributed.merge(part() for part in parts(samples)) == expected
    with pytest.raises(CalibrationError, match="lack shard 3/4"):
        distributed.merge(parts(array)[at]() for at in (0, 1, 3))
    array[6] = np.nan
    np.save(tmp_path / "s.npy", array)
    (image_folder / "06.png").write_bytes(b"x")
    lines[6] = json.dumps({"x": array[6].tolist()}) + "\n"
    (tmp_path / "s.jsonl").write_text("".join(lines))
    for samples in (array, tmp_path / "s.npy", tmp_path / "s.jsonl", image_folder):
        for number, part in enumerate(parts(samples)):
            if number != 2:
                assert json.loads(part())["samples"] == 10
                continue
            with pytest.raises(CalibrationError, match=r"sample 1\)|line 7|06\.png"):
                part()


@pytest.mark.parametrize("shape", [["n", 3, 8, 6], None])
def test_arrays_are_divided_as_without_workers(shape: Any, tmp_path: Path) -> None:
    """Of whole inputs along the first axis, and of inputs whose number of axes is unknown."""
    model = conv(["n", 3, 8, 6])
    array = np.random.default_rng(0).normal(size=(20, 2, 3, 8, 6)).astype(np.float32)
    if shape is None:
        model.graph.input[0].type.tensor_type.ClearField("shape")
        array = array[:, 0]
    plan = quantize_rs.open(model).plan(activations="uint8", weight_algorithm="nearest")
    np.save(tmp_path / "s.npy", array)
    options: dict[str, Any] = {"method": "moving_average", "engine": "onnxruntime"}
    whole = plan.calibrate(array, **options)
    assert whole.samples == 20
    with ThreadPoolExecutor(2) as executor:
        for samples in (array, tmp_path / "s.npy"):
            assert distributed.calibrate(plan, samples, executor, 3, **options) == whole


def test_functions_get_the_rows_of_their_part_alone() -> None:
    called: list[int] = []

    def noted(image: Any) -> Any:
        called.append(len(called))
        return image

    model = PLAN._plan.model
    source = part_source(Samples(Samples(IMAGES, noted), noted), model, (2, 4))
    assert source is not None
    assert len(list(source.feeds(model, None))) == 15
    assert len(called) == 30


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_model_of_a_fixed_batch(shards: int, tmp_path: Path) -> None:
    plan = quantize_rs.open(conv([4, 3, 8, 6])).plan(
        activations="uint8", weight_algorithm="nearest"
    )
    array = np.random.default_rng(0).random((44, 3, 8, 6), np.float32)
    np.save(tmp_path / "s.npy", array)
    options: dict[str, Any] = {"method": "moving_average", "engine": "tract"}
    with ThreadPoolExecutor(2) as executor:
        for samples in (array, tmp_path / "s.npy", array.reshape(11, 4, 3, 8, 6)):
            found = distributed.calibrate(plan, samples, executor, shards, **options)
            assert found.samples == 11
            assert found.values == plan.calibrate(array, **options).values
            part = distributed.calibrate(plan, samples, executor, shards, limit=5, **options)
            assert part.values == plan.calibrate(array, limit=5, **options).values


def test_a_relative_path_is_that_of_the_caller(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", IMAGES)
    Path("m.onnx").write_bytes(Path(DIGITS.model).read_bytes())
    plan = quantize_rs.open("m.onnx").plan(activations="uint8", weight_algorithm="nearest")
    found = distributed.calibrate(plan, "s.npy", processes, engine="tract")
    assert found == plan.calibrate("s.npy", engine="tract")


def test_a_model_in_memory_and_its_options_are_sent(processes: Processes) -> None:
    options: dict[str, Any] = {
        "weights": "int8",
        "kv_cache": "int8",
        "allow_larger": True,
        "weight_algorithm": "nearest",
        "overrides": [quantize_rs.Match(op_type="MatMul", exclude=True)],
    }
    plan = quantize_rs.open(decoder()).plan(**options)
    samples = prompts(9)
    found = distributed.calibrate(plan, samples, processes, 3, engine="onnxruntime")
    whole = plan.calibrate(samples, engine="onnxruntime")
    assert plan.apply(found).to_bytes() == plan.apply(whole).to_bytes()


def test_a_process_opens_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantize_rs.distributed import shards

    opened: list[Any] = []

    def counted(path: Any) -> quantize_rs.Model:
        opened.append(path)
        return quantize_rs.open(path)

    monkeypatch.setattr(shards, "open_model", counted)
    shards._plan.cache_clear()
    with ThreadPoolExecutor(1) as executor:
        assert calibrated(executor, shards=5) == WHOLE
    assert len(opened) == 1


def test_a_model_that_changes_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(Path(DIGITS.model).read_bytes())
    plan = quantize_rs.open(path).plan(activations="uint8")
    [shard] = distributed.split(plan, IMAGES, 1, engine="tract")
    before = distributed.merge([shard()])
    path.write_bytes(decoder())
    with pytest.raises(CalibrationError, match="the model has 8 inputs"):
        shard()
    assert before.samples == 61


def test_no_executor_is_one_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []

    class Threads(ThreadPoolExecutor):
        def __init__(self, number: int | None = None) -> None:
            made.append(number)
            super().__init__(number)

    from quantize_rs.distributed import calibrate as module

    monkeypatch.setattr(sys.modules[module.__module__], "Processes", Threads)
    assert calibrated(None) == calibrated(2) == WHOLE
    assert made == [None, 2]


def test_progress_counts_parts() -> None:
    calls: list[tuple[int, int | None]] = []
    with ThreadPoolExecutor(2) as executor:
        calibrated(executor, shards=4, progress=lambda *done: calls.append(done))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_fewer_samples_than_parts() -> None:
    with ThreadPoolExecutor(2) as executor:
        for samples in (IMAGES[:3], {"image": IMAGES[:3]}):
            found = calibrated(executor, samples, shards=8)
            assert_same(found, IMAGES[:3])
        with pytest.raises(CalibrationError, match="no calibration samples") as caught:
            calibrated(executor, IMAGES[:0], shards=3)
    assert caught.value.category == "no_samples"


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize("kind", ["processes", "pool"])
def test_the_part_of_a_dead_worker_is_repeated(kind: str, tmp_path: Path) -> None:
    samples = workers.Dying(tmp_path, 2, times=1)
    if kind == "processes":
        with Processes(2) as executor:
            found = calibrated(executor, samples, shards=4)
        called = sorted(path.name for path in tmp_path.iterdir())
        assert called == ["1-0", "2-0", "2-1", "3-0", "4-0"], "no other part is repeated"
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            found = calibrated(pool, samples, shards=4)
    assert found == WHOLE


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_part_whose_worker_always_dies_is_named(tmp_path: Path) -> None:
    samples = workers.Dying(tmp_path, 2, times=9)
    message = r"the worker of part 2/3 died 2 times \(BrokenProcessPool: .*give workers more memory"
    with Processes(2) as executor, pytest.raises(CalibrationError, match=message) as caught:
        calibrated(executor, samples, shards=3, retries=1)
    assert caught.value.category == "engine"
    assert len(list(tmp_path.glob("2-*"))) == 2


def test_a_script_without_a_guard_is_one_error(tmp_path: Path) -> None:
    """Each process imports the script again, which would start processes then."""
    script = tmp_path / "script.py"
    script.write_text(
        "import quantize_rs\n"
        'print("begun", flush=True)\n'
        "digits = quantize_rs.examples.digits()\n"
        'plan = quantize_rs.open(digits.model).plan(activations="uint8")\n'
        "quantize_rs.distributed.calibrate(plan, digits.calibration, 2)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stdout.count("begun") <= 3, "the script and once for each process"
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.splitlines()[-1]
    assert "CalibrationError: a process ended before its work began" in last
    assert last.endswith('under `if __name__ == "__main__":`')


def in_processes(kind: str, plan: quantize_rs.Plan, samples: Any, **options: Any) -> None:
    match kind:
        case "started by the call":
            distributed.calibrate(plan, samples, 2, **options)
        case "of a block":
            with Processes(2) as executor:
                distributed.calibrate(plan, samples, executor, **options)
        case "in place of a pool":
            with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
                pool.submit(workers.die).exception()
                distributed.calibrate(plan, samples, pool, **options)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize("kind", ["started by the call", "of a block", "in place of a pool"])
def test_an_interrupt_ends_the_processes(kind: str, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    noted.mkdir()
    samples = workers.Endless(noted)
    plan = quantize_rs.open(DIGITS.model).plan(bits=4)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_processes(kind, plan, samples, progress=samples.interrupt, moments=tmp_path)
        [process] = noted.iterdir()
        with pytest.raises(ProcessLookupError):
            os.kill(int(process.name), 0)
        assert [*tmp_path.iterdir()] == [noted], "nothing is left behind"
    finally:
        (noted / "go on").touch()


def test_an_interrupt_leaves_a_given_executor_as_it_is(
    processes: Processes, tmp_path: Path
) -> None:
    samples = workers.Endless(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        calibrated(processes, samples, shards=5, progress=samples.interrupt)
    (tmp_path / "go on").touch()
    assert calibrated(processes) == WHOLE


def test_what_a_worker_raises_is_raised_once(processes: Processes) -> None:
    with pytest.raises(OSError, match="the disk is on fire") as caught:
        calibrated(processes, workers.failing, shards=3)
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["in part 2/3"]
    bad = IMAGES.copy()
    bad[7, 0, 3, 3] = np.nan
    with pytest.raises(CalibrationError, match=r"NaN at \[0, 0, 3, 3\]") as found:
        calibrated(processes, bad)
    assert (found.value.category, found.value.value) == ("non_finite", "image")
    with pytest.raises(FileNotFoundError):
        calibrated(processes, "none.npy")


def test_what_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(OptionError, match="of type generator cannot be sent to workers: "):
            calibrated(executor, (image for image in IMAGES))
        with pytest.raises(OptionError, match="engine is an object"):
            distributed.calibrate(PLAN, IMAGES, executor, engine=object())  # type: ignore[arg-type]
        with pytest.raises(CalibrationError, match="auto selects by all samples"):
            calibrated(executor, method="auto")
        with pytest.raises(OptionError, match="is a function of 1 arguments, expected one of none"):
            calibrated(executor, lambda one: one)
        with pytest.raises(OptionError, match="limit has no effect on a function that returns"):
            calibrated(executor, workers.part, limit=3)
        for option, expected in {"shards": "1 or more", "threads": "1 to 256"}.items():
            with pytest.raises(OptionError, match=f"{option} is 0, expected {expected}"):
                calibrated(executor, **{option: 0})
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(OptionError, match="of type function cannot be sent"):
            calibrated(executor, lambda: IMAGES)
    with pytest.raises(OptionError, match="executor is of type str, expected an object with"):
        calibrated("dask")


def test_parts_travel_without_an_executor() -> None:
    parts = distributed.split(PLAN, IMAGES, 3, engine="tract")
    sent = [pickle.loads(pickle.dumps(part)) for part in parts]
    assert [str(part) for part in sent] == ["1/3", "2/3", "3/3"]
    texts = [part() for part in sent]
    assert distributed.merge(reversed(texts)) == WHOLE
    with pytest.raises(CalibrationError, match="lack shard 2/3"):
        distributed.merge([texts[0], texts[2]])


class Pool:
    """A pool with another interface, as the pages show an adapter for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def submit(self, function: Any, /, *args: Any) -> Future[Any]:
        self.calls.append(function.__name__)
        future: Future[Any] = Future()
        future.set_result(function(*args))
        return future


def test_any_object_that_submits_is_an_executor() -> None:
    pool = Pool()
    assert calibrated(pool, shards=3) == WHOLE
    assert pool.calls == ["outcome"] * 3


def test_dask(tmp_path: Path) -> None:
    dask = pytest.importorskip("distributed")
    np.save(tmp_path / "s.npy", IMAGES)
    with (
        dask.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        dask.Client(cluster) as client,
    ):
        assert calibrated(client, tmp_path / "s.npy") == WHOLE
        assert calibrated(client, lambda: IMAGES, shards=4) == WHOLE, "a local function"
        assert calibrated(client.get_executor(), tmp_path / "s.npy", shards=3) == WHOLE
        plan = quantize_rs.open(DIGITS.model).plan(bits=4)
        rounded = distributed.calibrate(plan, IMAGES, client, engine="tract", moments=tmp_path)
        assert rounded == plan.calibrate(IMAGES, engine="tract")
        with pytest.raises(OSError, match="the disk is on fire"):
            calibrated(client, workers.failing, shards=3)


@pytest.mark.parametrize("options", [{}, {"all_but_one": True}, {"metric": "mse"}])
def test_layers_are_ranked_by_many_workers(options: dict[str, Any], processes: Processes) -> None:
    plan = quantize_rs.open(DIGITS.model).plan(activations="uint8")
    whole = quantize_rs.sensitivity(plan, IMAGES[:20], engine="tract", **options)
    calls: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        calls.append((done, total))

    found = distributed.sensitivity(
        plan, IMAGES[:20], processes, engine="tract", progress=progress, **options
    )
    assert found.layers == whole.layers
    assert (found.metric, found.samples, found.engine) == (whole.metric, 20, whole.engine)
    assert calls == [(1, 2), (2, 2)]


def test_layers_are_ranked_by_a_metric_of_the_caller_and_with_given_ranges() -> None:
    plan = quantize_rs.open(DIGITS.model).plan(activations="uint8", weight_algorithm="nearest")
    ranges = plan.calibrate(IMAGES, engine="tract")
    given: dict[str, Any] = {"metric": workers.spread, "ranges": ranges, "engine": "tract"}
    whole = quantize_rs.sensitivity(plan, IMAGES[:20], **given)
    with ThreadPoolExecutor(3) as executor:
        found = distributed.sensitivity(plan, workers.images, executor, limit=20, **given)
        assert found.layers == whole.layers
        assert found.metric == whole.metric == "spread"
        with pytest.raises(OptionError, match="is a function of a part: every worker needs all"):
            distributed.sensitivity(plan, workers.part, executor)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="labels has no effect with metric='sqnr'"):
            distributed.sensitivity(plan, IMAGES, executor, labels=[1])
        with pytest.raises(CalibrationError, match="NaN at"):
            distributed.sensitivity(plan, np.full((2, 1, 8, 8), np.nan, np.float32), executor)
