"""The names of types and operators in onnxruntime, and those of this package."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..._flow.model import Model, op_types
from ..._flow.plan import Plan
from ..._options import check
from ...errors import OptionError

__all__ = [
    "CONVERSIONS",
    "TYPES",
    "in_their_words",
    "name_of",
    "names_of",
    "nodes_of",
    "op_types_in",
    "op_types_of",
    "quantizable_types",
    "rename_plan_errors",
    "tensors_of",
    "type_of",
    "warn_idle",
    "warn_providers",
    "with_warnings",
    "without_subgraphs",
]

_log = logging.getLogger("quantize_rs")

TYPES = {
    "QInt8": "int8",
    "QUInt8": "uint8",
    "QFLOAT8E4M3FN": "float8e4m3fn",
    "QInt16": "int16",
    "QUInt16": "uint16",
    "QInt4": "int4",
    "QUInt4": "uint4",
}


def name_of(option: str, value: Any, known: Collection[str]) -> str:
    """Return the name of an enum member, of this package or of onnxruntime."""
    name = getattr(value, "name", None)
    if name not in known:
        expected = ", ".join(known)
        raise OptionError(f"{option} is {value!r}, expected one of {expected}", option=option)
    return str(name)


def type_of(option: str, value: Any) -> str:
    return TYPES[name_of(option, value, TYPES)]


def warn_idle(option: str, value: Any, usual: Any, why: str) -> None:
    """Warn that an option has no effect here, if its value is neither None nor the usual one."""
    if value is not None and value != usual:
        _log.warning("%s has no effect here: %s", option, why)


def warn_providers(given: Iterable[str | tuple[str, Any]] | None) -> None:
    """Warn of the providers that do not run samples."""
    given = [given] if isinstance(given, str) else given or ()
    names = [item if isinstance(item, str) else item[0] for item in given]
    if others := [name for name in names if name != "CPUExecutionProvider"]:
        _log.warning("samples are run on the CPU, not by %s", ", ".join(others))


# Operators that convert values; a list of all types does not have to name them.
CONVERSIONS = {"Cast", "DequantizeLinear", "QuantizeLinear"}


def quantizable_types(value: Iterable[str] | None, model: Model, *, warn: bool = True) -> list[str]:
    """Return operator types, without those of the model or of ONNX that are never quantized.

    If none is left, all are returned, for the error of the plan.
    """
    types = list(dict.fromkeys(check.names("op_types_to_quantize", value)))
    quantizable, of_onnx = op_types()
    never = op_types_in(model).union(of_onnx).difference(quantizable)
    left = [name for name in types if name not in never]
    if len(left) in (0, len(types)):
        return types
    if warn:
        kept = ", ".join(name for name in types if name in never)
        _log.warning("op_types_to_quantize: %s are not quantized", kept)
    return left


def op_types_of(
    value: Iterable[str] | None, model: Model, excluded: Collection[str], *, warn: bool
) -> list[str] | None:
    """Return the operator types to quantize; None if they are those of all nodes.

    Nodes that are excluded by name do not count.
    """
    types = check.names("op_types_to_quantize", value)
    left = quantizable_types(types, model, warn=warn)
    nodes = model._model.nodes()
    there = {op_type for name, op_type in nodes if not name or name not in excluded} - CONVERSIONS
    known = op_types_in(model).union(*op_types())
    if there and there <= set(types) <= known:
        return None
    return left or None


def names_of(model: Model) -> set[str]:
    """Return what `nodes_of` may name: nodes and weights, in subgraphs too, and operator types."""
    nodes, tensors = model._model.names()
    types = (op_type for _, op_type in model._model.nodes())
    return {name for name in [*(name for name, _ in nodes), *tensors, *types] if name}


def op_types_in(model: Model) -> set[str]:
    """Return the operator types of a model, in subgraphs too."""
    return {op_type for _, op_type in model._model.names()[0]}


def tensors_of(model: Model) -> tuple[set[str], set[str]]:
    """Return the names of constants, in subgraphs too, and of other values of the main graph."""
    _, tensors = model._model.names()
    weights = set(tensors)
    return weights, set(model._model.values()) - weights


def without_subgraphs(model: Model) -> list[dict[str, Any]]:
    """Return entries of `overrides` that leave the nodes in If, Loop and Scan out."""
    owners = {"If", "Loop", "Scan"} & set(model.info.operators)
    return [{"match": {"op_type": owner}, "exclude": True} for owner in sorted(owners)]


def nodes_of(option: str, value: Iterable[str] | None, known: Collection[str]) -> list[str]:
    """Return the names that are known, and patterns; the others give a warning."""
    kept = []
    for name in check.names(option, value):
        if name in known or name.startswith("re:") or any(sign in name for sign in "*?["):
            kept.append(name)
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        _log.warning("%s: the model has no node %r%s", option, name, hint)
    return kept


# What messages of `Model.plan` call the options, and what they are called in onnxruntime.
_WORDS = {
    "activation_type are": "activation_type is",
    "output_format is qoperator": "quant_format is QOperator",
    "output_format is dynamic": "the model is quantized with quantize_dynamic",
    "output_format is fake_quant": "AddQDQPairToWeight is set",
    "output_format is matmul_nbits": "quant_format is QOperator",
    "for target x86-avx2": "with reduce_range",
    "for target qnn": "with ForceQuantizeNoInputCheck",
}


@contextmanager
def rename_plan_errors() -> Iterator[None]:
    """Rename options in errors of `Model.plan` to the names in onnxruntime."""
    renamed = check.rename_errors(
        activations="activation_type",
        exclude="nodes_to_exclude",
        include="nodes_to_quantize",
        op_types="op_types_to_quantize",
        weights="weight_type",
        symmetric="WeightSymmetric",
        float_outputs="OpTypesToExcludeOutputQuantization",
        min_range="MinimumRealRange",
    )
    try:
        with renamed:
            yield
    except OptionError as error:
        what = str(error)
        for native, theirs in _WORDS.items():
            what = what.replace(native, theirs)
        if what == str(error):
            raise
        raise OptionError(what, option=error.option) from None


# The same for warnings; the longer ones come first.
_WARNED = {
    "in the format dynamic": "in quantize_dynamic",
    "symmetric=False": "extra_options['WeightSymmetric']=False",
    "use target x86-avx2 for processors like this one, and target x86 for others": (
        "use reduce_range=True for processors like this one"
    ),
    "for target x86-avx2, where": "with reduce_range, for processors where",
    "ask for target x86,": "omit reduce_range,",
    "not one of op_types": "not one of op_types_to_quantize",
    "float_outputs:": "extra_options['OpTypesToExcludeOutputQuantization']:",
    "with exclude": "with nodes_to_exclude",
    " exclude=[": " nodes_to_exclude=[",
    'quantize with output_format="dynamic"': (
        'call quantize_rs.quantize with output_format="dynamic"'
    ),
    'output_format="dynamic" or "matmul_nbits"': "quantize_dynamic or MatMulNBitsQuantizer",
    'output_format="matmul_nbits" or "dynamic"': "MatMulNBitsQuantizer or quantize_dynamic",
    'output_format="matmul_nbits"': "MatMulNBitsQuantizer",
    "with output_format=qdq": "with QuantFormat.QDQ",
    "use activations=uint8": "use activation_type=QuantType.QUInt8",
    "weight_method=hqq": "the algorithm HQQ",
}


def in_their_words(text: str) -> str:
    """Return a warning of this package with the names of options in onnxruntime."""
    for native, theirs in _WARNED.items():
        text = text.replace(native, theirs)
    return text


def with_warnings(plan: Plan, warnings: Iterable[str]) -> Plan:
    """Return the same plan with other warnings."""
    return dataclasses.replace(plan, _plan=plan._plan.with_warnings(list(warnings)))
