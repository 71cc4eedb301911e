"""Blockwise weight quantization, with the classes of onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..._flow.model import Model
from ..._flow.model import open as open_model
from ..._inputs.model_source import ModelSource
from ..._options import check
from ...errors import OptionError
from ._applied import applied
from ._choices import (
    name_of,
    names_of,
    nodes_of,
    op_types_in,
    quantizable_types,
    rename_plan_errors,
    warn_idle,
)
from ._packages import onnx_package
from ._saved_model import SavedModel
from .onnx_model import ONNXModel
from .quant_utils import QuantFormat

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightQuantizer",
]

_log = logging.getLogger("quantize_rs")

# The names of onnxruntime's algorithms, and the weight methods here.
_METHODS = {"DEFAULT": None, "GPTQ": None, "HQQ": "hqq", "RTN": "minmax", "k_quant": "mse"}

# The methods of HQQ and k-quant, which have zero points in onnxruntime whatever is asked for.
_ZERO_POINTS = ("hqq", "mse")

# The fields of a config of GPTQ without effect here: the usual value, and what holds instead.
_GPTQ_IDLE = {
    "percdamp": (0.01, "the damping is always 0.01"),
    "actorder": (False, "the elements with the largest inputs are always rounded first"),
    "mse": (False, "with up to 4 bits, scales always have the least squared error"),
    "perchannel": (True, "each block has its own scale"),
}

# The axis of the blocks.
_AXES = {"MatMul": 0, "Gather": 1}


@dataclass
class DefaultWeightOnlyQuantConfig:
    """An ``algo_config``: scales with the least error of each block."""

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
class GPTQWeightOnlyQuantConfig:
    """An ``algo_config``: rounding that minimizes the error of outputs on samples (GPTQ).

    `percdamp`, `block_size`, `actorder`, `mse` and `perchannel` have no effect: the damping is
    0.01, the elements with the largest inputs are rounded first, and the ``block_size`` of the
    quantizer says how many elements share a scale, as in onnxruntime. There is a warning for each
    of the others with a value that is not the default.
    """

    calibration_data_reader: Any = None
    percdamp: float = 0.01
    block_size: int = 128
    actorder: bool = False
    mse: bool = False
    perchannel: bool = True
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    quant_axes: Any = None
    algorithm: str = "GPTQ"


@dataclass
class HQQWeightOnlyQuantConfig:
    """An ``algo_config``: half-quadratic quantization (HQQ)."""

    block_size: int = 128
    bits: int = 4
    axis: int = 1
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    quant_axes: Any = None
    algorithm: str = "HQQ"


@dataclass
class RTNWeightOnlyQuantConfig:
    """An ``algo_config``: scales by the extremes of each block.

    `customized_weight_config` gives nodes or weights other bits: ``{"head": {"bits": 8}}``.
    `ratios` must be empty.
    """

    ratios: Any = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    customized_weight_config: Any = None
    algorithm: str = "RTN"


@dataclass
class KQuantWeightOnlyQuantConfig:
    """An ``algo_config``: scales and zero points with the least squared error of each block.

    The fields are those of `RTNWeightOnlyQuantConfig`. More candidates are tried than in
    onnxruntime.
    """

    ratios: Any = None
    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Iterable[str] | None = None
    customized_weight_config: Any = None
    algorithm: str = "k_quant"


class WeightQuantizer:
    """What the quantizers of weights share: the model, before and after `process`."""

    _saved: ONNXModel | None = None
    _opened: Model

    @property
    def model(self) -> ONNXModel:
        """The model after `process`; before it a copy of the given one.

        Changes of that copy are not quantized.

        Raises
        ------
        MissingPackageError
            `process` was not called yet, and the package onnx is not installed.
        """
        if self._saved is None:
            onnx = onnx_package("model before process()")
            self._saved = ONNXModel(onnx.load_from_string(self._opened._model.to_bytes()))
        return self._saved


class MatMulNBitsQuantizer(WeightQuantizer):
    """Quantizes weights of MatMul, Gemm and Gather in blocks.

    Parameters
    ----------
    model
        The model, which is not changed.
    bits, block_size
        The bit width (2, 4 or 8), and the number of elements that share a scale. All weights get
        this width, also small tables.
    is_symmetric, accuracy_level
        Whether there are no zero points; the accuracy level of MatMulNBits, 0 to 4. HQQ and k-quant
        have zero points in any case, as in onnxruntime, with a warning.
    nodes_to_exclude
        Nodes and weights to exclude: names, patterns and operator types.
    nodes_to_include
        Nodes to quantize in addition to those of `op_types_to_quantize`.
    quant_axes
        The operators determine the axes; other axes raise an error.
    quant_format
        ``QuantFormat.QOperator`` writes MatMulNBits, ``QuantFormat.QDQ`` DequantizeLinear.
    op_types_to_quantize
        MatMul and Gemm by default.
    channel_wised_quantize
        One scale for each column, with ``QuantFormat.QDQ``.
    algo_config
        A `DefaultWeightOnlyQuantConfig`, `GPTQWeightOnlyQuantConfig`, `HQQWeightOnlyQuantConfig`,
        `KQuantWeightOnlyQuantConfig` or `RTNWeightOnlyQuantConfig`, of this package or of
        onnxruntime. Its fields take precedence over the arguments. Other algorithms raise an error.

    Raises
    ------
    OptionError
        An option is unknown or not supported.

    Examples
    --------
    >>> import quantize_rs
    >>> from quantize_rs.compat.onnxruntime import MatMulNBitsQuantizer
    >>> digits = quantize_rs.examples.digits()
    >>> quantizer = MatMulNBitsQuantizer(
    ...     digits.model, block_size=32, op_types_to_quantize=["Gemm"]
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
        """Open the model and plan; `process` quantizes it."""
        nodes_to_exclude = check.names("nodes_to_exclude", nodes_to_exclude)
        nodes_to_include = check.names("nodes_to_include", nodes_to_include)
        # The attributes that onnxruntime's class has, for scripts that read them.
        self.model_path = model if isinstance(model, str) else None
        self.bits, self.block_size = bits, block_size
        self.is_symmetric, self.accuracy_level = is_symmetric, accuracy_level
        self.nodes_to_exclude = set(nodes_to_exclude)
        self.nodes_to_include = set(nodes_to_include) or None
        self.algo_config = algo_config
        if algo_config is None:
            self.algo_config = DefaultWeightOnlyQuantConfig(
                block_size,
                is_symmetric,
                accuracy_level,
                quant_format,
                op_types_to_quantize,
                quant_axes,
                bits,
                channel_wised_quantize,
            )
        _check_axes(quant_axes)
        method, layer_bits = None, {}
        self._samples: Any = None
        if algo_config is not None:
            method, fields = _method_and_fields(algo_config)
            layer_bits = _layer_bits(fields.get("customized_weight_config"))
            self._samples = fields.get("calibration_data_reader")
            bits, block_size = fields.get("bits", bits), fields.get("block_size", block_size)
            if is_symmetric and method in _ZERO_POINTS:
                what = "is_symmetric has no effect with %s, as in onnxruntime: it has zero points"
                _log.warning(what, algo_config.algorithm)
                is_symmetric = False
            is_symmetric = fields.get("is_symmetric", is_symmetric)
            accuracy_level = fields.get("accuracy_level", accuracy_level)
            quant_format = fields.get("quant_format", quant_format)
            op_types_to_quantize = fields.get("op_types_to_quantize") or op_types_to_quantize
            channel_wised_quantize = fields.get("channel_wised_quantize", channel_wised_quantize)
        form = name_of("quant_format", quant_format, [known.name for known in QuantFormat])
        blocks = form == "QOperator"
        if blocks and channel_wised_quantize:
            what = "channel_wised_quantize is for QuantFormat.QDQ: MatMulNBits has blocks"
            raise OptionError(what, option="channel_wised_quantize")
        kind = "int" if is_symmetric or blocks else "uint"
        self._opened = opened = open_model(model)
        known = names_of(opened)
        met = nodes_of("customized_weight_config", layer_bits, known)
        layer_bits = {name: layer_bits[name] for name in met}
        types: list[str] | None = quantizable_types(op_types_to_quantize, opened)
        types = types or ["MatMul", "Gemm"]
        include = nodes_of("nodes_to_include", nodes_to_include, known)
        if include:
            there = op_types_in(opened)
            include, types = [*(name for name in types if name in there), *include], None
        with rename_plan_errors():
            self._plan = opened.plan(
                f"{kind}{bits}",
                block_size=None if channel_wised_quantize else block_size,
                per_channel=channel_wised_quantize or None,
                symmetric=is_symmetric,
                weight_method=method,
                weight_algorithm="auto" if self._samples is None else "gptq",
                accuracy_level=accuracy_level if blocks else None,
                exclude=nodes_of("nodes_to_exclude", nodes_to_exclude, known),
                include=include or None,
                op_types=types,
                layer_bits=layer_bits,
                output_format="matmul_nbits" if blocks else "qdq",
                allow_larger=True,  # as with onnxruntime
                onnxruntime_names=True,
            )

    def process(self) -> None:
        """Quantize the weights."""
        samples = self._samples
        ranges = None if samples is None else self._plan.calibrate(samples, method="minmax")
        self._saved = SavedModel(applied(self._plan, ranges))


def _method_and_fields(config: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return the method and the supported fields of a config."""
    name = getattr(config, "algorithm", None)
    if name not in _METHODS:
        found = repr(config if name is None else name)
        what = f"algo_config is {found}, expected a configuration of {', '.join(_METHODS)}"
        if "awq" in str(name).lower():
            what += "; AWQ downloads data sets there: GPTQ takes your own samples"
        raise OptionError(what, option="algo_config")
    fields = vars(config)
    _check_axes(fields.get("quant_axes"))
    if fields.get("ratios"):
        what = "algo_config has ratios, expected None: no part of a range is cut off by hand"
        raise OptionError(what, option="algo_config")
    if name == "GPTQ":
        if fields.get("calibration_data_reader") is None:
            what = "algo_config has no calibration_data_reader, which GPTQ needs"
            raise OptionError(what, option="algo_config")
        for key, (usual, why) in _GPTQ_IDLE.items():
            warn_idle(f"algo_config.{key}", fields.get(key), usual, why)
        fields = {key: value for key, value in fields.items() if key != "block_size"}
    if fields.get("axis", 1) != 1:
        _log.warning("algo_config.axis has no effect, as in onnxruntime")
    return _METHODS[name], fields


def _layer_bits(config: Mapping[str, Mapping[str, Any]] | None) -> dict[str, int]:
    """Return the bits of layers from `customized_weight_config`."""
    found = {}
    for name, fields in (config or {}).items():
        if unknown := [field for field in fields if field != "bits"]:
            what = f"customized_weight_config[{name!r}] has {unknown[0]}, expected bits alone"
            raise OptionError(what, option="algo_config")
        if "bits" in fields:
            found[name] = check.bits("customized_weight_config", fields["bits"])
    return found


def _check_axes(axes: Any) -> None:
    for op_type, axis in dict(axes or {}).items():
        if _AXES.get(op_type) != axis:
            what = f"quant_axes has {op_type}: {axis}, expected one of {_AXES}"
            raise OptionError(what, option="quant_axes")
