"""Mutated sample files against what is read in Python: each is taken, or refused with an error.

    python tests/attacks/readers.py [--count N] [--first NUMBER] [--target NAME]

A number stands for an input; `--first NUMBER --count 1` runs it again. No input may raise anything
but a `QuantizeError`, take more than 10 seconds, or hold more than a gigabyte. The last file stays
in the folder that is printed if the process dies.

Needs numpy, onnx, pyarrow and pillow.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import random
import resource
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

import quantize_rs
from quantize_rs import QuantizeError

MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    agraph (float[n, 4] x) => (float[n, 2] y)
    <float[4, 2] w = {0.5, -1.0, 0.25, 2.0, 1.0, 0.75, -0.5, 1.5}>
    { y = MatMul(x, w) }"""
).SerializeToString()
EDGES = (0, 1, 2, 127, 255, 65535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, 1 << 63)
SLOWEST = 10.0  # seconds
MOST = 1 << 20  # KiB of memory more than before
Mutated = Callable[[random.Random], bytes]


def some_bytes(seed: bytes, pick: random.Random, begin: int = 0) -> bytes:
    """The seed with a few bytes, numbers or parts changed from `begin` on."""
    made = bytearray(seed)
    for _ in range(pick.choice((1, 1, 1, 2, 4))):
        at = pick.randrange(begin, len(made)) if begin < len(made) else len(made)
        match pick.randrange(6):
            case 0:
                del made[at : at + pick.randint(1, 16)]
            case 1:
                made[at:at] = made[at : at + pick.randint(1, 64)]
            case 2:
                width = pick.choice((2, 4, 8))
                made[at : at + width] = (pick.choice(EDGES) % (1 << 8 * width)).to_bytes(
                    width, "little"
                )
            case _:
                made[at : at + 1] = bytes([pick.randrange(256)])
    return bytes(made)


def rows() -> Any:
    numbers = np.arange(40, dtype=np.float32).reshape(10, 4) / 7
    labels = pa.array([f"label {i % 3}" for i in range(10)])
    column = pa.array(numbers.tolist(), pa.list_(pa.float32()))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 4)
    return [pa.table({"x": values, "label": labels}) for values in (column, fixed)]


def parquet() -> Mutated:
    seeds = []
    for table in rows():
        for compression in ("none", "snappy", "gzip", "zstd"):
            file = io.BytesIO()
            pq.write_table(table, file, compression=compression)
            seeds.append(file.getvalue())

    def mutated(pick: random.Random) -> bytes:
        seed = pick.choice(seeds)
        # The structure is in the footer, which ends with its length.
        footer = len(seed) - 8 - int.from_bytes(seed[-8:-4], "little")
        return some_bytes(seed, pick, pick.choice((0, footer, footer, len(seed) - 8)))

    return mutated


def arrow() -> Mutated:
    seeds = []
    for table in rows():
        for compression in ("uncompressed", "lz4", "zstd"):
            file = io.BytesIO()
            feather.write_feather(table, file, compression=compression)
            seeds.append(file.getvalue())
        file = io.BytesIO()
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        seeds.append(file.getvalue())
    return lambda pick: some_bytes(pick.choice(seeds), pick)


def json_lines() -> Mutated:
    lines = [json.dumps({"x": [0.5 * i, i, -1.5, 2e3], "label": "a"}) for i in range(6)]
    odd = (
        "NaN", "1e999", "-0", "null", "true", '"x"', "[" * 3000, "{}", "[]", "1" * 5000, "\ufeff",
        "\u0000", "\\ud800", str(1 << 64), '{"x": 1}', "{'x'}",
    )  # fmt: skip

    def mutated(pick: random.Random) -> bytes:
        made = list(lines)
        for _ in range(pick.choice((1, 1, 2))):
            at = pick.randrange(len(made))
            words = made[at].replace(",", " , ").replace("[", " [ ").split(" ")
            words[pick.randrange(len(words))] = pick.choice((*odd, *words))
            made[at] = " ".join(words)
        text = "\n".join(made).encode("utf-8", "surrogatepass")
        return some_bytes(text, pick) if pick.random() < 0.1 else text

    return mutated


def tar() -> Mutated:
    def array(pick: random.Random) -> bytes:
        file = io.BytesIO()
        kind = pick.choice(("f4", "f2", "i8", "u1", "c8", "U3"))
        np.save(file, np.ones((pick.choice((1, 4, 4, 5)),), kind))
        return some_bytes(file.getvalue(), pick) if pick.random() < 0.3 else file.getvalue()

    names = ("0.x.npy", "1.npy", "2.json", "3.x.npy", "3.cls", "../4.npy", "5.png", ".6.npy")

    def mutated(pick: random.Random) -> bytes:
        form = pick.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
        made = bytearray()
        for name in pick.sample(names, pick.randint(1, 4)):
            content = b'{"x": [1, 2, 3, 4]}' if name.endswith("json") else array(pick)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if pick.random() < 0.05:
                info.type = pick.choice((b"1", b"2", b"3", b"5", b"6", b"g", b"L", b"S", b"x"))
            if pick.random() < 0.05:
                info.size = pick.choice(EDGES) % (1 << 33)
            made += info.tobuf(form) + content + bytes(-len(content) % 512)
        made += bytes(1024)
        if pick.random() < 0.3:
            made = bytearray(gzip.compress(made))
        return some_bytes(bytes(made), pick) if pick.random() < 0.2 else bytes(made)

    return mutated


# What is attacked: the ending of its files, and what makes one.
TARGETS: dict[str, tuple[str, Callable[[], Mutated]]] = {
    "parquet": (".parquet", parquet),
    "arrow": (".arrow", arrow),
    "json_lines": (".jsonl", json_lines),
    "tar": (".tar", tar),
}


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(name: str, first: int, count: int, folder: Path) -> list[str]:
    """What is wrong, one line each."""
    ending, begin = TARGETS[name]
    mutated, faults, taken = begin(), [], 0
    path = folder / f"input{ending}"
    plan = quantize_rs.open(MODEL).plan(activations="uint8")
    for number in range(first, first + count):
        path.write_bytes(mutated(random.Random(number)))
        before, begun = memory(), time.monotonic()
        try:
            plan.calibrate(path, method="minmax", engine="tract")
            taken += 1
        except QuantizeError:
            pass
        except BaseException as error:  # panics are no `Exception`
            faults.append(f"{name} input {number}: {type(error).__name__}: {error}")
        if time.monotonic() - begun > SLOWEST:
            faults.append(f"{name} input {number}: took {time.monotonic() - begun:.0f} s")
        if memory() - before > MOST:
            faults.append(f"{name} input {number}: took {(memory() - before) >> 10} MiB")
    print(f"{name}: {count} inputs, {taken} of them were taken, {len(faults)} faults", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="inputs of each target")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--target", choices=TARGETS, help="one target instead of all")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    print(f"inputs are written to {folder}", flush=True)
    faults = []
    for name in [args.target] if args.target else TARGETS:
        faults += run(name, args.first, args.count, folder)
    print("\n".join(faults[:50]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
