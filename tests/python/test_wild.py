"""`bench/wild.py`: the inputs that it makes, and how it evaluates a result."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "bench"))  # it has a `run`, as other folders do

import wild
import wild_inputs
import wild_jobs


def graph(rows: int) -> onnx.GraphProto:
    """Ids that are cast, and then read from two tables."""
    small = np.zeros((rows, 4), np.float32)
    large = np.zeros((rows + 5, 4), np.float32)
    return helper.make_graph(
        [
            helper.make_node("Cast", ["ids"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Gather", ["large", "whole"], ["a"]),
            helper.make_node("Gather", ["small", "whole"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        "ids",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(small, "small"),
            onnx.numpy_helper.from_array(large, "large"),
        ],
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((None, 3, None, None), (1, 3, 7, 7)),
        (("batch_size", "length"), (1, 7)),
        ((2, "batch", 128), (2, 1, 128)),
        ((-1, 0), (1, 7)),
        ((), ()),
    ],
)
def test_open_dimensions_get_a_size(
    shape: tuple[int | str | None, ...], expected: tuple[int, ...]
) -> None:
    assert wild_inputs.closed(shape, 7) == expected


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 3, 8, 8), 1), ((1, 8, 8, 1), 3), ((1, 16, 8, 8), None), ((1, 3, 8), None)],
)
def test_images_are_smooth_and_between_0_and_1(shape: tuple[int, ...], axis: int | None) -> None:
    assert wild_inputs.channels(shape) == axis
    if axis is not None:
        found = wild_inputs.image(shape, axis, np.random.default_rng(0))
        assert found.shape == shape
        assert found.min() >= 0
        assert found.max() <= 1


def test_ids_stay_within_the_smallest_table(tmp_path: Path) -> None:
    file = tmp_path / "ids.onnx"
    onnx.save(helper.make_model(graph(rows=3)), file)
    found = wild_inputs.samples_of(file)
    assert found.source == "made, open dimensions 64"
    assert [len(found.calibration), len(found.held_out)] == [32, 8]
    ids = np.concatenate([feed["ids"] for feed in found.calibration])
    assert ids.dtype == np.int32
    assert set(np.unique(ids)) == {0, 1, 2}
    assert not np.array_equal(found.calibration[0]["ids"], found.held_out[0]["ids"])


def test_samples_beside_the_model_are_used(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    np.savez(file.with_suffix(".npz"), x=np.arange(10.0).reshape(10, 1), rate=np.full(10, 8))
    found = wild_inputs.samples_of(file)
    assert [len(found.calibration), len(found.held_out)] == [8, 2]
    assert found.held_out[1]["x"] == [9.0]
    assert found.held_out[1]["rate"].shape == ()


def test_a_model_that_runs_with_no_size_says_why() -> None:
    def fails(feed: wild_inputs.Feed) -> None:
        raise ValueError(f"no such\nshape of {list(feed)}")

    with pytest.raises(wild_inputs.NoInputs, match=r"no made input: no such shape of \['x'\]"):
        wild_inputs.first_size([wild_inputs.Input("x", "float32", (None,))], {}, fails)


def test_the_error_is_that_of_all_samples() -> None:
    one = np.ones(10, np.float32)
    assert wild_jobs.sqnr([one, one], [one, one * 0.9]) == pytest.approx(23.01, abs=0.01)
    assert wild_jobs.sqnr([one], [one]) is None
    assert wild_jobs.sqnr([one.astype(int)], [one]) is None
    assert wild_jobs.sqnr([one], [one * np.nan]) == -math.inf
    assert wild_jobs.sqnr([one], [one[:5]]) == -math.inf
    assert wild_jobs.sqnr([np.append(one, np.nan)], [np.append(one * 0.9, 0)]) == pytest.approx(20)


def row(db: float | None, ratio: float, size: float, *warnings: str) -> wild.Row:
    """A row as `wild.row` gives it."""
    end = {"output": "y", "sqnr": db}
    session = {"optimised": end, "plain": end, "time": {"ratio": ratio}}
    return {"size": size, "warnings": list(warnings), "quantized": 1, "evaluation": session}


FAR = "output `y` is far from that of the float model: an SQNR of 5.0 dB on 3 samples"
SLOW = "3 weights of convolutions are dequantized at every inference: …"


def test_a_row_is_at_fault_where_the_call_kept_silent() -> None:
    assert wild.faults(row(40.0, 1.0, 0.3)) == []
    assert wild.faults(row(5.0, 1.5, 0.3, FAR, SLOW)) == []
    assert wild.faults(row(5.0, 1.5, 1.2)) == [
        "5.0 dB without a warning",
        "grew to 1.20 of the source",
        "1.50 x the time of float without a warning",
    ]
    assert wild.faults({"error": "QuantizeError: why", "refused": True}) == [
        "refused: QuantizeError: why"
    ]


def test_cells_and_medians_are_short() -> None:
    rows = [row(40.0, 1.0, 0.3), row(5.0, 1.5, 0.25, FAR, SLOW), row(None, 2.0, 0.26)]
    assert [wild.cell(one) for one in rows] == [
        "40.0; 0.30; 1.00",
        "5.0; 0.25; 1.50 error slow",
        "equal; 0.26; 2.00",
    ]
    assert wild.median_cell(rows) == "40.0; 0.26; 1.50"
    assert wild.cell({"error": "died", "refused": False}) == "failed"
