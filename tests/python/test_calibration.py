"""The forms of calibration data, and the resulting ranges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import onnx.parser
import oracle
import pytest

import quantize_rs
from quantize_rs import CalibrationError, Plan, Ranges

Images = npt.NDArray[np.float32]


@pytest.fixture
def plan(digits: Path) -> Plan:
    return quantize_rs.open(digits).plan(activations="uint8", per_channel=True)


class Tensor:
    """The part of the interface of a torch tensor that is used."""

    def __init__(self, values: Images, *, needs_gradient: bool = True) -> None:
        self.values, self.needs_gradient = values, needs_gradient

    def detach(self) -> Tensor:
        return Tensor(self.values, needs_gradient=False)

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Images:
        if self.needs_gradient:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values


class Reader:
    """A reader with the interface of ONNX Runtime's calibration data readers."""

    def __init__(self, feeds: list[dict[str, Images]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, Images] | None:
        return next(self.feeds, None)


FORMS: dict[str, Callable[[Images], Any]] = {
    "array": lambda x: x,
    "tensor": Tensor,
    "dict": lambda x: {"image": x},
    "dict with labels": lambda x: {"image": x, "labels": np.arange(len(x))},
    "list of images": list,
    "list of batches of one": lambda x: [image[None] for image in x],
    "generator of batches": lambda x: (x[i : i + 32] for i in range(0, len(x), 32)),
    "generator of dicts": lambda x: ({"image": image[None]} for image in x),
    "pairs": lambda x: [(image, 3) for image in x],
    "batches with labels": lambda x: [[Tensor(x[i : i + 50]), [1]] for i in range(0, len(x), 50)],
    "reader": lambda x: Reader([{"image": image[None]} for image in x]),
    "batches in an axis of their own": lambda x: x.reshape(40, 5, 1, 8, 8),
    "float64": lambda x: x.astype(np.float64),
    "big endian": lambda x: x.astype(">f4"),
    "fortran order": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2],
    "read-only": lambda x: _read_only(x),
}


def _read_only(x: Images) -> Images:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_samples_gives_the_same_ranges(plan: Plan, images: Path, form: str) -> None:
    expected, found = plan.calibrate(images), plan.calibrate(FORMS[form](np.load(images)))
    assert found.values.keys() == expected.values.keys()
    if "batches in" in form:  # five images are run at once, whose sums are added in another order
        assert found.samples == 40
        for name, ends in expected.values.items():
            np.testing.assert_allclose(found.values[name], ends, rtol=1e-5)
    else:
        assert found == expected


def test_a_file_by_text_and_an_archive(plan: Plan, images: Path) -> None:
    np.savez("samples.npz", image=np.load(images))
    assert plan.calibrate(str(images)) == plan.calibrate(Path("samples.npz"))


def test_an_error_names_its_cause(plan: Plan, images: Path) -> None:
    """The same text as on the command line."""
    np.savez("samples.npz", image=np.load(images))
    Path("cut.npz").write_bytes(Path("samples.npz").read_bytes()[:1000])
    with pytest.raises(CalibrationError, match=r"not a readable .npz archive .*: invalid Zip"):
        plan.calibrate("cut.npz")


def test_the_model_from_samples_is_that_from_their_file(digits: Path, images: Path) -> None:
    from_file = quantize_rs.quantize_with_calibration(digits, None, images)
    from_memory = quantize_rs.quantize_with_calibration(digits, None, np.load(images))
    assert from_file.model == from_memory.model


@pytest.mark.parametrize("threads", [1, 2, 7, None])
def test_the_number_of_threads_changes_nothing(
    plan: Plan, images: Path, threads: int | None
) -> None:
    assert plan.calibrate(images, threads=threads) == plan.calibrate(images, threads=1)


def test_the_order_of_samples_changes_nothing(plan: Plan, images: Path) -> None:
    samples = np.load(images)
    assert plan.calibrate(samples[::-1]) == plan.calibrate(samples)


@pytest.mark.parametrize("form", ["array", "list of images", "dict", "generator of dicts"])
def test_limit_takes_the_first(plan: Plan, images: Path, form: str) -> None:
    samples = np.load(images)
    found = plan.calibrate(FORMS[form](samples), limit=7)
    assert found.samples == 7
    assert found == plan.calibrate(samples[:7])


def test_limit_pulls_no_more_than_it_takes(plan: Plan, images: Path) -> None:
    pulled = []

    def samples() -> Iterator[Images]:
        for number, image in enumerate(np.load(images)):
            pulled.append(number)
            yield image

    plan.calibrate(samples(), limit=3)
    assert pulled == [0, 1, 2]


def test_several_inputs(tmp_path: Path) -> None:
    source = oracle.model("two_inputs")
    plan = quantize_rs.open(source).plan(activations="uint8")
    feeds = [oracle.feeds("two_inputs", count=1) for _ in range(3)]
    arrays = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    np.savez(tmp_path / "s.npz", allow_pickle=False, **arrays)
    found = [
        plan.calibrate(feeds),
        plan.calibrate(arrays),
        plan.calibrate(Reader(feeds)),
        plan.calibrate(tmp_path / "s.npz"),
    ]
    assert all(ranges == found[0] for ranges in found)


