"""Functions on samples, data sets and data loaders."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_data import GOOD, Array, conv
from PIL import Image
from test_samples import Reader, safetensors
from test_tars import images, npy, packed
from token_models import as_arrays, sentences, token_model

import quantize_rs
from quantize_rs import CalibrationError, ImageFolder, OptionError, Plan, Samples

CALIBRATED = {"method": "moving_average", "engine": "tract"}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


def calibrated(plan: Plan, samples: Any, **options: Any) -> quantize_rs.Ranges:
    return plan.calibrate(samples, method="moving_average", engine="tract", **options)


def test_a_function_gets_rows_of_arrays(plan: Plan) -> None:
    last = np.ascontiguousarray(GOOD.transpose(0, 2, 3, 1))
    np.save("s.npy", last)
    np.savez("s.npz", image=last, label=np.arange(4))
    safetensors(Path("s.safetensors"), {"x": GOOD / 2})

    def first(image: Array) -> Array:
        assert image.shape == (8, 6, 3)
        moved: Array = image.transpose(2, 0, 1)
        return moved

    forms: list[tuple[Any, Any]] = [
        (last, first),
        ("s.npy", first),
        (Path("s.npy"), lambda image: {"x": first(image)}),
        ("s.npz", lambda row: {"x": first(row["image"])}),
        ({"image": last, "label": list("abcd")}, lambda row: first(row["image"])),
        (list(last), first),
        (iter(last), lambda image: first(image)[None]),
        (Reader([{"image": one} for one in last]), lambda feed: first(feed["image"])),
        ([(one, "label") for one in last], first),
        ("s.safetensors", lambda feed: {"x": feed["x"] * 2}),
        (Samples(last, first), lambda image: image),
        (Samples(list(last), lambda image: image / 2), lambda image: first(image) * 2),
    ]
    expected = calibrated(plan, GOOD)
    for number, (data, transform) in enumerate(forms):
        assert calibrated(plan, Samples(data, transform)) == expected, number


LISTED = {
    "i/**": 5,
    "i/*.png": 2,
    "i/*/*.png": 4,
    "i/**/[!a].png": 4,
    "i/s/{c,d*/e}.png": 2,
    "i/{0..9}.png": None,
    "i/.h*/*.png": None,
    "i": 2,
    "i/.hidden.png": 1,
}


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("pattern", LISTED)
def test_images_are_those_that_are_read_without_a_function(plan: Plan, pattern: str) -> None:
    for name in ("i/a", "i/5", "i/s/c", "i/s/d[1]/e", "i/s/f", "i/.hidden", "i/.h/g", "x/g", "x/h"):
        path = Path(f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 6, 3), np.uint8)).save(path)
    Path("i/link").symlink_to("../x")
    Path("i/s/self").symlink_to(".")
    with_function = Samples(pattern, lambda pixels: pixels.transpose(2, 0, 1) / np.float32(255))
    samples = LISTED[pattern]
    if samples is None:
        for data in (pattern, with_function):
            with pytest.raises(CalibrationError, match="no calibration samples"):
                calibrated(plan, data)
        return
    for data in (pattern, with_function):
        assert calibrated(plan, data).samples == samples
    parts = quantize_rs.distributed.split(plan, pattern, min(samples, 2), engine="tract")
    assert quantize_rs.distributed.merge(part() for part in parts).samples == samples


def test_a_folder_whose_name_is_a_pattern_is_taken_by_its_name(plan: Plan) -> None:
    Path("s/d[1]").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 6, 3), np.uint8)).save("s/d[1]/e.png")
    moved = Samples("s/d[1]/*.png", lambda pixels: pixels.transpose(2, 0, 1) / np.float32(255))
    assert calibrated(plan, moved).samples == 1


def test_masked_arrays_are_refused(plan: Plan) -> None:
    """Their masked elements, of any value, would widen a range."""
    values, mask = GOOD.copy(), np.zeros(GOOD.shape, bool)
    assert calibrated(plan, np.ma.masked_array(values, mask)) == calibrated(plan, GOOD)
    values[1, 0, 0, 0], mask[1, 0, 0, 0] = 1e4, True
    masked = np.ma.masked_array(values, mask)
    hint = r"elements are masked: replace them with \.filled\(number\)"
    for number, (samples, place) in enumerate(
        [
            (masked, "^a MaskedArray"),
            ({"x": masked}, "`x`"),
            (list(masked), r"\(item 1\)"),
            ([{"x": masked}], r"`x`: .*\(item 0\)"),
            (Samples(masked, lambda row: row), r"\(the array\)"),
            (Samples({"image": masked}, lambda row: row["image"]), "`image`: .*the dictionary"),
            (Samples(GOOD, lambda _: masked[1]), "`x` .*the array, row 0"),
        ]
    ):
        with pytest.raises(CalibrationError, match=hint) as caught:
            calibrated(plan, samples)
        assert caught.match(place), number
    assert calibrated(plan, masked.filled(0.5)).values["x"][1] < 2


def test_a_function_gets_whole_rows_of_files(plan: Plan) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"pixels": one.reshape(-1).tolist(), "name": f"{number}", "note": None}
        for number, one in enumerate(GOOD)
    ]
    table = pa.Table.from_pylist(
        rows,
        pa.schema(
            [("pixels", pa.list_(pa.float32())), ("name", pa.string()), ("note", pa.string())]
        ),
    )
    pq.write_table(table, "s.parquet")
    Path("s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    packed("s.tar", [(f"{row['name']}.pixels.npy", npy(row["pixels"])) for row in rows])

    def shaped(row: dict[str, Any]) -> Array:
        assert row.get("name", "0") in "0123"
        return np.asarray(row["pixels"], np.float32).reshape(3, 8, 6)

    for data in (table, "s.parquet", "s.jsonl", "s.tar"):
        assert calibrated(plan, Samples(data, shaped)) == calibrated(plan, GOOD)


def test_a_function_gets_the_pixels_of_images(plan: Plan) -> None:
    packed("s.tar", images(6, "png"))
    Path("folder").mkdir()
    for name, data in images(6, "png"):
        (Path("folder") / name).write_bytes(data)

    def prepared(image: Any) -> Array:
        pixels = image[""] if isinstance(image, dict) else image
        assert pixels.dtype == np.uint8
        small = Image.fromarray(pixels).resize((6, 8), Image.Resampling.NEAREST)
        scaled: Array = (np.asarray(small) * (1 / 255)).astype(np.float32).transpose(2, 0, 1)
        return scaled

    expected = calibrated(plan, ImageFolder("folder", resize="nearest"))
    for path in ("folder", "folder/*", "s.tar"):
        assert calibrated(plan, Samples(path, prepared)) == expected
    # Of an ImageFolder it gets what the model would get.
    whole = Samples(ImageFolder("folder", resize="nearest"), lambda feed: {"x": feed["x"]})
    assert calibrated(plan, whole) == expected


def test_the_place_comes_with_what_a_function_raises(plan: Plan) -> None:
    np.save("s.npy", GOOD)

    def failing(image: Array) -> Array:
        if image[0, 0, 0] == GOOD[2, 0, 0, 0]:
            raise KeyError("colour")
        return image

    with pytest.raises(KeyError, match="colour") as caught:
        calibrated(plan, Samples("s.npy", failing))
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["transform was applied to s.npy, row 2"]
    for wrong, message in [
        (lambda _: None, r"`x` is null"),
        (lambda _: {"y": GOOD[0]}, r"no array for input `x`; .*: `y` \(`x`, s\.npy, row 0\)"),
        (lambda image: image[0], r"`x` has shape \[8, 6\].*\(s\.npy, row 0\)"),
        (lambda _: "text", r"`x` is text"),
    ]:
        with pytest.raises(CalibrationError, match=message):
            calibrated(plan, Samples("s.npy", wrong))


def test_what_no_function_can_be_applied_to(plan: Plan) -> None:
    with pytest.raises(OptionError, match="transform is of type int, expected a function"):
        Samples(GOOD, 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match='data is "random"'):
        Samples("random", lambda image: image)
    with pytest.raises(OptionError, match="data is of type int, which holds no samples"):
        calibrated(plan, Samples(3, lambda image: image))
    with pytest.raises(FileNotFoundError, match="none"):
        calibrated(plan, Samples("none.npy", lambda image: image))
    Path("s.npy").write_bytes(b"x")
    with pytest.raises(CalibrationError, match=r"s\.npy cannot be read"):
        calibrated(plan, Samples("s.npy", lambda image: image))
    with pytest.raises(CalibrationError, match=r"different numbers of samples: `a` 4, `b` 3"):
        calibrated(plan, Samples({"a": GOOD, "b": GOOD[:3]}, lambda row: row["a"]))


class Tensor:
    """A tensor of which only `numpy` is known."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def numpy(self) -> Array:
        return self.values


