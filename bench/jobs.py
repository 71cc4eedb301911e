"""What a measured process can do: one entry per job, which prepares a call and does not start it.

A job runs in the interpreter of its tool, so what not every interpreter has is imported inside it.
"""

from __future__ import annotations

import importlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Call = Callable[[], object]
Request = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A call ready to be measured, and what the reader should know about its preparation."""

    call: Call
    notes: list[str] = field(default_factory=list)


def quantize(request: Request) -> Prepared:
    """`quantize_rs.quantize`: ours or the release before, whichever this interpreter has."""
    import quantize_rs

    def call() -> None:
        quantize_rs.quantize(request["model"], request["output"], **request["options"])

    return Prepared(call)


def correct(request: Request) -> Prepared:
    """`quantize_rs.quantize` with arrays in memory, by which biases are corrected."""
    import samples

    import quantize_rs

    data = samples.of(request["samples"]).calibration()

    def call() -> None:
        quantize_rs.quantize(
            request["model"], request["output"], calibration_data=data, **request["options"]
        )

    return Prepared(call)


def float16(request: Request) -> Prepared:
    """`quantize_rs.convert_float16` with arrays in memory, on which values are measured."""
    import samples

    import quantize_rs

    data = samples.of(request["samples"]).calibration()

    def call() -> None:
        quantize_rs.convert_float16(request["model"], request["output"], data)

    return Prepared(call)


def calibrate(request: Request) -> Prepared:
    """`quantize_rs.quantize_with_calibration` with arrays in memory."""
    import samples

    import quantize_rs

    data = samples.of(request["samples"]).calibration()

    def call() -> dict[str, object]:
        report = quantize_rs.quantize_with_calibration(
            request["model"], request["output"], data, **request["options"]
        )
        return {"engine": report.engine, "warnings": list(report.warnings)}

    return Prepared(call)


def flow(request: Request) -> Prepared:
    """The steps of `quantize_with_calibration`, and the CPU seconds of one of them.

    The samples are read one by one from files.
    """
    import samples

    import quantize_rs

    data = samples.of(request["samples"]).calibration()
    load_engine(request["options"]["engine"])

    def call() -> dict[str, object]:
        plan = quantize_rs.open(request["model"]).plan(**STATIC)
        before = time.process_time()
        ranges = plan.calibrate(data, **request["options"])
        calibrating = time.process_time() - before
        report = plan.apply(ranges).save(request["output"])
        return {
            "engine": ranges.engine,
            "warnings": list(report.warnings),
            "parts": {"calibrating": calibrating},
        }

    return Prepared(call)


def load_engine(engine: str) -> None:
    """Load its library, as the import of onnxruntime does for its own rows."""
    import numpy as np

    import quantize_rs

    small = quantize_rs.open(SMALL).plan(activations="uint8")
    small.calibrate([np.zeros((1, 1, 8, 8), np.float32)], engine=engine)


SMALL = Path(__file__).parent.parent / "examples" / "digits" / "digits_cnn.onnx"
"""A model that takes almost no time to run."""

STATIC: dict[str, Any] = {
    "weights": "int8",
    "activations": "uint8",
    "per_channel": True,
    "symmetric": True,
}
"""What is planned when calibration itself is measured."""


def calibrate_npy(request: Request) -> Prepared:
    """The release before takes its samples from an .npy file only."""
    import quantize_rs

    def call() -> None:
        quantize_rs.quantize_with_calibration(
            request["model"], request["output"], request["npy"], **request["options"]
        )

    return Prepared(call)


def model_info(request: Request) -> Prepared:
    """`quantize_rs.model_info`."""
    import quantize_rs

    def call() -> None:
        quantize_rs.model_info(request["model"])

    return Prepared(call)


def onnx_load(request: Request) -> Prepared:
    """`onnx.load`: what it takes to look into a file by reading it."""
    import onnx

    def call() -> None:
        onnx.load(request["model"])

    return Prepared(call)


ORT_PACKAGE = "onnxruntime.quantization"
DROP_IN_PACKAGE = "quantize_rs.compat.onnxruntime"


def ort_dynamic(request: Request, package: str = ORT_PACKAGE) -> Prepared:
    """`onnxruntime.quantization.quantize_dynamic`."""
    functions = importlib.import_module(package)
    model = linked(request["model"])

    def call() -> None:
        functions.quantize_dynamic(model, request["output"], **request["options"])

    return Prepared(call)


def ort_nbits(request: Request, package: str = ORT_PACKAGE) -> Prepared:
    """`onnxruntime.quantization`'s MatMulNBitsQuantizer: reading, quantizing, writing."""
    module = importlib.import_module(f"{package}.matmul_nbits_quantizer")
    model = linked(request["model"])

    def call() -> None:
        quantizer = module.MatMulNBitsQuantizer(model, **request["options"])
        quantizer.process()
        quantizer.model.save_model_to_file(request["output"], False)

    return Prepared(call)


