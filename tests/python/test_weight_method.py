"""How the scales of weights are chosen: by their range, or by the least squared error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import quantize_rs
from quantize_rs import errors

DEPTH, WIDTH = 80, 6
WEIGHT = np.random.default_rng(3).standard_normal((DEPTH, WIDTH)).astype(np.float32)


def model() -> onnx.ModelProto:
    """Make a product whose result for the identity is the weight."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def written(**wishes: Any) -> bytes:
    """Quantize, and give the file."""
    found = quantize_rs.quantize(model(), None, **wishes).model
    assert found is not None
    return found


def error(**wishes: Any) -> float:
    """Give the mean squared error of the weight that comes back, by ONNX's own reference."""
    evaluator = ReferenceEvaluator(onnx.load_from_string(written(**wishes)))
    (back,) = evaluator.run(None, {"x": np.eye(DEPTH, dtype=np.float32)})
    return float(np.square(back - WEIGHT).mean())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("weights", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("granularity", [{"block_size": 32}, {"per_channel": True}, {}])
def test_the_least_error_is_no_more_than_that_of_the_full_range(
    weights: str, granularity: dict[str, Any], symmetric: bool
) -> None:
    wishes = granularity | {"weights": weights, "symmetric": symmetric}
    least, full = (error(weight_method=method, **wishes) for method in ("mse", "minmax"))
    assert least <= full * 1.00001
    if granularity == {"block_size": 32} and weights != "int8" and not symmetric:
        assert least < 0.97 * full


@pytest.mark.parametrize(
    ("wishes", "usual"),
    [
        ({"bits": 4, "block_size": 32}, "mse"),
        ({"bits": 4, "output_format": "matmul_nbits"}, "mse"),
        ({"bits": 8, "output_format": "matmul_nbits"}, "minmax"),
        ({"bits": 8, "block_size": 32}, "minmax"),
        ({"bits": 4, "per_channel": True}, "minmax"),
        ({"bits": 4}, "minmax"),
        ({"bits": 8, "output_format": "dynamic"}, "minmax"),
    ],
)
def test_blocks_of_few_bits_take_the_least_error(wishes: dict[str, Any], usual: str) -> None:
    assert written(**wishes) == written(weight_method=usual, **wishes)
    plan = quantize_rs.open(model()).plan(
        weights=f"int{wishes.pop('bits')}", weight_method=usual, **wishes
    )
    assert plan.apply().to_bytes() == written(
        weights=plan.to_dict()["config"]["weights"], weight_method=usual, **wishes
    )


def test_both_formats_of_blocks_hold_the_same_numbers() -> None:
    qdq = onnx.load_from_string(written(weights="uint4", block_size=16))
    nbits = onnx.load_from_string(written(bits=4, block_size=16, output_format="matmul_nbits"))
    scales = [
        next(numpy_helper.to_array(t) for t in m.graph.initializer if t.name == "w_scale")
        for m in (qdq, nbits)
    ]
    np.testing.assert_array_equal(scales[0].T, scales[1])


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(errors.OptionError, match="`hqq`, expected one of minmax, mse") as refused:
        written(bits=4, block_size=32, weight_method="hqq")
    assert refused.value.option == "weight_method"
