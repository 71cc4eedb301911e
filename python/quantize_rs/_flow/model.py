"""An opened model, and the plans for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _core
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._options.option_dict import OptionDict, names_in_errors, option_dict, stated_bits
from .._options.resolve import resolve
from .._results.build import result
from .._results.model_info import ModelInfo
from .options import QuantizeOptions
from .plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import PlanKeywords

__all__ = ["Model", "op_types", "open"]


def open(source: ModelSource) -> Model:  # noqa: A001 - `quantize_rs.open`, as `PIL.Image.open`
    """Open a model.

    Files of more than 16 MiB (on Windows 64 MiB) are memory-mapped, bytes are held without a copy,
    and weights are only read when needed. If another program writes to the file of a mapped model,
    calls with the model raise a ``ModelError``.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        External data is only found for a path. A ModelProto is never changed.

    Returns
    -------
    Model
        The opened model.

    Raises
    ------
    ModelFormatError
        The model is not well-formed or not legal ONNX.
    ExternalDataError
        External data is missing, too short, or outside the folder of the model.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        The file cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> model = quantize_rs.open(digits.model)
    >>> model.info.inputs
    ['image']
    """
    return Model(read_model(source))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Model:
    """An opened model. `open` returns it."""

    _model: _core.Model

    @property
    def path(self) -> Path | None:
        """The file; None for a model in memory."""
        path = self._model.path
        return None if path is None else Path(path)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model, found without reading its weights."""
        return result(ModelInfo, self._model.info())

    def plan(
        self,
        weights: str | None = None,
        activations: str | None = None,
        *,
        options: QuantizeOptions | None = None,
        **keywords: Unpack[PlanKeywords],
    ) -> Plan:
        """Decide what to quantize, and to what; nothing is changed.

        Parameters
        ----------
        weights : str, optional
            The type of weights; ``"int8"`` by default.
        activations : str, optional
            The type of activations, whose ranges need calibration. Without it only weights are
            quantized, unless there is a `target`, which brings the type that it prefers.
        options : QuantizeOptions, optional
            Options in one object, instead of keywords; those of samples, accuracy and runs have no
            effect here.
        **keywords
            The options below, or their aliases.

        Other Parameters
        ----------------
        Weights
            - `bits`: Bits of a weight: 2, 4, 8 or 16; or 3, which are stored in 4 bits each, or 5
              or 6, which are stored in 8.
            - `per_channel`: Use one scale for each output channel of a weight; False uses one for
              the whole tensor.
            - `symmetric`: Use weights with zero point 0: their range is `[-absmax, absmax]`.
            - `narrow_range`: Leave out the most negative value of the type, such as -128, in
              symmetric weights; False uses it.
            - `block_size`: Use one scale for each block of N consecutive elements along the axis
              that is summed over. Also called `group_size`.
            - `weight_method`: How the scales of weights are chosen. One of ``"minmax"``, ``"mse"``,
              ``"hqq"``.
            - `rounding`: How weights are rounded to integers. One of ``"preserve_sums"``,
              ``"nearest"``.
            - `weight_algorithm`: How the integers of weights are chosen where samples are given:
              `auto` and `descent` try all algorithms on each weight and keep the one whose output
              error is the smallest on samples that were held back; `auto` leaves 8-bit matrices
              beside quantized activations to `nearest`. One of ``"auto"``, ``"nearest"``,
              ``"scales"``, ``"gptq"``, ``"descent"``, ``"adaround"``.
            - `rounding_effort`: How long rounding with the help of samples may take. One of
              ``"fast"``, ``"balanced"``, ``"best"``. Also called `effort`.
            - `memory_limit`: The most bytes that second moments may take together, which rounding
              with the help of samples collects of the inputs of layers.
            - `resume_rounding`: Save each weight that is rounded with samples to this file, and
              continue from it.
            - `native_int4`: Pack 4-bit weights, two in a byte, which needs opset 21.

        Activations
            - `activation_types`: Other types for some activations: by the name of a value, by the
              name or type of the operator that produces or consumes it, or by pattern as in
              `exclude`.
            - `activation_symmetric`: Use activations with zero point in the middle of their type.
            - `min_range`: Widen narrower ranges of activations to this width, by raising their
              upper end: an activation that hardly varied in calibration then keeps a coarser scale
              that covers more.
            - `quantize_bias`: Quantize the biases of operators that compute on integers, to int32
              in the scale of the products.
            - `float_outputs`: Leave the outputs of operators of these types in float, unless an
              operator that computes on integers reads them.

        Layers
            - `exclude`: Leave these weights and nodes in float: names, patterns with `*`, `?` and
              `[...]`, regular expressions after `re:`, or operator types. Also called
              `excluded_layers` or `exclude_layers`.
            - `include`: Quantize only these weights and nodes, written as in `exclude`, which takes
              precedence. Also called `included_layers`.
            - `min_elements`: Leave weights with fewer elements in float.
            - `layer_bits`: Other bits or types for some weights: by the name of a weight or node,
              by pattern as in `exclude`, or by operator type.
            - `layer_types`: Other types for some weights, written as in `layer_bits`. Also called
              `layer_dtype`.
            - `op_types`: Quantize only operators of these types.
            - `mixed_layers`: Give some layers of a language model 8 bits where weights get fewer,
              by their place in it: for models that are too large to measure each layer. One of
              ``"last"``, ``"sensitive"``.
            - `overrides`: Exceptions for some layers, as an ordered list: for each setting, the
              first entry that matches the layer and has the setting applies.

        Transforms
            - `prune`: Set weights with `abs(w) < prune` to 0 before anything else.
            - `sparsity`: Set the smallest elements of each weight to 0, until this fraction of them
              is 0.
            - `passes`: The passes that fold and clean up the model before planning, by name; they
              change no result. Also called `optimize`.
            - `opset`: The operator set of the result.
            - `smooth`: Scale large channels of activations down and the following weights up, where
              that lowers the error of both (`SmoothQuant`: Xiao et al., ICML 2023).
            - `equalize`: Scale channels between two weights by powers of two, where that lowers the
              expected error (cross-layer equalization: Nagel et al., ICCV 2019, section 4.1).
            - `bias_correction`: Correct biases by the mean shift that quantized weights cause
              (Nagel et al., ICCV 2019, section 4.2).

        Output model
            - `output_format`: How quantized values are written into the file. One of ``"qdq"``,
              ``"qoperator"``, ``"matmul_nbits"``, ``"matmul_bnb4"``, ``"dynamic"``,
              ``"fake_quant"``.
            - `allow_larger`: Write the result even if it is larger than the model.
            - `accuracy_level`: How precisely `MatMulNBits` computes, from 0 to 4: 1 in float32, 4
              with activations quantized to 8 bits, which is faster.
            - `float_type`: The type in which the model computes with floats that are not quantized:
              scales, biases, activations and all that stays float. One of ``"float16"``,
              ``"bfloat16"``.
            - `kv_cache`: The type of the cache of keys and values of a language model: with
              calibration data, the past and present of each `GroupQueryAttention` become integers
              with a scale for each channel. One of ``"int8"``, ``"int4"``.
            - `dynamic_lstm`: Quantize LSTMs dynamically too, as ONNX Runtime's
              `DynamicQuantizeLSTM`.
            - `target`: The runtime that the model is made for. One of ``"x86"``, ``"x86-avx2"``,
              ``"arm"``, ``"web"``, ``"tensorrt"``, ``"openvino"``, ``"qnn"``, ``"generic"``.
            - `dedicated_qdq_pairs`: Give every operator that reads a quantized activation its own
              `QuantizeLinear` and `DequantizeLinear`, for compilers that expect this.
            - `onnxruntime_names`: Name scales, zero points, integers and the nodes around them as
              `onnxruntime.quantization` does (`X_scale`, `X_QuantizeLinear_Output`), for programs
              that look them up by name.

        https://github.com/quantize-rs/quantize-rs/blob/main/docs/options.md
        describes every option in full.

        Returns
        -------
        Plan
            What will be done to each value.

        Raises
        ------
        OptionError
            An option is unknown, out of range, or names nothing in the model.
        UnsupportedModelError
            The opset of the model does not know what the result would need.

        Examples
        --------
        >>> import quantize_rs
        >>> digits = quantize_rs.examples.digits()
        >>> model = quantize_rs.open(digits.model)
        >>> plan = model.plan(per_channel=True, symmetric=True)
        >>> [value.kind for value in plan if value.role == "weight"][1]
        'int8 symmetric axis 0'
        """
        parameters = {"weights": weights, "activations": activations}
        found = resolve("Model.plan", parameters, options, keywords)
        activations, target = found["activations"], found["target"]
        output_format = found["output_format"]
        calibrated = (
            activations is not None
            or output_format == "qoperator"
            or (target is not None and output_format == "qdq")
        )
        unused = {
            name: not calibrated and found[name] not in (None, False, [], ())
            for name in ("activation_symmetric", "float_outputs", "dedicated_qdq_pairs")
        }
        unused["quantize_bias"] = not calibrated and found["quantize_bias"] is not None
        check.reject_unused("without activations", **unused)
        bits = stated_bits(found)
        return self._plan(option_dict(found, bits=bits, with_activations=calibrated))

    def _plan(self, options: OptionDict) -> Plan:
        with check.rename_errors(**names_in_errors(options)):
            return Plan(self._model.plan(options), (self._model, options))

    def __repr__(self) -> str:
        info, where = self.info, self.path or "memory"
        return f"<Model {info.name!r} from {where}: {info.num_nodes} nodes, {info.bytes} bytes>"

    def _repr_html_(self) -> str:
        return self.info._repr_html_()


def op_types() -> tuple[list[str], list[str]]:
    """Return the operator types that can be quantized, and those of ONNX."""
    return _core.op_types()
