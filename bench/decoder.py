"""A decoder in the shape of a language model of 1.8 billion parameters: 7.2 GB, beside the file.

16 layers of 3072, 24 heads of which 8 have keys and values, gated products of 8192, a vocabulary of
32,000. The weights are seeded. Positions are added, not rotated, which no weight depends on.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from graph import FLOAT, INT64, Graph

LAYERS, WIDTH, INNER, VOCABULARY, SEQUENCE = 16, 3072, 8192, 32000, 64
HEADS, KEY_HEADS, HEAD = 24, 8, 128


def decoder(path: Path) -> None:
    """Embeddings, layers, and the scores of the next token."""
    net = Network(Graph(path.with_suffix(".data")), np.random.default_rng(7))
    x = net.embedded("input_ids")
    for layer in range(LAYERS):
        x = net.layer(x, f"layer{layer}")
    net.product(net.normalized(x, "last"), WIDTH, VOCABULARY, "logits")
    net.graph.save(
        path,
        "decoder",
        [("input_ids", INT64, ["batch", SEQUENCE])],
        [("logits", FLOAT, ["batch", SEQUENCE, VOCABULARY])],
    )


class Network:
    """The graph and where its weights come from."""

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self.graph, self.rng = graph, rng
        self.root = graph.scalar("root of head", math.sqrt(HEAD))
        mask = np.triu(np.full((SEQUENCE, SEQUENCE), -1e4, np.float32), 1)
        self.mask = graph.constant("mask", mask)
        self.joined = graph.constant("joined", np.array([0, 0, WIDTH]))

    def normal(self, *shape: int, size: float) -> np.ndarray:
        """Normal values of mean 0."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(size)
        return values

    def product(self, x: str, depth: int, width: int, name: str) -> str:
        """Multiply by a weight that keeps the size of values."""
        weight = self.graph.constant(f"{name}.weight", self.normal(depth, width, size=depth**-0.5))
        return self.graph.node("MatMul", [x, weight], name)

    def normalized(self, x: str, name: str) -> str:
        """Normalize with a gain of 1."""
        gain = self.graph.constant(f"{name}.gain", np.ones(WIDTH, np.float32))
        return self.graph.node("LayerNormalization", [x, gain], f"{name}.norm")

    def embedded(self, ids: str) -> str:
        """Words and positions."""
        words = self.graph.constant("words", self.normal(VOCABULARY, WIDTH, size=0.5))
        places = self.graph.constant("places", self.normal(SEQUENCE, WIDTH, size=0.1))
        found = self.graph.node("Gather", [words, ids], "embedded")
        return self.graph.node("Add", [found, places], "placed")

    def heads(self, x: str, count: int, name: str) -> str:
        """Divide into heads, of which keys and values have fewer."""
        shape = self.graph.constant(f"{name}.shape", np.array([0, 0, count, HEAD]))
        split = self.graph.node("Reshape", [x, shape], f"{name}.split")
        split = self.graph.node("Transpose", [split], f"{name}.heads", perm=[0, 2, 1, 3])
        if count == HEADS:
            return split
        repeated = [split] * (HEADS // count)
        return self.graph.node("Concat", repeated, f"{name}.repeated", axis=1)

    def layer(self, x: str, name: str) -> str:
        """Attention and gated products, each beside what it adds to."""
        graph = self.graph
        own = self.normalized(x, f"{name}.attention")
        width = {"query": HEADS, "key": KEY_HEADS, "value": KEY_HEADS}
        query, key, value = (
            self.heads(
                self.product(own, WIDTH, heads * HEAD, f"{name}.{part}"), heads, f"{name}.{part}"
            )
            for part, heads in width.items()
        )
        key = graph.node("Transpose", [key], f"{name}.turned", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", [query, key], f"{name}.products")
        scores = graph.node("Div", [scores, self.root], f"{name}.scores")
        scores = graph.node("Add", [scores, self.mask], f"{name}.masked")
        parts = graph.node("Softmax", [scores], f"{name}.parts", axis=-1)
        seen = graph.node("MatMul", [parts, value], f"{name}.seen")
        seen = graph.node("Transpose", [seen], f"{name}.back", perm=[0, 2, 1, 3])
        seen = graph.node("Reshape", [seen, self.joined], f"{name}.joined")
        x = graph.node(
            "Add", [x, self.product(seen, WIDTH, WIDTH, f"{name}.output")], f"{name}.mid"
        )
        own = self.normalized(x, f"{name}.inner")
        gate = self.product(own, WIDTH, INNER, f"{name}.gate")
        gate = graph.node(
            "Mul", [gate, graph.node("Sigmoid", [gate], f"{name}.open")], f"{name}.silu"
        )
        both = graph.node(
            "Mul", [gate, self.product(own, WIDTH, INNER, f"{name}.up")], f"{name}.both"
        )
        return graph.node(
            "Add", [x, self.product(both, INNER, WIDTH, f"{name}.down")], f"{name}.end"
        )
