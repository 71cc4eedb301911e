"""Passes that leave what a model computes as it is, on their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import _html, _options, _report, _source
from ._files import writable
from ._report import Step
from ._source import ModelSource
from ._told import Told

__all__ = ["OptimizationReport", "optimize"]


@dataclass(frozen=True, slots=True, repr=False)
class OptimizationReport(Told):
    """What passes did to a model.

    ``print(report)`` shows it to people, ``report.to_json()`` gives it to programs.

    Attributes
    ----------
    input, output : str or None
        Where the model came from and where it went; None for a model in memory.
    bytes_before, bytes_after : int
        Bytes of the model, with the data beside it.
    nodes_before, nodes_after : int
        Nodes of the main graph.
    steps : tuple of Step
        What each pass that found something to do did.
    seconds : float
        Wall-clock seconds, without those of writing.
    model : bytes or None
        The model, when no `output` was given.
    """

    input: str | None
    output: str | None
    bytes_before: int
    bytes_after: int
    nodes_before: int
    nodes_after: int
    steps: tuple[Step, ...]
    seconds: float
    model: bytes | None
    _json: str = field(compare=False)
    _text: str = field(compare=False)

    def _summary(self) -> str:
        changes = sum(len(step.did) for step in self.steps)
        return (
            f"{changes} changes, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{self.bytes_before} -> {self.bytes_after} bytes"
        )

    def _repr_html_(self) -> str:
        rows = ([step.name, did] for step in self.steps for did in step.did)
        return _html.table(self._summary(), ["pass", "what it did"], rows)


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
    made = _source.read(source).optimize(
        _options.maybe_names("passes", passes), _options.names("skip", skip)
    )
    if target is None:
        return _of(made.report(), made.to_bytes())
    return _of(made.save(target))


def _of(written: tuple[str, str], model: bytes | None = None) -> OptimizationReport:
    """Read the report that the extension module wrote, as JSON and as text."""
    text, shown = written
    found = json.loads(text)
    steps = _report.steps(found.pop("steps"))
    return OptimizationReport(**found, steps=steps, model=model, _json=text, _text=shown)
