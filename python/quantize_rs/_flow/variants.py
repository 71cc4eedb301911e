"""All variants of a model that a platform looks for, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from .. import _core
from .._inputs.engines import Engine
from .._inputs.model_source import ModelSource, read_model
from .._inputs.progress import Callback
from .._inputs.run import Run, warn
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._options.option_dict import VariantDict
from .._results.build import result
from .._results.variants import Variants

__all__ = ["variants"]


def variants(
    source: ModelSource,
    output_dir: str | os.PathLike[str],
    calibration_data: CalibrationData | None = None,
    *,
    platform: str = "transformers.js",
    only: Iterable[str] | None = None,
    engine: Engine = "auto",
    limit: int | None = None,
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> Variants:
    """Write every variant of a model that a platform looks for, under the names that it knows.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The float model, which is not changed.
    output_dir : path
        The folder for the files, which is made if it does not exist. Their names begin with that of
        the model: ``model.onnx``, ``model_q4.onnx``. Existing files are replaced, but for `source`
        itself, which stays as it is. From 2 GiB on, weights are in ``model.onnx_data``.
    calibration_data : path, Samples, array, dict of arrays, iterable, reader, or "random"
        Samples, as in `quantize_with_calibration`; up to 128 are used. Weights are rounded with
        their help, and the errors and times of the variants are measured.
    platform : "transformers.js" or "optimum"
        The platform. For Transformers.js: ``fp32``, ``fp16``, ``q8``, ``int8``, ``uint8``,
        ``q4``, ``bnb4`` and ``q4f16``. For Optimum and Sentence Transformers: ``fp32``, ``avx2``,
        ``avx512_vnni``, ``arm64`` and ``tensorrt``, which needs samples.
    only : iterable of str, optional
        Write only these variants.
    engine : "auto", "tract" or "onnxruntime"
        The engine that runs the samples; auto is onnxruntime if it is installed, else tract.
    limit, threads, progress
        As in `Plan.calibrate`.

    Returns
    -------
    Variants
        A row for each variant. One that cannot be made has a `problem` and no file; warnings are
        logged.

    Raises
    ------
    OptionError
        There is no such platform or variant.
    CalibrationError
        Samples do not fit the model.
    ModelError, FileNotFoundError, PermissionError, OSError
        The model cannot be read, or the folder cannot be written to.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> made = quantize_rs.variants(digits.model, "onnx", only=["fp16", "q8"])
    >>> [row.file.name for row in made.variants]
    ['digits_cnn_fp16.onnx', 'digits_cnn_quantized.onnx']
    """
    model = read_model(source)
    folder = Path(check.path("output_dir", output_dir))
    stem = "model" if model.path is None else Path(model.path).stem
    options = VariantDict(
        platform=check.text("platform", platform, "the name of a platform"),
        only=check.optional_names("only", only),
        stem=stem,
    )
    run_options = Run(engine, limit, threads, progress)
    if calibration_data is None:
        check.reject_unused("without calibration_data", **run_options.given())
    folder.mkdir(parents=True, exist_ok=True)
    with check.rename_errors():
        if calibration_data is None:
            outcome = _core.variants(model, folder, options)
        else:
            samples = sample_source(
                calibration_data,
                "calibration_data",
                model,
            )
            with run_options.session("making variants") as run:
                outcome = _core.variants_with_samples(model, folder, options, samples, run)
    found = result(Variants, outcome)
    for row in found.variants:
        warn(f"{row.name}: {warning}" for warning in row.warnings)
    return found
