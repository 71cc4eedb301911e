"""The example that the package ships: its files, its size, and that it works."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np
import pytest

import quantize_rs

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(quantize_rs.__file__).resolve().parent


@pytest.mark.parametrize("field", quantize_rs.examples.Digits._fields)
def test_a_path_of_the_example_is_a_file_of_the_package(field: str) -> None:
    path = getattr(quantize_rs.examples.digits(), field)
    assert isinstance(path, Path)
    assert path.is_file()
    assert path.is_relative_to(PACKAGE)
    resource = importlib.resources.files("quantize_rs.examples") / "data" / path.name
    assert resource.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("field", quantize_rs.examples.Digits._fields)
def test_the_package_has_the_files_of_the_repository(field: str) -> None:
    path = getattr(quantize_rs.examples.digits(), field)
    assert path.read_bytes() == (ROOT / "examples" / "digits" / path.name).read_bytes()


def test_the_files_take_at_most_400_kilobytes() -> None:
    files = [path for path in (PACKAGE / "examples" / "data").rglob("*") if path.is_file()]
    assert len(files) == len(quantize_rs.examples.Digits._fields)
    assert sum(path.stat().st_size for path in files) <= 400_000


def test_the_files_are_what_the_docstrings_say() -> None:
    digits = quantize_rs.examples.digits()
    info = quantize_rs.model_info(digits.model)
    (image,), (logits,) = info.input_specs, info.output_specs
    assert (image.name, image.dtype, image.shape) == ("image", "float32", (None, 1, 8, 8))
    assert (logits.name, logits.dtype, logits.shape) == ("logits", "float32", (None, 10))
    assert info.opset_version == 17
    samples = np.load(digits.calibration)
    assert (samples.dtype, samples.shape) == (np.float32, (200, 1, 8, 8))
    test = np.load(digits.test)
    assert (test["images"].dtype, test["images"].shape) == (np.float32, (397, 1, 8, 8))
    assert (test["labels"].dtype, test["labels"].shape) == (np.int64, (397,))
    images = np.concatenate([samples, test["images"]])
    assert images.min() == 0
    assert images.max() == 1


def test_calibration_and_test_images_do_not_overlap() -> None:
    digits = quantize_rs.examples.digits()
    samples, test = np.load(digits.calibration), np.load(digits.test)["images"]
    assert not {image.tobytes() for image in samples} & {image.tobytes() for image in test}


def test_quantizing_the_example_keeps_its_accuracy(tmp_path: Path) -> None:
    digits = quantize_rs.examples.digits()
    before = digits.model.read_bytes()
    output = tmp_path / "digits.int8.onnx"
    report = quantize_rs.quantize_with_calibration(
        digits.model, output, digits.calibration, per_channel=True, symmetric=True
    )
    assert report.ratio > 3
    test = np.load(digits.test)
    found = quantize_rs.compare(
        digits.model, output, test["images"], test["labels"], latency=False, engine="tract"
    )
    assert found.accuracy is not None
    assert found.accuracy.original > 0.99
    assert found.accuracy.drop < 0.01
    assert digits.model.read_bytes() == before
