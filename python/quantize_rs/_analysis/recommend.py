"""Recommendation of how to quantize a model."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .. import _core
from .._flow.model import Model
from .._inputs.engines import Engine
from .._inputs.model_source import ModelSource, core_model
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._results.build import result
from .._results.recommendation import Recommendation

__all__ = ["recommend"]


def recommend(
    model: ModelSource | Model,
    data: CalibrationData | None = None,
    target: str | None = None,
    *,
    engine: Engine = "auto",
    limit: int | None = None,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> Recommendation:
    """Recommend how to quantize a model: static, dynamic or weights only, with the call for it.

    Without data it reads the file and does not run the model. It looks at where the weights are,
    which operators do the work, which dimensions are dynamic, and what is quantized already. The
    first rule that applies decides; ``quantize-rs recommend --help`` lists the rules.

    With data, the recommended method and its alternatives are applied and measured on at most 20
    samples: output error, size and, with onnxruntime on the machine of the target, time. A method
    whose result takes more than 1.1 times the time of the float model, or has an SQNR below 10 dB,
    yields to the fastest alternative without that fault, or else to one that is more accurate or
    faster and in nothing worse; `rule` is then ``"measured"``.

    Parameters
    ----------
    model : Model, path, bytes or onnx.ModelProto
        The model.
    data : path, Samples, array, dict of arrays, iterable or reader, optional
        Real inputs, as `calibration_data` of `quantize_with_calibration`. A quarter of those that
        are read is not used for calibration, but for the error. The call contains a path as it is,
        and ``data`` for anything else, and the command ``SAMPLES``; a reason says what to put
        there. ``"random"`` is treated as no data.
    target : str, optional
        The target runtime, as in `quantize`.
    engine : "auto", "tract" or "onnxruntime"
        The engine that runs the models; auto is onnxruntime if it is installed, else tract, whose
        time is not that of a deployed model and is not measured.
    limit, threads, progress
        As in `Plan.calibrate`.

    Returns
    -------
    Recommendation
        The method, its options, the reasons and what was measured.

    Raises
    ------
    OptionError
        The target is unknown, or an option needs data.
    CalibrationError
        No samples, or samples of the wrong shape or type.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model or the data cannot be read, or there is no file or folder of this path.

    Examples
    --------
    >>> import shutil
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> model = shutil.copy(digits.model, ".")  # the recommended call writes beside the model
    >>> found = quantize_rs.recommend(model, digits.calibration, engine="tract")
    >>> found.way, found.bits, found.rule
    ('static', 8, 'convolutions')
    >>> found.measured.sqnr_db > 30
    True
    >>> report = eval(found.python)
    >>> report.output.endswith("digits_cnn.int8.onnx")
    True
    """
    path = os.fsdecode(data) if isinstance(data, str | os.PathLike) else None
    if data is None or path == "random":  # random values are not samples
        given = {"engine": engine != "auto", "limit": limit is not None}
        check.reject_unused("without data", **given, threads=threads is not None)
        return result(Recommendation, core_model(model).recommended(target))
    is_pattern = path is not None and any(char in path for char in "*?[")
    if path is not None and not is_pattern and not Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    opened = core_model(model)
    source = sample_source(data, "data", opened, noise="")
    with Run(engine, limit, threads, progress).session("measuring") as begun:
        found = _core.recommended(opened, target, path, source, begun)
    return result(Recommendation, found)
