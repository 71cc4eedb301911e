"""Samples: photos as Pillow reads them, files of arrays, and what is wrong with either."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import judge
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader
from PIL import Image, ImageOps

import quantize_rs
from quantize_rs import CalibrationError, ImageFolder, Model, OptionError, Plan

Array = npt.NDArray[Any]

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "lanczos3": Image.Resampling.LANCZOS,
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def conv(shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A network of one Conv whose input has this shape, with channels first or last."""
    last = shape[-1] in (1, 3)
    channels = shape[-1] if last else shape[1]
    weight = np.ones((2, int(channels), 1, 1), np.float32)
    nodes = []
    name = "x"
    if dtype != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [name], ["float"], to=TensorProto.FLOAT))
        name = "float"
    if last:
        nodes.append(helper.make_node("Transpose", [name], ["first"], perm=[0, 3, 1, 2]))
        name = "first"
    nodes.append(helper.make_node("Conv", [name, "w"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fed(folder: ImageFolder, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> list[Array]:
    """What a model with such an input gets."""
    model = quantize_rs.open(conv(shape, dtype))
    return [feed["x"] for feed in folder.feeds(model)]


def pixels(path: Path, **options: Any) -> Array:
    """An image in its own size as the numbers 0 to 255."""
    with Image.open(path) as image:
        width, height = ImageOps.exif_transpose(image).size
    folder = ImageFolder(path, size=(height, width), scale=1, **options)
    (found,) = fed(folder, [1, "h", "w", 3])
    return np.asarray(found[0])


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Waves with some noise on them: smooth as photos are, and not too smooth."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 80 * np.sin(x / 13 + k) + 40 * np.cos(y / 7 * (k + 1)) for k in range(3)]
    noisy = np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def resized(image: Image.Image, width: int, height: int, resize: str) -> Array:
    """What Pillow makes of an image: rows first, as all versions do up to 12."""
    if resize != "nearest":
        image = image.resize((width, image.height), FILTERS[resize])
    return np.asarray(image.resize((width, height), FILTERS[resize]))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with 40 photos of different sizes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        photo(40 + number, 60 - number, number).save(folder / f"{number:02}.png")
    return folder


@pytest.mark.parametrize("resize", FILTERS)
@pytest.mark.parametrize("noise", [False, True])
def test_images_are_resized_as_pillow_does_it(tmp_path: Path, resize: str, noise: bool) -> None:
    path = tmp_path / "a.png"
    rng = np.random.default_rng(1)
    for width, height in [(64, 48), (37, 91), (320, 200), (20, 15), (1, 9)]:
        image = photo(width, height)
        if noise:
            image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        image.save(path)
        for size in [(48, 64), (224, 224), (32, 32), (7, 300), (height, 11), (11, width)]:
            folder = ImageFolder(path, size=size, scale=1, resize=resize)
            (found,) = fed(folder, [1, "h", "w", 3])
            expected = resized(image, size[1], size[0], resize)
            np.testing.assert_array_equal(found[0], expected)
            at_once = np.asarray(image.resize(size[::-1], FILTERS[resize]))
            if resize == "bilinear":  # version 13 may begin with columns, and rounds in between
                assert np.abs(found[0] - at_once).max() <= 1


def test_the_recipe_of_imagenet(photos: Path) -> None:
    folder = ImageFolder(photos, mean=MEAN, std=STD, crop=36)
    found = fed(folder, ["n", 3, 32, 32])
    assert len(found) == 40
    for number, array in enumerate(found):
        image = photo(40 + number, 60 - number, number)
        width, height = image.size
        # torchvision's Resize(36), CenterCrop(32), ToTensor(), Normalize(MEAN, STD)
        if width <= height:
            width, height = 36, int(36 * height / width)
        else:
            width, height = int(36 * width / height), 36
        whole = resized(image, width, height, "bilinear")
        top, left = round((height - 32) / 2.0), round((width - 32) / 2.0)
        cut = whole[top : top + 32, left : left + 32].astype(np.float64) / 255
        expected = ((cut - MEAN) / STD).transpose(2, 0, 1)[None]
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7)  # float32 of float64


def test_numbers_are_those_of_numpy_to_the_last_bit(tmp_path: Path) -> None:
    image = photo(64, 48)
    image.save(tmp_path / "a.png")
    rgb = np.asarray(image)
    cases: list[tuple[dict[str, Any], Array]] = [
        ({}, rgb / np.float32(255)),
        ({"scale": 1}, rgb.astype(np.float32)),
        ({"scale": 1 / 128, "mean": 1}, (rgb * (1 / 128) - 1).astype(np.float32)),
        ({"scale": 1, "mean": (104, 117, 123)}, (rgb - (104.0, 117.0, 123.0)).astype(np.float32)),
        ({"mean": MEAN, "std": STD}, ((rgb * (1 / 255) - MEAN) / STD).astype(np.float32)),
        (
            {"mean": MEAN, "std": STD, "channel_order": "BGR"},
            ((rgb[..., ::-1] * (1 / 255) - MEAN) / STD).astype(np.float32),
        ),
    ]
    for options, expected in cases:
        (last,) = fed(ImageFolder(tmp_path, **options), ["n", 48, 64, 3])
        (first,) = fed(ImageFolder(tmp_path, **options), ["n", 3, 48, 64])
        np.testing.assert_array_equal(last[0], expected)
        np.testing.assert_array_equal(first[0], expected.transpose(2, 0, 1))


def test_layout_and_size_are_those_of_the_model_or_what_is_asked_for(photos: Path) -> None:
    assert fed(ImageFolder(photos), ["n", 3, 20, 30])[0].shape == (1, 3, 20, 30)
    assert fed(ImageFolder(photos), ["n", 20, 30, 1])[0].shape == (1, 20, 30, 1)
    assert fed(ImageFolder(photos, size=8), [4, 3, "h", "w"])[9].shape == (4, 3, 8, 8)
    assert fed(ImageFolder(photos, (8, 9), layout="nchw"), [1, 3, "h", "w"])[0].shape[2:] == (8, 9)
    with pytest.raises(CalibrationError, match=r"float32 \[1, 3, \?, \?\]: .* give the size"):
        fed(ImageFolder(photos), [1, 3, "h", "w"])
    with pytest.raises(CalibrationError, match=r"images of size \[8, 9\] do not fit"):
        fed(ImageFolder(photos, size=(8, 9)), [1, 3, 9, "w"])
    with pytest.raises(CalibrationError, match="a crop of 8 has no room"):
        fed(ImageFolder(photos, crop=8), [1, 3, 9, 7])
    with pytest.raises(
        CalibrationError, match="takes 3 images at a time, there are 40: 1 are left"
    ):
        fed(ImageFolder(photos), [3, 3, 9, 7])
    assert len(fed(ImageFolder(photos, limit=39), [3, 3, 9, 7])) == 13


def test_integers_get_the_pixels(tmp_path: Path) -> None:
    image = photo(64, 48)
    image.save(tmp_path / "a.png")
    (found,) = fed(ImageFolder(tmp_path), [1, 48, 64, 3], TensorProto.UINT8)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], np.asarray(image))
    shifted = ImageFolder(tmp_path, scale=1, mean=128)
    (found,) = fed(shifted, [1, 48, 64, 3], TensorProto.INT8)
    np.testing.assert_array_equal(found[0], np.asarray(image).astype(np.int16) - 128)
    with pytest.raises(CalibrationError, match=r"does not fit uint8 .*a\.png"):
        fed(ImageFolder(tmp_path, mean=MEAN), [1, 48, 64, 3], TensorProto.UINT8)


# Decoders may round the waves of a JPEG block, and colours between their samples, differently.
@pytest.mark.parametrize(
    ("options", "most", "mean"),
    [
        ({"quality": 95, "subsampling": 0}, 3, 0.1),
        ({"quality": 90}, 8, 0.6),
        ({"quality": 75, "progressive": True}, 8, 0.6),
        ({"quality": 90, "subsampling": 1}, 8, 0.6),
        ({"quality": 30, "restart_marker_rows": 1}, 8, 0.6),
    ],
)
@pytest.mark.parametrize("size", [(320, 200), (33, 17)])
def test_jpeg_is_decoded_as_pillow_does_it(
    tmp_path: Path, options: dict[str, Any], most: int, mean: float, size: tuple[int, int]
) -> None:
    path = tmp_path / "a.jpg"
    photo(*size).save(path, **options)
    with Image.open(path) as image:
        expected = np.asarray(image).astype(np.float32)
        grey = np.asarray(image.convert("L")).astype(np.float32)
        small = resized(image, 16, 16, "bilinear").astype(np.float32)
    off = np.abs(pixels(path) - expected)
    assert off.max() <= most
    assert off.mean() <= mean
    (found,) = fed(ImageFolder(path, size=size[::-1], scale=1), [1, 1, "h", "w"])
    assert np.abs(found[0, 0] - grey).max() <= 2
    (found,) = fed(ImageFolder(path, scale=1), [1, 16, 16, 3])
    assert np.abs(found[0] - small).max() <= 2


def test_jpegs_in_grey_and_cmyk(tmp_path: Path) -> None:
    for mode in ("L", "CMYK"):
        path = tmp_path / f"{mode}.jpg"
        photo(64, 48).convert(mode).save(path)
        with Image.open(path) as image:
            assert image.mode == mode
            assert np.abs(pixels(path) - np.asarray(image.convert("RGB"))).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_images_stand_upright(tmp_path: Path, orientation: int, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo(64, 48).save(path, exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image)).astype(np.float32)
    assert np.abs(pixels(path) - expected).max() <= (0 if extension == "png" else 6)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_what_pillow_converts_it_to(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    image = photo(64, 48).convert(mode)
    if mode.endswith("A"):
        image.putalpha(photo(64, 48, 1).convert("L"))
    image.save(path)
    with Image.open(path) as image:
        assert image.mode == mode
        np.testing.assert_array_equal(pixels(path), np.asarray(image.convert("RGB")))
        (found,) = fed(ImageFolder(path, scale=1), [1, 1, 48, 64])
        np.testing.assert_array_equal(found[0, 0], np.asarray(image.convert("L")))


def png16(path: Path, values: npt.NDArray[np.uint16]) -> None:
    """A PNG file with 16 bits a channel, which Pillow cannot write in colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour = 2 if values.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_of_16_bits_the_upper_8_count(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (48, 64, 3), dtype=np.uint16)
    path = tmp_path / "a.png"
    png16(path, values)
    np.testing.assert_array_equal(pixels(path), values >> 8)
    with Image.open(path) as image:
        np.testing.assert_array_equal(pixels(path), np.asarray(image.convert("RGB")))
    png16(path, values[..., 0])
    grey = np.repeat(values[..., :1] >> 8, 3, axis=-1)
    np.testing.assert_array_equal(pixels(path), grey)


def test_photos_calibrate_as_the_array_that_they_become(photos: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    arrays = np.concatenate(fed(ImageFolder(photos), ["n", 3, 32, 32]))
    assert arrays.shape == (40, 3, 32, 32)
    expected = plan.calibrate(arrays)
    for samples in (
        photos,
        str(photos),
        photos / "*.png",
        f"{photos}/**",
        ImageFolder(photos),
        [array[None] for array in arrays],
    ):
        assert plan.calibrate(samples) == expected
    assert plan.calibrate(ImageFolder(photos, limit=7)) == plan.calibrate(arrays[:7])
    assert plan.calibrate(ImageFolder(photos, limit=7), limit=5).samples == 5
    report = quantize_rs.quantize_with_calibration(conv(["n", 3, 32, 32]), None, photos)
    assert report.samples == 40


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"layout": "NCWH"}, "layout"),
        ({"channel_order": "RBG"}, "channel_order"),
        ({"resize": "cubic"}, "resize"),
        ({"size": (1, 2, 3)}, "size"),
        ({"size": 0}, "size"),
        ({"size": -1}, "size"),
        ({"mean": (1, 2)}, "mean"),
        ({"mean": "1"}, "mean"),
        ({"mean": float("nan")}, "mean"),
        ({"std": 0}, "std"),
        ({"std": ()}, "std"),
        ({"scale": 0}, "scale"),
        ({"crop": 0}, "crop"),
        ({"limit": 0}, "limit"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(options: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        ImageFolder("photos", **options)
    assert caught.value.option == option
    assert str(caught.value).startswith(option)


def test_a_folder_is_a_value() -> None:
    folder = ImageFolder("photos", 224, [0.5], 0.5)
    assert folder == ImageFolder("photos", size=(224, 224), mean=0.5, std=(0.5,))
    assert len({folder, ImageFolder("photos", (224, 224), 0.5, 0.5)}) == 1
    assert repr(folder).startswith("ImageFolder(path='photos', size=(224, 224), mean=(0.5,)")
    with pytest.raises(AttributeError):
        folder.crop = 3  # type: ignore[misc]


def test_a_broken_photo_is_named(photos: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    broken = photos / "07.png"
    broken.write_bytes(broken.read_bytes()[:500])
    with pytest.raises(CalibrationError, match=r"cannot decode the PNG image.*07\.png") as caught:
        plan.calibrate(photos)
    assert caught.value.sample == 7
    assert caught.value.value == str(broken)
    broken.unlink()
    (photos / "labels.csv").write_text("no image")
    assert plan.calibrate(photos).samples == 39


def test_where_there_are_no_photos(photos: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    with pytest.raises(FileNotFoundError):
        plan.calibrate(ImageFolder("nowhere"))
    with pytest.raises(CalibrationError, match=r"there is no \.jpg, \.jpeg, \.png \(`.*webp`\)"):
        plan.calibrate(f"{photos}/*.webp")
    with pytest.raises(CalibrationError, match=r"folders in it and no images, `.*\*\*` takes all"):
        plan.calibrate(photos.parent)
    with pytest.raises(CalibrationError, match="the model has 2"):
        quantize_rs.open(judge.model("two_inputs")).plan(activations="uint8").calibrate(photos)


def safetensors(path: Path, arrays: dict[str, Array]) -> None:
    """What the package of that name would write."""
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
    plan = quantize_rs.open(judge.model("two_inputs")).plan(activations="uint8")
    feeds = [judge.feeds("two_inputs", count=1) for _ in range(3)]
    arrays = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    safetensors(tmp_path / "s.safetensors", arrays)
    assert plan.calibrate(tmp_path / "s.safetensors") == plan.calibrate(feeds)


class Reader:
    """As ONNX Runtime's calibration data readers are."""

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


# How samples are given, and what an error calls them.
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
    "reader": (lambda name, x: Reader([{name: one[None]} for one in x]), "x"),
}

GOOD = np.random.default_rng(0).random((4, 3, 8, 6), np.float32)


def _with(value: float) -> Array:
    bad = GOOD.astype(np.float64)
    bad[2, 1, 0, 5] = value
    return bad


# What is wrong, what an error says of it, and in which sample it is.
FAULTS: dict[str, tuple[Array, str, int | None]] = {
    "shape": (GOOD[..., :5], r"`x` expects float32 \[\?, 3, 8, 6\], .* \[1, 3, 8, 5\]", None),
    "rank": (GOOD.reshape(4, 3, 48), r"`x` expects float32 \[\?, 3, 8, 6\], .*3, 48\]", None),
    "channels": (GOOD.transpose(0, 2, 3, 1), r"transpose the axes of a sample to \[0, 3", None),
    "nan": (_with(np.nan), r"NaN at \[0, 1, 0, 5\], samples must be finite", 2),
    "infinity": (_with(np.inf), r"infinity at \[0, 1, 0, 5\], samples must be finite", 2),
    "large": (_with(1e300), r"value 1e300 at \[0, 1, 0, 5\] does not fit float32", 2),
    "none": (GOOD[:0], "no calibration samples", None),
}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_wrong_with_a_sample_is_said_and_where(plan: Plan, form: str, fault: str) -> None:
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


@pytest.mark.parametrize("form", ["npz", "safetensors", "dict", "dicts", "reader"])
def test_a_wrong_name_is_said_beside_the_right_one(plan: Plan, form: str) -> None:
    make, place = FORMS[form]
    message = r"no array for input `x`; arrays that match no input: `picture` \(`x`.*\)"
    with pytest.raises(CalibrationError, match=message) as caught:
        plan.calibrate(make("picture", GOOD))
    assert caught.match(place)


def test_items_that_are_no_numbers_are_numbered(plan: Plan) -> None:
    for item, message in [
        (np.array(["a"]), r"an array of <U1 holds no plain numbers \(item 1\)"),
        ({"x": np.array([None])}, r"an array of object holds no plain numbers \(item 1\)"),
        ("a.png", r"'a\.png' is a path, and paths stand alone; a pattern names several \(item 1\)"),
        (GOOD[:1].astype(np.complex64), "complex64 cannot be converted to float32"),
    ]:
        with pytest.raises(CalibrationError, match=message):
            plan.calibrate([GOOD[:1], item])


def test_arrays_without_names_are_not_guessed() -> None:
    plan = quantize_rs.open(judge.model("two_inputs")).plan(activations="uint8")
    with pytest.raises(
        CalibrationError, match=r"the model has 2 inputs, .*: which is the array for"
    ):
        plan.calibrate([(GOOD, GOOD)])


class Tensor:
    """As much of a torch tensor as matters."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values


class DataLoader:
    """As torch's: batches of images and labels, as often as one iterates, the last one short."""

    def __init__(self, images: Array, batch_size: int) -> None:
        self.images, self.batch_size = images, batch_size

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        for start in range(0, len(self.images), self.batch_size):
            images = self.images[start : start + self.batch_size]
            yield [Tensor(images), Tensor(np.zeros(len(images), np.int64))]


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_a_data_loader_of_images_and_labels(plan: Plan, batch_size: int) -> None:
    loader = DataLoader(GOOD, batch_size)
    for _ in range(2):
        found = plan.calibrate(loader)
        assert found == plan.calibrate(GOOD)
        assert found.samples == 4


class PhotoReader(CalibrationDataReader):  # type: ignore[misc]
    """As people write readers for onnxruntime's own tool."""

    def __init__(self, folder: Path, batch_size: int = 1, input_size: tuple[int, int] = (8, 6)):
        self.paths = sorted(folder.glob("*.png"))
        self.batch_size, self.input_size = batch_size, input_size
        self.index = 0

    def preprocess(self, path: Path) -> Array:
        height, width = self.input_size
        with Image.open(path) as image:
            small = resized(image.convert("RGB"), width, height, "bilinear")
        scaled: Array = np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)
        return scaled

    def get_next(self) -> dict[str, Array] | None:
        if self.index >= len(self.paths):
            return None
        paths = self.paths[self.index : self.index + self.batch_size]
        self.index += len(paths)
        return {"x": np.stack([self.preprocess(path) for path in paths])}

    def rewind(self) -> None:
        self.index = 0


