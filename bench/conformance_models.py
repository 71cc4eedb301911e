"""The models on which both packages are compared, each with its samples.

Four networks are built here, with seeded weights. The others are the example of this repository,
fixtures of its tests, and the folder of models that `--models` names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import models
import numpy as np
import samples
import wild_inputs
from graph import FLOAT, Graph

REPOSITORY = Path(__file__).resolve().parent.parent
DIGITS = REPOSITORY / "examples" / "digits"
FIXTURES = REPOSITORY / "tests" / "fixtures" / "models"

CALIBRATED, HELD_OUT = 16, 64
"""The most samples that a call is given, and that outputs are compared on."""

Feed = wild_inputs.Feed


@dataclass(frozen=True)
class Subject:
    """A model, the samples that calibration sees, and those that it does not."""

    model: Path
    calibration: list[Feed]
    held_out: list[Feed]


def normal(rng: np.random.Generator, *shape: int, size: float = 1.0) -> np.ndarray:
    """Normal values, whose channels differ in magnitude as those of trained weights do."""
    factors = rng.uniform(0.5, 2, shape[-1:] if len(shape) == 2 else (shape[0],))
    spread = factors if len(shape) == 2 else factors.reshape(-1, *[1] * (len(shape) - 1))
    return (rng.standard_normal(shape) * size * spread).astype(np.float32)


def convolutions(path: Path) -> None:
    """Convolutions with a shortcut, a depthwise one, two poolings and a classifier."""
    rng, graph = np.random.default_rng(1), Graph()

    def conv(x: str, name: str, kernel: tuple[int, ...], *, active: bool = True, **how: int) -> str:
        weight = normal(rng, *kernel, size=(2 / math.prod(kernel[1:])) ** 0.5)
        bias = (rng.standard_normal(kernel[0]) * 0.1).astype(np.float32)
        inputs = [x, graph.constant(f"{name}.weight", weight), graph.constant(f"{name}.bias", bias)]
        pad = kernel[-1] // 2
        x = graph.node("Conv", inputs, name, pads=[pad] * 4, **how)
        return graph.node("Relu", [x], f"{name}.relu") if active else x

    x = conv("x", "stem", (32, 3, 3, 3))
    y = conv(x, "first", (32, 32, 3, 3))
    y = conv(y, "second", (32, 32, 3, 3), active=False)
    x = graph.node("Relu", [graph.node("Add", [x, y], "sum")], "sum.relu")
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = conv(x, "depthwise", (32, 1, 3, 3), group=32)
    x = conv(x, "pointwise", (64, 32, 1, 1))
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x], "mean")], "flat")
    head = graph.constant("head.weight", normal(rng, 64, 10, size=0.2))
    graph.node("Gemm", [x, head, graph.constant("head.bias", np.zeros(10, np.float32))], "y")
    graph.save(path, "g", [("x", FLOAT, ["batch", 3, 16, 16])], [("y", FLOAT, ["batch", 10])])


def perceptron(path: Path) -> None:
    """Gemm, with its weight transposed and not, and Relu."""
    rng, graph = np.random.default_rng(2), Graph()
    x = "x"
    for layer, (rows, columns) in enumerate([(128, 256), (256, 128), (128, 16)]):
        weight, turned = normal(rng, rows, columns, size=(2 / rows) ** 0.5), layer == 1
        stored = np.ascontiguousarray(weight.T) if turned else weight
        bias = (rng.standard_normal(columns) * 0.1).astype(np.float32)
        constants = [graph.constant(f"w{layer}", stored), graph.constant(f"b{layer}", bias)]
        last = layer == 2
        x = graph.node("Gemm", [x, *constants], "y" if last else f"sum{layer}", transB=int(turned))
        x = x if last else graph.node("Relu", [x], f"relu{layer}")
    graph.save(path, "g", [("x", FLOAT, ["batch", 128])], [("y", FLOAT, ["batch", 16])])


def encoder(path: Path) -> None:
    """A layer of attention and one of two products with Gelu between them."""
    rng, graph, width = np.random.default_rng(3), Graph(), 64

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        weight = graph.constant(f"{name}.weight", normal(rng, rows, columns, size=rows**-0.5))
        bias = (rng.standard_normal(columns) * 0.1).astype(np.float32)
        product = graph.node("MatMul", [x, weight], f"{name}.product")
        return graph.node("Add", [product, graph.constant(f"{name}.bias", bias)], name)

    def normalized(x: str, name: str) -> str:
        scale = graph.constant(f"{name}.scale", np.ones(width, np.float32))
        offset = graph.constant(f"{name}.offset", np.zeros(width, np.float32))
        return graph.node("LayerNormalization", [x, scale, offset], name, axis=-1)

    split = graph.constant("split", np.array([0, 0, 4, width // 4]))
    joined = graph.constant("joined", np.array([0, 0, width]))
    parts = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        x = graph.node("Reshape", [linear("x", part, width, width), split], f"{part}.split")
        parts[part] = graph.node("Transpose", [x], f"{part}.heads", perm=order)
    x = graph.node("MatMul", [parts["query"], parts["key"]], "products")
    x = graph.node("Mul", [x, graph.scalar("quarter", 0.25)], "scores")
    x = graph.node("MatMul", [graph.node("Softmax", [x], "shares"), parts["value"]], "chosen")
    x = graph.node("Transpose", [x], "back", perm=[0, 2, 1, 3])
    x = linear(graph.node("Reshape", [x, joined], "joined heads"), "output", width, width)
    x = normalized(graph.node("Add", [x, "x"], "sum"), "norm")
    y = linear(x, "inner", width, 4 * width)
    z = graph.node("Erf", [graph.node("Div", [y, graph.scalar("root", 2**0.5)], "div")], "erf")
    z = graph.node("Mul", [y, graph.node("Add", [z, graph.scalar("one", 1)], "plus")], "times")
    y = graph.node("Mul", [z, graph.scalar("half", 0.5)], "gelu")
    y = linear(y, "outer", 4 * width, width)
    graph.node("Add", [y, x], "y")
    shape = ["batch", 16, width]
    graph.save(path, "g", [("x", FLOAT, shape)], [("y", FLOAT, shape)])


def upsampler(path: Path) -> None:
    """A convolution, two transposed ones and Sigmoid."""
    rng, graph = np.random.default_rng(4), Graph()

    def constants(name: str, *shape: int, channels: int) -> list[str]:
        weight = (rng.standard_normal(shape) * 0.1).astype(np.float32)
        bias = (rng.standard_normal(channels) * 0.1).astype(np.float32)
        return [graph.constant(f"{name}.weight", weight), graph.constant(f"{name}.bias", bias)]

    x = graph.node("Conv", ["x", *constants("a", 32, 3, 3, 3, channels=32)], "a", pads=[1] * 4)
    x = graph.node("LeakyRelu", [x], "a.leaky", alpha=0.1)
    for name, inner, outer in (("b", 32, 16), ("c", 16, 3)):
        inputs = [x, *constants(name, inner, outer, 2, 2, channels=outer)]
        x = graph.node("ConvTranspose", inputs, name, strides=[2, 2])
    graph.node("Sigmoid", [x], "y")
    ends = [("x", FLOAT, ["batch", 3, 8, 8])], [("y", FLOAT, ["batch", 3, 32, 32])]
    graph.save(path, "g", *ends)


def built(build: Callable[[Path], None], cache: Path) -> Subject:
    """A network that is built here."""
    return made(models.kept(cache / "conformance" / f"{build.__name__}.onnx", build))


def fixture(name: str, _: Path) -> Subject:
    """A model of the tests."""
    return made(FIXTURES / f"{name}.onnx")


def made(model: Path) -> Subject:
    """A model with made samples; each part has its own seed."""
    inputs, rows, size = wild_inputs.described(model)
    feeds = partial(wild_inputs.feeds, inputs, rows, size)
    return Subject(model, list(feeds(CALIBRATED, 0)), list(feeds(HELD_OUT, 1)))


def digits(_: Path) -> Subject:
    """The example of this repository, with its images one by one."""
    source = samples.Digits({"path": DIGITS})
    return Subject(
        DIGITS / "digits_cnn.onnx",
        first(samples.batches(source.calibration(), 1), 4 * CALIBRATED),
        list(source.held_out(8 * HELD_OUT)),
    )


def trained(folder: Path, file: str, _: Path) -> Subject:
    """A model of a folder that has samples and metrics."""
    source = samples.Folder({"path": str(folder)})
    return Subject(folder / file, first(source.feeds(), CALIBRATED), list(source.held_out(16)))


def first(feeds: Iterable[Feed], count: int) -> list[Feed]:
    """The first samples."""
    return list(itertools.islice(feeds, count))


Open = Callable[[Path], Subject]

BUILT: dict[str, Open] = {
    build.__name__: partial(built, build)
    for build in (convolutions, perceptron, encoder, upsampler)
}

FIXED = (
    "avgpool_gap",
    "concat_branches",
    "conv1d",
    "conv_bn_relu",
    "conv_clip6",
    "conv_sigmoid",
    "fp16_model",
    "gather_embedding",
    "gemm_transa_alpha_beta",
    "gru",
    "if_subgraph",
    "lstm",
    "matmul_3d_weight",
    "opset11_conv_relu",
    "shared_bias_two_convs",
    "transformer_block",
    "weight_constant_node",
)
"""The fixtures that take part: what differs from the built networks in operators or structure."""


def subjects(folder: Path | None = None) -> dict[str, Open]:
    """All models by name, those of a folder last."""
    found: dict[str, Open] = {"digits": digits, **BUILT}
    found |= {name: partial(fixture, name) for name in FIXED}
    for path in sorted(folder.glob("*/model.onnx")) if folder else ():
        found[path.parent.name] = partial(trained, path.parent, path.name)
    return found
