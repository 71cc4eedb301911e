"""Samples in archives, as WebDataset has them."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_data import GOOD, conv, sample_image
from token_models import as_arrays, sentences, token_model

import quantize_rs
from quantize_rs import CalibrationError, ImageFolder, Plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return quantize_rs.open(conv(["n", 3, 8, 6])).plan(activations="uint8")


def calibrated(plan: Plan, samples: Any, **options: Any) -> quantize_rs.Ranges:
    return plan.calibrate(samples, method="moving_average", engine="tract", **options)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(path: str, files: Iterable[tuple[str, bytes]], mode: str = "w") -> str:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def arrays() -> list[tuple[str, bytes]]:
    found = []
    for number, image in enumerate(GOOD):
        found += [(f"train/{number:04}.npy", npy(image)), (f"train/{number:04}.cls", b"7")]
    return found


@pytest.mark.parametrize(
    ("name", "mode"), [("s.tar", "w"), ("s.tar.gz", "w:gz"), ("s.tgz", "w:gz")]
)
def test_arrays_of_the_only_input(plan: Plan, name: str, mode: str) -> None:
    found = calibrated(plan, packed(name, arrays(), mode))
    assert found.samples == 4
    assert found == calibrated(plan, GOOD)


@pytest.mark.parametrize("form", ["braces", "pattern", "list", "folder"])
def test_several_archives_are_read_in_order(plan: Plan, form: str) -> None:
    Path("many").mkdir()
    for number in range(3):
        images = [(f"{number}{i}.x.npy", npy(image * (number + 1))) for i, image in enumerate(GOOD)]
        packed(f"many/s-{number:03}.tar", images)
    forms: dict[str, Any] = {
        "braces": "many/s-{000..002}.tar",
        "pattern": "many/*.tar",
        "list": ["many/s-000.tar", Path("many/s-{001,002}.tar")],
        "folder": Path("many"),
    }
    expected = np.concatenate([GOOD, GOOD * 2, GOOD * 3])
    assert calibrated(plan, forms[form]) == calibrated(plan, expected)
    assert calibrated(plan, forms[form], limit=5) == calibrated(plan, expected[:5])


@pytest.mark.parametrize("form", ["npy", "json", "one json"])
@pytest.mark.usefixtures("plan")
def test_several_inputs(form: str) -> None:
    plan = quantize_rs.open(token_model()).plan(activations="uint8")
    samples = sentences(9)
    files: list[tuple[str, bytes]] = []
    for number, sample in enumerate(samples):
        if form == "one json":
            files.append((f"{number}.json", json.dumps({**sample, "caption": "a"}).encode()))
        for name, ids in sample.items():
            if form == "npy":
                files.append((f"{number}.{name}.npy", npy(np.array(ids))))
            elif form == "json":
                files.append((f"{number}.{name}.json", json.dumps(ids).encode()))
    assert calibrated(plan, packed("s.tar", files)) == calibrated(plan, as_arrays(samples))


def images(count: int, *endings: str) -> list[tuple[str, bytes]]:
    found = []
    for number in range(count):
        file = io.BytesIO()
        ending = (endings or ("jpg", "png"))[number % (len(endings) or 2)]
        image = sample_image(20 + number, 31 - number, number)
        image.save(file, "PNG" if ending == "png" else "JPEG")
        found += [(f"{number:03}.{ending}", file.getvalue()), (f"{number:03}.json", b'{"w": 3}')]
    return found


@pytest.mark.parametrize("batch", ["n", 4])
def test_images_are_as_those_of_a_folder(plan: Plan, batch: str | int) -> None:
    plan = quantize_rs.open(conv([batch, 3, 8, 6])).plan(activations="uint8")
    path = packed("s.tar", images(12))
    Path("same").mkdir()
    for name, data in images(12):
        (Path("same") / name).write_bytes(data)
    assert calibrated(plan, path) == calibrated(plan, "same")
    options: dict[str, Any] = {"mean": 0.5, "std": (0.2, 0.3, 0.4), "crop": 10, "limit": 8}
    found = calibrated(plan, ImageFolder(path, **options))
    assert found.samples == (8 if batch == "n" else 2)
    assert found == calibrated(plan, ImageFolder("same", **options))


@pytest.mark.usefixtures("plan")
def test_feeds_of_an_archive() -> None:
    model = conv(["n", 3, 8, 6])
    path = packed("s.tar", images(3))
    feeds = list(ImageFolder(path).feeds(model, limit=2))
    Path("same").mkdir()
    for name, data in images(3):
        (Path("same") / name).write_bytes(data)
    expected = ImageFolder("same").feeds(model, limit=2)
    for found, wanted in zip(feeds, expected, strict=True):
        assert np.array_equal(found["x"], wanted["x"])


def test_pickles_are_not_opened(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path("sprung").touch, ())

    bad = pickle.dumps(Trap())
    objects = io.BytesIO()
    np.save(objects, np.array([Trap()]), allow_pickle=True)
    files = [
        item
        for number, image in enumerate(GOOD)
        for item in [
            (f"{number}.npy", npy(image)),
            *((f"{number}.{ending}", bad) for ending in ("pyd", "pkl", "pickle", "pth")),
        ]
    ]
    assert calibrated(plan, packed("s.tar", files)) == calibrated(plan, GOOD)
    assert "ignoring `pyd`, `pkl`, `pickle`, `pth`, which match no input" in caplog.text
    with pytest.raises(CalibrationError, match=r"s\.tar, 0\.npy cannot be read as \.npy"):
        calibrated(plan, packed("s.tar", [("0.npy", objects.getvalue())]))
    with pytest.raises(CalibrationError, match=r"no array for input `x`; .*: `pyd`"):
        calibrated(plan, packed("s.tar", [("0.pyd", bad)]))
    assert not Path("sprung").exists()


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_an_archive_that_was_cut_off_is_named(plan: Plan, kept: float, ending: str) -> None:
    path = Path(packed(f"s.{ending}", arrays(), "w" if ending == "tar" else "w:gz"))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(
        CalibrationError, match=rf"s\.{ending} is not a complete archive: .*copy or"
    ):
        calibrated(plan, path)


def test_an_archive_that_ends_between_two_files_is_refused(plan: Plan) -> None:
    path = Path(packed("s.tar", arrays()))
    with tarfile.open(path) as archive:
        end = archive.getmembers()[4].offset
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(CalibrationError, match="it has no end of an archive"):
        calibrated(plan, path)


@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz"])
def test_no_sample_of_a_damaged_archive_is_lost(plan: Plan, name: str) -> None:
    mode = "w" if name == "s.tar" else "w:gz"
    whole = Path(packed(name, arrays(), mode)).read_bytes()
    # Zeros after the two blocks that end an archive mean nothing.
    end = len(whole)
    if mode == "w":
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            end = archive.getmembers()[-1].offset_data + 512 + 1024
    cuts = range(0, end, max(1, end // 60))
    for cut in cuts:
        Path(name).write_bytes(whole[:cut])
        with pytest.raises(CalibrationError):
            calibrated(plan, name)
    Path(name).write_bytes(whole + whole)
    if mode == "w":
        with pytest.raises(CalibrationError, match="there is more after its end"):
            calibrated(plan, name)
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            headers = [member.offset for member in archive.getmembers()]
        for header in headers:
            damaged = bytearray(whole)
            damaged[header + 3] ^= 1
            Path(name).write_bytes(damaged)
            with pytest.raises(CalibrationError, match="is not a complete archive"):
                calibrated(plan, name)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_links_in_an_archive_are_refused(plan: Plan, kind: bytes) -> None:
    packed("s.tar", arrays())
    with tarfile.open("s.tar", "a") as archive:
        link = tarfile.TarInfo("train/9999.npy")
        link.type, link.linkname = kind, "train/0000.npy"
        archive.addfile(link)
    with pytest.raises(CalibrationError, match=r"train/9999\.npy is a link or a device"):
        calibrated(plan, "s.tar")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"no calibration samples: there are none in s\.tar"),
        ([("0.cls", b"3")], r"no array for input `x`; .*: `cls` .*s\.tar, sample 0\)"),
        ([("0.npy", b"x")], r"s\.tar, 0\.npy cannot be read as \.npy"),
        ([("0.json", b"{")], r"s\.tar, 0\.json cannot be read as \.json"),
        ([("0.jpg", b"x")], r"s\.tar, 0\.jpg"),
        ([("0.npy", npy(GOOD[0])), ("0.png", b"x")], "two files hold the only input: name them"),
        ([("a/0.npy", npy(GOOD[0, 0]))], r"`x` has shape .*\(s\.tar, sample a/0\)"),
    ],
)
def test_what_is_wrong_in_an_archive_is_said_with_its_place(
    plan: Plan, files: list[tuple[str, bytes]], message: str
) -> None:
    with pytest.raises(CalibrationError, match=message) as caught:
        calibrated(plan, packed("s.tar", files))
    assert "/tmp" not in str(caught.value).replace(str(Path.cwd()), "")


def test_folders_and_hidden_files_are_skipped(plan: Plan) -> None:
    packed("s.tar", [*arrays(), (".hidden.npy", b"x")])
    with tarfile.open("s.tar", "a") as archive:
        folder = tarfile.TarInfo("more")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert calibrated(plan, "s.tar") == calibrated(plan, GOOD)
