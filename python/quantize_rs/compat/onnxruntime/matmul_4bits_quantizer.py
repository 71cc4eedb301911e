"""The name that `matmul_nbits_quantizer` had in older versions of onnxruntime."""

from __future__ import annotations

from typing import Any

from .matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    main,
)

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMul4BitsQuantizer",
    "RTNWeightOnlyQuantConfig",
]


class MatMul4BitsQuantizer(MatMulNBitsQuantizer):
    """`MatMulNBitsQuantizer` for 4 bits, whose second argument is the size of blocks."""

    def __init__(
        self,
        model: Any,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Any = None,
        nodes_to_include: Any = None,
        quant_format: Any = None,
        op_types_to_quantize: Any = None,
        quant_axes: Any = None,
        algo_config: Any = None,
    ) -> None:
        """Open the model and plan; `process` quantizes it."""
        given = {} if quant_format is None else {"quant_format": quant_format}
        super().__init__(
            model,
            4,
            block_size,
            is_symmetric,
            accuracy_level,
            nodes_to_exclude,
            nodes_to_include,
            op_types_to_quantize=op_types_to_quantize,
            quant_axes=quant_axes,
            algo_config=algo_config,
            **given,
        )


if __name__ == "__main__":
    main()
