"""Quantizes the digits model in both ways and shows what it gained and what it cost.

Run it with ``make demo``; it writes to ``demo-output/`` and prints one table.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

import quantize_rs

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits_cnn.onnx"
CALIBRATION = HERE / "calibration.npy"
OUTPUT = HERE.parents[1] / "demo-output"
ROUNDS = 2000

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """What one model file does on the test images."""

    name: str
    size: int
    logits: Array
    accuracy: float
    milliseconds: float


def session(path: Path) -> ort.InferenceSession:
    """Open a model on one thread, as a phone would run it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(files: dict[str, Path], images: Array, labels: npt.NDArray[np.int64]) -> list[Measured]:
    """Run every file on every image; time them in turns, so that noise hits all alike."""
    sessions = {name: session(path) for name, path in files.items()}
    timings: dict[str, list[float]] = {name: [] for name in files}
    for round_ in range(ROUNDS):
        image = images[round_ % len(images) :][:1]
        for name, running in sessions.items():
            begun = time.perf_counter()
            running.run(None, {"image": image})
            timings[name].append(time.perf_counter() - begun)
    rows = []
    for name, path in files.items():
        logits = sessions[name].run(None, {"image": images})[0]
        accuracy = float((logits.argmax(axis=1) == labels).mean())
        milliseconds = 1000 * median(timings[name])
        rows.append(Measured(name, path.stat().st_size, logits, accuracy, milliseconds))
    return rows


def sqnr_db(reference: Array, other: Array) -> float:
    """Signal to quantization noise in dB: infinite when nothing changed."""
    signal = np.square(reference, dtype=np.float64).sum()
    noise = np.square(reference - other, dtype=np.float64).sum()
    return float(10 * np.log10(signal / noise)) if noise else float("inf")


def main() -> None:
    """Quantize, measure, print."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    OUTPUT.mkdir(exist_ok=True)
    weights, static = OUTPUT / "digits.weights.onnx", OUTPUT / "digits.int8.onnx"

    quantize_rs.quantize(MODEL, weights, per_channel=True, symmetric=True)
    report = quantize_rs.quantize_with_calibration(
        MODEL, static, CALIBRATION, per_channel=True, symmetric=True
    )

    test = np.load(HERE / "test.npz")
    files = {"float32": MODEL, "int8 weights": weights, "int8 static": static}
    rows = measure(files, test["images"], test["labels"])
    print(report)
    print(f"{len(test['labels'])} held-out images, onnxruntime {ort.__version__}, one thread\n")
    print(f"{'':14}{'bytes':>9}{'smaller':>9}{'accuracy':>10}{'SQNR dB':>9}{'ms':>8}")
    for row in rows:
        print(
            f"{row.name:14}{row.size:9}{rows[0].size / row.size:8.2f}x{row.accuracy:10.4f}"
            f"{sqnr_db(rows[0].logits, row.logits):9.1f}{row.milliseconds:8.3f}"
        )
    print(f"\nwritten to {OUTPUT}")


if __name__ == "__main__":
    main()
