"""How calibration scales with the number of workers: measured on this machine, then computed.

Measured are one and two processes with one thread each, and what the time is made of: the start of
a worker, a forward pass, a sample of another part that is passed over, and the merge of a part.
From these the time of up to 256 workers is computed, as if each had a core and a disk of its own.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import machine
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from resnet18 import resnet18

import quantize_rs
from quantize_rs import distributed
from quantize_rs.distributed import Processes, Shard

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Costs:
    """Seconds of each piece; `skip` by format."""

    start: float
    forward: float
    skip: dict[str, float]
    merge: float
    part_bytes: int

    def total(self, samples: int, workers: int, form: str) -> float:
        """The time of a calibration whose workers all start at once."""
        own = math.ceil(samples / workers)
        work = self.start + own * self.forward + (samples - own) * self.skip[form]
        return work + workers * self.merge


def images(count: int) -> npt.NDArray[np.float32]:
    """Waves with some noise, since noise alone gives a warning."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(224) / rng.uniform(5, 50, (count, 3, 224, 1)))
    return (waves + rng.normal(0, 0.05, (count, 3, 224, 224))).astype(np.float32)


def seconds(work: Callable[[], object]) -> float:
    """The time of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def shards(plan: quantize_rs.Plan, path: Path, count: int, limit: int | None) -> list[Shard]:
    return distributed.split(plan, path, count, engine="onnxruntime", limit=limit)


def in_new_process(shard: Shard) -> float:
    with Processes(1) as executor:
        return seconds(lambda: executor.submit(shard).result())


def costs(plan: quantize_rs.Plan, files: dict[str, Path], samples: int) -> Costs:
    """Measure the pieces, each in a process of its own."""
    npy = files["npy"]
    [every] = shards(plan, npy, 1, None)
    start, skip = math.inf, {}
    for form, path in files.items():
        [one] = shards(plan, path, 1, 1)
        alone = min(in_new_process(one) for _ in range(3))
        start = min(start, alone)
        # The last part runs the last sample alone, after it has passed all others.
        last = shards(plan, path, samples, None)[-1]
        passed = min(in_new_process(last) for _ in range(3)) - alone
        skip[form] = max(0.0, passed) / (samples - 1)
    forward = (in_new_process(every) - start) / (samples - 1)
    parts = [shard() for shard in shards(plan, npy, 8, None)]
    merge = min(seconds(lambda: distributed.merge(parts)) for _ in range(3)) / len(parts)
    return Costs(start, forward, skip, merge, len(parts[0]))


def measured(plan: quantize_rs.Plan, path: Path, workers: int, whole: quantize_rs.Ranges) -> float:
    """The time of a calibration from the start of the processes to the merged ranges."""

    def work() -> None:
        found = distributed.calibrate(plan, path, workers, engine="onnxruntime")
        assert found == whole, "the ranges of one process, bit for bit"

    return seconds(work)


def compare(title: str, plan: quantize_rs.Plan, path: Path, runs: int) -> None:
    """Print the time of one and of two processes."""
    whole = plan.calibrate(path, engine="onnxruntime", threads=1)
    times = {
        workers: min(measured(plan, path, workers, whole) for _ in range(runs))
        for workers in (1, 2)
    }
    print(f"\n| {title} | seconds | times as fast |\n|---|---|---|")
    for workers, took in times.items():
        print(f"| {workers} | {took:.1f} | {times[1] / took:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=256, help="images that are measured")
    parser.add_argument("--simulated", type=int, default=4096, help="images that are computed")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, path = Path(folder, "resnet18.onnx"), Path(folder, "images.npy")
        resnet18(model)
        array = images(options.samples)
        np.save(path, array)
        tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(array)
        parquet = path.with_suffix(".parquet")
        pq.write_table(pa.table({"image": tensors}), parquet)
        plan = quantize_rs.open(model).plan(activations="uint8", weight_algorithm="nearest")
        rounded = quantize_rs.open(model).plan(activations="uint8")
        found = machine.describe({})
        print(f"{found['processor']}, {found['cores']} cores, load {found['load']}")
        compare("processes", plan, path, options.runs)
        compare("processes, with rounding", rounded, path, options.runs)
        each = costs(plan, {"npy": path, "parquet": parquet}, options.samples)
    print(f"\nstart of a worker: {each.start:.2f} s")
    print(f"forward pass: {1e3 * each.forward:.1f} ms")
    for form, took in each.skip.items():
        print(f"sample of another part, {form}: {1e3 * took:.2f} ms")
    print(f"merge of a part: {1e3 * each.merge:.2f} ms, {each.part_bytes / 1e3:.0f} kB of JSON\n")
    total = options.simulated
    print("| workers | npy: seconds | times as fast | Parquet: seconds | times as fast |")
    print("|---|---|---|---|---|")
    for workers in WORKERS:
        cells = []
        for form in each.skip:
            took = each.total(total, workers, form)
            cells += [f"{took:.1f}", f"{each.total(total, 1, form) / took:.1f}"]
        print(f"| {workers} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
