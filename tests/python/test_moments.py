"""Second moments in the ranges of shards: saved, merged, and used to round weights later."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantize_rs
from quantize_rs import CalibrationError, Ranges

DIGITS = quantize_rs.examples.digits()
IMAGES = np.load(DIGITS.calibration)[:61]


def planned(**options: Any) -> quantize_rs.Plan:
    return quantize_rs.open(DIGITS.model).plan(**options)


def parts(plan: quantize_rs.Plan, count: int) -> list[Ranges]:
    return [
        plan.calibrate(IMAGES, shard=(index, count), engine="tract")
        for index in range(1, count + 1)
    ]


def rounded(done: Any) -> dict[str, str | None]:
    report = getattr(done, "report", done)
    return {row.name: row.rounded_by for row in report.values}


def through_a_file(ranges: Ranges, path: Path) -> Ranges:
    ranges.save(path)
    loaded = Ranges.load(path)
    assert loaded == ranges
    return loaded


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "options",
    [
        {"activations": "uint8"},
        {"bits": 4},
        {"bits": 3, "block_size": 16, "weight_algorithm": "scales"},
        {"bits": 4, "per_channel": True, "memory_limit": 300_000},
        {"bits": 4, "weight_algorithm": "gptq", "memory_limit": 5_000},
    ],
    ids=["static", "blocks", "diagonal", "spans", "little memory"],
)
def test_weights_are_those_of_one_calibration(
    options: dict[str, Any], count: int, tmp_path: Path
) -> None:
    plan = planned(**options)
    whole = plan.calibrate(IMAGES, engine="tract")
    expected = plan.apply(whole)
    assert {*rounded(expected).values()} & {"scales", "gptq", "descent", "adaround"}, "not vacuous"
    saved = [through_a_file(part, tmp_path / f"{at}") for at, part in enumerate(parts(plan, count))]
    merged = Ranges.merge(reversed(saved))
    again = through_a_file(merged, tmp_path / "merged")
    for ranges in (merged, again):
        quantized = plan.apply(ranges)
        assert quantized.to_bytes() == expected.to_bytes()
        assert rounded(quantized) == rounded(expected)


def test_one_calibration_serves_plans_of_other_types() -> None:
    [ranges] = parts(planned(bits=4), 1)
    for options in ({"bits": 3}, {"bits": 2}, {"bits": 4, "weight_algorithm": "scales"}):
        plan = planned(**options)
        found, expected = plan.apply(ranges), plan.apply(plan.calibrate(IMAGES, engine="tract"))
        if options.get("weight_algorithm") is None:
            assert found.to_bytes() == expected.to_bytes()
        else:
            [note] = [note for note in found.report.notes if "collected for other options" in note]
            assert note.startswith("5 weights are rounded without samples")


def test_the_one_line_rounds_with_merged_ranges(tmp_path: Path) -> None:
    plan = planned(activations="uint8")
    Ranges.merge(parts(plan, 2)).save(tmp_path / "ranges")
    calls: list[tuple[int, int | None]] = []
    report = quantize_rs.quantize_with_calibration(
        DIGITS.model,
        tmp_path / "m.onnx",
        ranges=tmp_path / "ranges",
        activations="uint8",
        progress=lambda done, total: calls.append((done, total)),
    )
    expected = plan.apply(plan.calibrate(IMAGES, engine="tract"))
    assert (tmp_path / "m.onnx").read_bytes() == expected.to_bytes()
    assert rounded(report) == rounded(expected)


def test_rounding_of_merged_ranges_can_be_resumed(tmp_path: Path) -> None:
    state = tmp_path / "rounded.jsonl"
    plan = planned(bits=4, resume_rounding=str(state))
    merged = Ranges.merge(parts(plan, 2))
    assert not state.exists()
    first = plan.apply(merged).to_bytes()
    lines = state.read_text().splitlines()
    assert len(lines) == 6
    assert plan.apply(merged).to_bytes() == first
    assert state.read_text().splitlines() == lines, "nothing was rounded again"


def test_what_merged_ranges_cannot_do_is_said() -> None:
    plan = planned(bits=4, rounding_effort="best")
    report = plan.apply(Ranges.merge(parts(plan, 2))).report
    assert any("not rounded layer after layer" in note for note in report.notes)
    plan = planned(activations="uint8")
    first, second = parts(plan, 2)
    as_json = Ranges(quantize_rs._core.Ranges.from_json(second.to_json()))
    for merged in (first.merge(as_json), as_json.merge(first)):
        notes = plan.apply(merged).report.notes
        assert any("not all merged ranges hold second moments" in note for note in notes)
    assert any("JSON does not hold second moments" in note for note in as_json.notes)


def test_moments_of_other_options_are_refused() -> None:
    first, _ = parts(planned(bits=4), 2)
    _, second = parts(planned(bits=4, weight_algorithm="scales"), 2)
    with pytest.raises(CalibrationError, match=r"second moments of `.*`: they come from different"):
        first.merge(second)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    plan = planned(bits=4, weight_algorithm="scales")
    path = tmp_path / "part"
    parts(plan, 1)[0].save(path)
    whole = path.read_bytes()
    chosen = random.Random(5)
    refused = 0
    for attempt in range(400):
        damaged = bytearray(whole)
        if attempt % 4 == 0:
            del damaged[chosen.randrange(1, len(whole)) :]
        else:
            # Half of them in the description of the moments.
            ends = (len(whole) - 900, len(whole)) if attempt % 2 else (0, len(whole))
            damaged[chosen.randrange(*ends)] = chosen.randrange(256)
        path.write_bytes(damaged)
        try:
            plan.apply(Ranges.load(path))
        except CalibrationError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 200
    # The parts of a merge are checked, too.
    first, second = parts(plan, 2)
    second.save(tmp_path / "second")
    first.save(path)
    whole = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[chosen.randrange(len(whole) - 900, len(whole))] = chosen.randrange(256)
        path.write_bytes(damaged)
        try:
            merged = Ranges.merge([Ranges.load(path), Ranges.load(tmp_path / "second")])
            merged.save(tmp_path / "merged")
        except CalibrationError:
            refused += 1
    path.write_bytes(whole)
    header = int.from_bytes(whole[:8], "little")
    sizes = json.loads(whole[8 : 8 + header])
    assert {"ranges.json", "moments.json"} < sizes.keys(), "other tools can read it"
    with pytest.raises(FileNotFoundError):
        Ranges.load(tmp_path / "none")
    path.write_bytes(b"\0" * 100)
    with pytest.raises(CalibrationError, match="not a ranges file"):
        Ranges.load(path)


def test_a_file_that_is_overwritten_is_refused(tmp_path: Path) -> None:
    plan = planned(bits=4, weight_algorithm="scales")
    first, second = parts(plan, 2)
    first.save(tmp_path / "part")
    second.save(tmp_path / "other")
    loaded = Ranges.load(tmp_path / "part")
    shutil.copyfile(tmp_path / "other", tmp_path / "part")
    with pytest.raises(CalibrationError, match="was changed since it was loaded: load it again"):
        plan.apply(loaded.merge(second))


def test_merged_ranges_rank_layers_as_those_of_one_calibration() -> None:
    plan = planned(bits=4)
    whole = plan.calibrate(IMAGES, engine="tract")
    merged = Ranges.merge(parts(plan, 2))
    with ThreadPoolExecutor(2) as executor:
        found = [
            quantize_rs.sensitivity(plan, IMAGES[:12], ranges=whole, engine="tract"),
            quantize_rs.sensitivity(plan, IMAGES[:12], ranges=merged, engine="tract"),
            quantize_rs.distributed.sensitivity(
                plan, IMAGES[:12], executor, ranges=merged, engine="tract"
            ),
        ]
    assert found[0].layers == found[1].layers == found[2].layers
    nearest = quantize_rs.sensitivity(planned(bits=4), IMAGES[:12], engine="tract")
    assert found[0].layers != nearest.layers, "rounding with samples makes a difference"


def test_a_number_of_shards_that_cannot_be_is_refused_at_once() -> None:
    plan = planned(activations="uint8")
    text = json.loads(parts(plan, 2)[0].to_json())
    text["shards"] = [{"index": 1, "count": 2**40}]
    ranges = Ranges(quantize_rs._core.Ranges.from_json(json.dumps(text)))
    with pytest.raises(CalibrationError, match=r"lack shard 2/1099511627776, .*and \d+ more"):
        plan.apply(ranges)


def test_a_file_that_is_removed_keeps_serving(tmp_path: Path) -> None:
    plan = planned(bits=4)
    loaded = [through_a_file(part, tmp_path / f"{at}") for at, part in enumerate(parts(plan, 2))]
    merged = Ranges.merge(loaded)
    # The merged ranges replace a part that they still read.
    merged.save(tmp_path / "0")
    expected = plan.apply(plan.calibrate(IMAGES, engine="tract")).to_bytes()
    assert plan.apply(merged).to_bytes() == expected
    assert plan.apply(Ranges.load(tmp_path / "0")).to_bytes() == expected


def test_the_command_line_rounds_with_the_moments_of_all_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)

    def command(*arguments: object) -> None:
        line = [sys.executable, "-m", "quantize_rs", *map(str, arguments)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    given = (DIGITS.model, "--calibration-data", "images.npy", "--engine", "tract")
    for index in (1, 2):
        part = ("--method", "minmax", "--shard", f"{index}/2", "--ranges-out", f"part{index}")
        command("calibrate", *given, *part)
    command("ranges", "merge", "part2", "part1", "--output", "all")
    command("ranges", "show", "all")
    command("calibrate", DIGITS.model, "--ranges", "all", "--output", "merged.onnx")
    command("calibrate", *given, "--method", "minmax", "--output", "whole.onnx")
    assert (tmp_path / "merged.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_a_changed_bit_of_a_file_changes_no_model_silently(tmp_path: Path) -> None:
    plan = planned(activations="uint8")
    path = tmp_path / "part"
    parts(plan, 1)[0].save(path)
    whole = path.read_bytes()
    expected = plan.apply(Ranges.load(path)).to_bytes()
    chosen = random.Random(7)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[chosen.randrange(8, len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        try:
            made = plan.apply(Ranges.load(path)).to_bytes()
        except CalibrationError as error:
            assert str(path) in str(error)
        else:
            assert made == expected
