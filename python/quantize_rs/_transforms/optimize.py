"""Graph optimization passes, without quantization."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .._inputs.files import writable
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._results.build import result
from .._results.optimization import OptimizationReport

__all__ = ["optimize"]


def optimize(
    source: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    passes: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
) -> OptimizationReport:
    """Simplify a model without changing what it computes.

    The passes run in order, repeatedly, until none changes the model; a second call changes
    nothing. Outputs stay bit-identical, with four exceptions: ``"fold_batch_norm"``,
    ``"fold_batch_norm_forward"`` and ``"fold_gemm_factors"`` round weights once, and
    ``"widen_floats"`` no longer rounds to 16 bits. Models may have any size; weights are not
    copied.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output : path or None
        The file to write, which may be `source`. If None, ``report.model`` holds the bytes.
    passes : iterable of str, optional
        The passes to run; by default all but ``"equalize"``, ``"subtract_bias"`` and
        ``"widen_floats"``:

        - ``"remove_weight_inputs"``: make initializers constants where all of them are inputs
          too
        - ``"inline_functions"``: replace calls of local functions by their nodes
        - ``"lift_carried"``: take values out of ``Loop`` and ``Scan`` that they pass on unchanged
        - ``"lift_weights"``: move weights out of subgraphs
        - ``"split_fused"``: replace operators that ONNX Runtime fused by a product and the rest
        - ``"remove_identity"``: remove nodes that do not change their input
        - ``"store_integers"``: store weights that the model quantizes as integers
        - ``"fold_constants"``: replace nodes with constant inputs by their result
        - ``"fold_shapes"``: replace computed shapes of ``Reshape`` by constants
        - ``"fold_batch_norm"``: fold per-channel scale and shift into the weights before it
        - ``"fold_batch_norm_forward"``: the same, into the weights after it
        - ``"fold_gemm_factors"``: fold `alpha` and `beta` of ``Gemm`` into weight and bias, and
          repeat a bias of one element
        - ``"equalize"``: scale channels between two weights by powers of two, so that one scale
          covers all of them well
        - ``"subtract_bias"``: subtract the negated bias of a ``Gemm``, or after a ``MatMul`` of
          two axes, so that ONNX Runtime multiplies by integers
        - ``"resize_all_axes"``: expand the `axes` of a ``Resize`` to all axes
        - ``"pad_all_axes"``: expand the `axes` of a ``Pad`` to all axes
        - ``"widen_floats"``: compute in float32 instead of float16 or bfloat16
        - ``"merge_duplicates"``: store equal constants once
        - ``"dead"``: remove nodes and constants that nothing uses
    skip : iterable of str, optional
        Passes to leave out.

    Returns
    -------
    OptimizationReport
        The changes of each pass.

    Raises
    ------
    ModelError
        The model cannot be read; see `quantize_rs.errors`.
    OptionError
        A pass is unknown.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        A file cannot be read or written. Nothing is left behind.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.optimize(digits.model, "digits.simple.onnx")
    >>> report.nodes_after <= report.nodes_before
    True
    """
    target = writable(output, option="output")
    made = read_model(source).optimize(
        check.optional_names("passes", passes), check.names("skip", skip)
    )
    if target is None:
        return result(OptimizationReport, made.report(), model=made.to_bytes())
    return result(OptimizationReport, made.save(target), model=None)
