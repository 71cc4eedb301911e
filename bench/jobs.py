"""What a measured process can do: one entry per job, which prepares a call and does not start it.

A job runs in the interpreter of its tool, so what not every interpreter has is imported inside it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


def calibrate(request: Request) -> Prepared:
    """`quantize_rs.quantize_with_calibration` with arrays in memory."""
    import samples

    import quantize_rs

    data = samples.of(request["samples"]).calibration()

    def call() -> None:
        quantize_rs.quantize_with_calibration(
            request["model"], request["output"], data, **request["options"]
        )

    return Prepared(call)


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


def ort_dynamic(request: Request) -> Prepared:
    """`onnxruntime.quantization.quantize_dynamic`."""
    from onnxruntime.quantization import quantize_dynamic

    model = linked(request["model"])

    def call() -> None:
        quantize_dynamic(model, request["output"], **request["options"])

    return Prepared(call)


def ort_static(request: Request) -> Prepared:
    """`onnxruntime.quantization.quantize_static`: QDQ, MinMax, uint8 and int8 per channel.

    The pre-processing that its guide asks for is done before the call: noted, not counted.
    """
    import samples
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    model, notes = preprocessed(linked(request["model"]))
    reader = Reader(samples.of(request["samples"]).feeds())

    def call() -> None:
        quantize_static(
            model,
            request["output"],
            reader,
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )

    return Prepared(call, notes)


def linked(model: str) -> str:
    """A link to the model in the child's folder: onnxruntime writes temporary files beside it."""
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
    "calibrate": calibrate,
    "calibrate_npy": calibrate_npy,
    "model_info": model_info,
    "onnx_load": onnx_load,
    "ort_dynamic": ort_dynamic,
    "ort_static": ort_static,
    "quality": quality,
    "latency": latency,
}
