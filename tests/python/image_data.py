"""Networks with image inputs, and images for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

Array = npt.NDArray[Any]

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "lanczos3": Image.Resampling.LANCZOS,
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Four images of 8 by 6 pixels.
GOOD = np.random.default_rng(0).random((4, 3, 8, 6), np.float32)


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


def sample_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Waves with some noise on them: smooth as images are, and not too smooth."""
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
