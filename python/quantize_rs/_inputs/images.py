"""Photos as samples: which files, and how their pixels become numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

import numpy.typing as npt

from .. import _core
from .._options import check
from ..errors import OptionError
from .arrays import as_feed
from .model_source import ModelSource, OpenedModel, core_model

__all__ = ["ImageFolder"]


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Photos to calibrate with, and how their pixels become what the model is fed with.

    Each number is ``(pixel * scale - mean) / std``, where a pixel is 0 to 255. JPEG and PNG files
    are read in the order of their names, one at a time, without the help of another package. They
    are resized as Pillow does it, and stand upright as their EXIF data says. Transparency is left
    out, and of 16 bits a channel the upper 8 count. A model with one channel gets the luma that
    Pillow's ``convert("L")`` gives, a grey image gives three equal channels. A model whose first
    dimension is N gets N images at a time.

    Parameters
    ----------
    path : path
        A folder, without the folders in it; an image; or a pattern such as ``"photos/*.jpg"`` or
        ``"photos/**"``, which takes the folders in it too. Other files are left aside.
    size : int or (int, int), optional
        Height and width; those of the model's input by default.
    mean, std : float or sequence of float
        One number, or one for each channel in the order that the model gets them.
    scale : float
        What pixels are multiplied by. Integer inputs get the pixels as they are, unless `scale`,
        `mean` or `std` are given.
    layout : {"NCHW", "NHWC"}, optional
        Where the channels are; by default where the model's input has 3 or 1 of them.
    channel_order : {"RGB", "BGR"}
        The order of three channels.
    resize : {"bilinear", "bicubic", "nearest", "lanczos3"}
        How images are brought to their size.
    crop : int, optional
        Resize the shorter side to this length, then cut `size` out of the centre, as is usual for
        ImageNet; by default the whole image is resized, whatever its proportions.
    limit : int, optional
        Take the first so many images only.

    Raises
    ------
    OptionError
        An option is unknown or out of range.

    Examples
    --------
    >>> import quantize_rs
    >>> photos = quantize_rs.ImageFolder(
    ...     "photos", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=256
    ... )
    >>> photos.channel_order
    'RGB'

    It stands wherever samples do: ``plan.calibrate(photos)``.
    """

    path: str | os.PathLike[str]
    size: SupportsIndex | Iterable[SupportsIndex] | None = None
    mean: SupportsFloat | Iterable[SupportsFloat] = (0.0, 0.0, 0.0)
    std: SupportsFloat | Iterable[SupportsFloat] = (1.0, 1.0, 1.0)
    scale: float = 1 / 255
    layout: str | None = None
    channel_order: str = "RGB"
    resize: str = "bilinear"
    crop: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        plain = {
            "size": _size(self.size),
            "mean": _numbers("mean", self.mean),
            "std": _numbers("std", self.std),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        image_source(self)

    def feeds(
        self, model: OpenedModel | ModelSource, *, limit: int | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Give what the model is fed with: a dict of arrays by input name for each sample.

        Parameters
        ----------
        model : Model, path, bytes or onnx.ModelProto
            Its input says size, layout and type.
        limit : int, optional
            Take the first so many samples only.

        Returns
        -------
        iterator of dict of str to numpy.ndarray
            Images are read when they are asked for.

        Raises
        ------
        CalibrationError
            There are no images, one is broken, or the model's input and the options do not go
            together.
        FileNotFoundError, PermissionError, OSError
            The folder cannot be read.

        Examples
        --------
        >>> import quantize_rs
        >>> model = quantize_rs.open("examples/digits/digits_cnn.onnx")
        >>> feeds = quantize_rs.ImageFolder("photos").feeds(model)
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'photos'
        """
        opened = core_model(model)
        most = check.optional_count("limit", limit, least=1)
        return map(as_feed, image_source(self).feeds(opened, most))


def image_source(folder: ImageFolder) -> _core.Source:
    """Give the samples in a folder."""
    return _core.Source.images(
        folder.path,
        size=_size(folder.size),
        mean=_numbers("mean", folder.mean),
        std=_numbers("std", folder.std),
        scale=float(folder.scale),
        layout=folder.layout,
        channel_order=folder.channel_order,
        resize=folder.resize,
        crop=check.optional_count("crop", folder.crop, least=1),
        limit=check.optional_count("limit", folder.limit, least=1),
    )


def _size(size: SupportsIndex | Iterable[SupportsIndex] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, Iterable):
        lengths = check.shape("size", size) or []
    else:
        lengths = [check.count("size", size)] * 2
    if len(lengths) != 2:
        what = f"size has {len(lengths)} numbers, expected one, or height and width"
        raise OptionError(what, option="size")
    height, width = lengths
    return height, width


def _numbers(option: str, numbers: SupportsFloat | Iterable[SupportsFloat]) -> tuple[float, ...]:
    if isinstance(numbers, str):
        raise OptionError(f"{option} is a text, expected numbers", option=option)
    if isinstance(numbers, Iterable):
        return tuple(float(number) for number in numbers)
    return (float(numbers),)
