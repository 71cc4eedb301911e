"""Samples in files and arrays: every form, and what is wrong with one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from image_data import GOOD, Array, conv

import quantize_rs
from quantize_rs import CalibrationError, Plan


def safetensors(path: Path, arrays: dict[str, Array]) -> None:
    """A file as the package `safetensors` writes it."""
    names = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "float16": "F16"}
    header, data = {}, b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        dtype = names[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps({"__metadata__": {"format": "np"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_files_of_arrays_give_the_same_ranges(digits: Path, images: Path, dtype: Any) -> None:
    plan = quantize_rs.open(digits).plan(activations="uint8")
    samples = np.load(images).astype(dtype)
    np.save("samples.npy", samples)
    np.savez("samples.npz", image=samples)
    safetensors(Path("samples.safetensors"), {"labels": np.arange(9), "image": samples})
    expected = plan.calibrate("samples.npy")
    assert expected == plan.calibrate(samples)
    for path in ("samples.npz", "samples.safetensors"):
        assert plan.calibrate(path) == expected
        assert plan.calibrate(path, limit=9) == plan.calibrate(samples[:9])


def test_safetensors_feed_several_inputs(tmp_path: Path) -> None:
    plan = quantize_rs.open(oracle.model("two_inputs")).plan(activations="uint8")
    feeds = [oracle.feeds("two_inputs", count=1) for _ in range(3)]
    arrays = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    safetensors(tmp_path / "s.safetensors", arrays)
    assert plan.calibrate(tmp_path / "s.safetensors") == plan.calibrate(feeds)


class Reader:
    """A reader with the interface of ONNX Runtime's calibration data readers."""

    def __init__(self, feeds: list[dict[str, Array]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def _npy(_name: str, array: Array) -> str:
    np.save("s.npy", array)
    return "s.npy"


def _npz(name: str, array: Array) -> str:
    np.savez("s.npz", allow_pickle=False, **{name: array})
    return "s.npz"


def _safetensors(name: str, array: Array) -> str:
    safetensors(Path("s.safetensors"), {name: array})
    return "s.safetensors"


# The forms of samples, and how an error message names each.
FORMS: dict[str, tuple[Callable[[str, Array], Any], str]] = {
    "npy": (_npy, r"s\.npy"),
    "npz": (_npz, r"s\.npz"),
    "safetensors": (_safetensors, r"s\.safetensors"),
    "array": (lambda _, x: x, "x"),
    "dict": (lambda name, x: {name: x}, "x"),
    "list": (lambda _, x: list(x), "x"),
    "iterator": (lambda _, x: (one[None] for one in x), "x"),
    "dicts": (lambda name, x: [{name: one[None]} for one in x], "x"),
    "batches": (lambda _, x: [x[:2], x[2:]], "x"),
    "dicts of batches": (lambda name, x: [{name: x[:3]}, {name: x[3:]}], "x"),
    "reader": (lambda name, x: Reader([{name: one[None]} for one in x]), "x"),
}


def _with(value: float) -> Array:
    bad = GOOD.astype(np.float64)
    bad[2, 1, 0, 5] = value
    return bad


# Invalid data, the error message, and the number of the sample.
FAULTS: dict[str, tuple[Array, str, int | None]] = {
    "shape": (GOOD[..., :5], r"`x` expects float32 \[\?, 3, 8, 6\], .* \[1, 3, 8, 5\]", None),
    "rank": (GOOD.reshape(4, 3, 48), r"`x` expects float32 \[\?, 3, 8, 6\], .*3, 48\]", None),
    "channels": (GOOD.transpose(0, 2, 3, 1), r"transpose the axes of a sample to \[0, 3", None),
    "nan": (_with(np.nan), r"NaN at \[0, 1, 0, 5\], samples must be finite", 2),
    "infinity": (_with(np.inf), r"infinity at \[0, 1, 0, 5\], samples must be finite", 2),
    "large": (_with(1e300), r"value 1e300 at \[0, 1, 0, 5\] does not fit float32", 2),
    "none": (GOOD[:0], "no calibration samples|has no rows", None),
}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(plan: Plan, form: str) -> None:
    make, _ = FORMS[form]
    found = plan.calibrate(make("x", GOOD), method="moving_average")
    assert found.samples == 4
    assert found == plan.calibrate(GOOD, method="moving_average")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("form", FORMS)
def test_errors_in_a_sample_name_the_problem_and_the_place(
    plan: Plan, form: str, fault: str
) -> None:
    make, place = FORMS[form]
    array, message, sample = FAULTS[fault]
    samples = make("x", np.ascontiguousarray(array))
    with pytest.raises(CalibrationError, match=message) as caught:
        plan.calibrate(samples)
    if sample is not None:
        assert caught.value.sample == sample
        assert caught.value.value == "x"
    if not (fault == "none" and place == "x"):
        assert caught.match(place)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_the_only_array_of_a_file_needs_no_name(
    plan: Plan, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, _ = FORMS[form]
    taken = plan.calibrate(make("image", GOOD), engine="tract")
    assert any("`image`, is taken for input `x`" in said for said in caplog.messages)
    assert taken.values == plan.calibrate(make("x", GOOD), engine="tract").values


@pytest.mark.parametrize("form", ["dict", "dicts", "dicts of batches", "reader"])
def test_a_wrong_name_comes_with_the_right_one(plan: Plan, form: str) -> None:
    make, place = FORMS[form]
    message = r"no array for input `x`; arrays that match no input: `image` \(`x`.*\)"
    with pytest.raises(CalibrationError, match=message) as caught:
        plan.calibrate(make("image", GOOD))
    assert caught.match(place)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.tile(GOOD, (8, 1, 1, 1)), "only 4 of 32 samples are distinct"),
        (GOOD, "only 4 samples: give at least 128, as varied as production inputs"),
        (np.tile(GOOD[:1], (40, 1, 1, 1)), "all 40 samples are identical"),
        (np.full((40, 3, 8, 6), 0.5), "all values of input `x` are the same in all samples"),
    ],
)
def test_samples_that_can_be_no_good_are_warned_of(
    plan: Plan, samples: Array, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan.calibrate(samples)
    assert message in caplog.text


def test_integers_for_a_float_input_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Pixels of 0 to 255 where the model expects 0 to 1 give ranges that are no use."""
    model = conv(["n", 3, 8, 6])
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 6)).astype(np.uint8)
    said = "the samples of input `x` are uint8, and the input is float32: "
    plan = quantize_rs.open(model).plan(activations="uint8")
    calls: list[Callable[[], object]] = [
        lambda: plan.calibrate(pixels),
        lambda: plan.calibrate({"x": pixels}),
        lambda: plan.calibrate(iter([pixels[:8], pixels[8:]])),
        lambda: quantize_rs.quantize_with_calibration(model, None, pixels),
        lambda: quantize_rs.quantize(model, None, calibration_data=pixels, min_sqnr=1),
        lambda: quantize_rs.compare(model, model, pixels, latency=False),
        lambda: quantize_rs.layer_errors(model, model, pixels),
        lambda: quantize_rs.sensitivity(model, pixels),
        lambda: quantize_rs.mixed_precision(model, pixels, target_size=1000.0),
    ]
    for number, call in enumerate(calls):
        caplog.clear()
        call()
        assert caplog.text.count(said) == 1, (number, caplog.text)
    caplog.clear()
    plan.calibrate(pixels.astype(np.float32))
    assert said not in caplog.text


def test_noise_in_place_of_images_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    noise = np.random.default_rng(0).random((40, 3, 32, 32), np.float32)
    plan.calibrate(noise)
    assert "input `x` looks like noise" in caplog.text
    caplog.clear()
    plan.calibrate(np.cumsum(noise, axis=-1))
    assert not caplog.text


def test_a_file_of_another_kind_comes_with_those_that_are_read(plan: Plan) -> None:
    Path("samples.json").write_text("{}")
    for samples in ("samples.json", quantize_rs.Samples("samples.json", np.asarray)):
        with pytest.raises(CalibrationError, match=r"this path has extension \.json") as caught:
            plan.calibrate(samples)
        for ending in (".npz", ".parquet", ".arrow", ".jsonl", ".tar", ".png"):
            assert f"{ending}," in str(caught.value) or f"{ending};" in str(caught.value)


def test_a_list_of_images_in_braces_is_pixels_for_a_function(plan: Plan) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in "ab":
        image.fromarray(np.zeros((8, 6, 3), np.uint8)).save(f"{name}.png")
    seen: list[Any] = []

    def sample(pixels: Any) -> Any:
        seen.append(pixels)
        return GOOD[len(seen) % 4]

    for pattern in ("*.png", "{a,b}.png"):
        plan.calibrate(quantize_rs.Samples(pattern, sample), method="minmax")
    assert [one.shape for one in seen] == [(8, 6, 3)] * 4
