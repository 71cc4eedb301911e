"""Images in memory, as they are in archives: the bytes of a JPEG or PNG file."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import CalibrationError, MissingPackageError
from .arrays import Array
from .images import ImageFolder, image_source
from .model_inputs import ModelInputs

# Of the formats that Pillow knows, those that the extension module reads too.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class Encoded:
    """An image, where it was found, and how its pixels become numbers."""

    data: bytes
    suffix: str
    place: str
    options: ImageFolder


def encoded_images(images: Sequence[Encoded], inputs: ModelInputs) -> list[Array]:
    """Return what the model gets for images, bit for bit as from a folder with the same files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            Path(folder, f"{number:06}{one.suffix.lower()}") for number, one in enumerate(images)
        ]
        for path, image in zip(paths, images, strict=True):
            path.write_bytes(image.data)
        source = image_source(dataclasses.replace(images[0].options, path=folder, limit=None))
        try:
            return next(source.feeds(inputs.model, None))
        except CalibrationError as error:
            what = str(error)
            for path, image in zip(paths, images, strict=True):
                what = what.replace(str(path), image.place)
            what = what.replace(folder, images[0].place)
            raise CalibrationError(what, value=images[0].place, category=error.category) from None


def pixels(data: bytes | Path, place: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image, upright: height, width, and red, green and blue."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        what = "images are decoded for transform by Pillow: pip install pillow"
        raise MissingPackageError(what, name="pillow") from error
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
            upright = ImageOps.exif_transpose(image)
            return np.asarray(upright.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        what = f"the image cannot be decoded: {error}; remove it or save it again ({place})"
        raise CalibrationError(what, value=place, category="data") from error