class Dataset:
    """A data set as the package `datasets` has it: its items are dictionaries of plain values."""

    column_names = ("text", "input_ids", "attention_mask", "label")

    def __init__(self, samples: list[dict[str, list[int]]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"text": "a", **one, "label": None} for one in self.samples)


def test_a_data_set_has_more_columns_than_the_model_has_inputs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokens = quantize_rs.open(token_model()).plan(activations="uint8")
    samples = sentences(40)
    expected = calibrated(tokens, as_arrays(samples))
    caplog.clear()
    assert calibrated(tokens, Dataset(samples)) == expected
    said = "ignoring `text`, `label`, which match no input of the model"
    assert caplog.text.count("ignoring") == caplog.text.count(said) == 1
    with pytest.raises(OptionError, match="samples has several data sets, 'train', 'test': pass"):
        calibrated(tokens, {"train": Dataset(samples), "test": Dataset(samples)})
    renamed = [{"ids": one["input_ids"], "attention_masks": [1], "text": "a"} for one in samples]
    message = (
        r"`input_ids`, `attention_mask`; .* \(`input_ids`, item 0\); did you mean `attention_mask`"
    )
    with pytest.raises(CalibrationError, match=message):
        calibrated(tokens, renamed)


def test_batches_of_a_data_loader(plan: Plan) -> None:
    tokens = quantize_rs.open(token_model()).plan(activations="uint8")
    samples = sentences(40, length=7)
    joined = {name: np.array([one[name] for one in samples]) for name in samples[0]}
    expected = calibrated(tokens, joined)

    def loader() -> Iterator[dict[str, Tensor]]:
        for start in range(0, 40, 16):
            yield {name: Tensor(ids[start : start + 16]) for name, ids in joined.items()}

    assert calibrated(tokens, loader()) == expected
    assert calibrated(tokens, ((batch, Tensor(np.zeros(16))) for batch in loader())) == expected
    cut = ({name: ids.numpy() for name, ids in batch.items()} for batch in loader())
    assert calibrated(tokens, Samples(cut, lambda batch: batch)) == expected
    assert calibrated(plan, [Tensor(one) for one in GOOD]) == calibrated(plan, GOOD)
