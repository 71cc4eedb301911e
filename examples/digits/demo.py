"""Quantize a trained image classifier in two modes, and measure size, latency and accuracy.

Run it with ``make demo``. It writes the models and an HTML report to ``demo-output/``.
"""

from __future__ import annotations

import argparse
import logging
import platform
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from enlarge import enlarged

import quantize_rs

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits_demo.onnx"
OUTPUT = HERE.parents[1] / "demo-output"

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """What one model file does on the test images."""

    name: str
    size: int
    logits: Array
    accuracy: float
    milliseconds: float


def session(path: Path, *, fold: bool) -> ort.InferenceSession:
    """Open a model on one thread; with `fold`, quantized weights become float while it loads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if fold:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(
    files: dict[str, tuple[Path, bool]],
    images: Array,
    labels: npt.NDArray[np.int64],
    rounds: int,
) -> list[Measured]:
    """Run every file on every image; time them in turns, and keep the fastest run of each."""
    sessions = {name: session(path, fold=fold) for name, (path, fold) in files.items()}
    fastest = dict.fromkeys(files, float("inf"))
    for number in range(rounds):
        image = images[number % len(images) :][:1]
        for name, running in sessions.items():
            begun = time.perf_counter()
            running.run(None, {"image": image})
            fastest[name] = min(fastest[name], time.perf_counter() - begun)
    rows = []
    for name, (path, _) in files.items():
        logits = sessions[name].run(None, {"image": images})[0]
        accuracy = float((logits.argmax(axis=1) == labels).mean())
        rows.append(Measured(name, path.stat().st_size, logits, accuracy, 1000 * fastest[name]))
    return rows


def sqnr_db(reference: Array, other: Array) -> float:
    """Signal to quantization noise in dB: infinite when nothing changed."""
    signal = np.square(reference, dtype=np.float64).sum()
    noise = np.square(reference - other, dtype=np.float64).sum()
    return float(10 * np.log10(signal / noise)) if noise else float("inf")


def table(rows: list[Measured]) -> str:
    """One line for each model, compared with the first."""
    header = ("", "bytes", "smaller", "ms", "faster", "accuracy", "SQNR dB")
    lines = ["{:16}{:>9}{:>9}{:>8}{:>8}{:>10}{:>9}".format(*header)]
    first = rows[0]
    lines += [
        f"{row.name:16}{row.size:9}{first.size / row.size:8.2f}x{row.milliseconds:8.3f}"
        f"{first.milliseconds / row.milliseconds:7.2f}x{row.accuracy:10.4f}"
        f"{sqnr_db(first.logits, row.logits):9.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def explanation(rows: list[Measured], samples: int, target: str) -> dict[str, str]:
    """What each line and column of the table shows, and why."""
    float_, folded, weights, static = rows
    if static.milliseconds < float_.milliseconds:
        result = "so the model is both smaller and faster."
    else:
        result = "which pays off on CPUs with instructions for it; on this one it was not faster."
    notes = {
        "x86": "",
        "arm": " target='arm' sets what this CPU needs.",
        "x86-avx2": (
            " This CPU has no VNNI instructions: target='x86-avx2' limits weights to 7 bits, so"
            " that sums of products cannot overflow."
        ),
    }
    return {
        float_.name: "The original model: convolutions of 32 to 128 channels, 435,338 parameters.",
        folded.name: (
            "quantize(), no data needed. The file is smaller; the speed is about that of float32,"
            " because ONNX Runtime computes in float. The session option"
            " session.disable_quant_qdq=1 makes it dequantize the weights once, while it loads the"
            " model."
        ),
        weights.name: (
            "The same file without that option. ONNX Runtime dequantizes the weights at inference"
            " time, which takes time and prevents the fast layout of float convolutions."
        ),
        static.name: (
            f"quantize_with_calibration(): {samples} sample images give the ranges of the"
            f" activations. ONNX Runtime then computes with 8-bit integers, {result}"
            + notes[target]
        ),
        "ms": (
            "Time for one image on one thread: the fastest of the runs, which other programs on"
            " this machine disturb least. Other CPUs give other numbers."
        ),
        "accuracy": (
            f"Fraction of {len(float_.logits)} test images classified correctly. The images were"
            " used neither in training nor in calibration."
        ),
        "SQNR dB": (
            "Signal to quantization noise ratio of the outputs. At 20 dB the error is 10 % of the"
            " signal, at 40 dB 1 %."
        ),
        "Not shown": (
            'output_format="dynamic" computes with integers without samples. It suits models of'
            " matrix multiplications, such as transformers: see examples/transformer.ipynb."
        ),
    }


def static_int8(model: Path, output: Path, samples: Array) -> tuple[quantize_rs.Report, str]:
    """Quantize for the CPU of this machine, and say which target that is."""

    def quantized(target: str | None) -> quantize_rs.Report:
        return quantize_rs.quantize_with_calibration(model, output, samples, target=target)

    if platform.machine().lower() in ("arm64", "aarch64"):
        return quantized("arm"), "arm"
    report = quantized(None)
    if any("target x86-avx2" in warning for warning in report.warnings):
        return quantized("x86-avx2"), "x86-avx2"
    return report, "x86"


def main() -> None:
    """Quantize, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for what is written")
    parser.add_argument("--rounds", type=int, default=500, help="timed runs of each model")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the reports have the warnings, too
    options.output.mkdir(exist_ok=True, parents=True)
    weights, static = options.output / "digits.weights.onnx", options.output / "digits.int8.onnx"

    digits = quantize_rs.examples.digits()
    samples = enlarged(np.load(digits.calibration))
    quantize_rs.quantize(MODEL, weights)
    report, target = static_int8(MODEL, static, samples)
    report.save_html(options.output / "report.html")

    test = np.load(digits.test)
    files = {
        "float32": (MODEL, False),
        "int8 weights": (weights, True),
        "... not folded": (weights, False),
        "int8 static": (static, False),
    }
    rows = measure(files, enlarged(test["images"]), test["labels"], options.rounds)
    print(f"\n{MODEL.name} in ONNX Runtime {ort.__version__}\n\n{table(rows)}\n")
    for name, text in explanation(rows, len(samples), target).items():
        indent = " " * 16
        print(textwrap.fill(f"{name:16}{text}", 96, subsequent_indent=indent))
    print(f"\nWritten to {options.output}: both models, and report.html, which shows every value.")


if __name__ == "__main__":
    main()
