"""Images as samples: which files, and how pixels are converted to numbers."""

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
    """Images to calibrate with, and how to preprocess them.

    Each number is ``(pixel * scale - mean) / std``, where a pixel is 0 to 255. JPEG and PNG files
    are read in the order of their names, one at a time; no other package is needed. Images are
    rotated according to their EXIF data and resized as Pillow does it. The alpha channel is
    dropped. Of 16-bit channels the upper 8 bits are used. A model with one channel gets the luma of
    Pillow's ``convert("L")``; a grey image is repeated for three channels. A model whose first
    dimension is N gets N images at a time.

    Parameters
    ----------
    path : path
        A folder, without its subfolders; an image; or a pattern such as ``"images/*.jpg"`` or
        ``"images/**"``, which includes subfolders. Other files are ignored. Also WebDataset
        archives, ``"train-{000..009}.tar"``, whose images are read in their order.
    size : int or (int, int), optional
        Height and width; those of the model's input by default.
    mean, std : float or sequence of float
        One number, or one for each channel in the order of the model's input.
    scale : float
        The factor for pixels. Integer inputs get the unchanged pixels, unless `scale`, `mean` or
        `std` are given.
    layout : {"NCHW", "NHWC"}, optional
        The position of the channels; by default the axis of the model's input with 3 or 1 elements.
    channel_order : {"RGB", "BGR"}
        The order of three channels.
    resize : {"bilinear", "bicubic", "nearest", "lanczos3"}
        The interpolation method.
    crop : int, optional
        Resize the shorter side to this length, then crop `size` from the center, as is usual for
        ImageNet; by default the whole image is resized and its aspect ratio may change.
    limit : int, optional
        Use only the first N images.

    Raises
    ------
    OptionError
        An option is unknown or out of range.

    Examples
    --------
    >>> import quantize_rs
    >>> images = quantize_rs.ImageFolder(
    ...     "images", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=256
    ... )
    >>> images.channel_order
    'RGB'

    Pass it wherever samples are accepted: ``plan.calibrate(images)``.
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
        """Iterate over the feeds of the model: for each sample a dict of arrays by input name.

        Parameters
        ----------
        model : Model, path, bytes or onnx.ModelProto
            Its input determines size, layout and type.
        limit : int, optional
            Use only the first N samples.

        Returns
        -------
        iterator of dict of str to numpy.ndarray
            Images are read lazily.

        Raises
        ------
        CalibrationError
            There are no images, an image is corrupt, or the options do not match the model's input.
        FileNotFoundError, PermissionError, OSError
            The folder cannot be read.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> model = quantize_rs.open(digits.model)
        >>> feeds = quantize_rs.ImageFolder("images").feeds(model)
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'images'
        """
        from .samples import sample_source  # which imports this module

        opened = core_model(model)
        most = check.optional_count("limit", limit, least=1)
        source = sample_source(self, "images", opened)
        return map(as_feed, source.feeds(opened, most))


def image_source(folder: ImageFolder) -> _core.Source:
    """Return the samples in a folder."""
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
