"""Bits for each layer, so that the model meets a size or an SQNR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import quantize_rs
from quantize_rs import BelowBarError, OptionError

Images = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def images() -> Images:
    folder = Path(__file__).resolve().parents[2] / "examples" / "digits"
    found: Images = np.load(folder / "calibration.npy")[:12]
    return found


@pytest.mark.parametrize("with_data", [False, True])
def test_a_size_is_met_by_the_model_that_the_bits_make(
    digits: Path, images: Images, with_data: bool
) -> None:
    data = images if with_data else None
    before = digits.stat().st_size
    sizes = []
    for part in (0.5, 0.27, 0.2, 0.15):
        found = quantize_rs.mixed_precision(digits, data, target_size=part, bits=(8, 4))
        report = quantize_rs.quantize(digits, None, layer_bits=found.layer_bits)
        assert report.bytes_after == found.bytes_after <= part * before
        assert (found.sqnr_db is not None) == with_data
        sizes.append(found.bytes_after)
    assert sizes == sorted(sizes, reverse=True)
    exact = quantize_rs.mixed_precision(digits, data, target_size=before // 2, bits=(8, 4))
    assert exact.bytes_after == sizes[0]


def test_an_sqnr_is_met_and_no_byte_more_than_needed_is_kept(digits: Path, images: Images) -> None:
    sizes = []
    for bar in (15.0, 25.0, 35.0):
        found = quantize_rs.mixed_precision(digits, images, min_sqnr=bar, bits=(8, 4))
        report = quantize_rs.quantize(digits, None, layer_bits=found.layer_bits)
        assert report.model is not None
        measured = quantize_rs.compare(digits, report.model, images, latency=False).sqnr_db
        assert measured == found.sqnr_db
        assert measured is not None
        assert measured >= bar
        sizes.append(found.bytes_after)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert "SQNR" in str(found)
    assert found.to_dict()["layer_bits"] == found.layer_bits


def test_what_cannot_be_met_is_refused(digits: Path, images: Images) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "target_size"),
        ({"target_size": 0.5, "min_sqnr": 20}, "target_size"),
        ({"target_size": 0.01}, "target_size"),
        ({"target_size": -3}, "target_size"),
        ({"min_sqnr": 20}, "min_sqnr"),
        ({"min_sqnr": float("nan"), "data": images}, "min_sqnr"),
        ({"target_size": 0.5, "bits": ()}, "bits"),
        ({"target_size": 0.5, "bits": (5,)}, "bits"),
    ]
    for options, option in cases:
        with pytest.raises(OptionError) as refused:
            quantize_rs.mixed_precision(digits, **options)
        assert refused.value.option == option, options
    with pytest.raises(BelowBarError, match="no layer can be quantized"):
        quantize_rs.mixed_precision(digits, images, min_sqnr=150, bits=(4,))
