"""Models quantized for browsers, run in ONNX Runtime Web's WebAssembly under Node.

    python bench/web.py RUNTIME MODELS [--only PATTERN ...] [--ways PATTERN ...] [--rounds 10]

RUNTIME is the folder `dist` of the npm package onnxruntime-web, or one with its files
`ort-wasm-simd-threaded.jsep.mjs` and `.wasm`; MODELS is a folder of models as bench/README.md
describes it. Printed is a table for each model: CPU time of one inference on one thread relative to
the float model, SQNR of the worst output on one sample, and size.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import samples

import quantize_rs

Feed = dict[str, np.ndarray]
CALIBRATION_SAMPLES = 64
TYPES = {"float32": "float", "int64": "int64", "bool": "bool", "float16": "float16"}


def weights(**options: Any) -> Callable[[Path, Any], quantize_rs.Report]:
    """A way to quantize weights alone."""
    options = {"target": "web", "check": "none"} | options
    return lambda model, _: quantize_rs.quantize(model, None, **options)


def static(**options: Any) -> Callable[[Path, Any], quantize_rs.Report]:
    """A way to quantize weights and activations."""
    options = {"target": "web", "check": "none", "limit": CALIBRATION_SAMPLES} | options
    return lambda model, data: quantize_rs.quantize_with_calibration(model, None, data, **options)


WAYS: dict[str, Callable[[Path, Any], Any]] = {
    "int8 weights": weights(),
    "dynamic": weights(output_format="dynamic"),
    "8 bits, matmul_nbits": weights(output_format="matmul_nbits"),
    "4 bits, matmul_nbits": weights(bits=4, output_format="matmul_nbits"),
    "4 bits, matmul_nbits, accuracy_level=4": weights(
        bits=4, output_format="matmul_nbits", accuracy_level=4
    ),
    "static": static(),
    "static, one scale per tensor": static(per_channel=False),
    "static, qoperator": static(output_format="qoperator"),
    "float16": lambda model, _: quantize_rs.convert_float16(model, None),
}


def main() -> None:
    options = arguments()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for path in sorted(options.models.glob("*/model.onnx")):
        if any(fnmatch.fnmatch(path.parent.name, pattern) for pattern in options.only):
            table(path, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", type=Path, help="the files of ONNX Runtime Web")
    parser.add_argument("models", type=Path, help="a folder of models, one folder each")
    parser.add_argument("--only", nargs="+", default=["*"], help="models by name or pattern")
    parser.add_argument("--ways", nargs="+", default=["*"], help="ways by name or pattern")
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help="timed runs of each model, of which the fastest counts [10]",
    )
    return parser.parse_args()


def table(path: Path, options: argparse.Namespace) -> None:
    """Quantize a model in every way, run all results, and print a row for each."""
    data = samples.Folder({"path": path.parent})
    feed = next(iter(data.held_out(1)))
    print(f"\n{path.parent.name}\n\n| way | CPU ms | times as fast | SQNR dB | MB |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        files = {"float": path}
        for label, way in WAYS.items():
            if any(fnmatch.fnmatch(label, pattern) for pattern in options.ways):
                try:
                    made = way(path, data.calibration()).model
                except quantize_rs.QuantizeError as error:
                    print(f"| {label} | refused: {error} | | | |")
                    continue
                files[label] = Path(folder, f"{label}.onnx")
                files[label].write_bytes(made)
        outputs = [output.name for output in ort.InferenceSession(path).get_outputs()]
        found = in_node(files, feed, outputs, Path(folder), options)
        wanted = ort.InferenceSession(path).run(None, feed)
        float_ms = min(found["float"]["times"])
        for label, file in files.items():
            row, megabytes = found[label], file.stat().st_size / 1e6
            if "error" in row:
                print(f"| {label} | {row['error']} | | | {megabytes:.1f} |")
                continue
            ms = min(row["times"])
            worst = min(
                sqnr_db(value, np.fromfile(Path(folder, f"{label}.{at}"), np.float32))
                for at, value in enumerate(wanted)
                if value.dtype == np.float32
            )
            print(f"| {label} | {ms:.1f} | {float_ms / ms:.2f} | {worst:.1f} | {megabytes:.1f} |")


def in_node(
    files: dict[str, Path], feed: Feed, outputs: list[str], folder: Path, options: Any
) -> dict[str, Any]:
    """Run the models in one process of Node; CPU times, or the error, by label."""
    inputs = []
    for at, (name, values) in enumerate(feed.items()):
        file = folder / f"input{at}"
        np.ascontiguousarray(values).tofile(file)
        dtype = TYPES[str(values.dtype)]
        inputs.append({"name": name, "type": dtype, "dims": list(values.shape), "file": str(file)})
    request = {
        "runtime": str(options.runtime),
        "inputs": inputs,
        "outputs": outputs,
        "models": {label: str(path) for label, path in files.items()},
        "rounds": options.rounds,
        "folder": str(folder),
    }
    asked = folder / "request.json"
    asked.write_text(json.dumps(request))
    script = Path(__file__).with_suffix(".mjs")
    # Without these, the first runs of a function are those of a compiler that does not optimize.
    compiled = ["--no-liftoff", "--no-wasm-lazy-compilation"]
    command = ["node", *compiled, script, asked]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def sqnr_db(wanted: np.ndarray, got: np.ndarray) -> float:
    wanted, got = (values.ravel().astype(np.float64) for values in (wanted, got))
    noise = np.sum((wanted - got) ** 2)
    return float(10 * np.log10(np.sum(wanted**2) / noise)) if noise else float("inf")


if __name__ == "__main__":
    main()
