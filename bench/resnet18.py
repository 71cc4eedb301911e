"""A network in the shape of ResNet-18, as torch exports it: 224², BatchNormalization folded, 47 MB.

The weights are seeded. He's initialization keeps the signal alive; what folding leaves in a trained
network is added: channels of unlike size, a few of them outliers, and biases.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graph import FLOAT, Graph

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels of each stage and the stride with which it begins; two blocks each."""

CLASSES = 1000
OUTLIER_SHARE = 0.02
OUTLIER_FACTOR = 4.0
BRANCH_GAIN = 0.5
"""What a block adds is smaller than what it adds to, or the signal would double in each."""


def resnet18(path: Path) -> None:
    """Twenty Conv with bias, Relu, Add, one MaxPool, GlobalAveragePool and Gemm."""
    net = Network(np.random.default_rng(18))
    x = net.conv("image", "stem", (3, 64), kernel=7, stride=2)
    x = net.relu(x)
    x = net.graph.node(
        "MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    channels = 64
    for stage, (wide, stride) in enumerate(STAGES, 1):
        x = net.block(x, f"layer{stage}.0", (channels, wide), stride)
        x = net.block(x, f"layer{stage}.1", (wide, wide), 1)
        channels = wide
    x = net.graph.node("GlobalAveragePool", [x], "average")
    x = net.graph.node("Flatten", [x], "flat", axis=1)
    net.head(x, channels)
    net.graph.save(
        path,
        "resnet18",
        [("image", FLOAT, ["batch", 3, 224, 224])],
        [("logits", FLOAT, ["batch", CLASSES])],
    )


class Network:
    """The graph and where its weights come from."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.graph = Graph()
        self.rng = rng

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal values."""
        return self.rng.standard_normal(shape, dtype=np.float32)

    def block(self, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
        """Two Conv of 3 × 3 beside a shortcut, which is a Conv of 1 × 1 where the shape changes."""
        inside, wide = channels
        y = self.relu(self.conv(x, f"{name}.conv1", channels, kernel=3, stride=stride))
        y = self.conv(y, f"{name}.conv2", (wide, wide), kernel=3, gain=BRANCH_GAIN)
        if inside != wide:
            x = self.conv(x, f"{name}.downsample", channels, kernel=1, stride=stride, gain=0.7)
        return self.relu(self.graph.node("Add", [y, x], f"{name}.add"))

    def conv(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        *,
        kernel: int,
        stride: int = 1,
        gain: float = 1.0,
    ) -> str:
        """A Conv that keeps the size, or halves it, with a bias."""
        inside, wide = channels
        size = gain * self.channel_sizes(wide) * np.sqrt(2 / (inside * kernel**2))
        weight = self.normal(wide, inside, kernel, kernel) * size[:, None, None, None]
        bias = self.normal(wide) * np.float32(0.2) - np.float32(0.1)
        inputs = [
            x,
            self.graph.constant(f"{name}.weight", weight.astype(np.float32)),
            self.graph.constant(f"{name}.bias", bias),
        ]
        return self.graph.node(
            "Conv",
            inputs,
            name,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
        )

    def channel_sizes(self, count: int) -> np.ndarray:
        """How large each output channel is: log-normal, a few of them outliers."""
        sizes: np.ndarray = np.exp(self.normal(count) * np.float32(0.3))
        sizes[self.rng.random(count) < OUTLIER_SHARE] *= np.float32(OUTLIER_FACTOR)
        return sizes

    def relu(self, x: str) -> str:
        """A Relu, called after what it follows."""
        return self.graph.node("Relu", [x], f"{x}.relu")

    def head(self, x: str, channels: int) -> None:
        """The Gemm that ends the network."""
        weight = self.normal(CLASSES, channels) / np.float32(np.sqrt(channels))
        bias = self.normal(CLASSES) * np.float32(0.1)
        inputs = [
            x,
            self.graph.constant("fc.weight", weight),
            self.graph.constant("fc.bias", bias),
        ]
        self.graph.node("Gemm", inputs, "logits", transB=1)
