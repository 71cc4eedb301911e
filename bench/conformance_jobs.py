"""What a measured process does for `conformance.py`: make one call with one of the packages."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path

import conformance_calls as calls
import conformance_models
from jobs import Prepared, Request, load_engine


def quantize(request: Request) -> Prepared:
    """The call, with its samples in memory and its packages imported."""
    folder = Path(request["models"]) if request["models"] else None
    subject = conformance_models.subjects(folder)[request["subject"]](Path(request["cache"]))
    package, call = request["package"], calls.CALLS[request["call"]]
    importlib.import_module(package)
    for name in (f"{package}.matmul_nbits_quantizer", f"{package}.matmul_bnb4_quantizer"):
        importlib.import_module(name)
    logging.disable(logging.CRITICAL)
    if package == calls.OURS:
        load_engine("auto")
    # onnxruntime writes a file beside the model.
    model = Path(subject.model.name).resolve()
    model.write_bytes(subject.model.read_bytes())
    output = Path(request["output"])
    return Prepared(lambda: call(package, model, output, subject.calibration))


JOBS = {"quantize": quantize}
