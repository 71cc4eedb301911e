"""Layers of language models that get 8 bits by their place in the model."""

from __future__ import annotations

from typing import Any

import graphs
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

import quantize_rs

RNG = np.random.default_rng(7)
BLOCKS, WIDTH = 10, 64


def decoder(form: str = "layers.{}") -> bytes:
    """Make the products of a language model, with the names that exporters give them."""
    nodes, value = [], "x"
    weights: dict[str, npt.NDArray[np.floating]] = {}
    for index in range(BLOCKS):
        where = form.format(index)
        for name, rows, columns in (
            ("self_attn/q_proj", WIDTH, WIDTH),
            ("self_attn/v_proj", WIDTH, WIDTH),
            ("mlp/up_proj", WIDTH, 4 * WIDTH),
            ("mlp/down_proj", 4 * WIDTH, WIDTH),
        ):
            weight, made = f"w{len(weights)}", f"v{len(weights)}"
            weights[weight] = RNG.normal(size=(rows, columns)) / rows**0.5
            node = helper.make_node(
                "MatMul", [value, weight], [made], f"/model/{where}/{name}/MatMul"
            )
            nodes.append(node)
            value = made
    weights["head"] = RNG.normal(size=(WIDTH, 96)) / 8
    nodes.append(helper.make_node("MatMul", [value, "head"], ["y"], "/lm_head/MatMul"))
    return graphs.built(nodes, weights, ["n", WIDTH])


def wide(model: bytes, **options: Any) -> set[str]:
    """Return the names of the nodes whose weights have 8 bits."""
    report = quantize_rs.quantize(model, None, bits=4, block_size=32, **options)
    rows = [row for row in report.weights if row.qtype in ("int8", "uint8")]
    return {row.why.split("`")[1] for row in rows}


def test_the_head_gets_8_bits() -> None:
    model = decoder()
    assert wide(model) == set()
    assert wide(model, mixed_layers="last") == {"/lm_head/MatMul"}


@pytest.mark.parametrize("chosen", ["last", "sensitive"])
def test_a_head_that_is_tied_to_the_tokens_gets_8_bits(chosen: str) -> None:
    weights = {"tokens": RNG.normal(size=(96, WIDTH)), "w": RNG.normal(size=(WIDTH, WIDTH)) / 8}
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["tokens", "ids"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["v"], "/layers.0/v_proj/MatMul"),
        helper.make_node("Transpose", ["tokens"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["v", "head"], ["y"], "/lm_head/MatMul"),
    ]
    model = graphs.built(nodes, weights, ["n"])
    report = quantize_rs.quantize(model, None, bits=4, mixed_layers=chosen, block_size=32)
    (tokens,) = (row for row in report.weights if row.name == "tokens")
    assert tokens.qtype in ("int8", "uint8")


@pytest.mark.parametrize("form", ["layers.{}", "h.{}", "blocks.{}/inner"])
def test_sensitive_layers_get_8_bits(form: str) -> None:
    found = wide(decoder(form), mixed_layers="sensitive", output_format="matmul_nbits")
    chosen = [0, 3, 6, 9]
    expected = {
        f"/model/{form.format(index)}/{name}/MatMul"
        for index in chosen
        for name in ("self_attn/v_proj", "mlp/down_proj")
    }
    assert found == expected | {"/lm_head/MatMul"}


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_keys_of_grouped_queries_and_routers_project_nothing_back(op_type: str) -> None:
    nodes, weights = [], {}

    def product(value: str, name: str, rows: int, columns: int) -> str:
        matrix = RNG.normal(size=(rows, columns)) / rows**0.5
        weights[name] = matrix if op_type == "MatMul" else matrix.T
        kind = {} if op_type == "MatMul" else {"transB": 1}
        nodes.append(helper.make_node(op_type, [value, name], [f"{name}.y"], f"/{name}", **kind))
        return f"{name}.y"

    def combined(with_op: str, inputs: list[str], output: str, **kind: Any) -> str:
        nodes.append(helper.make_node(with_op, inputs, [output], **kind))
        return output

    value = "x"
    for index in range(4):
        at = f"layers.{index}"
        query = product(value, f"{at}/attn/q", WIDTH, WIDTH)
        key = product(value, f"{at}/attn/k", WIDTH, WIDTH // 4)
        keys = combined("Concat", [key] * 4, f"{at}.keys", axis=1)
        out = product(combined("Add", [query, keys], f"{at}.a"), f"{at}/attn/o", WIDTH, WIDTH)
        scores = product(out, f"{at}/moe/router", WIDTH, 32)
        factor = combined("ReduceMax", [scores], f"{at}.max", axes=[1])
        long = product(combined("Mul", [out, factor], f"{at}.m"), f"{at}/up", WIDTH, 4 * WIDTH)
        value = product(combined("Relu", [long], f"{at}.r"), f"{at}/down", 4 * WIDTH, WIDTH)
    weights["head"] = RNG.normal(size=(WIDTH, 96)) / 8
    nodes.append(helper.make_node("MatMul", [value, "head"], ["y"], "/lm_head"))
    found = wide(graphs.built(nodes, weights, ["n", WIDTH]), mixed_layers="sensitive")
    assert found == {f"/layers.{index}/down" for index in (0, 2, 3)} | {"/lm_head"}


def test_what_an_option_names_takes_precedence() -> None:
    found = wide(decoder(), mixed_layers="last", layer_types={"/lm_head/MatMul": "int4"})
    assert found == set()


def test_what_cannot_be_is_an_error() -> None:
    model = decoder("part")
    with pytest.raises(quantize_rs.OptionError, match=r"mixed_layers.*number of a block"):
        quantize_rs.quantize(model, None, bits=4, mixed_layers="sensitive")
    with pytest.raises(quantize_rs.OptionError, match=r"mixed_layers.*fewer than 8 bits"):
        quantize_rs.quantize(model, None, mixed_layers="last")
    with pytest.raises(quantize_rs.OptionError, match=r"mixed_layers.*expected one of"):
        quantize_rs.quantize(model, None, bits=4, mixed_layers="first")