def test_a_reader_of_onnxruntime_gives_what_the_folder_gives(plan: Plan, photos: Path) -> None:
    reader = PhotoReader(photos)
    expected = plan.calibrate(ImageFolder(photos))
    assert plan.calibrate(reader) == expected
    with pytest.raises(CalibrationError, match="no calibration samples"):
        plan.calibrate(reader)  # it is at its end
    reader.rewind()
    assert plan.calibrate(reader) == expected


def test_what_a_reader_or_a_generator_raises_comes_out_as_it_is(plan: Plan, photos: Path) -> None:
    class Failing(PhotoReader):
        def preprocess(self, path: Path) -> Array:
            if self.index > 3:
                raise OSError("the disk is on fire")
            return super().preprocess(path)

    with pytest.raises(OSError, match="the disk is on fire"):
        plan.calibrate(Failing(photos))

    def samples() -> Iterator[Array]:
        yield GOOD[:1]
        raise StopIteration  # a mistake that Python itself turns into an error

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        plan.calibrate(samples())

    def interrupted() -> Iterator[Array]:
        yield GOOD[:1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.calibrate(interrupted())


def test_feeds_are_read_when_they_are_asked_for(photos: Path) -> None:
    model: Model = quantize_rs.open(conv(["n", 3, 32, 32]))
    (photos / "01.png").write_bytes(b"")
    feeds = ImageFolder(photos).feeds(model)
    assert next(feeds).keys() == {"x"}
    with pytest.raises(CalibrationError, match=r"01\.png"):
        next(feeds)
    assert len(list(ImageFolder(photos).feeds(model, limit=1))) == 1


@pytest.mark.usefixtures("plan")
def test_the_command_makes_of_photos_what_python_makes_of_them(photos: Path) -> None:
    model = Path("model.onnx")
    onnx.save(conv(["n", 3, 32, 32]), str(model))
    folder = ImageFolder(photos, mean=MEAN, std=STD, channel_order="BGR", crop=36)
    expected = quantize_rs.quantize_with_calibration(model, None, folder).model
    options = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --channel-order bgr --crop 36"
    for data in (photos, photos / "*.png"):
        command = ["calibrate", str(model), "--data", str(data), "-o", "q.onnx", *options.split()]
        done = subprocess.run(
            [sys.executable, "-m", "quantize_rs", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert Path("q.onnx").read_bytes() == expected


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.tile(GOOD, (8, 1, 1, 1)), "of 32 samples only 4 differ"),
        (GOOD, "only 4 samples: the ranges of so few seldom hold for other data"),
        (np.tile(GOOD[:1], (40, 1, 1, 1)), "all 40 samples are the same"),
        (np.full((40, 3, 8, 6), 0.5), "all values of input `x` are the same in all samples"),
    ],
)
def test_samples_that_can_be_no_good_are_warned_of(
    plan: Plan, samples: Array, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan.calibrate(samples)
    assert message in caplog.text


def test_noise_in_place_of_images_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    noise = np.random.default_rng(0).random((40, 3, 32, 32), np.float32)
    plan.calibrate(noise)
    assert "input `x` looks like noise" in caplog.text
    caplog.clear()
    plan.calibrate(np.cumsum(noise, axis=-1))
    assert not caplog.text
