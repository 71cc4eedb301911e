"""A network in the shape of BERT-base, as torch exports it: 12 layers of 768, 12 heads, 436 MB.

The weights are seeded. Two channels are outliers in every layer, as they are in trained
transformers, and the scores are large enough for attention to look somewhere.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from graph import FLOAT, INT64, Graph

LAYERS, WIDTH, HEADS, INNER = 12, 768, 12, 3072
VOCABULARY, POSITIONS, SEQUENCE = 30522, 512, 128
OUTLIER_CHANNELS = (308, 381)
MASKED = float(np.finfo(np.float32).min)
"""Added to the score of a token that is masked."""


def bert_base(path: Path) -> None:
    """Embeddings, an attention mask, and the layers."""
    net = Network(np.random.default_rng(12))
    x = net.embedded("input_ids")
    mask = net.mask("attention_mask")
    for layer in range(LAYERS):
        x = net.layer(x, mask, f"layer{layer}", last=layer + 1 == LAYERS)
    net.graph.save(
        path,
        "bert_base",
        [(name, INT64, ["batch", SEQUENCE]) for name in ("input_ids", "attention_mask")],
        [("hidden", FLOAT, ["batch", SEQUENCE, WIDTH])],
    )


class Network:
    """The graph and where its weights come from."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.graph = Graph()
        self.rng = rng
        self.shapes = {
            "split": self.graph.constant("split", np.array([0, 0, HEADS, WIDTH // HEADS])),
            "joined": self.graph.constant("joined", np.array([0, 0, WIDTH])),
        }
        self.scalars = {
            name: self.graph.scalar(name, value)
            for name, value in {
                "one": 1.0,
                "half": 0.5,
                "masked": MASKED,
                "root of two": math.sqrt(2),
                "root of head": math.sqrt(WIDTH / HEADS),
            }.items()
        }

    def normal(self, *shape: int, size: float) -> np.ndarray:
        """Normal values of mean 0."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(size)
        return values

    def embedded(self, ids: str) -> str:
        """Words, positions and the one kind of token, normalized."""
        words = self.graph.constant("words", self.normal(VOCABULARY, WIDTH, size=0.04))
        positions = self.graph.constant("positions", self.normal(POSITIONS, WIDTH, size=0.02))
        kinds = self.graph.constant("kinds", self.normal(2, WIDTH, size=0.02))
        places = self.graph.constant("places", np.arange(SEQUENCE)[None])
        nothing = self.graph.constant("kind of each", np.zeros((1, SEQUENCE), np.int64))
        word = self.graph.node("Gather", [words, ids], "word")
        place = self.graph.node("Gather", [positions, places], "place")
        kind = self.graph.node("Gather", [kinds, nothing], "kind")
        x = self.graph.node("Add", [word, kind], "word and kind")
        x = self.graph.node("Add", [x, place], "word, kind and place")
        return self.normalized(x, "embedded")

    def mask(self, given: str) -> str:
        """0 for tokens and the smallest float for padding, to be added to the scores."""
        axes = self.graph.constant("heads and queries", np.array([1, 2]))
        x = self.graph.node("Unsqueeze", [given, axes], "mask.spread")
        x = self.graph.node("Cast", [x], "mask.float", to=FLOAT)
        x = self.graph.node("Sub", [self.scalars["one"], x], "mask.padding")
        return self.graph.node("Mul", [x, self.scalars["masked"]], "mask")

    def layer(self, x: str, mask: str, name: str, *, last: bool) -> str:
        """Attention and two linear steps with Gelu between them, each beside a shortcut."""
        y = self.attention(x, mask, f"{name}.attention")
        x = self.normalized(self.graph.node("Add", [y, x], f"{name}.add1"), f"{name}.norm1")
        y = self.linear(x, f"{name}.inner", (WIDTH, INNER), size=0.04)
        y = self.gelu(y, f"{name}.gelu")
        y = self.linear(y, f"{name}.outer", (INNER, WIDTH), size=0.03, outliers=6.0)
        y = self.graph.node("Add", [y, x], f"{name}.add2")
        return self.normalized(y, "hidden" if last else f"{name}.norm2")

    def attention(self, x: str, mask: str, name: str) -> str:
        """Scaled dot products of queries and keys choose among the values."""
        q, k, v = (
            self.heads(self.linear(x, f"{name}.{part}", (WIDTH, WIDTH), size=size), order)
            for part, size, order in (
                ("query", 0.05, [0, 2, 1, 3]),
                ("key", 0.05, [0, 2, 3, 1]),
                ("value", 0.03, [0, 2, 1, 3]),
            )
        )
        x = self.graph.node("MatMul", [q, k], f"{name}.products")
        x = self.graph.node("Div", [x, self.scalars["root of head"]], f"{name}.scores")
        x = self.graph.node("Add", [x, mask], f"{name}.masked")
        x = self.graph.node("Softmax", [x], f"{name}.shares", axis=-1)
        x = self.graph.node("MatMul", [x, v], f"{name}.chosen")
        x = self.graph.node("Transpose", [x], f"{name}.back", perm=[0, 2, 1, 3])
        x = self.graph.node("Reshape", [x, self.shapes["joined"]], f"{name}.joined")
        return self.linear(x, f"{name}.output", (WIDTH, WIDTH), size=0.03)

    def heads(self, x: str, order: list[int]) -> str:
        """The channels cut into heads, the heads before the tokens."""
        split = self.graph.node("Reshape", [x, self.shapes["split"]], f"{x}.split")
        return self.graph.node("Transpose", [split], f"{x}.heads", perm=order)

    def linear(
        self, x: str, name: str, widths: tuple[int, int], *, size: float, outliers: float = 1.0
    ) -> str:
        """MatMul and the Add of a bias, as torch writes a linear layer for more than two axes."""
        weight = self.normal(*widths, size=size)
        weight[:, OUTLIER_CHANNELS] *= np.float32(outliers)
        weight_name = self.graph.constant(f"{name}.weight", weight)
        bias = self.graph.constant(f"{name}.bias", self.normal(widths[1], size=0.1))
        return self.graph.node(
            "Add", [bias, self.graph.node("MatMul", [x, weight_name], f"{name}.product")], name
        )

    def gelu(self, x: str, name: str) -> str:
        """Gelu in the five nodes that opset 17 needs for it."""
        y = self.graph.node("Div", [x, self.scalars["root of two"]], f"{name}.div")
        y = self.graph.node("Erf", [y], f"{name}.erf")
        y = self.graph.node("Add", [y, self.scalars["one"]], f"{name}.plus")
        y = self.graph.node("Mul", [x, y], f"{name}.times")
        return self.graph.node("Mul", [y, self.scalars["half"]], name)

    def normalized(self, x: str, name: str) -> str:
        """LayerNormalization over the channels."""
        scale = 0.9 + self.normal(WIDTH, size=0.1)
        bias = self.normal(WIDTH, size=0.05)
        inputs = [
            x,
            self.graph.constant(f"{name}.scale", scale.astype(np.float32)),
            self.graph.constant(f"{name}.offset", bias),
        ]
        return self.graph.node("LayerNormalization", inputs, name, axis=-1, epsilon=1e-12)