def ort_alone(request: Request) -> Prepared:
    """ONNX Runtime running the samples with the values exposed that our calibration looks at.

    It runs as many samples at once as our calibration does, each on one thread: parallel threads
    take more CPU time for the same work, and one sample on several threads takes more still. The
    outputs are dropped at once. Calibration cannot cost less than this.

    Another process writes the model: memory that is allocated and freed here would not be counted
    when the call allocates it again.
    """
    import onnxruntime
    import samples

    write = "import sys; sys.path.insert(0, sys.argv[1]); import jobs; jobs.expose(sys.argv[2])"
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", write, here, request["model"]], check=True)
    model = str(EXPOSED.resolve())
    feeds = samples.of(request["samples"]).feeds()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    threads, one_at_a_time = request["options"]["threads"], threading.Lock()

    def call() -> None:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        def run_all() -> None:
            while True:
                with one_at_a_time:
                    feed = next(feeds, None)
                if feed is None:
                    return
                session.run(None, feed)

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(run_all) for _ in range(threads)]:
                done.result()

    return Prepared(call)


def observed(model: str) -> list[str]:
    """Names of the values that calibration looks at.

    Ranges are taken of those that the plan observes; what enters a node with a bias is looked at
    too, for the bias to be corrected.
    """
    import quantize_rs

    names = set()
    for row in quantize_rs.open(model).plan(**STATIC).to_dict()["values"]:
        source = row["decision"].get("quantize", {}).get("source")
        if source == "observed":
            names.add(row["name"])
        elif isinstance(source, dict) and "product" in source:
            names.add(source["product"]["input"])
    return sorted(names)


EXPOSED = Path("exposed.onnx")
"""The model with the observed values among its outputs, in the child's folder."""


def expose(model: str) -> None:
    """Write a copy of the model that also gives what calibration looks at."""
    import onnx

    names = observed(model)
    loaded = onnx.load(model)
    given = {end.name for end in [*loaded.graph.input, *loaded.graph.output]}
    loaded.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in given
    )
    onnx.save(loaded, EXPOSED)


def ort_static(request: Request, package: str = ORT_PACKAGE) -> Prepared:
    """`onnxruntime.quantization.quantize_static`: QDQ, uint8 and int8 per channel.

    The options name the calibration method, MinMax by default.

    The pre-processing that its guide asks for is done before the call: noted, not counted.
    """
    import samples

    functions = importlib.import_module(package)
    types, methods = functions.QuantType, functions.CalibrationMethod
    model, notes = preprocessed(linked(request["model"]))
    reader = Reader(samples.of(request["samples"]).feeds())

    def call() -> None:
        functions.quantize_static(
            model,
            request["output"],
            reader,
            quant_format=functions.QuantFormat.QDQ,
            per_channel=True,
            activation_type=types.QUInt8,
            weight_type=types.QInt8,
            calibrate_method=methods[request["options"].get("method", "MinMax")],
        )

    return Prepared(call, notes)


def linked(model: str) -> str:
    """A link to the model in the child's folder: onnxruntime writes temporary files beside it.

    A model whose data lies beside it stays where it is: onnx follows no link to data.
    """
    if Path(model).with_suffix(".data").exists():
        return model
    link = Path("model.onnx").resolve()
    link.symlink_to(model)
    return str(link)


