"""A small network on token ids, and samples for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
from onnx import numpy_helper

Array = npt.NDArray[Any]
VOCABULARY = 100


def token_model(batch: str = "N", length: str = "s", types: bool = False) -> bytes:
    """A model of `input_ids` and `attention_mask`, and of `token_type_ids` on request."""
    third = f", int64[{batch}, {length}] token_type_ids" if types else ""
    segment = "t = Gather (segments, token_type_ids)\n a = Add (e, t)" if types else "a = Relu (e)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g(int64[{batch}, {length}] input_ids, int64[{batch}, {length}] attention_mask{third})
            => (float[{batch}, {length}, 8] y) {{
            e = Gather (words, input_ids)
            {segment}
            m = Cast <to = 1> (attention_mask)
            u = Unsqueeze (m, axes)
            h = Mul (a, u)
            z = MatMul (h, w)
            r = Relu (z)
            y = MatMul (r, v)
        }}"""
    )
    rng = np.random.default_rng(0)
    shapes = {"words": (VOCABULARY, 8), "segments": (2, 8), "w": (8, 16), "v": (16, 8)}
    weights: dict[str, Array] = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights["axes"] = np.array([2])
    if not types:
        del weights["segments"]
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    data: bytes = model.SerializeToString()
    return data


def sentences(count: int, length: int | None = None) -> list[dict[str, list[int]]]:
    """Token ids of different lengths, as lists of Python."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        size = length or int(rng.integers(2, 9))
        ids = [int(one) for one in rng.integers(0, VOCABULARY, size)]
        found.append({"input_ids": ids, "attention_mask": [1] * (size - 1) + [0]})
    return found


def as_arrays(samples: list[dict[str, list[int]]]) -> list[dict[str, Array]]:
    """The same samples as arrays with a first axis."""
    return [{name: np.array([ids]) for name, ids in one.items()} for one in samples]
