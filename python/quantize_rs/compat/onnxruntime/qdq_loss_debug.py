"""Where a quantized model loses accuracy, with the functions of ``qdq_loss_debug``.

`quantize_rs.layer_errors` does all of this in one call, with a table, in little memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..._inputs.files import writable
from ..._inputs.row_sources import read
from ...errors import CalibrationError, OptionError
from ._packages import onnx_package, onnxruntime_package
from ._stored_weights import prepared_graphs, stored_weights

__all__ = [
    "collect_activations",
    "compute_activation_error",
    "compute_signal_to_quantization_noice_ratio",
    "compute_weight_error",
    "create_activation_matching",
    "create_weight_matching",
    "modify_model_output_intermediate_tensors",
]

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Sequence[Array] | Array
StrPath: TypeAlias = str | os.PathLike[str]
Activations: TypeAlias = dict[str, list[Array]]

# How a value is called before and after its pair of QuantizeLinear and DequantizeLinear, here and
# in files of onnxruntime.
_BEFORE = ("{}_float", "{}_QuantizeLinear_Input", "{}")
_AFTER = ("{}_dequantized", "{}_DequantizeLinear_Output", "{}_DequantizeLinear_Output_1", "{}")

# The end of the names of values whose channels were rescaled.
_EQUALIZED = "_equalized"

# An input of a model is output through a node with this ending.
_SAVED = "_SavedOutput"


def modify_model_output_intermediate_tensors(
    input_model_path: StrPath,
    output_model_path: StrPath,
    op_types_for_saving: Iterable[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model that also outputs what its nodes read and compute.

    Weights, and what is computed from them alone, as dequantized weights, are no activations.

    Parameters
    ----------
    input_model_path, output_model_path
        The model, and the file to write.
    op_types_for_saving
        Only values of nodes of these types; by default, and if it is empty, all.
    save_as_external_data
        Write weights to ``<name>.data``.

    Raises
    ------
    MissingPackageError
        The package onnx is not installed.
    """
    onnx = onnx_package("modify_model_output_intermediate_tensors")
    writable(output_model_path, option="output_model_path")
    model = onnx.load(os.fspath(input_model_path))
    types = set(op_types_for_saving or ())
    inputs = {value.name for value in model.graph.input}
    known = _constants(onnx, model.graph) | {value.name for value in model.graph.output}
    for node in list(model.graph.node):
        if types and node.op_type not in types:
            continue
        for name in (*node.input, *node.output):
            if not name or name in known:
                continue
            known.add(name)
            if name in inputs:
                saved = onnx.helper.make_node("Identity", [name], [f"{name}{_SAVED}"])
                model.graph.node.append(saved)
                name = saved.output[0]
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    data = f"{Path(output_model_path).name}.data" if save_as_external_data else None
    onnx.save(
        model,
        os.fspath(output_model_path),
        save_as_external_data=save_as_external_data,
        location=data,
    )


