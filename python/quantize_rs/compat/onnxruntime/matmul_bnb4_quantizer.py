"""Weights as codes of 4 bits: the class of onnxruntime, and the command of its module."""

from __future__ import annotations

from collections.abc import Sequence

from ._command import model_parser, quantize_weights
from ._matmul_bnb4 import MatMulBnb4Quantizer

__all__ = ["MatMulBnb4Quantizer"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize weights to NF4 or FP4; the flags are those of onnxruntime's module."""
    parser = model_parser("Quantize the weights of MatMul to 4-bit codes in blocks.")
    kinds = [MatMulBnb4Quantizer.FP4, MatMulBnb4Quantizer.NF4]
    parser.add_argument("--quant_type", type=int, default=1, choices=kinds, help="0: FP4, 1: NF4")
    parser.add_argument("--block_size", type=int, default=64)
    given = parser.parse_args(arguments)
    quantize_weights(
        given,
        lambda: MatMulBnb4Quantizer(
            given.input_model, given.quant_type, given.block_size, given.nodes_to_exclude
        ),
    )


if __name__ == "__main__":
    main()