def test_integer_inputs_take_what_is_whole() -> None:
    source = oracle.model("int_input")
    plan = quantize_rs.open(source).plan(activations="uint8")
    feed = oracle.feeds("int_input")
    narrow = {name: ids.astype(np.int32) for name, ids in feed.items()}
    assert plan.calibrate([feed]) == plan.calibrate([narrow])
    with pytest.raises(CalibrationError, match="does not fit int64"):
        plan.calibrate([{name: ids + 0.5 for name, ids in feed.items()}])


def test_random_samples_are_seeded_and_warned_about(
    digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made(**options: Any) -> quantize_rs.Report:
        return quantize_rs.quantize_with_calibration(digits, None, "random", **options)

    report = made()
    assert report.samples == 100
    said = "calibrated with random values"
    assert [said in warning for warning in report.warnings].count(True) == 1
    assert caplog.text.count(said) == 1
    assert next(r.name for r in caplog.records if r.levelno == logging.WARNING) == "quantize_rs"
    assert "random" in caplog.text
    assert made(seed=0).model == report.model
    assert made(seed=1).model != report.model
    assert made(num_samples=7).samples == 7
    assert made(sample_shape=(1, 8, 8)).model == report.model
    assert made(num_samples=7, limit=3).samples == 3


def test_ranges_of_random_values_say_so_wherever_they_are_used(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "calibrated with random values"
    plan = quantize_rs.open(digits).plan(activations="uint8")
    parts = [plan.calibrate("random", num_samples=8, shard=(part, 2)) for part in (1, 2)]
    assert caplog.text.count(said) == 2
    merged = quantize_rs.Ranges.merge(parts)
    merged.save(tmp_path / "ranges")
    for ranges in (merged, tmp_path / "ranges"):
        warnings = plan.apply(ranges).report.warnings
        assert [said in warning for warning in warnings].count(True) == 1
    caplog.clear()
    for found in plan.compare_methods("random", num_samples=8).ranges.values():
        assert any(said in warning for warning in plan.apply(found).report.warnings)
    assert caplog.text.count(said) == 1


@pytest.mark.parametrize("form", ["file", "array", "iterator"])
def test_the_shape_of_samples_is_compared_with_the_one_given(
    digits: Path, images: Path, form: str
) -> None:
    data = np.load(images)[:4]
    plan = quantize_rs.open(digits).plan(activations="uint8")

    def calibrated(**options: Any) -> quantize_rs.Ranges:
        given = {"file": images, "array": data, "iterator": iter(list(data))}[form]
        return plan.calibrate(given, engine="tract", limit=4, **options)

    assert calibrated(sample_shape=(1, 8, 8)).values == calibrated().values
    message = r"sample_shape is \[3, 8, 8\], and the samples have the shape \[1, 8, 8\]"
    with pytest.raises(quantize_rs.OptionError, match=message) as refused:
        calibrated(sample_shape=(3, 8, 8))
    assert refused.value.option == "sample_shape"
    report = quantize_rs.quantize_with_calibration(
        digits, None, data, sample_shape=[1, 8, 8], engine="tract", check="none"
    )
    assert report.samples == 4


def test_the_shape_of_random_samples_is_that_of_the_inputs_that_it_fits() -> None:
    """A recurrent model with a state, whose batch is open, too."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g(float[time, batch, 20] x, float[1, batch, 32] state) => (float[a, b, c, d] y) {
        y, last = GRU <hidden_size = 32> (x, W, R, , , state)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("W", (1, 96, 20)), ("R", (1, 96, 32))):
        weight = rng.uniform(-0.2, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    source = model.SerializeToString()
    options: dict[str, Any] = {"num_samples": 4, "output_format": "qdq"}
    for each in ((1, 20), (1, 32)):
        report = quantize_rs.quantize_with_calibration(
            source, None, "random", sample_shape=each, **options
        )
        assert report.samples == 4
    with pytest.raises(CalibrationError, match=r"input `x` expects .*, random samples are"):
        quantize_rs.quantize_with_calibration(
            source, None, "random", sample_shape=(1, 21), **options
        )


@pytest.mark.parametrize("count", [3, 100])
def test_num_samples_counts_random_samples_only(
    digits: Path, images: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    report = quantize_rs.quantize_with_calibration(digits, None, images, num_samples=count)
    assert report.samples == 200
    expected = 'num_samples has no effect on samples that are given: it is for "random"; see limit'
    assert caplog.messages.count(expected) == 1
    caplog.clear()
    quantize_rs.quantize_with_calibration(digits, None, images)
    assert "num_samples" not in caplog.text


WIDE = pytest.mark.skipif(
    np.dtype(np.longdouble).itemsize == 8, reason="longdouble is float64 on this platform"
)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no calibration samples"),
        (np.zeros((0, 1, 8, 8), np.float32), "no calibration samples"),
        (np.zeros((4, 3, 8, 8), np.float32), r"\[1, 3, 8, 8\]"),
        (np.zeros((4, 8, 8, 1), np.float32), "transpose"),
        ([np.zeros((1, 1, 8, 9), np.float32)], "9"),
        ({"image_batch": np.zeros((4, 1, 8, 8), np.float32)}, "`image_batch`"),
        ([{"image_batch": np.zeros((4, 1, 8, 8), np.float32)}], "`image_batch`"),
        (np.array(["a"]), "no plain numbers"),
        (np.array([None]), "no plain numbers"),
        (np.zeros((1, 1, 8, 8), np.complex64), "complex64"),
        pytest.param(
            np.zeros((1, 1, 8, 8), np.longdouble),
            r"^an array of float\d+ is beyond 64 bits: cast it to float32",
            marks=WIDE,
        ),
        pytest.param({"image": np.zeros(8, np.longdouble)}, "^`image`: .* is beyond", marks=WIDE),
        ([object()], "no plain numbers but objects of type object"),
        (np.array([1.0, 2.0], object), "no plain numbers but numbers as objects: cast them"),
        (np.array([2**70]), "no plain numbers but an integer beyond 64 bits"),
        ({"image": None}, "^`image`: None is no array of numbers"),
        ({"image": [Decimal("1.5")]}, "^`image`: .* but decimals: cast them to float"),
        ([np.full((1, 8, 8), np.inf, np.float32)], "inf"),
        ([[[1.0, 2.0], [3.0]]], "does not become an array|expects"),
    ],
)
def test_samples_that_do_not_fit_are_a_calibration_error(
    plan: Plan, samples: Any, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        plan.calibrate(samples)


def test_a_sample_that_does_not_fit_is_numbered(plan: Plan) -> None:
    good, bad = np.zeros((1, 8, 8), np.float32), np.zeros((1, 8, 7), np.float32)
    with pytest.raises(CalibrationError) as caught:
        plan.calibrate([good, good, bad])
    assert caught.value.sample == 2


def test_what_an_iterator_raises_comes_out_as_it_is(plan: Plan) -> None:
    def samples() -> Iterator[Images]:
        yield np.zeros((1, 8, 8), np.float32)
        raise LookupError("the disk is on fire")

    with pytest.raises(LookupError, match="the disk is on fire"):
        plan.calibrate(samples())


def test_progress_calls_a_function(plan: Plan, images: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    plan.calibrate(images, progress=lambda done, total: calls.append((done, total)), threads=2)
    assert calls[0][0] in (0, 1)
    assert calls[-1][0] == 200
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_progress_stops_a_calibration_by_raising(plan: Plan, images: Path) -> None:
    def enough(done: int, _total: int | None) -> None:
        if done >= 3:
            raise StopAsyncIteration

    with pytest.raises(StopAsyncIteration):
        plan.calibrate(images, progress=enough)


def test_progress_is_shown_on_standard_error(
    plan: Plan, images: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan.calibrate(images, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "200" in err


def test_arrays_are_not_copied(plan: Plan) -> None:
    samples = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    seen: list[int] = []

    def overwrite(done: int, _total: int | None) -> None:
        if not seen:
            samples[:] = 0
            seen.append(done)

    # Calibration does not copy the array: samples after the first see the change.
    found = plan.calibrate(samples, progress=overwrite, threads=1)
    assert found.values["image"][0] == 0


def test_ranges_are_saved_loaded_and_merged(plan: Plan, digits: Path, images: Path) -> None:
    samples = np.load(images)
    whole = plan.calibrate(samples)
    whole.save("ranges.json")
    assert Ranges.load("ranges.json") == whole
    assert plan.apply(Ranges.load("ranges.json")).to_bytes() == plan.apply(whole).to_bytes()
    assert list(Path.cwd().glob("*ranges*")) == [Path.cwd() / "ranges.json"]
    model = quantize_rs.open(digits)
    plan = model.plan(activations="uint8", per_channel=True, weight_algorithm="nearest")
    whole = plan.calibrate(samples)
    parts = [plan.calibrate(samples[i : i + 60]) for i in range(0, 200, 60)]
    merged = parts[0]
    for part in parts[1:]:
        merged = part.merge(merged)
    assert merged == whole
    assert plan.apply(whole).to_bytes() == plan.apply(merged).to_bytes()


@pytest.mark.usefixtures("repository")
def test_what_is_no_file_of_ranges_is_a_calibration_error() -> None:
    for text in ("", "{}", "[1]", '{"method": 3}', "\xff"):
        Path("ranges.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CalibrationError, match="not a ranges file"):
            Ranges.load("ranges.json")
    with pytest.raises(FileNotFoundError):
        Ranges.load("none.json")
