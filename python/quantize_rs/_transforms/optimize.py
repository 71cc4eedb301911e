"""Passes that leave what a model computes as it is, on their own."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._results.optimization import OptimizationReport, parse_optimization

__all__ = ["optimize"]


def optimize(
    source: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    passes: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
) -> OptimizationReport:
    """Make a model simpler; what it computes stays.

    Passes run in their order, over and over, until none finds anything to do. All but
    ``"fold_batch_norm"``, ``"fold_batch_norm_forward"`` and ``"fold_gemm_factors"``, which round
    weights once, and ``"widen_floats"``, which no longer rounds to 16 bits, leave every output as
    it is, bit for bit. A second run changes nothing. There is no limit to the size of a model;
    weights are not copied.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path or None
        Where to write the model; it may be `source`. None gives it as ``report.model``, in bytes.
    passes : iterable of str, optional
        Only these passes; all but ``"widen_floats"`` by default:

        - ``"inline_functions"``: nodes of the model's own functions, in the place of the calls
        - ``"lift_weights"``: weights out of the graphs inside nodes
        - ``"remove_identity"``: nodes that make of a value what it is already
        - ``"store_integers"``: weights that the model quantizes itself, as integers
        - ``"fold_constants"``: nodes whose result is the same in every run
        - ``"fold_shapes"``: shapes that a ``Reshape`` computes, as constants
        - ``"fold_batch_norm"``: what scales and shifts channels, into the weights before it
        - ``"fold_batch_norm_forward"``: the same, into the weights after it
        - ``"fold_gemm_factors"``: `alpha` and `beta` of a ``Gemm``, into its weight and its bias
        - ``"resize_all_axes"``: a ``Resize`` that names its axes speaks of all
        - ``"widen_floats"``: what computes in float16 or bfloat16 computes in float32
        - ``"merge_duplicates"``: constants that hold the same are kept once
        - ``"dead"``: what nothing reads
    skip : iterable of str, optional
        Not these passes.

    Returns
    -------
    OptimizationReport
        What each pass did.

    Raises
    ------
    ModelError
        The model cannot be read; see `quantize_rs.errors`.
    OptionError
        There is no such pass.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        A file cannot be read or written. Nothing is left behind.

    Examples
    --------
    >>> import quantize_rs
    >>> report = quantize_rs.optimize("examples/digits/digits_cnn.onnx", "digits.simple.onnx")
    >>> report.nodes_after <= report.nodes_before
    True
    """
    target = writable(output)
    made = read_model(source).optimize(
        check.optional_names("passes", passes), check.names("skip", skip)
    )
    if target is None:
        return parse_optimization(made.report(), made.to_bytes())
    return parse_optimization(made.save(target))
