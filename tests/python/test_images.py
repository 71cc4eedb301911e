"""Images as samples: they are read, turned and resized as Pillow does it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import oracle
import pytest
from image_data import FILTERS, GOOD, MEAN, STD, Array, conv, resized, sample_image
from onnx import TensorProto
from PIL import Image, ImageOps

import quantize_rs
from quantize_rs import CalibrationError, ImageFolder, Model, OptionError


def fed(folder: ImageFolder, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> list[Array]:
    """The samples of a model with such an input."""
    model = quantize_rs.open(conv(shape, dtype))
    return [feed["x"] for feed in folder.feeds(model)]


def pixels(path: Path, **options: Any) -> Array:
    """An image in its own size as the numbers 0 to 255."""
    with Image.open(path) as image:
        width, height = ImageOps.exif_transpose(image).size
    folder = ImageFolder(path, size=(height, width), scale=1, **options)
    (found,) = fed(folder, [1, "h", "w", 3])
    return np.asarray(found[0])


@pytest.mark.parametrize("resize", FILTERS)
@pytest.mark.parametrize("noise", [False, True])
def test_images_are_resized_as_pillow_does_it(tmp_path: Path, resize: str, noise: bool) -> None:
    path = tmp_path / "a.png"
    rng = np.random.default_rng(1)
    for width, height in [(64, 48), (37, 91), (320, 200), (20, 15), (1, 9)]:
        image = sample_image(width, height)
        if noise:
            image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        image.save(path)
        for size in [(48, 64), (224, 224), (32, 32), (7, 300), (height, 11), (11, width)]:
            folder = ImageFolder(path, size=size, scale=1, resize=resize)
            (found,) = fed(folder, [1, "h", "w", 3])
            expected = resized(image, size[1], size[0], resize)
            np.testing.assert_array_equal(found[0], expected)
            at_once = np.asarray(image.resize(size[::-1], FILTERS[resize]))
            if resize == "bilinear":  # version 13 may resize and round columns first
                assert np.abs(found[0] - at_once).max() <= 1


def test_the_recipe_of_imagenet(image_folder: Path) -> None:
    folder = ImageFolder(image_folder, mean=MEAN, std=STD, crop=36)
    found = fed(folder, ["n", 3, 32, 32])
    assert len(found) == 40
    for number, array in enumerate(found):
        image = sample_image(40 + number, 60 - number, number)
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
    image = sample_image(64, 48)
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


def test_layout_and_size_are_those_of_the_model_or_what_is_asked_for(image_folder: Path) -> None:
    assert fed(ImageFolder(image_folder), ["n", 3, 20, 30])[0].shape == (1, 3, 20, 30)
    assert fed(ImageFolder(image_folder), ["n", 20, 30, 1])[0].shape == (1, 20, 30, 1)
    assert fed(ImageFolder(image_folder, size=8), [4, 3, "h", "w"])[9].shape == (4, 3, 8, 8)
    assert fed(ImageFolder(image_folder, (8, 9), layout="nchw"), [1, 3, "h", "w"])[0].shape[2:] == (
        8,
        9,
    )
    with pytest.raises(CalibrationError, match=r"float32 \[1, 3, \?, \?\]: .* give ImageFolder"):
        fed(ImageFolder(image_folder), [1, 3, "h", "w"])
    with pytest.raises(CalibrationError, match=r"images of size \[8, 9\] do not fit"):
        fed(ImageFolder(image_folder, size=(8, 9)), [1, 3, 9, "w"])
    with pytest.raises(CalibrationError, match="a crop of 8 is too small"):
        fed(ImageFolder(image_folder, crop=8), [1, 3, 9, 7])
    with pytest.raises(
        CalibrationError, match="takes 3 images at a time, there are 40: 1 are left"
    ):
        fed(ImageFolder(image_folder), [3, 3, 9, 7])
    assert len(fed(ImageFolder(image_folder, limit=39), [3, 3, 9, 7])) == 13


def test_integers_get_the_pixels(tmp_path: Path) -> None:
    image = sample_image(64, 48)
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
    sample_image(*size).save(path, **options)
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
        sample_image(64, 48).convert(mode).save(path)
        with Image.open(path) as image:
            assert image.mode == mode
            assert np.abs(pixels(path) - np.asarray(image.convert("RGB"))).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_images_stand_upright(tmp_path: Path, orientation: int, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    sample_image(64, 48).save(path, exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image)).astype(np.float32)
    assert np.abs(pixels(path) - expected).max() <= (0 if extension == "png" else 6)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_what_pillow_converts_it_to(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    image = sample_image(64, 48).convert(mode)
    if mode.endswith("A"):
        image.putalpha(sample_image(64, 48, 1).convert("L"))
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


def test_images_calibrate_as_the_array_that_they_become(image_folder: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    arrays = np.concatenate(fed(ImageFolder(image_folder), ["n", 3, 32, 32]))
    assert arrays.shape == (40, 3, 32, 32)
    expected = plan.calibrate(arrays)
    for samples in (
        image_folder,
        str(image_folder),
        image_folder / "*.png",
        f"{image_folder}/**",
        ImageFolder(image_folder),
        [array[None] for array in arrays],
    ):
        assert plan.calibrate(samples) == expected
    assert plan.calibrate(ImageFolder(image_folder, limit=7)) == plan.calibrate(arrays[:7])
    assert plan.calibrate(ImageFolder(image_folder, limit=7), limit=5).samples == 5
    report = quantize_rs.quantize_with_calibration(conv(["n", 3, 32, 32]), None, image_folder)
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
        ImageFolder("images", **options)
    assert caught.value.option == option
    assert str(caught.value).startswith(option)


def test_a_folder_is_a_value() -> None:
    folder = ImageFolder("images", 224, [0.5], 0.5)
    assert folder == ImageFolder("images", size=(224, 224), mean=0.5, std=(0.5,))
    assert len({folder, ImageFolder("images", (224, 224), 0.5, 0.5)}) == 1
    assert repr(folder).startswith("ImageFolder(path='images', size=(224, 224), mean=(0.5,)")
    with pytest.raises(AttributeError):
        folder.crop = 3  # type: ignore[misc]


def test_a_broken_image_is_named(image_folder: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    broken = image_folder / "07.png"
    broken.write_bytes(broken.read_bytes()[:500])
    with pytest.raises(CalibrationError, match=r"cannot decode the PNG image.*07\.png") as caught:
        plan.calibrate(image_folder)
    assert caught.value.sample == 7
    assert caught.value.value == str(broken)
    broken.unlink()
    (image_folder / "labels.csv").write_text("no image")
    assert plan.calibrate(image_folder).samples == 39


def test_where_there_are_no_images(image_folder: Path) -> None:
    plan = quantize_rs.open(conv(["n", 3, 32, 32])).plan(activations="uint8")
    with pytest.raises(FileNotFoundError):
        plan.calibrate(ImageFolder("nowhere"))
    with pytest.raises(CalibrationError, match=r"there is no \.jpg, \.jpeg, \.png \(`.*webp`\)"):
        plan.calibrate(f"{image_folder}/*.webp")
    with pytest.raises(CalibrationError, match=r"has folders and no images, `.*\*\*` includes all"):
        plan.calibrate(image_folder.parent)
    with pytest.raises(CalibrationError, match="the model has 2"):
        quantize_rs.open(oracle.model("two_inputs")).plan(activations="uint8").calibrate(
            image_folder
        )


def test_feeds_are_read_when_they_are_asked_for(image_folder: Path) -> None:
    model: Model = quantize_rs.open(conv(["n", 3, 32, 32]))
    (image_folder / "01.png").write_bytes(b"")
    feeds = ImageFolder(image_folder).feeds(model)
    assert next(feeds).keys() == {"x"}
    with pytest.raises(CalibrationError, match=r"01\.png"):
        next(feeds)
    assert len(list(ImageFolder(image_folder).feeds(model, limit=1))) == 1
    # The bytes of a model do as well.
    assert next(ImageFolder(image_folder).feeds(conv(["n", 3, 32, 32]))).keys() == {"x"}


def test_image_flags_apply_to_evaluation_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(conv(["n", 3, 8, 6]), "conv.onnx")
    np.save("data.npy", GOOD)
    Path("images").mkdir()
    for number in range(3):
        sample_image(12 + number, 9).save(f"images/{number}.png")
    command = ["calibrate", "conv.onnx", "--data", "data.npy", "-o", "q.onnx", "--format", "json"]

    def answer(*flags: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "quantize_rs", *command, *flags]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    verified = answer("--verify", "images", "--mean", "0.5", "--std", "0.25")
    assert verified.returncode == 0, verified.stderr
    found = json.loads(verified.stdout)["verified"]
    folder = quantize_rs.ImageFolder("images", mean=0.5, std=0.25)
    same = quantize_rs.quantize_with_calibration("conv.onnx", None, "data.npy", verify=folder)
    assert same.accuracy_control is not None
    assert (found["samples"], found["held_out"]) == (3, True)
    assert found["attempts"] == same.to_dict()["verified"]["attempts"]
    refused = answer("--verify", "data.npy", "--mean", "0.5")
    assert refused.returncode == 2
    assert "--mean is for images" in refused.stderr


def test_the_command_makes_of_images_what_python_makes_of_them(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path("model.onnx")
    onnx.save(conv(["n", 3, 32, 32]), str(model))
    folder = ImageFolder(image_folder, mean=MEAN, std=STD, channel_order="BGR", crop=36)
    # Tract measures no time, of which there might be a warning.
    expected = quantize_rs.quantize_with_calibration(
        model, None, folder, target="x86", engine="tract"
    ).model
    options = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --channel-order bgr --crop 36"
    options += " --target x86 --engine tract"
    for data in (image_folder, image_folder / "*.png"):
        command = ["calibrate", str(model), "--data", str(data), "-o", "q.onnx", *options.split()]
        done = subprocess.run(
            [sys.executable, "-m", "quantize_rs", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        # A model of 112 bytes cannot become smaller, which is a warning.
        said = [line for line in done.stderr.splitlines() if "is not smaller" not in line]
        assert (done.returncode, said) == (0, [])
        assert Path("q.onnx").read_bytes() == expected
