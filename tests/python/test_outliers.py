"""Elements and channels of weights that lie far from the others, as numpy finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper, numpy_helper

import quantize_rs
from quantize_rs import OptionError

Array = npt.NDArray[Any]


def net(*, dtype: Any = np.float32, **weights: Array) -> bytes:
    """A product for each weight, one after the other."""
    nodes, names = [], list(weights)
    for at, name in enumerate(names):
        nodes.append(helper.make_node("MatMul", [f"x{at}", name], [f"x{at + 1}"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    last = f"x{len(names)}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x0", kind, ["n", weights[names[0]].shape[0]])],
        [helper.make_tensor_value_info(last, kind, ["n", weights[names[-1]].shape[1]])],
        [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("fence", [1.5, 3.0])
def test_they_are_those_that_numpy_finds(dtype: Any, fence: float) -> None:
    rng = np.random.default_rng(7)
    weights = {"a": rng.standard_normal((40, 48)), "b": rng.standard_normal((48, 30))}
    weights["a"][:, 5] *= 40
    weights["a"][3, 9] = -77
    weights["b"][np.abs(weights["b"]) < 0.5] = 0
    found = quantize_rs.outliers(net(dtype=dtype, **weights), fence=fence, most=7)
    assert found.fence == fence
    rows = {row.name: row for row in found.weights}
    assert [row.reach for row in found.weights] == sorted(r.reach for r in rows.values())[::-1]
    for name, array in weights.items():
        values = array.astype(dtype).astype(np.float64)
        low, high = np.percentile(values[values != 0], [25, 75])
        low, high = low - fence * (high - low), high + fence * (high - low)
        row = rows[name]
        assert row.fences == pytest.approx((low, high), rel=1e-12)
        far = ((values < low) | (values > high)) & (values != 0)
        assert (row.beyond, row.elements, row.shape) == (far.sum(), values.size, values.shape)
        assert row.reach == pytest.approx(np.abs(values).max() / max(abs(low), abs(high)))
        order = sorted(np.argwhere(far).tolist(), key=lambda at: -abs(values[tuple(at)]))
        assert [abs(it.value) for it in row.furthest] == [
            abs(values[tuple(at)]) for at in order[:7]
        ]
        assert all(values[it.index] == it.value for it in row.furthest)
        most = np.abs(values).max(axis=0)
        first, third = np.percentile(most, [25, 75])
        expected = np.flatnonzero(most > third + fence * (third - first))
        assert row.axis == 1
        assert {it.channel for it in row.channels} == set(expected.tolist())
        assert all(most[it.channel] == it.largest for it in row.channels)
    assert rows["a"].channels[0].channel == 5
    assert (3, 9) in {it.index for it in rows["a"].furthest} or fence < 3


def test_the_result_has_every_form(digits: Path) -> None:
    found = quantize_rs.outliers(digits)
    assert found.to_dict() == json.loads(found.to_json())
    assert found == quantize_rs.outliers(quantize_rs.open(digits))
    assert all(weight.name in str(found) for weight in found.weights)
    assert all(weight.name in found._repr_html_() for weight in found.weights)
    assert repr(found).startswith("<Outliers: ")
    with pytest.raises(AttributeError):
        found.fence = 1.0  # type: ignore[misc]


def test_a_weight_of_zeros_or_of_one_number_has_none() -> None:
    found = quantize_rs.outliers(net(a=np.zeros((8, 4)), b=np.full((4, 3), -2.0)))
    assert {weight.beyond for weight in found.weights} == {0}
    assert {weight.name: weight.reach for weight in found.weights} == {"a": 0, "b": 1}


def test_what_cannot_be_is_refused(digits: Path) -> None:
    for fence in (-1, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="fence"):
            quantize_rs.outliers(digits, fence=fence)
    with pytest.raises(OptionError, match="most"):
        quantize_rs.outliers(digits, most=-1)


def test_a_weight_that_is_not_finite_is_left_out() -> None:
    spoilt = np.ones((4, 4))
    spoilt[1, 2] = np.nan
    found = quantize_rs.outliers(net(a=spoilt, b=np.ones((4, 3))))
    assert [weight.name for weight in found.weights] == ["b"]
    assert found.notes == ("`a` is left out: element 6 is not finite",)
    assert found.notes[0] in str(found)


def test_integers_are_left_out(digits: Path) -> None:
    made = quantize_rs.quantize(digits, None, include=["*"]).model
    assert made is not None
    assert quantize_rs.outliers(made).weights == ()