class Reader:
    """The samples as onnxruntime's calibration wants them: one dict a call, then None."""

    def __init__(self, feeds: Iterator[dict[str, Any]]) -> None:
        self.feeds = iter(list(feeds))

    def get_next(self) -> dict[str, Any] | None:
        """The next sample, or None after the last."""
        return next(self.feeds, None)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self.feeds)


def preprocessed(model: str) -> tuple[str, list[str]]:
    """The model after onnxruntime's own pre-processing, as far as that gets with it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    target = str(Path("preprocessed.onnx").resolve())
    notes = []
    for options in ({}, {"skip_symbolic_shape": True}):
        before = resource.getrusage(resource.RUSAGE_SELF)
        try:
            quant_pre_process(model, target, **options)
        except Exception as error:
            notes.append(f"quant_pre_process {options} failed: {str(error)[:60].strip()} …")
            continue
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        notes.append(f"quant_pre_process {options} before the call: {cpu:.2f} CPU s, not counted")
        return target, notes
    return model, notes


def sensitivity(request: Request) -> Prepared:
    """`quantize_rs.sensitivity`: every layer alone, calibration included."""
    import samples

    import quantize_rs

    data = list(samples.of(request["samples"]).calibration())
    load_engine("onnxruntime")

    def call() -> dict[str, object]:
        found = quantize_rs.sensitivity(request["model"], data, **request["options"])
        return {"engine": found.engine, "layers": len(found.layers)}

    return Prepared(call)


def layer_by_layer(request: Request) -> Prepared:
    """The sensitivity by hand: each layer is quantized alone, and the whole model is run.

    ONNX Runtime runs it on one thread. The ranges are computed before the call; those of our
    `sensitivity` are part of the measured call.
    """
    import numpy as np
    import onnxruntime
    import samples

    import quantize_rs

    data = list(samples.of(request["samples"]).calibration())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    model = quantize_rs.open(request["model"])
    layers = [value.name for value in model.plan(**STATIC).values if value.role == "weight"]
    plans = [
        model.plan(**STATIC, exclude=[name for name in layers if name != layer]) for layer in layers
    ]
    ready = [(plan, plan.calibrate(data)) for plan in plans]

    def outputs(file: str | bytes) -> list[list[Any]]:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return [session.run(None, feed) for feed in data]

    def call() -> dict[str, object]:
        wanted = outputs(request["model"])
        errors = []
        for plan, ranges in ready:
            pairs = zip(wanted, outputs(plan.apply(ranges).to_bytes()), strict=True)
            errors.append(sum(float(np.square(a[0] - b[0]).sum()) for a, b in pairs))
        return {"layers": len(errors)}

    return Prepared(call)


def quality(request: Request) -> Prepared:
    """Whether a model loads, and how far it is from the float model."""
    import quality as checks

    return Prepared(lambda: checks.quality(request))


def latency(request: Request) -> Prepared:
    """Inference times of several models, interleaved."""
    import latency as clock

    return Prepared(lambda: clock.latency(request))


JOBS: dict[str, Callable[[Request], Prepared]] = {
    "quantize": quantize,
    "correct": correct,
    "calibrate": calibrate,
    "float16": float16,
    "calibrate_npy": calibrate_npy,
    "flow": flow,
    "model_info": model_info,
    "onnx_load": onnx_load,
    "ort_dynamic": ort_dynamic,
    "ort_nbits": ort_nbits,
    "ort_static": ort_static,
    "drop_in_dynamic": partial(ort_dynamic, package=DROP_IN_PACKAGE),
    "drop_in_nbits": partial(ort_nbits, package=DROP_IN_PACKAGE),
    "drop_in_static": partial(ort_static, package=DROP_IN_PACKAGE),
    "ort_alone": ort_alone,
    "sensitivity": sensitivity,
    "layer_by_layer": layer_by_layer,
    "quality": quality,
    "latency": latency,
}
