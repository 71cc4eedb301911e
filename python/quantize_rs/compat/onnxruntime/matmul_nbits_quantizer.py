"""Blockwise weight quantization: the classes of onnxruntime, and the command of its module."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ._command import model_parser, quantize_weights, truth
from ._elsewhere import hints
from ._matmul_nbits import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
from .quant_utils import QuantFormat

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
]

__getattr__ = hints(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize weights in blocks; the flags are those of onnxruntime's module."""
    parser = model_parser("Quantize the weights of matrix multiplications in blocks.")
    parser.add_argument("--block_size", type=int, default=32)
    methods = ["default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq"]
    parser.add_argument("--quant_method", default="default", choices=methods)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument(
        "--symmetric", nargs="?", type=truth, const=True, default=True, help="for default only"
    )
    parser.add_argument("--accuracy_level", type=int)
    parser.add_argument("--nodes_to_include", nargs="+", help="nodes to quantize, too")
    formats = [known.name for known in QuantFormat]
    parser.add_argument("--quant_format", default="QOperator", choices=formats)
    parser.add_argument("--op_types_to_quantize", nargs="+", default=["MatMul"])
    parser.add_argument("--quant_axes", nargs="+", type=_axis, metavar="OP:AXIS")
    for name in ("calib_dataset_name", "tokenizer_dir", "calibration_method", "cache_dir"):
        parser.add_argument(f"--{name}", help="for nvidia_awq, which is not supported")
    given = parser.parse_args(arguments)
    if given.quant_method in ("gptq", "nvidia_awq"):
        parser.error(
            f"--quant_method {given.quant_method} needs samples, which a command does not take: "
            "call MatMulNBitsQuantizer with GPTQWeightOnlyQuantConfig(calibration_data_reader)"
        )
    quantize_weights(given, lambda: _of_command(given))


def _of_command(given: Namespace) -> MatMulNBitsQuantizer:
    shared = {
        "quant_format": QuantFormat[given.quant_format],
        "op_types_to_quantize": given.op_types_to_quantize,
    }
    config: Any = None
    match given.quant_method:
        case "hqq":
            config = HQQWeightOnlyQuantConfig(given.block_size, given.bits, **shared)
        case "rtn":
            config = RTNWeightOnlyQuantConfig(**shared)
        case "k_quant":
            config = KQuantWeightOnlyQuantConfig(**shared)
    return MatMulNBitsQuantizer(
        given.input_model,
        given.bits,
        given.block_size,
        # The algorithms beside the default have zero points in onnxruntime, too.
        given.symmetric and config is None,
        given.accuracy_level,
        given.nodes_to_exclude,
        given.nodes_to_include,
        quant_axes=dict(given.quant_axes or ()),
        algo_config=config,
        **shared,
    )


def _axis(text: str) -> tuple[str, int]:
    """Read an operator type and an axis; argparse reports a ValueError."""
    op_type, _, axis = text.partition(":")
    return op_type, int(axis)


if __name__ == "__main__":
    main()
