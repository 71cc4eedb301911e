"""Calibration on parts of the samples, whose ranges are merged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import graphs
import image_data
import numpy as np
import pytest
from decoders import decoder, prompts
from onnx import helper

import quantize_rs
from quantize_rs import CalibrationError, OptionError, Ranges

DIGITS = quantize_rs.examples.digits()
IMAGES = np.load(DIGITS.calibration)[:61]
PLAN = quantize_rs.open(DIGITS.model).plan(activations="uint8")
NEAREST = quantize_rs.open(DIGITS.model).plan(activations="uint8", weight_algorithm="nearest")


def parts(count: int, plan: quantize_rs.Plan = PLAN, **options: Any) -> list[Ranges]:
    return [
        plan.calibrate(IMAGES, shard=(index, count), engine="tract", **options)
        for index in range(1, count + 1)
    ]


@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_parts_together_are_one_calibration(method: str, count: int, tmp_path: Path) -> None:
    whole = NEAREST.calibrate(IMAGES, method=method, engine="tract")
    merged = Ranges.merge(reversed(parts(count, NEAREST, method=method)))
    assert merged.values == whole.values
    assert merged.samples == whole.samples == len(IMAGES)
    for name, found in (("whole", whole), ("merged", merged)):
        found.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "merged").read_bytes()
    assert NEAREST.apply(merged).to_bytes() == NEAREST.apply(whole).to_bytes()


def test_parts_hold_every_nth_sample() -> None:
    [second] = [PLAN.calibrate(IMAGES, shard="2/4", engine="tract")]
    assert second.samples == 15
    assert second.values == PLAN.calibrate(IMAGES[1::4], engine="tract").values
    assert PLAN.calibrate(IMAGES, shard="2/4", limit=8, engine="tract").samples == 2


class Sources:
    """The same images in every form, in which those of the first part of four are not finite."""

    def __init__(self, folder: Path) -> None:
        self.images = IMAGES[:12].copy()
        self.images[::4] = np.nan
        self.folder = folder

    def array(self) -> Any:
        return self.images

    def by_name(self) -> Any:
        return {"image": self.images}

    def npy(self) -> Any:
        np.save(self.folder / "x.npy", self.images)
        return self.folder / "x.npy"

    def npy_in_fortran_order(self) -> Any:
        np.save(self.folder / "f.npy", np.asfortranarray(self.images))
        return self.folder / "f.npy"

    def npz(self) -> Any:
        np.savez(self.folder / "x.npz", image=self.images)
        return self.folder / "x.npz"

    def compressed(self) -> Any:
        np.savez_compressed(self.folder / "c.npz", image=self.images)
        return self.folder / "c.npz"

    def listed(self) -> Any:
        return list(self.images)

    def batches(self) -> Any:
        return [{"image": self.images[at : at + 5]} for at in (0, 5, 10)]

    def generator(self) -> Any:
        return ({"image": image[None]} for image in self.images)

    def images_of_a_folder(self) -> Any:
        for number in range(12):
            path = self.folder / f"{number:02}.png"
            size = (self.images.shape[3], self.images.shape[2])
            if number % 4:
                image_data.sample_image(*size, number).convert("L").save(path)
            else:
                path.write_bytes(b"no image")
        return self.folder


@pytest.mark.parametrize("name", [name for name in vars(Sources) if not name.startswith("_")])
def test_samples_of_other_parts_are_passed_over(name: str, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    for part in (2, 3, 4):
        found = NEAREST.calibrate(getattr(sources, name)(), shard=(part, 4), engine="tract")
        own: Any = IMAGES[part - 1 : 12 : 4]
        if name == "images_of_a_folder":
            folder = tmp_path / f"part {part}"
            folder.mkdir()
            for number in range(part - 1, 12, 4):
                (folder / f"{number}.png").write_bytes((tmp_path / f"{number:02}.png").read_bytes())
            own = folder
        assert found.samples == 3
        assert found.values == NEAREST.calibrate(own, engine="tract").values
    with pytest.raises(CalibrationError):
        NEAREST.calibrate(getattr(sources, name)(), shard="1/4", engine="tract")


def test_a_part_without_samples_is_named() -> None:
    with pytest.raises(CalibrationError, match="part 5/5 has no sample, as there are 3"):
        NEAREST.calibrate(IMAGES[:3], shard=(5, 5), engine="tract")


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_rows_of_several_samples_are_divided(rows: int, tmp_path: Path) -> None:
    def transform(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": IMAGES[row["first"] : row["first"] + rows]}

    lines = tmp_path / "numbers.jsonl"
    lines.write_text("\n".join(json.dumps({"first": first}) for first in range(0, 20, rows)))
    samples = quantize_rs.Samples(lines, transform)
    made = [NEAREST.calibrate(samples, shard=(part, 3), engine="tract") for part in (1, 2, 3)]
    assert [part.samples for part in made] == [7, 7, 6]
    assert Ranges.merge(made).values == NEAREST.calibrate(IMAGES[:20], engine="tract").values
    assert NEAREST.calibrate(samples, shard="2/4", limit=6, engine="tract").samples == 2


def test_merged_ranges_have_the_remark_of_all_samples_together() -> None:
    def remarks(count: int, parts: int) -> list[str]:
        made = [
            NEAREST.calibrate(IMAGES[:count], shard=(part, parts), engine="tract")
            for part in range(1, parts + 1)
        ]
        assert all(f"only {part.samples} " in part._ranges.warnings[0] for part in made)
        merged = Ranges.merge(made)
        whole = NEAREST.calibrate(IMAGES[:count], engine="tract")
        assert merged._ranges.warnings == whole._ranges.warnings
        found: list[str] = merged._ranges.warnings
        assert NEAREST.apply(merged).report.warnings[: len(found)] == tuple(found)
        return found

    few = "only 12 samples: give at least 128, as varied as production inputs"
    assert remarks(12, 3) == [few]
    assert remarks(12, 12) == [few]
    assert remarks(40, 2) == []


def test_missing_and_doubled_parts_are_refused_by_name() -> None:
    first, second, third, fourth = parts(4)
    with pytest.raises(CalibrationError, match="lack shard 2/4, 4/4: merge all of them"):
        Ranges.merge([first, third])
    with pytest.raises(CalibrationError, match="shard 3/4 is given twice"):
        Ranges.merge([first, second, third, fourth, third])
    with pytest.raises(CalibrationError, match="shard 1/4 is given twice"):
        Ranges.merge([first, first])
    with pytest.raises(CalibrationError, match="lack shard 2/4, 3/4, 4/4"):
        PLAN.apply(first)
    with pytest.raises(CalibrationError, match="shards 1/4 and 1/2 are of different divisions"):
        first.merge(parts(2)[0])
    with pytest.raises(CalibrationError, match="the other of all samples"):
        first.merge(PLAN.calibrate(IMAGES, engine="tract"))
    with pytest.raises(CalibrationError, match="there are no ranges to merge"):
        Ranges.merge([])
    # Some at a time.
    assert first.merge(third).merge(second.merge(fourth)).samples == len(IMAGES)


def test_parts_of_something_else_are_refused_by_what_differs() -> None:
    first, _ = parts(2)
    with pytest.raises(CalibrationError, match="different methods, minmax and entropy"):
        first.merge(parts(2, method="entropy")[1])
    other = quantize_rs.open(DIGITS.model).plan(activations="uint8", op_types=["Conv"])
    with pytest.raises(CalibrationError, match=r"come from different plans|different values"):
        first.merge(other.calibrate(IMAGES, shard="2/2", engine="tract"))
    other = quantize_rs.open(DIGITS.model).plan(activations="int8")
    with pytest.raises(CalibrationError, match="has different types"):
        first.merge(other.calibrate(IMAGES, shard="2/2", engine="tract"))
    other = quantize_rs.open(decoder()).plan(activations="uint8")
    with pytest.raises(CalibrationError, match="belong to different models"):
        first.merge(other.calibrate(prompts(4), shard="2/2"))
    with pytest.raises(CalibrationError, match="different engines"):
        first.merge(PLAN.calibrate(IMAGES, shard="2/2", engine="onnxruntime"))


def test_parts_of_plans_with_other_options_are_refused() -> None:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "factors"], ["normal"]),
        helper.make_node("MatMul", ["normal", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"factors": np.r_[60, np.ones(31)], "w": rng.normal(size=(32, 32))}
    model = quantize_rs.open(graphs.built(nodes, weights, ["n", 32]))
    x = rng.normal(size=(8, 32)).astype(np.float32)
    plans = (model.plan(activations="uint8", smooth=smooth) for smooth in (True, False))
    one, two = (plan.calibrate(x, shard=(i, 2)) for i, plan in enumerate(plans, 1))
    with pytest.raises(CalibrationError, match="such as smooth or bias_correction"):
        one.merge(two)
    samples = prompts(8)
    model = quantize_rs.open(decoder())
    plans = (model.plan(weights="int8", kv_cache=cache) for cache in ("int8", None))
    one, two = (plan.calibrate(samples, shard=(i, 2)) for i, plan in enumerate(plans, 1))
    with pytest.raises(CalibrationError, match="has the largest keys and values"):
        one.merge(two)


def test_a_part_without_second_moments_is_refused(tmp_path: Path) -> None:
    first, _ = parts(2)
    _, second = parts(2, NEAREST)
    for one, two in ((first, second), (second, first)):
        with pytest.raises(CalibrationError, match=r"second moments: .* weight_algorithm$"):
            one.merge(two)
    # JSON does not hold them, which its notes say.
    path = tmp_path / "first.json"
    path.write_text(first.to_json(), "utf-8")
    merged = Ranges.load(path).merge(parts(2)[1])
    assert any("rounded without samples" in note for note in merged.notes)


def test_a_list_is_no_file_of_ranges(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    path.write_text("[]", "utf-8")
    with pytest.raises(CalibrationError, match=r"not a ranges file: it holds a list, expected"):
        Ranges.load(path)


def test_what_is_no_part_is_refused() -> None:
    for wrong in ("5/4", "0/4", "1", "a/b", (3, 2), (1, 2**70)):
        with pytest.raises(OptionError, match="shard is"):
            PLAN.calibrate(IMAGES, shard=wrong)
    with pytest.raises(CalibrationError, match="auto selects by all samples"):
        PLAN.calibrate(IMAGES, shard="1/2", method="auto")


def test_the_largest_keys_and_values_are_merged() -> None:
    plan = quantize_rs.open(decoder()).plan(weights="int8", kv_cache="int8", allow_larger=True)
    samples = prompts(9)
    merged = Ranges.merge([plan.calibrate(samples, shard=(i, 3)) for i in (1, 2, 3)])
    whole = plan.calibrate(samples)
    assert plan.apply(merged).to_bytes() == plan.apply(whole).to_bytes()


def test_a_merge_says_that_weights_are_not_rounded() -> None:
    plan = quantize_rs.open(DIGITS.model).plan(activations="uint8", weight_algorithm="gptq")
    halves = [plan.calibrate(IMAGES[at::2], engine="tract") for at in (0, 1)]
    report = plan.apply(halves[0].merge(halves[1])).report
    assert any("rounded without samples" in note for note in report.notes)


def test_the_command_line_writes_and_merges_parts(tmp_path: Path) -> None:
    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "quantize_rs", *map(str, arguments)]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    given = ("--calibration-data", DIGITS.calibration, "--limit", 61, "--engine", "tract")
    for index in (1, 2):
        part = ("--shard", f"{index}/2", "--ranges-out", f"part{index}.json")
        done = command("calibrate", DIGITS.model, *given, *part)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part1.json", "part2.json"]
    done = command("ranges", "merge", "part2.json", "part1.json", "--output", "all.json")
    assert done.returncode == 0, done.stderr
    merged = Ranges.load(tmp_path / "all.json")
    assert merged.values == PLAN.calibrate(IMAGES, engine="tract").values
    done = command("ranges", "merge", "part1.json", "part1.json", "--output", "twice.json")
    assert done.returncode != 0
    assert "shard 1/2 is given twice" in done.stderr
    assert not (tmp_path / "twice.json").exists()
    done = command("calibrate", DIGITS.model, "--ranges", "part1.json", "-o", "out.onnx")
    assert done.returncode != 0
    assert "lack shard 2/2" in done.stderr
    done = command("calibrate", DIGITS.model, *given, "--shard", "1/2")
    assert done.returncode == 2
    assert "--ranges-out" in done.stderr


def test_the_command_takes_another_name_of_the_file_of_ranges(tmp_path: Path) -> None:
    written = {}
    for flag in ("--ranges-out", "--save-ranges"):
        path = tmp_path / flag
        line = [sys.executable, "-m", "quantize_rs", "calibrate", str(DIGITS.model), "--quiet"]
        line += ["--data", str(DIGITS.calibration), "--shard", "1/2", flag, str(path)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        written[flag] = path.read_bytes()
    assert written["--ranges-out"] == written["--save-ranges"]
