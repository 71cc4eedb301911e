"""Conversion of float32 models to 16-bit floats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from .._inputs.engines import Engine
from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._inputs.progress import Callback
from .._inputs.run import Run, warn
from .._inputs.samples import NUM_SAMPLES, CalibrationData, sample_source
from .._options import check
from .._options.option_dict import HalfDict
from .._options.resolve import with_aliases
from .._results.build import result
from .._results.half_precision import HalfPrecisionReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options.aliases import ExcludeAliases

__all__ = ["convert_bfloat16", "convert_float16"]

_ENOUGH = 60.0


def convert_float16(
    source: ModelSource,
    output: str | os.PathLike[str] | None = None,
    calibration_data: CalibrationData | None = None,
    *,
    keep_io: bool = True,
    exclude: Iterable[str] | None = None,
    enough_sqnr: float = _ENOUGH,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[ExcludeAliases],
) -> HalfPrecisionReport:
    """Convert a model to float16: weights, activations, and what its nodes compute.

    The file has half the size, and runs faster where the hardware computes in float16, as most GPUs
    and NPUs do. Subgraphs and local functions are converted too. Float16 holds numbers up to 65,504
    with 11 bits; nodes whose values are larger, or lose what counts, stay float32, and the report
    gives the reason for each. With samples, that is measured; without them, operators decide whose
    results are often large, such as squares and sums. A second conversion changes nothing.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The float32 model, which is not changed. It may hold quantized weights, such as those of
        ``MatMulNBits``: their scales become float16. What is float64 stays float64: nothing is
        converted in a model that has no float32.
    output : path, optional
        The file to write, which may be `source`. If None, ``report.model`` holds the bytes.
    calibration_data : path, Samples, array, dict of arrays, iterable, reader, or "random"
        Samples, as in `quantize_with_calibration`. The outputs of the result are then compared with
        those of the model.
    keep_io : bool
        Whether inputs and outputs of the model stay float32, so that programs need not change.
    exclude : iterable of str, optional
        Nodes that stay float32: names, patterns, or operator types, as in `quantize`.
    enough_sqnr : float
        Where the worst output has a lower SQNR on the samples, in decibels, kinds of operators are
        tried in float32: normalizations, means, functions, sums. 0 tries none.
    engine : "auto", "tract" or "onnxruntime"
        The engine that runs the samples; auto is onnxruntime if it is installed, else tract.
    limit, num_samples, sample_shape, seed, threads, progress
        As in `Plan.calibrate`.
    **aliases
        Other names of `exclude`, as in `quantize`.

    Returns
    -------
    HalfPrecisionReport
        Sizes, the nodes that stay float32, and with samples the error of each output. Its warnings
        are logged.

    Raises
    ------
    OptionError
        A node to exclude does not exist, or an option is out of range.
    CalibrationError
        Samples do not fit the model, or an engine cannot run it.
    ModelError, FileNotFoundError, PermissionError, IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.convert_float16(digits.model, "half.onnx", digits.calibration)
    >>> print(f"{report.ratio:.1f} times smaller, {len(report.kept)} nodes stay float32")
    2.0 times smaller, 0 nodes stay float32
    >>> report.sqnr_db > 60
    True
    """
    (exclude,) = with_aliases(aliases, exclude=exclude)
    options = HalfDict(
        dtype="float16",
        keep_io=keep_io,
        exclude=check.names("exclude", exclude),
        enough_sqnr=check.number("enough_sqnr", enough_sqnr),
    )
    samples = _Samples(calibration_data, num_samples, sample_shape, seed)
    return _converted(source, output, options, samples, Run(engine, limit, threads, progress))


def convert_bfloat16(
    source: ModelSource,
    output: str | os.PathLike[str] | None = None,
    calibration_data: CalibrationData | None = None,
    *,
    keep_io: bool = True,
    exclude: Iterable[str] | None = None,
    enough_sqnr: float = _ENOUGH,
    engine: Engine = "auto",
    limit: int | None = None,
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    **aliases: Unpack[ExcludeAliases],
) -> HalfPrecisionReport:
    """Convert a model to bfloat16: weights, activations, and what its nodes compute.

    bfloat16 has the range of float32 and 8 bits of precision. Most operators are defined for it
    from opset 22 on, to which an older model is converted. ONNX Runtime runs it on GPUs; on CPUs it
    does not, and the report then says that the result was not run.

    Parameters
    ----------
    source, output, calibration_data, keep_io, exclude, engine
    limit, num_samples, sample_shape, seed, threads, progress
        As in `convert_float16`.
    enough_sqnr : float
        As in `convert_float16`; 18 dB less are enough here, for 3 bits less of precision.
    **aliases
        Other names of `exclude`, as in `quantize`.

    Returns
    -------
    HalfPrecisionReport
        As in `convert_float16`.

    Raises
    ------
    UnsupportedModelError
        A node cannot be expressed in opset 22; the error names it.
    OptionError, CalibrationError, ModelError, FileNotFoundError, PermissionError, OSError
        As in `convert_float16`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.convert_bfloat16(digits.model, "half.onnx")
    >>> print(f"{report.ratio:.1f} times smaller, {len(report.kept)} nodes stay float32")
    2.0 times smaller, 0 nodes stay float32
    """
    (exclude,) = with_aliases(aliases, exclude=exclude)
    options = HalfDict(
        dtype="bfloat16",
        keep_io=keep_io,
        exclude=check.names("exclude", exclude),
        enough_sqnr=check.number("enough_sqnr", enough_sqnr),
    )
    samples = _Samples(calibration_data, num_samples, sample_shape, seed)
    return _converted(source, output, options, samples, Run(engine, limit, threads, progress))


@dataclass(frozen=True, slots=True)
class _Samples:
    data: CalibrationData | None
    num_samples: int
    sample_shape: Iterable[int] | None
    seed: int


def _converted(
    source: ModelSource,
    output: str | os.PathLike[str] | None,
    options: HalfDict,
    samples: _Samples,
    run: Run,
) -> HalfPrecisionReport:
    target = writable(output, option="output")
    model = read_model(source)
    if samples.data is None:
        other = abs(options["enough_sqnr"] - _ENOUGH) > 0  # not NaN, which is an error of its own
        unused = run.given() | {"enough_sqnr": other}
        unused |= {"num_samples": samples.num_samples != NUM_SAMPLES, "seed": samples.seed != 0}
        unused |= {"sample_shape": samples.sample_shape is not None}
        check.reject_unused("without calibration_data", **unused)
        made = _core.convert_half(model, options)
    else:
        given = sample_source(
            samples.data,
            "calibration_data",
            model,
            num_samples=samples.num_samples,
            sample_shape=samples.sample_shape,
            seed=samples.seed,
        )
        with run.session("converting") as begun:
            made = _core.convert_half_with_samples(model, options, given, begun)
    outcome = made.report() if target is None else made.save(target)
    found = result(HalfPrecisionReport, outcome, model=made.to_bytes() if target is None else None)
    warn(found.warnings)
    return found
