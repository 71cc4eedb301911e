"""Weights as codes of 4 bits for ``MatMulBnb4``, with the class of onnxruntime."""

from __future__ import annotations

from collections.abc import Iterable

from ..._flow.model import open as open_model
from ..._inputs.model_source import ModelSource
from ..._options import check
from ...errors import OptionError
from ._applied import applied
from ._choices import names_of, nodes_of, rename_plan_errors
from ._matmul_nbits import WeightQuantizer
from ._saved_model import SavedModel

__all__ = ["MatMulBnb4Quantizer"]


class MatMulBnb4Quantizer(WeightQuantizer):
    """Quantizes the constant weights of MatMul to NF4 or FP4 in blocks.

    Scales are those with the least squared error; onnxruntime takes the largest magnitude.

    Parameters
    ----------
    model
        The model, which is not changed.
    quant_type
        ``MatMulBnb4Quantizer.FP4`` or ``MatMulBnb4Quantizer.NF4``.
    block_size
        The number of elements that share a scale, a power of two from 16 to 256.
    nodes_to_exclude
        Nodes and weights to exclude; they may be patterns.

    Raises
    ------
    OptionError
        An option is unknown or not supported.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx
    >>> from quantize_rs.compat.onnxruntime import MatMulBnb4Quantizer
    >>> text = "net (float[n, 64] x) => (float[n, 8] y) { y = MatMul(x, w) }"
    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["" : 21]>' + text
    ... )
    >>> weight = np.linspace(-1, 1, 512, dtype=np.float32).reshape(64, 8)
    >>> model.graph.initializer.extend([onnx.numpy_helper.from_array(weight, "w")])
    >>> quantizer = MatMulBnb4Quantizer(model, MatMulBnb4Quantizer.NF4, 64)
    >>> quantizer.process()
    >>> quantizer.model.model.graph.node[0].op_type
    'MatMulBnb4'
    """

    FP4 = 0
    NF4 = 1

    def __init__(
        self,
        model: ModelSource,
        quant_type: int,
        block_size: int,
        nodes_to_exclude: Iterable[str] | None = None,
    ) -> None:
        """Open the model and plan; `process` quantizes it."""
        names = {self.FP4: "fp4", self.NF4: "nf4"}
        if quant_type not in names:
            what = f"quant_type is {quant_type!r}, expected 0 (FP4) or 1 (NF4)"
            raise OptionError(what, option="quant_type")
        nodes_to_exclude = check.names("nodes_to_exclude", nodes_to_exclude)
        self.quant_type, self.block_size = quant_type, block_size
        self.nodes_to_exclude = set(nodes_to_exclude)
        self._opened = opened = open_model(model)
        with rename_plan_errors():
            self._plan = opened.plan(
                names[quant_type],
                block_size=block_size,
                exclude=nodes_of("nodes_to_exclude", nodes_to_exclude, names_of(opened)),
                op_types=["MatMul"],
                output_format="matmul_bnb4",
                allow_larger=True,  # as with onnxruntime
            )

    def process(self) -> None:
        """Quantize the weights."""
        self._saved = SavedModel(applied(self._plan))
