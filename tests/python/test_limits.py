"""Limits of the system on memory and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import memory
import numpy as np
import onnx
from onnx import TensorProto, helper

import quantize_rs

SIZE = 2048


def zeros(path: Path, layers: int, dtype: int = TensorProto.FLOAT) -> int:
    """A chain of products by matrices of zeros, in a file of data that takes no room.

    Returns the bytes of the weights.
    """
    layer: int = SIZE * SIZE * helper.tensor_dtype_to_np_dtype(dtype).itemsize
    weights = []
    for at in range(layers):
        weight = TensorProto(name=f"w{at}", data_type=dtype, dims=[SIZE, SIZE], data_location=1)
        for key, value in (("location", "zeros"), ("offset", at * layer), ("length", layer)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    nodes = [
        helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"]) for at in range(layers)
    ]
    ends = [
        helper.make_tensor_value_info(name, dtype, ["n", SIZE]) for name in ("x0", f"x{layers}")
    ]
    graph = helper.make_graph(nodes, "zeros", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    with path.with_name("zeros").open("wb") as file:
        file.truncate(layers * layer)
    return layers * layer


@memory.needs_proc
def test_weights_of_16_bits_are_not_all_in_memory(tmp_path: Path) -> None:
    path, made = tmp_path / "zeros.onnx", tmp_path / "half.onnx"
    size = zeros(path, 40)
    held = memory.growth(f"quantize_rs.convert_float16({str(path)!r}, {str(made)!r})")
    assert held < 0.75 * size / 2


@memory.needs_proc
def test_planning_holds_no_weights_of_16_bits_as_wider_floats(tmp_path: Path) -> None:
    path, made = tmp_path / "zeros.onnx", tmp_path / "quantized.onnx"
    size = zeros(path, 40, TensorProto.FLOAT16)
    held = memory.growth(f"quantize_rs.quantize({str(path)!r}, {str(made)!r})")
    assert held < size


# The limit leaves no room for another copy of the result, of 96 MiB.
SHORT = """
import resource, sys
import quantize_rs
made = quantize_rs.open(sys.argv[1]).plan().apply()
pages = int(open("/proc/self/statm").read().split()[0])
for room in (20, 60, 110, 150):
    limit = pages * resource.getpagesize() + (room << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        made.to_bytes()
    except (MemoryError, OSError) as error:
        print(type(error).__name__)
"""


@memory.needs_proc
def test_bytes_without_room_are_a_memory_error(tmp_path: Path) -> None:
    path = tmp_path / "zeros.onnx"
    zeros(path, 24)
    command = [sys.executable, "-W", "ignore", "-c", SHORT, str(path)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "MemoryError" in run.stdout.split()


# The stack of a thread takes 256 MiB of addresses.
NO_THREAD = """
import resource, sys
import quantize_rs
quantize_rs.quantize(sys.argv[1], None)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    quantize_rs.open(sys.argv[1]).plan(activations="uint8").calibrate(sys.argv[2])
except (quantize_rs.QuantizeError, OSError, MemoryError) as error:
    print(error)
"""


@memory.needs_proc
def test_a_thread_that_cannot_be_started_is_no_internal_error() -> None:
    digits = quantize_rs.examples.digits()
    command = [sys.executable, "-W", "ignore", "-c", NO_THREAD]
    command += [str(digits.model), str(digits.calibration)]
    stacks = {**os.environ, "RUST_MIN_STACK": str(256 << 20)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=stacks)
    assert "panicked" not in run.stderr
    assert "internal error" not in run.stdout
    assert "ulimit" in run.stdout


# There is room for no thread.
NO_THREADS = """
import resource, sys
import numpy as np
import quantize_rs
x = np.load(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
np.save(sys.argv[2], quantize_rs.kernels.quantize_linear(x, 0.02, 128))
"""


@memory.needs_proc
def test_arithmetic_runs_on_the_calling_thread_where_there_are_no_others(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    given, made = tmp_path / "x.npy", tmp_path / "made.npy"
    np.save(given, x)
    command = [sys.executable, "-W", "ignore", "-c", NO_THREADS, str(given), str(made)]
    stacks = {**os.environ, "RUST_MIN_STACK": str(256 << 20)}
    subprocess.run(command, check=True, env=stacks, timeout=300)
    expected = quantize_rs.kernels.quantize_linear(x, 0.02, 128)
    np.testing.assert_array_equal(np.load(made), expected)


# A process with one thread forks without a warning.
FEW_THREADS = """
import os, sys
import quantize_rs
before = len(os.listdir("/proc/self/task"))
quantize_rs.model_info(sys.argv[1])
quantize_rs.open(sys.argv[1])
assert len(os.listdir("/proc/self/task")) == before
"""


@memory.needs_proc
def test_a_model_that_is_read_starts_no_threads_that_stay() -> None:
    digits = quantize_rs.examples.digits().model
    subprocess.run([sys.executable, "-c", FEW_THREADS, str(digits)], check=True)
