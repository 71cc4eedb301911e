"""The preprocessing function of onnxruntime."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from ..._inputs.files import writable
from ..._inputs.model_source import ModelSource
from ..._transforms.infer_shapes import infer_shapes
from ..._transforms.optimize import optimize
from ...errors import OptionError
from ._elsewhere import hints
from ._external_data import save_external
from ._packages import onnx_package

__all__ = ["quant_pre_process"]

__getattr__ = hints(__name__)

StrPath: TypeAlias = str | os.PathLike[str]


def quant_pre_process(
    input_model: ModelSource | None = None,
    output_model_path: StrPath | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Simplify a model and write types and shapes into it.

    You do not need it before quantizing: the required passes run before every plan. Models may have
    any size.

    Parameters
    ----------
    input_model, output_model_path
        The model and the file to write; ``input_model_path`` is the older name of the model.
    skip_optimization
        Do not run graph optimizations.
    skip_onnx_shape, skip_symbolic_shape
        If both are set, no shapes are written; one inference replaces both.
    auto_merge, int_max, guess_output_rank, verbose
        Ignored: dynamic dimensions are tracked by name, and unknown shapes are not an error.
    save_as_external_data
        Write external data as the arguments after it specify; needs the package onnx. Otherwise
        weights are written to ``<name>.data`` from 2 GiB on.
    all_tensors_to_one_file, external_data_location, external_data_size_threshold
        As in ``onnx.save_model``.

    Raises
    ------
    OptionError
        The model or the output path is missing, or `external_data_location` is not a path below the
        folder of the output.
    ModelError
        As in `quantize_rs.optimize`.
    MissingPackageError
        `save_as_external_data` is set, and the package onnx is not installed.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import quant_pre_process
    >>> digits = quantize_rs.examples.digits()
    >>> quant_pre_process(digits.model, "prepared.onnx")
    """
    del auto_merge, int_max, guess_output_rank, verbose
    older = deprecated_kwargs.pop("input_model_path", None)
    source = older if input_model is None else input_model
    if deprecated_kwargs:
        raise TypeError(f"quant_pre_process has no arguments {sorted(deprecated_kwargs)}")
    if source is None or output_model_path is None:
        option = "input_model" if source is None else "output_model_path"
        raise OptionError(f"{option} is None, expected a path", option=option)
    writable(output_model_path, option="output_model_path")
    passes: list[str] | None = [] if skip_optimization else None
    shapes = not (skip_onnx_shape and skip_symbolic_shape)
    if not save_as_external_data:
        _write(source, output_model_path, passes, shapes)
        return
    onnx = onnx_package("save_as_external_data")
    target = Path(output_model_path).resolve()
    if external_data_location is not None:
        _check_location(external_data_location, target)
    with tempfile.TemporaryDirectory(prefix=".quantize-rs-", dir=target.parent) as folder:
        whole = Path(folder) / "model.onnx"
        _write(source, whole, passes, shapes)
        model = onnx.load(whole)
    save_external(
        model,
        target,
        "save_as_external_data",
        one_file=all_tensors_to_one_file,
        location=external_data_location,
        size_threshold=external_data_size_threshold,
    )


def _check_location(location: str, target: Path) -> None:
    path = Path(location)
    if path.is_absolute() or ".." in path.parts or path == Path(target.name):
        what = f"external_data_location is {location!r}, expected a path beside the output"
        raise OptionError(what, option="external_data_location")


def _write(source: ModelSource, path: StrPath, passes: list[str] | None, shapes: bool) -> None:
    optimize(source, path, passes=passes)
    if shapes:
        infer_shapes(path, path)