def _constants(onnx: Any, graph: Any) -> set[str]:
    """Return the names of initializers, and of what nodes compute from them alone."""
    found = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        # A subgraph may read any value.
        kinds = {attribute.type for attribute in node.attribute}
        inside = kinds & {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
        known = bool(node.input) or node.op_type == "Constant"
        if known and not inside and found.issuperset(filter(None, node.input)):
            found.update(node.output)
    return found


def collect_activations(
    augmented_model: StrPath,
    input_reader: Any,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> Activations:
    """Run samples, and return the floats of every output, one array for each sample.

    Raises
    ------
    CalibrationError
        There are no samples.
    MissingPackageError
        The package onnxruntime is not installed.
    """
    onnxruntime = onnxruntime_package("collect_activations")
    if session_options is None:
        session_options = onnxruntime.SessionOptions()
        # Otherwise pairs are fused, and what is between them is not computed.
        session_options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
    session = onnxruntime.InferenceSession(
        os.fspath(augmented_model),
        session_options,
        providers=list(execution_providers or ["CPUExecutionProvider"]),
    )
    names = [output.name.removesuffix(_SAVED) for output in session.get_outputs()]
    found: Activations = {}
    count = 0
    for sample in read(input_reader):
        count += 1
        for name, value in zip(names, session.run(None, sample), strict=True):
            if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating):
                found.setdefault(name, []).append(value)
    if not count:
        what = "input_reader returned no samples: make a new reader for each call"
        raise CalibrationError(what, category="no_samples")
    return found


def create_activation_matching(
    qdq_activations: Mapping[str, Sequence[Array]],
    float_activations: Mapping[str, Sequence[Array]] | None = None,
) -> dict[str, dict[str, Sequence[Array]]]:
    """Return each value before and after it is quantized, and as the float model computes it.

    The keys of a value are ``pre_qdq``, ``post_qdq`` and, where the float model has it, ``float``.
    A value whose channels were rescaled (``X_equalized``) is listed as ``X`` of the float model,
    with each channel in the scale that it has there: the power of two that brings it nearest.
    """
    found: dict[str, dict[str, Sequence[Array]]] = {}
    endings = [text.removeprefix("{}") for text in (*_BEFORE, *_AFTER) if text != "{}"]
    bases = {
        name.removesuffix(end) for name in qdq_activations for end in endings if name.endswith(end)
    }
    for name in sorted(bases):
        before = _first(qdq_activations, name, _BEFORE)
        after = _first(qdq_activations, name, _AFTER)
        if before is None or after is None or before == after:
            continue
        row = {"pre_qdq": qdq_activations[before], "post_qdq": qdq_activations[after]}
        known = float_activations or {}
        plain = name if name in known else name.removesuffix(_EQUALIZED)
        if plain not in known:
            found[name] = row
            continue
        row["float"] = known[plain]
        found[plain] = row if plain == name else _scaled_back(row)
    return found


def _scaled_back(row: dict[str, Sequence[Array]]) -> dict[str, Sequence[Array]]:
    """Multiply each channel by a power of two, along the axis where that fits best."""
    floats, before, after = row["float"], row["pre_qdq"], row["post_qdq"]
    if {one.shape for one in floats} != {one.shape for one in before}:
        return row
    best = row
    for axis in {1, floats[0].ndim - 1} & set(range(floats[0].ndim)):
        wanted, given = _norms(floats, axis), _norms(before, axis)
        known = (wanted > 0) & (given > 0)
        ratio = np.divide(wanted, given, out=np.ones_like(wanted), where=known)
        shape = [-1 if at == axis else 1 for at in range(floats[0].ndim)]
        factors = np.exp2(np.round(np.log2(ratio))).astype(np.float32).reshape(shape)
        scaled = [[one * factors for one in arrays] for arrays in (before, after)]
        tried = row | {"pre_qdq": scaled[0], "post_qdq": scaled[1]}
        best = max(best, tried, key=_closeness)
    return best


def _norms(arrays: Sequence[Array], axis: int) -> Array:
    """Return the norm of each channel over all samples."""
    squares = [
        np.square(one, dtype=np.float64).sum(axis=tuple({*range(one.ndim)} - {axis}))
        for one in arrays
    ]
    norms: Array = np.sqrt(np.sum(squares, axis=0))
    return norms


def _closeness(row: Mapping[str, Sequence[Array]]) -> float:
    return compute_signal_to_quantization_noice_ratio(row["float"], row["pre_qdq"])


def _first(known: Mapping[str, Any], name: str, forms: Iterable[str]) -> str | None:
    names = (form.format(name) for form in forms)
    return next((found for found in names if found in known), None)


def create_weight_matching(
    float_model_path: StrPath, qdq_model_path: StrPath
) -> dict[str, dict[str, Array]]:
    """Return each weight of both models, as ``float`` and ``dequantized``.

    Weights in blocks and of 2 and 4 bits are included. If a normalization was folded into a weight
    or its channels were rescaled before it was quantized, ``float`` is the weight as it was then.
    Biases to which the rounding of weights was added are left out; `quantize_rs.validate` checks
    them.

    Raises
    ------
    MissingPackageError
        The package onnx is not installed.
    """
    onnx = onnx_package("create_weight_matching")
    before, after = (
        onnx.load(os.fspath(path)).graph for path in (float_model_path, qdq_model_path)
    )
    array = onnx.numpy_helper.to_array
    floats = {tensor.name: tensor for tensor in before.initializer}
    found, changed = {}, {}
    for name, stored in stored_weights(onnx, after, floats):
        row = {"float": array(floats[name]), "dequantized": stored.dequantized()}
        found[name] = row
        if not stored.explains(row["float"]):
            changed[name] = stored
    for prepared in prepared_graphs(onnx, float_model_path) if changed else ():
        for tensor in prepared.initializer:
            if tensor.name in changed:
                _take_nearer(found[tensor.name], array(tensor))
        changed = {
            name: stored
            for name, stored in changed.items()
            if not stored.explains(found[name]["float"])
        }
        if not changed:
            break
    for name, stored in changed.items():
        if stored.is_bias:
            del found[name]
    return found


def _take_nearer(row: dict[str, Array], floats: Array) -> None:
    """Replace the floats of a weight by others that its integers are nearer to."""
    if floats.size != row["dequantized"].size:
        return
    kept = compute_signal_to_quantization_noice_ratio(row["float"], row["dequantized"])
    if compute_signal_to_quantization_noice_ratio(floats, row["dequantized"]) > kept:
        row["float"] = floats


def compute_signal_to_quantization_noice_ratio(x: Arrays, y: Arrays) -> float:
    """Return ``20 log10(|x| / |x - y|)`` in dB over all arrays; the name is onnxruntime's.

    Raises
    ------
    OptionError
        There are more arrays of one than of the other.
    """
    if len(_parts(x)) != len(_parts(y)):
        what = f"y has {len(_parts(y))} arrays, expected {len(_parts(x))} as x has"
        raise OptionError(what, option="y")
    least = float(np.finfo(np.float64).eps)
    left, right = (
        np.concatenate([np.ravel(part).astype(np.float64) for part in _parts(each)])
        for each in (x, y)
    )
    signal, noise = float(np.linalg.norm(left)), float(np.linalg.norm(left - right))
    return 20 * math.log10(max(signal, least) / max(noise, least))


def _parts(value: Arrays) -> Sequence[Array]:
    return [value] if isinstance(value, np.ndarray) else value


Error: TypeAlias = Callable[[Any, Any], float]


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return the error of each weight."""
    return {name: err_func(row["float"], row["dequantized"]) for name, row in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Sequence[Array]]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """Return the errors of each value: ``qdq_err``, and ``xmodel_err`` against the float model.

    ``xmodel_err`` is missing for a value that the float model does not have.
    """
    found = {}
    for name, row in activations_match.items():
        errors = {"qdq_err": err_func(row["pre_qdq"], row["post_qdq"])}
        if "float" in row:
            errors["xmodel_err"] = err_func(row["float"], row["post_qdq"])
        found[name] = errors
    return found
