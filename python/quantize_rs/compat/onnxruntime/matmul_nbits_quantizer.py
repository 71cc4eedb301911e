"""Weights in blocks, by the class that onnxruntime's tool has for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..._flow.model import open as open_model
from ..._flow.plan import Quantized
from ..._inputs.model_source import ModelSource
from ..._options import check
from ..._results.report import Report
from ...errors import OptionError
from ._choices import name_of, their_names
from ._config import onnx_package
from .quant_utils import QuantFormat

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
]

_log = logging.getLogger("quantize_rs")

# What the algorithms that the other tool names are called here.
_METHODS = {"DEFAULT": None, "HQQ": "hqq", "RTN": "minmax"}

# The axis that blocks lie along.
_AXES = {"MatMul": 0, "Gather": 1}


@dataclass
class DefaultWeightOnlyQuantConfig:
    """Scales by the least error of a block, as an ``algo_config``."""

    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    quant_axes: Any = None
    bits: int = 4
    channel_wised_quantize: bool = False
    algorithm: str = "DEFAULT"


@dataclass
class HQQWeightOnlyQuantConfig:
    """Scales and zero points by half-quadratic quantization, as an ``algo_config``."""

    block_size: int = 128
    bits: int = 4
    axis: int = 1
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    quant_axes: Any = None
    algorithm: str = "HQQ"


@dataclass
class RTNWeightOnlyQuantConfig:
    """Scales by the ends of a block, as an ``algo_config``; other fields must be empty."""

    ratios: Any = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    customized_weight_config: Any = None
    algorithm: str = "RTN"


class MatMulNBitsQuantizer:
    """Quantizes weights of MatMul, Gemm and Gather in blocks.

    Parameters
    ----------
    model
        The model, which is not changed.
    bits, block_size
        2, 4 or 8 bits, so many elements to a scale.
    is_symmetric, accuracy_level
        Whether there are no zero points; how exactly products are computed, 0 to 4.
    nodes_to_exclude
        Nodes and weights to leave alone; they may be patterns.
    nodes_to_include
        Refused: there it adds nodes to the types; name all types, and exclude the others.
    quant_axes
        Axes follow from the operators; these are refused where they differ.
    quant_format
        ``QuantFormat.QOperator`` writes MatMulNBits, ``QuantFormat.QDQ`` DequantizeLinear.
    op_types_to_quantize
        ``("MatMul",)`` when nothing is said.
    channel_wised_quantize
        One scale for each column, with ``QuantFormat.QDQ``.
    algo_config
        A `DefaultWeightOnlyQuantConfig`, `HQQWeightOnlyQuantConfig` or `RTNWeightOnlyQuantConfig`,
        ours or onnxruntime's own, whose fields go before the arguments; other algorithms are
        refused.

    Raises
    ------
    OptionError
        An option that is not known, or cannot be met.

    Examples
    --------
    >>> from quantize_rs.compat.onnxruntime import MatMulNBitsQuantizer
    >>> quantizer = MatMulNBitsQuantizer(
    ...     "examples/digits/digits_cnn.onnx", block_size=32, op_types_to_quantize=["Gemm"]
    ... )
    >>> quantizer.process()
    >>> report = quantizer.model.save_model_to_file("digits.nbits.onnx")
    """

    def __init__(
        self,
        model: ModelSource,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Iterable[str] | None = None,
        nodes_to_include: Iterable[str] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Any = None,
        channel_wised_quantize: bool = False,
        algo_config: Any = None,
    ) -> None:
        """Look at the model; `process` quantizes it."""
        if nodes_to_include:
            what = "nodes_to_include is given, expected op_types_to_quantize and nodes_to_exclude"
            raise OptionError(what, option="nodes_to_include")
        _check_axes(quant_axes)
        method = None
        if algo_config is not None:
            method, said = _said(algo_config)
            bits, block_size = said.get("bits", bits), said.get("block_size", block_size)
            is_symmetric = said.get("is_symmetric", is_symmetric)
            accuracy_level = said.get("accuracy_level", accuracy_level)
            quant_format = said.get("quant_format", quant_format)
            op_types_to_quantize = said.get("op_types_to_quantize") or op_types_to_quantize
            channel_wised_quantize = said.get("channel_wised_quantize", channel_wised_quantize)
        form = name_of("quant_format", quant_format, [known.name for known in QuantFormat])
        blocks = form == "QOperator"
        if blocks and channel_wised_quantize:
            what = "channel_wised_quantize is for QuantFormat.QDQ: MatMulNBits has blocks"
            raise OptionError(what, option="channel_wised_quantize")
        kind = "int" if is_symmetric or blocks else "uint"
        with their_names():
            self._plan = open_model(model).plan(
                f"{kind}{bits}",
                block_size=None if channel_wised_quantize else block_size,
                per_channel=channel_wised_quantize,
                symmetric=is_symmetric,
                weight_method=method,
                accuracy_level=accuracy_level if blocks else None,
                exclude=check.names("nodes_to_exclude", nodes_to_exclude),
                op_types=check.names("op_types_to_quantize", op_types_to_quantize) or ["MatMul"],
                output_format="matmul_nbits" if blocks else "qdq",
            )
        self._done: Quantized | None = None

    def process(self) -> None:
        """Quantize the weights."""
        self._done = self._plan.apply()

    @property
    def model(self) -> SavedModel:
        """The model after `process`.

        Raises
        ------
        OptionError
            `process` was not called.
        """
        if self._done is None:
            raise OptionError("model is there after process()", option="model")
        return SavedModel(self._done)


def _said(config: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Give the method of a configuration and its fields, which can be met."""
    name = getattr(config, "algorithm", None)
    if name not in _METHODS:
        found = repr(config if name is None else name)
        what = f"algo_config is {found}, expected a configuration of {', '.join(_METHODS)}"
        raise OptionError(what, option="algo_config")
    said = vars(config)
    _check_axes(said.get("quant_axes"))
    for field in ("ratios", "customized_weight_config"):
        if said.get(field):
            what = f"algo_config has {field}, expected None: blocks of all weights are alike"
            raise OptionError(what, option="algo_config")
    if said.get("axis", 1) != 1:
        _log.warning("algo_config.axis does nothing, in onnxruntime's tool neither")
    return _METHODS[name], said


def _check_axes(axes: Any) -> None:
    for op_type, axis in dict(axes or {}).items():
        if _AXES.get(op_type) != axis:
            what = f"quant_axes has {op_type}: {axis}, expected one of {_AXES}"
            raise OptionError(what, option="quant_axes")


class SavedModel:
    """What `MatMulNBitsQuantizer.process` made."""

    def __init__(self, done: Quantized) -> None:
        """Hold it."""
        self._done = done

    @cached_property
    def model(self) -> Any:
        """The ``onnx.ModelProto``.

        Raises
        ------
        MissingPackageError
            The package onnx is not installed.
        UnsupportedModelError
            It takes 2 GiB or more.
        """
        onnx = onnx_package("model as an onnx.ModelProto")
        return onnx.load_from_string(self._done.to_bytes())

    def save_model_to_file(
        self, output_path: str | os.PathLike[str], use_external_data_format: bool = False
    ) -> Report:
        """Write the model; data goes beside one of 2 GiB and more by itself.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        del use_external_data_format
        return self._done.save(output_path)
