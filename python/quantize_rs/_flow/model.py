"""An opened model, and the plans for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import _core
from .._inputs.model_source import ModelSource, read_model
from .._options import check
from .._options.option_dict import OptionDict
from .._results.build import result
from .._results.model_info import ModelInfo
from .plan import Plan

__all__ = ["Model", "open"]


def open(source: ModelSource) -> Model:  # noqa: A001 - `quantize_rs.open`, as `PIL.Image.open`
    """Open a model.

    Files are memory-mapped and bytes are held without a copy; weights are only read when needed.

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
        target: str | None = None,
        per_channel: bool = False,
        symmetric: bool = False,
        activation_symmetric: bool = False,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        min_elements: int = 0,
        layer_bits: Mapping[str, int | str] | None = None,
        layer_dtype: Mapping[str, str] | None = None,
        activation_types: Mapping[str, str] | None = None,
        block_size: int | None = None,
        weight_method: str | None = None,
        rounding: str | None = None,
        narrow_range: bool | None = None,
        native_int4: bool | None = None,
        op_types: Iterable[str] | None = None,
        prune: float | None = None,
        sparsity: float | None = None,
        bias_correction: bool = True,
        smooth: bool = True,
        optimize: bool | Iterable[str] = True,
        opset: int | None = None,
        output_format: str = "qdq",
        accuracy_level: int | None = None,
        dynamic_lstm: bool = False,
    ) -> Plan:
        """Decide what to quantize, and to what; nothing is changed.

        Parameters
        ----------
        weights : str, optional
            The type of weights: ``"int2"`` to ``"int16"``, or unsigned, ``"float8e4m3fn"`` (or
            ``"float8"``), ``"float8e5m2"``, ``"float16"`` (or ``"fp16"``), ``"bfloat16"`` (or
            ``"bf16"``), or a layout of blocks with scales of 8 bits: ``"mxfp4"``, ``"mxfp8"``,
            ``"nvfp4"``; ``"int8"`` by default.
        activations : str, optional
            The type of activations, whose ranges need calibration: ``"uint8"``, ``"int8"``,
            ``"uint16"`` or ``"int16"``; for the targets tensorrt and generic ``"float8e4m3fn"`` (or
            ``"float8"``), for the latter ``"float8e5m2"``. Without it weights alone are quantized,
            unless there is a `target`, which brings the type it likes best.
        target : str, optional
            The runtime that the model is made for: ``"x86"``, ``"x86-avx2"``, ``"arm"``,
            ``"tensorrt"``, ``"openvino"``, ``"qnn"`` or ``"generic"``. It decides which operators
            run on integers, and brings the types and zero points that it needs.
        per_channel : bool
            One scale for each output channel of a weight instead of one for the whole tensor.
        symmetric, activation_symmetric : bool
            Zero points of weights, of activations, are fixed.
        exclude : iterable of str, optional
            Weights and nodes to leave alone: names, patterns with ``*``, ``?`` and ``[...]``,
            regular expressions behind ``re:``, or types of operators.
        include : iterable of str, optional
            Only these weights and nodes are quantized, written as in `exclude`, which goes before.
        min_elements : int
            Weights with fewer elements stay float.
        layer_bits : dict of str to (int or str), optional
            Bits, or a type such as ``"uint4"``, for some weights: by the name of a weight or node,
            by pattern as in `exclude`, or by type of operator, of which the narrowest counts;
            ``"float32"`` leaves them float.
        layer_dtype : dict of str to str, optional
            The same for types alone: ``{"classifier": "fp16", "MatMul": "mxfp4"}``.
        activation_types : dict of str to str, optional
            Other types for some activations: by the name of a value, by the name or the type of
            the operator that makes or reads it, or by pattern as in `exclude`:
            ``{"head/*": "uint16"}``. A value has one type: that asked for itself, else for what
            makes it, else the widest asked for those who read it.
        block_size : int, optional
            One scale for each so many elements along the axis that is summed over: a power of two
            from 16 on. Needs opset 21, and no activations.
        weight_method : str, optional
            How the scales of weights are chosen: ``"minmax"`` by the smallest and the largest
            weight that share one, ``"mse"`` by the least squared error, where either end may be
            cut by a step, ``"hqq"`` by half-quadratic quantization, whose zero points are floats
            in ``"matmul_nbits"``: nearer, and slower in ONNX Runtime. By default blocks of up to
            4 bits take the least error, but those of convolutions do not.
        rounding : str, optional
            Which of the two integers around it a weight becomes: ``"sums"`` the nearest, but for
            the few that go to the other so that the weights of a kernel and of an output channel
            keep their sum, ``"nearest"`` that one always. By default convolutions and the
            integer products of ``"dynamic"`` keep their sums, where what they meet lies on one
            side of 0.
        narrow_range : bool or None
            Symmetric weights leave out the most negative value of their type, such as -128 (True),
            or use it (False). By default 8 and 16 bits leave it out, as integer kernels want, and 4
            and 2 bits use it: the largest element of each group meets it, for which its scale may
            be negative.
        native_int4 : bool or None
            False stores 4-bit weights in a byte each, which saves nothing.
        op_types : iterable of str, optional
            Only operators of these types are quantized: ``["Conv", "Gemm"]``.
        bias_correction : bool
            With calibration, biases take back what quantized weights shift in the mean.
        smooth : bool
            With calibration, large channels behind a normalization are divided by numbers that the
            weights after it are multiplied by, where that makes the errors of both smaller.
        prune, sparsity : float, optional
            As in `quantize`.
        optimize : bool or iterable of str
            Before planning, passes that change no result fold and clean up the model where that
            serves quantization; names say which ones, False leaves the model as it is.
        opset : int, optional
            The operator set of the result: a model of an older one is converted to it, and what
            needs a newer one is refused. By default it is converted no further than the result
            needs.
        output_format : str
            How what is quantized is written into the file: ``"qdq"``, which every runtime reads;
            ``"matmul_nbits"``: weights of MatMul, Gemm and Gather in blocks (of 32, or
            `block_size` elements) of 2, 4 or 8 bits, for operators of ONNX Runtime's own that
            compute with them as they are, in any opset from 7 on; ``"dynamic"``: integer
            products of MatMul, Gemm and Conv, whose activations are quantized when the model runs,
            from opset 11 on; or
            ``"fake_quant"``: as ``"qdq"``, with weights that stay float, to train on; see
            `insert_fake_quant`.
        accuracy_level : int, optional
            For ``"matmul_nbits"``: how exactly products are computed. 1 in float32, 4 with
            activations brought to 8 bits, which is faster; 0, or None, leaves it to ONNX Runtime.
        dynamic_lstm : bool
            For ``"dynamic"``: LSTMs multiply integers too, as ONNX Runtime's
            ``DynamicQuantizeLSTM``: faster, and less exact than weights of 8 bits alone, which is
            what they have otherwise.

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
        >>> [value.kind for value in plan if value.role == "weight"][0]
        'int8 symmetric axis 0'
        """
        size = check.optional_count("block_size", block_size)
        calibrated = activations is not None or (target is not None and output_format == "qdq")
        symmetric_alone = activation_symmetric and not calibrated
        check.reject_unused("without activations", activation_symmetric=symmetric_alone)
        widths, types = check.layers(layer_bits, layer_dtype)
        options = OptionDict(
            bits=None,
            weights=weights,
            with_activations=calibrated,
            activations=activations,
            activation_types=check.types_by_name("activation_types", activation_types),
            per_channel=per_channel,
            symmetric=symmetric,
            activation_symmetric=activation_symmetric,
            narrow_range=narrow_range,
            block_size=size,
            weight_method=weight_method,
            rounding=rounding,
            native_int4=native_int4,
            exclude=check.names("exclude", exclude),
            include=check.optional_names("include", include),
            min_elements=check.count("min_elements", min_elements),
            layer_bits=widths,
            layer_types=types,
            target=target,
            op_types=check.optional_names("op_types", op_types),
            prune=check.pruning(prune, sparsity),
            bias_correction=bias_correction,
            smooth=smooth,
            passes=check.passes(optimize),
            opset=check.optional_count("opset", opset, least=1),
            output_format=output_format,
            accuracy_level=check.optional_count("accuracy_level", accuracy_level),
            dynamic_lstm=dynamic_lstm,
        )
        with check.rename_errors(excluded_layers="exclude", included_layers="include"):
            return self._plan(options)

    def _plan(self, options: OptionDict) -> Plan:
        return Plan(self._model.plan(options))

    def __repr__(self) -> str:
        info, where = self.info, self.path or "memory"
        return f"<Model {info.name!r} from {where}: {info.num_nodes} nodes, {info.bytes} bytes>"

    def _repr_html_(self) -> str:
        return self.info._repr_html_()
