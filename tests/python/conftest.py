"""Places and models that the tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import half_models
import numpy as np
import pytest
from hypothesis import settings
from image_data import sample_image

# A test must not fail because the machine is busy.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Start the generator of a test's module anew: a test must not depend on the ones before it."""
    for module in (request.module, half_models):
        if isinstance(generator := getattr(module, "RNG", None), np.random.Generator):
            generator.bit_generator.state = np.random.default_rng(5).bit_generator.state


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples in an empty folder, which is the working directory."""
    folder = tmp_path / "repository"
    shutil.copytree(ROOT / "examples" / "digits", folder / "examples" / "digits")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def digits(repository: Path) -> Path:
    """The digits network, in a folder of its own with its data."""
    return repository / "examples" / "digits" / "digits_cnn.onnx"


@pytest.fixture
def images(digits: Path) -> Path:
    """Samples for the digits network."""
    return digits.with_name("calibration.npy")


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """A folder with 40 images of different sizes."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(40):
        sample_image(40 + number, 60 - number, number).save(folder / f"{number:02}.png")
    return folder
