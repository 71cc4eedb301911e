"""Small language models with a cache of keys and values, as exporters for ONNX Runtime do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 3, 64, 4, 2, 96, 128
SIZE = WIDTH // HEADS

Values = dict[str, npt.NDArray[Any]]


def decoder(*, tied: bool = False, seed: int = 0) -> bytes:
    """Make a model whose next token depends on the last token and on those before."""
    rng = np.random.default_rng(seed)
    constants: Values = {}
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, rows: int, columns: int, scale: float) -> str:
        constants[name] = rng.normal(size=(rows, columns)) * scale / rows**0.5
        return name

    def add(op_type: str, inputs: list[str], outputs: list[str], name: str, **kind: Any) -> None:
        nodes.append(helper.make_node(op_type, inputs, outputs, name, **kind))

    angles = np.arange(POSITIONS)[:, None] / 10000 ** (np.arange(0, SIZE, 2) / SIZE)[None]
    constants |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    constants["embed"] = rng.normal(size=(VOCABULARY, WIDTH))
    constants |= {"one": np.array(1), "axis": np.array([1])}
    add("Gather", ["embed", "input_ids"], ["h0"], "/model/embed_tokens/Gather")
    add("ReduceSum", ["attention_mask", "axis"], ["counts"], "/model/counts", keepdims=0)
    add("Sub", ["counts", "one"], ["last"], "/model/last")
    add("Cast", ["last"], ["seqlens_k"], "/model/seqlens_k", to=TensorProto.INT32)
    add("Shape", ["attention_mask"], ["mask_shape"], "/model/mask_shape")
    add("Gather", ["mask_shape", "one"], ["length"], "/model/length")
    add("Cast", ["length"], ["total"], "/model/total", to=TensorProto.INT32)
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "new"]),
        info("attention_mask", TensorProto.INT64, ["batch", "all"]),
    ]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "new", VOCABULARY])]
    for layer in range(LAYERS):
        at, x = f"/model/layers.{layer}", f"h{layer}"
        norms = [f"norm{layer}", f"post_norm{layer}"]
        constants |= {name: np.ones(WIDTH) for name in norms}
        normed, past, present = f"n{layer}", f"past_key_values.{layer}", f"present.{layer}"
        add(
            "SimplifiedLayerNormalization",
            [x, norms[0]],
            [normed],
            f"{at}/input_layernorm",
            axis=-1,
            epsilon=1e-6,
        )
        for kind, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            name = weight(f"{kind}{layer}.weight", WIDTH, heads * SIZE, 1.0)
            add("MatMul", [normed, name], [f"{kind}{layer}"], f"{at}/attn/{kind}_proj/MatMul")
        for kind in ("key", "value"):
            shape = ["batch", KV_HEADS, "past", SIZE]
            inputs.append(info(f"{past}.{kind}", TensorProto.FLOAT, shape))
            outputs.append(info(f"{present}.{kind}", TensorProto.FLOAT, [*shape[:2], "all", SIZE]))
        caches = [f"{past}.key", f"{past}.value", "seqlens_k", "total", "cos", "sin"]
        add(
            "GroupQueryAttention",
            [f"q{layer}", f"k{layer}", f"v{layer}", *caches],
            [f"a{layer}", f"{present}.key", f"{present}.value"],
            f"{at}/attn/GroupQueryAttention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
        name = weight(f"o{layer}.weight", WIDTH, WIDTH, 2.0)
        add("MatMul", [f"a{layer}", name], [f"o{layer}"], f"{at}/attn/o_proj/MatMul")
        add(
            "SkipSimplifiedLayerNormalization",
            [x, f"o{layer}", norms[1]],
            [f"m{layer}", "", "", f"r{layer}"],
            f"{at}/post_attention_layernorm",
            domain="com.microsoft",
            epsilon=1e-6,
        )
        name = weight(f"up{layer}.weight", WIDTH, 2 * WIDTH, 1.0)
        add("MatMul", [f"m{layer}", name], [f"u{layer}"], f"{at}/mlp/up_proj/MatMul")
        add("Sigmoid", [f"u{layer}"], [f"s{layer}"], f"{at}/mlp/act/Sigmoid")
        add("Mul", [f"u{layer}", f"s{layer}"], [f"g{layer}"], f"{at}/mlp/act/Mul")
        name = weight(f"down{layer}.weight", 2 * WIDTH, WIDTH, 0.5)
        add("MatMul", [f"g{layer}", name], [f"d{layer}"], f"{at}/mlp/down_proj/MatMul")
        add("Add", [f"r{layer}", f"d{layer}"], [f"h{layer + 1}"], f"{at}/Add")
    constants["norm"] = np.ones(WIDTH)
    add(
        "SimplifiedLayerNormalization",
        [f"h{LAYERS}", "norm"],
        ["normed"],
        "/model/norm",
        axis=-1,
        epsilon=1e-6,
    )
    head = "embed.T"
    if tied:
        add("Transpose", ["embed"], [head], "/lm_head/Transpose", perm=[1, 0])
    else:
        # The next token is another one: the rows of the table in another order.
        constants[head] = constants["embed"][rng.permutation(VOCABULARY)].T
    add("MatMul", ["normed", head], ["logits"], "/lm_head/MatMul")
    tensors = [
        numpy_helper.from_array(a if a.dtype == np.int64 else a.astype(np.float32), name)
        for name, a in constants.items()
    ]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def prompts(count: int = 12, length: int = 32) -> list[Values]:
    """Return samples of the model: prompts without a past."""
    rng = np.random.default_rng(3)
    past = {
        f"past_key_values.{layer}.{kind}": np.zeros((1, KV_HEADS, 0, SIZE), np.float32)
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    return [
        {
            "input_ids": rng.integers(0, VOCABULARY, (1, length)),
            "attention_mask": np.ones((1, length), np.int64),
            **past,
        }
        for _ in range(count)
    ]


def generated(
    model: bytes, prompt: list[int], steps: int, forced: list[int] | None = None
) -> tuple[list[int], Values]:
    """Generate tokens one after the other; return the best of each step, and the last cache.

    With `forced`, these are the tokens that go on, whatever is best.
    """
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}
    past: Values = {
        given.name: np.zeros((1, given.shape[1], 0, given.shape[3]), types[given.type])
        for given in session.get_inputs()
        if given.name.startswith("past")
    }
    names = [output.name for output in session.get_outputs()]
    tokens, best, length = np.array([prompt]), [], 0
    for step in range(steps):
        length += tokens.shape[1]
        mask = np.ones((1, length), np.int64)
        feeds = {"input_ids": tokens, "attention_mask": mask, **past}
        found = dict(zip(names, session.run(None, feeds), strict=True))
        best.append(int(found["logits"][0, -1].argmax()))
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
        tokens = np.array([[best[-1] if forced is None else forced[step]]])
    return best, past
