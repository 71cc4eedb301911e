"""Peak of anonymous memory while calibrating, with few samples and with many, for every format.

Each row is a process of its own, in which a thread reads `RssAnon` from /proc every millisecond.
The model is small and the samples are large, so that samples which are held in memory show.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

SIZE = 224
FORMATS = (
    "npy",
    "npy in Fortran order",
    "npz, stored",
    "npz, deflated",
    "safetensors",
    "folder of images",
    "iterable",
)


def model() -> bytes:
    """A network of two convolutions on images."""
    rng = np.random.default_rng(0)
    weights = {
        "v": rng.normal(0, 0.2, (8, 3, 3, 3)).astype(np.float32),
        "w": rng.normal(0, 0.1, (4, 8, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "v"], ["a"], strides=[4, 4]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["y"], strides=[4, 4]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "images",
        [value("image", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def write(folder: Path, name: str, count: int) -> Path:
    """Write this many samples in a format."""
    rng = np.random.default_rng(1)
    images = rng.normal(0, 1, (count, 3, SIZE, SIZE)).astype(np.float32)
    path = folder / "samples"
    if name == "npy":
        np.save(path.with_suffix(".npy"), images)
        return path.with_suffix(".npy")
    if name == "npy in Fortran order":
        np.save(path.with_suffix(".npy"), np.asfortranarray(images))
        return path.with_suffix(".npy")
    if name.startswith("npz"):
        save: Callable[..., None] = np.savez if name == "npz, stored" else np.savez_compressed
        save(path.with_suffix(".npz"), image=images)
        return path.with_suffix(".npz")
    if name == "safetensors":
        header = (
            f'{{"image":{{"dtype":"F32","shape":{list(images.shape)},'
            f'"data_offsets":[0,{images.nbytes}]}}}}'
        ).encode()
        path = path.with_suffix(".safetensors")
        path.write_bytes(len(header).to_bytes(8, "little") + header + images.tobytes())
        return path
    from PIL import Image

    path.mkdir()
    for at in range(count):
        pixels = rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(path / f"{at:04}.png")
    return path


def watched(stop: threading.Event, peak: list[int]) -> None:
    """Update the peak of `RssAnon` in bytes until `stop` is set."""
    while not stop.is_set():
        text = Path("/proc/self/status").read_text("ascii")
        line = next(line for line in text.splitlines() if line.startswith("RssAnon"))
        peak[0] = max(peak[0], int(line.split()[1]) * 1024)
        time.sleep(0.001)


def calibrated(path: Path, name: str, count: int, engine: str) -> int:
    """Calibrate, and return the peak of anonymous memory."""
    import quantize_rs

    data: Any = path
    if name == "iterable":

        def items() -> Iterator[npt.NDArray[Any]]:
            rng = np.random.default_rng(1)
            for _ in range(count):
                yield rng.normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)

        data = items()
    peak, stop = [0], threading.Event()
    thread = threading.Thread(target=watched, args=(stop, peak))
    thread.start()
    quantize_rs.quantize_with_calibration(
        model(), None, data, engine=engine, num_samples=count, threads=1
    )
    stop.set()
    thread.join()
    return peak[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--counts", type=int, nargs=2, default=(16, 256))
    parser.add_argument("--one", nargs=3, metavar=("PATH", "FORMAT", "COUNT"))
    options = parser.parse_args()
    if options.one:
        path, name, count = options.one
        print(calibrated(Path(path), name, int(count), options.engine))
        return
    few, many = options.counts
    print(f"| samples | peak with {few} | peak with {many} | ratio |\n|---|---|---|---|")
    for name in FORMATS:
        peaks = []
        for count in (few, many):
            with tempfile.TemporaryDirectory() as folder:
                path = Path() if name == "iterable" else write(Path(folder), name, count)
                one = ["--one", str(path), name, str(count), "--engine", options.engine]
                command = [sys.executable, __file__, *one]
                printed = subprocess.run(command, check=True, capture_output=True, text=True)
                peaks.append(int(printed.stdout.split()[-1]))
        sizes = " | ".join(f"{peak / 1e6:.1f} MB" for peak in peaks)
        print(f"| {name} | {sizes} | {peaks[1] / peaks[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
