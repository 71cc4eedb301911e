"""Rounding weights with samples can be interrupted and continued, and shows how far it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_weight_rounding import chain, rng

import quantize_rs
from quantize_rs import errors
from quantize_rs._inputs import progress as progress_module

Feeds = list[dict[str, np.ndarray]]
OPTIONS: dict[str, Any] = {"bits": 4, "block_size": 32, "engine": "tract"}


@pytest.fixture(scope="module")
def net() -> tuple[onnx.ModelProto, Feeds]:
    feeds = [{"x": x} for x in rng(3).normal(size=(48, 16, 64)).astype(np.float32)]
    return chain(), feeds


def rounded(net: tuple[onnx.ModelProto, Feeds], out: Path, **options: Any) -> bytes:
    made, feeds = net
    quantize_rs.quantize(made, out, calibration_data=feeds, **OPTIONS, **options)
    return out.read_bytes()


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_a_run_continues_where_it_was_stopped(
    net: tuple[onnx.ModelProto, Feeds],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    effort: str,
) -> None:
    out, state = tmp_path / "q.onnx", tmp_path / "state.jsonl"
    whole = rounded(net, out, rounding_effort=effort)
    seen: list[int] = []

    def stopping(_: progress_module.Callback) -> progress_module.Listener:
        def call(_done: int, _total: int | None, rounding: int | None) -> None:
            seen.extend([] if rounding is None else [rounding])
            if (rounding or 0) > 30:
                raise KeyboardInterrupt

        return call

    out.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(progress_module, "_of_samples", stopping)
        with pytest.raises(KeyboardInterrupt):
            rounded(
                net, out, rounding_effort=effort, resume_rounding=state, progress=lambda *_: None
            )
    assert not out.exists()
    assert seen == sorted(seen)
    assert seen[0] == 0
    before = state.read_text().splitlines()
    assert 1 < len(before) < (12 if effort == "best" else 6)
    assert rounded(net, out, rounding_effort=effort, resume_rounding=state) == whole
    after = state.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) > len(before)
    # Nothing is left to round: no line is added.
    assert rounded(net, out, rounding_effort=effort, resume_rounding=state) == whole
    assert state.read_text().splitlines() == after


def test_what_is_stored_is_used_and_only_where_it_fits(
    net: tuple[onnx.ModelProto, Feeds], tmp_path: Path
) -> None:
    made, feeds = net
    state = tmp_path / "state.jsonl"
    options: dict[str, Any] = {**OPTIONS, "resume_rounding": state}
    quantize_rs.quantize(made, None, calibration_data=feeds, **options)
    head, *lines = state.read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        entry["rounded"]["errors"]["nearest"] = 0.75
    state.write_text("\n".join([head, *map(json.dumps, entries), ""]))

    def nearest(data: Feeds, **other: Any) -> set[float]:
        report = quantize_rs.quantize(made, None, calibration_data=data, **{**options, **other})
        rows = [row.get("quantized") or {} for row in report.to_dict()["values"]]
        return {row["rounding"]["errors"]["nearest"] for row in rows if "rounding" in row}

    assert nearest(feeds) == {0.75}
    for data, other in ((feeds[:40], {}), (feeds, {"block_size": 16}), (feeds, {"bits": 3})):
        found = nearest(data, **other)
        assert found
        assert 0.75 not in found


def test_another_file_is_refused_and_left_alone(
    net: tuple[onnx.ModelProto, Feeds], tmp_path: Path
) -> None:
    other = tmp_path / "model.onnx"
    onnx.save(net[0], other)
    before = other.read_bytes()
    with pytest.raises(errors.OptionError, match="not a file of rounded weights") as raised:
        rounded(net, tmp_path / "q.onnx", resume_rounding=other)
    assert raised.value.option == "resume_rounding"
    assert other.read_bytes() == before
    seen: list[int] = []

    def samples() -> Any:
        for number, feed in enumerate(net[1]):
            seen.append(number)
            yield feed

    with pytest.raises(errors.OptionError, match="cannot be read or written"):
        quantize_rs.quantize(
            net[0],
            tmp_path / "q.onnx",
            calibration_data=samples(),
            resume_rounding=tmp_path / "none" / "state",
            **OPTIONS,
        )
    assert len(seen) < 4
    with pytest.raises(errors.OptionError, match="would overwrite"):
        rounded(net, tmp_path / "q.onnx", resume_rounding=tmp_path / "q.onnx")
    with pytest.raises(errors.OptionError, match="cannot be read or written"):
        rounded(net, tmp_path / "q.onnx", resume_rounding=tmp_path / "none" / "state")


def test_progress_shows_the_rounding(
    net: tuple[onnx.ModelProto, Feeds], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounded(net, tmp_path / "q.onnx", progress=True)
    shown = capsys.readouterr().err
    assert "48/48" in shown
    assert "rounding weights" in shown


def test_a_file_has_no_effect_with_ranges_without_second_moments(
    net: tuple[onnx.ModelProto, Feeds], tmp_path: Path
) -> None:
    made, feeds = net
    options: dict[str, Any] = {"weight_algorithm": "gptq"}
    plan = quantize_rs.open(made).plan(activations="uint8", **options)
    parts = [plan.calibrate(feeds, shard=(part, 2), engine="tract") for part in (1, 2)]
    whole = plan.calibrate(feeds, method="minmax", engine="tract")
    out, state = tmp_path / "out.onnx", tmp_path / "state"

    def quantize(ranges: quantize_rs.Ranges, **more: Any) -> None:
        quantize_rs.quantize_with_calibration(
            made, out, ranges=ranges, check="none", **options, **more
        )

    with pytest.raises(errors.OptionError, match="no second moments") as refused:
        quantize(whole, resume_rounding=state)
    assert refused.value.option == "resume_rounding"
    assert not out.exists()
    assert not state.exists()
    quantize(whole)
    quantize(quantize_rs.Ranges.merge(parts), resume_rounding=state)
    assert state.exists()
