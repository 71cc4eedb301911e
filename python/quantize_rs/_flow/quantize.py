"""The functions that quantize a model in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .. import _core
from .._inputs.files import writable
from .._inputs.model_source import ModelSource
from .._inputs.run import Run, warn
from .._inputs.samples import NUM_SAMPLES, CalibrationData, is_noise, sample_source
from .._options.default import default
from .._options.option_dict import option_dict, stated_bits
from .._options.resolve import Resolved, resolve
from .._results.model_info import ModelInfo
from .._results.ranges import Ranges, given_ranges
from .._results.report import Report
from ..errors import OptionError
from .accuracy_control import AccuracyCheck, accuracy_check, checked
from .model import open as open_model
from .options import QuantizeOptions
from .origin import stamped
from .plan import delivered, warn_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import CalibrateKeywords, QuantizeKeywords

__all__ = ["model_info", "quantize", "quantize_with_calibration"]


def quantize(
    input_path: ModelSource,
    output_path: str | os.PathLike[str] | None,
    bits: int = default(8),
    per_channel: bool | None = None,
    excluded_layers: Iterable[str] | None = None,
    min_elements: int = default(0),
    layer_bits: Mapping[str, int | str] | None = None,
    native_int4: bool | None = None,
    symmetric: bool | None = None,
    *,
    options: QuantizeOptions | None = None,
    **keywords: Unpack[QuantizeKeywords],
) -> Report:
    """Quantize the weights of a model; activations stay float.

    With `calibration_data` the result is more accurate: weights are rounded so that the outputs of
    their layers change little (`weight_algorithm`), and biases are corrected by the shift of the
    mean that remains (Nagel et al., ICCV 2019, section 4.2).

    Parameters
    ----------
    input_path : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output_path : path or None
        Where to write the quantized model; it may be `input_path`. With None, ``report.model``
        holds its bytes.
    bits : int
        Bits of a weight: 2, 4, 8 or 16; or 3, which are stored in 4 bits each, or 5 or 6, which are
        stored in 8. With ``output_format="qdq"``, 3, 4 and 16 need opset 21, 2 opset 25; a model of
        an older one is converted, see `convert_opset`.
    per_channel : bool or None
        One scale for each output channel (True, and None as far as the target and the operator
        allow it) or one for the whole tensor (False). One for each channel is more accurate, and
        larger only by the scales. It needs opset 13, to which an older model is converted; where a
        node cannot be converted, weights get one scale each, with a warning.
    excluded_layers : iterable of str, optional
        Weights and nodes to leave in float: names, patterns with ``*``, ``?`` and ``[...]``,
        regular expressions after ``re:``, or operator types. The option is called `exclude`, and
        that is its name in errors.
    min_elements : int
        Weights with fewer elements stay float.
    layer_bits : dict of str to (int or str), optional
        Bits, or a type, for some weights: by the name of a weight or node, by pattern as in
        `excluded_layers`, or by operator type: ``{"conv1.weight": 16, "Gemm": "uint4"}``. A name
        takes precedence over a pattern, and a pattern over an operator type. ``"float32"`` leaves
        them float.
    native_int4 : bool or None
        4-bit weights are packed, two in a byte (None, True), or stored in a byte each (False),
        which saves no space.
    symmetric : bool or None
        Zero points are 0 (True, and None for signed types that are not in blocks, except, in the
        format qdq, for weights of 3 to 8 bits without quantized activations), or follow from the
        range of the weight (False). Integer kernels compute faster with zero points of 0, and some
        targets need them.
    options : QuantizeOptions, optional
        Options in one object. An option that is given there and as a parameter or keyword is an
        error.
    **keywords
        The options below, or their aliases.

    Other Parameters
    ----------------
    Weights
        - `weights`: The type of weights, instead of a number of bits, or a layout of blocks with
          8-bit scales. Also called `precision`.
        - `narrow_range`: Leave out the most negative value of the type, such as -128, in symmetric
          weights; False uses it.
        - `block_size`: Use one scale for each block of N consecutive elements along the axis that
          is summed over. Also called `group_size`.
        - `weight_method`: How the scales of weights are chosen. One of ``"minmax"``, ``"mse"``,
          ``"hqq"``.
        - `rounding`: How weights are rounded to integers. One of ``"preserve_sums"``,
          ``"nearest"``.
        - `weight_algorithm`: How the integers of weights are chosen where samples are given: `auto`
          and `descent` try all algorithms on each weight and keep the one whose output error is the
          smallest on samples that were held back; `auto` leaves 8-bit matrices beside quantized
          activations to `nearest`. One of ``"auto"``, ``"nearest"``, ``"scales"``, ``"gptq"``,
          ``"descent"``, ``"adaround"``.
        - `rounding_effort`: How long rounding with the help of samples may take. One of ``"fast"``,
          ``"balanced"``, ``"best"``. Also called `effort`.
        - `memory_limit`: The most bytes that second moments may take together, which rounding with
          the help of samples collects of the inputs of layers.
        - `resume_rounding`: Save each weight that is rounded with samples to this file, and
          continue from it.

    Layers
        - `include`: Quantize only these weights and nodes, written as in `exclude`, which takes
          precedence. Also called `included_layers`.
        - `layer_types`: Other types for some weights, written as in `layer_bits`. Also called
          `layer_dtype`.
        - `op_types`: Quantize only operators of these types.
        - `mixed_layers`: Give some layers of a language model 8 bits where weights get fewer, by
          their place in it: for models that are too large to measure each layer. One of ``"last"``,
          ``"sensitive"``.
        - `overrides`: Exceptions for some layers, as an ordered list: for each setting, the first
          entry that matches the layer and has the setting applies.

    Transforms
        - `prune`: Set weights with `abs(w) < prune` to 0 before anything else.
        - `sparsity`: Set the smallest elements of each weight to 0, until this fraction of them is
          0.
        - `passes`: The passes that fold and clean up the model before planning, by name; they
          change no result. Also called `optimize`.
        - `opset`: The operator set of the result.
        - `smooth`: Scale large channels of activations down and the following weights up, where
          that lowers the error of both (`SmoothQuant`: Xiao et al., ICML 2023).
        - `equalize`: Scale channels between two weights by powers of two, where that lowers the
          expected error (cross-layer equalization: Nagel et al., ICCV 2019, section 4.1).

    Output model
        - `output_format`: How quantized values are written into the file. One of ``"qdq"``,
          ``"qoperator"``, ``"matmul_nbits"``, ``"matmul_bnb4"``, ``"dynamic"``, ``"fake_quant"``.
        - `allow_larger`: Write the result even if it is larger than the model.
        - `accuracy_level`: How precisely `MatMulNBits` computes, from 0 to 4: 1 in float32, 4 with
          activations quantized to 8 bits, which is faster.
        - `float_type`: The type in which the model computes with floats that are not quantized:
          scales, biases, activations and all that stays float. One of ``"float16"``,
          ``"bfloat16"``.
        - `kv_cache`: The type of the cache of keys and values of a language model: with calibration
          data, the past and present of each `GroupQueryAttention` become integers with a scale for
          each channel. One of ``"int8"``, ``"int4"``.
        - `dynamic_lstm`: Quantize LSTMs dynamically too, as ONNX Runtime's `DynamicQuantizeLSTM`.
        - `target`: The runtime that the model is made for. One of ``"x86"``, ``"x86-avx2"``,
          ``"arm"``, ``"web"``, ``"tensorrt"``, ``"openvino"``, ``"qnn"``, ``"generic"``.
        - `onnxruntime_names`: Name scales, zero points, integers and the nodes around them as
          `onnxruntime.quantization` does (`X_scale`, `X_QuantizeLinear_Output`), for programs that
          look them up by name.

    Calibration
        - `calibration_data`: Samples that the model runs on: 128 or more real ones, prepared as in
          production. Also called `data` or `samples`.
        - `limit`: Use only the first N samples. Also called `calibration_samples`.
        - `num_samples`: How many random samples there are.
        - `sample_shape`: The shape of a random sample without its first axis, where the model
          leaves it open.
        - `seed`: The seed of random samples.

    Accuracy control
        - `validation_data`: Samples that the result is evaluated on, in the forms of
          `calibration_data`. Also called `verify`.
        - `min_sqnr`: An accuracy criterion: the least SQNR of the worst output against the float
          model, in decibels.
        - `max_accuracy_drop`: An accuracy criterion: the most accuracy that may be lost, as a
          fraction below 1 or a percentage such as `1%`.
        - `require_faster`: Require that the result is faster than the float model.
        - `fall_back`: Where `min_sqnr` or `max_accuracy_drop` is missed, leave layers in float, the
          most sensitive first, until the criterion holds; the report lists them. Also called
          `auto_fallback` or `sensitivity_analysis`.
        - `labels`: The correct class of each row of the samples: whole numbers, in Python also an
          array of them; or a `.npy` file, or a text file with one per line.
        - `metric`: A metric that takes the place of the accuracy: a function of the outputs and the
          samples, one of `quantize_rs.metrics`, or the name of one, such as `"top5"` or
          `"perplexity"`.
        - `check`: Whether the outputs of the result are compared with those of the float model,
          where no accuracy criterion or validation data asks for more. One of ``"auto"``,
          ``"none"``.
        - `scores`: The output with the scores of the classes.

    Running samples
        - `engine`: The engine that runs the model on samples. One of ``"auto"``, ``"tract"``,
          ``"onnxruntime"``, or an object.
        - `threads`: How many samples run at once, each on a thread of its own.
        - `progress`: Show progress on standard error.

    https://github.com/quantize-rs/quantize-rs/blob/main/docs/options.md
    describes every option in full.

    Returns
    -------
    Report
        What was done to each value, and what it cost.

    Raises
    ------
    ModelError
        The model cannot be read or quantized; see `quantize_rs.errors`.
    OptionError
        An option is unknown, given twice, out of range, conflicts with another, has no effect with
        the others, or names nothing in the model.
    AccuracyCriteriaError
        A criterion is missed, and leaving layers in float does not help, or `fall_back` is False.
        No model is written.
    CalibrationError
        Samples do not fit the model, or an engine cannot run it.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        A file cannot be read or written. Nothing is left behind.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.quantize(
    ...     digits.model, "digits.int8.onnx", per_channel=True
    ... )
    >>> print(f"{report.ratio:.1f} times smaller")
    3.8 times smaller

    With samples, weights are rounded with their help and biases are corrected:

    >>> corrected = quantize_rs.quantize(
    ...     digits.model,
    ...     "digits.int8.onnx",
    ...     per_channel=True,
    ...     calibration_data=digits.calibration,
    ... )
    >>> corrected.samples, corrected.corrected_biases
    (200, 3)

    With a criterion, layers stay float where they have to:

    >>> report = quantize_rs.quantize(
    ...     digits.model,
    ...     "digits.int4.onnx",
    ...     bits=4,
    ...     validation_data=digits.calibration,
    ...     min_sqnr=25,
    ... )
    >>> report.accuracy_control.sqnr_db >= 25
    True
    """
    parameters = {
        "bits": bits,
        "per_channel": per_channel,
        "excluded_layers": excluded_layers,
        "min_elements": min_elements,
        "layer_bits": layer_bits,
        "native_int4": native_int4,
        "symmetric": symmetric,
    }
    found = resolve("quantize", parameters, options, keywords)
    control = accuracy_check(found)
    found.reject_unused()
    calibration_data, engine = found["calibration_data"], found["engine"]
    if calibration_data is None and not isinstance(engine, str):
        what = "engine is an object, which runs the model on calibration_data and does not evaluate"
        raise OptionError(what, option="engine")
    return _quantized(input_path, output_path, found, control)


def quantize_with_calibration(
    input_path: ModelSource,
    output_path: str | os.PathLike[str] | None,
    calibration_data: CalibrationData | None = None,
    bits: int = default(8),
    per_channel: bool | None = None,
    method: str = default("auto"),
    num_samples: int = default(100),
    sample_shape: Iterable[int] | None = None,
    native_int4: bool | None = None,
    symmetric: bool | None = None,
    excluded_layers: Iterable[str] | None = None,
    min_elements: int = default(0),
    layer_bits: Mapping[str, int | str] | None = None,
    *,
    options: QuantizeOptions | None = None,
    **keywords: Unpack[CalibrateKeywords],
) -> Report:
    """Quantize weights and activations, so that a runtime can compute in integers.

    The model is run on samples to find the ranges of its activations. The result depends neither
    on the number of threads nor on the order of the samples. Ctrl-C stops the run within a second
    and leaves nothing behind.

    Parameters
    ----------
    input_path, output_path, bits, per_channel
        As in `quantize`.
    calibration_data : path, Samples, array, dict of arrays, iterable, reader, or "random"
        Samples as the model will get them: 128 or more real ones, prepared in the same way.

        - A path: ``.npy`` for models with one input, ``.npz`` or ``.safetensors`` with an array for
          each input; or a folder of JPEG and PNG images, or a pattern such as ``"images/*.jpg"``.
        - A path of Parquet or Arrow files or lines of JSON, with a column or key for each input and
          a row or line for each sample, or of WebDataset archives; also a folder or list of them,
          or a pattern such as ``"train-{000..009}.tar"``. A `pyarrow` table or dataset.
        - An `ImageFolder`, which also says how pixels become numbers.
        - `TextSamples`, which says which tokenizer makes inputs of text.
        - `Samples`, which applies a function to each sample of any of these.
        - An array, or a dict of one array for each input. Samples lie along the first axis; an
          array with one axis more than the input holds whole inputs. Arrays in C order are not
          copied and must not be written to during the call.
        - An iterable of arrays or dicts, such as a torch ``DataLoader``, or a data set with
          ``__len__`` and ``__getitem__``, such as a torch ``Dataset``; of a tuple or list the
          first element is used. Each item is copied. An item may be one sample, with or without
          its first axis, or a batch, which is split into samples. It is split if the first axis of
          all inputs varies in length and the model calls it a batch (``N``, ``batch_size``), or has
          no name for it and the inputs have four axes or more. Otherwise an item with exactly the
          shapes of the inputs is one sample, such as a sequence; other items are split as arrays
          are.
        - An object with ``get_next()``, as ONNX Runtime's calibration data readers have it.
        - ``"random"``: noise. The ranges of noise are not those of data; only for trying things.

        Elements are converted to the type of the input if only precision is lost. With `ranges`,
        None.
    method : str
        How ranges follow from the samples: ``"auto"``, which evaluates the methods on held-back
        samples if there are 128 or more, and otherwise uses ``"mse"`` (``"mse:2"``, where clipping
        counts twice, for the inputs of convolutions; ``"minmax"`` for one sample); or ``"minmax"``,
        ``"moving_average"``, ``"percentile"`` (or with its number, ``"percentile:99.9"``),
        ``"entropy"``, ``"mse"``. `Plan.compare_methods` shows all of them.
    num_samples : int
        How many samples ``"random"`` makes. Other data is used whole, with a warning if this is
        given, as 0.10 took it; see `limit`.
    sample_shape : sequence of int, optional
        The shape of a random sample without its first axis, where the model leaves it open. It
        applies to the inputs that it fits; in others, dimensions that the model leaves open are 1.
        Samples that are given must have this shape.
    native_int4, symmetric, excluded_layers, min_elements, layer_bits
        As in `quantize`.
    options : QuantizeOptions, optional
        Options in one object, as in `quantize`.
    **keywords
        The options below, or their aliases.

    Other Parameters
    ----------------
    Weights
        - `weights`: The type of weights, instead of a number of bits, or a layout of blocks with
          8-bit scales. Also called `precision`.
        - `narrow_range`: Leave out the most negative value of the type, such as -128, in symmetric
          weights; False uses it.
        - `rounding`: How weights are rounded to integers. One of ``"preserve_sums"``,
          ``"nearest"``.
        - `weight_algorithm`: How the integers of weights are chosen where samples are given: `auto`
          and `descent` try all algorithms on each weight and keep the one whose output error is the
          smallest on samples that were held back; `auto` leaves 8-bit matrices beside quantized
          activations to `nearest`. One of ``"auto"``, ``"nearest"``, ``"scales"``, ``"gptq"``,
          ``"descent"``, ``"adaround"``.
        - `rounding_effort`: How long rounding with the help of samples may take. One of ``"fast"``,
          ``"balanced"``, ``"best"``. Also called `effort`.
        - `memory_limit`: The most bytes that second moments may take together, which rounding with
          the help of samples collects of the inputs of layers.
        - `resume_rounding`: Save each weight that is rounded with samples to this file, and
          continue from it.

    Activations
        - `activations`: The type of activations. One of ``"int8"``, ``"uint8"``,
          ``"float8e4m3fn"``, ``"float8e5m2"``, ``"int16"``, ``"uint16"``.
        - `activation_types`: Other types for some activations: by the name of a value, by the name
          or type of the operator that produces or consumes it, or by pattern as in `exclude`.
        - `activation_symmetric`: Use activations with zero point in the middle of their type.
        - `min_range`: Widen narrower ranges of activations to this width, by raising their upper
          end: an activation that hardly varied in calibration then keeps a coarser scale that
          covers more.
        - `quantize_bias`: Quantize the biases of operators that compute on integers, to int32 in
          the scale of the products.
        - `float_outputs`: Leave the outputs of operators of these types in float, unless an
          operator that computes on integers reads them.

    Layers
        - `include`: Quantize only these weights and nodes, written as in `exclude`, which takes
          precedence. Also called `included_layers`.
        - `layer_types`: Other types for some weights, written as in `layer_bits`. Also called
          `layer_dtype`.
        - `op_types`: Quantize only operators of these types.
        - `overrides`: Exceptions for some layers, as an ordered list: for each setting, the first
          entry that matches the layer and has the setting applies.

    Transforms
        - `prune`: Set weights with `abs(w) < prune` to 0 before anything else.
        - `sparsity`: Set the smallest elements of each weight to 0, until this fraction of them is
          0.
        - `passes`: The passes that fold and clean up the model before planning, by name; they
          change no result. Also called `optimize`.
        - `opset`: The operator set of the result.
        - `smooth`: Scale large channels of activations down and the following weights up, where
          that lowers the error of both (`SmoothQuant`: Xiao et al., ICML 2023).
        - `equalize`: Scale channels between two weights by powers of two, where that lowers the
          expected error (cross-layer equalization: Nagel et al., ICCV 2019, section 4.1).
        - `bias_correction`: Correct biases by the mean shift that quantized weights cause (Nagel et
          al., ICCV 2019, section 4.2).

    Output model
        - `output_format`: How quantized values are written into the file. One of ``"qdq"``,
          ``"qoperator"``, ``"matmul_nbits"``, ``"matmul_bnb4"``, ``"dynamic"``, ``"fake_quant"``.
        - `allow_larger`: Write the result even if it is larger than the model.
        - `kv_cache`: The type of the cache of keys and values of a language model: with calibration
          data, the past and present of each `GroupQueryAttention` become integers with a scale for
          each channel. One of ``"int8"``, ``"int4"``.
        - `target`: The runtime that the model is made for. One of ``"x86"``, ``"x86-avx2"``,
          ``"arm"``, ``"web"``, ``"tensorrt"``, ``"openvino"``, ``"qnn"``, ``"generic"``.
        - `dedicated_qdq_pairs`: Give every operator that reads a quantized activation its own
          `QuantizeLinear` and `DequantizeLinear`, for compilers that expect this.
        - `onnxruntime_names`: Name scales, zero points, integers and the nodes around them as
          `onnxruntime.quantization` does (`X_scale`, `X_QuantizeLinear_Output`), for programs that
          look them up by name.

    Calibration
        - `ranges`: Ranges of an earlier calibration, instead of samples.
        - `limit`: Use only the first N samples. Also called `calibration_samples`.
        - `seed`: The seed of random samples.

    Accuracy control
        - `validation_data`: Samples that the result is evaluated on, in the forms of
          `calibration_data`. Also called `verify`.
        - `min_sqnr`: An accuracy criterion: the least SQNR of the worst output against the float
          model, in decibels.
        - `max_accuracy_drop`: An accuracy criterion: the most accuracy that may be lost, as a
          fraction below 1 or a percentage such as `1%`.
        - `require_faster`: Require that the result is faster than the float model.
        - `fall_back`: Where `min_sqnr` or `max_accuracy_drop` is missed, leave layers in float, the
          most sensitive first, until the criterion holds; the report lists them. Also called
          `auto_fallback` or `sensitivity_analysis`.
        - `labels`: The correct class of each row of the samples: whole numbers, in Python also an
          array of them; or a `.npy` file, or a text file with one per line.
        - `metric`: A metric that takes the place of the accuracy: a function of the outputs and the
          samples, one of `quantize_rs.metrics`, or the name of one, such as `"top5"` or
          `"perplexity"`.
        - `check`: Whether the outputs of the result are compared with those of the float model,
          where no accuracy criterion or validation data asks for more. One of ``"auto"``,
          ``"none"``.
        - `scores`: The output with the scores of the classes.

    Running samples
        - `engine`: The engine that runs the model on samples. One of ``"auto"``, ``"tract"``,
          ``"onnxruntime"``, or an object.
        - `threads`: How many samples run at once, each on a thread of its own.
        - `progress`: Show progress on standard error.

    https://github.com/quantize-rs/quantize-rs/blob/main/docs/options.md
    describes every option in full.

    Returns
    -------
    Report
        What was done to each value, and what it cost.

    Raises
    ------
    CalibrationError
        No samples, samples of the wrong shape or type, NaN in a sample or an activation, or an
        engine that cannot run the model.
    ModelError, OptionError, AccuracyCriteriaError, FileNotFoundError, PermissionError, \
IsADirectoryError, OSError
        As in `quantize`.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> report = quantize_rs.quantize_with_calibration(
    ...     digits.model,
    ...     "digits.int8.onnx",
    ...     digits.calibration,
    ...     per_channel=True,
    ...     symmetric=True,
    ... )
    >>> report.samples, report.engine
    (200, 'tract')
    """
    parameters = {
        "calibration_data": calibration_data,
        "bits": bits,
        "per_channel": per_channel,
        "method": method,
        "num_samples": num_samples,
        "sample_shape": sample_shape,
        "native_int4": native_int4,
        "symmetric": symmetric,
        "excluded_layers": excluded_layers,
        "min_elements": min_elements,
        "layer_bits": layer_bits,
    }
    found = resolve("quantize_with_calibration", parameters, options, keywords)
    control = accuracy_check(found)
    if found["ranges"] is not None:
        found.reject_unused(exempt=["method"])  # that of the ranges
    return _quantized(input_path, output_path, found, control)


def _quantized(
    input_path: ModelSource,
    output_path: str | os.PathLike[str] | None,
    found: Resolved,
    control: AccuracyCheck | None,
) -> Report:
    """Quantize a model with options that are resolved."""
    static = found.function == "quantize_with_calibration"
    data, ranges = found["calibration_data"], found["ranges"]
    destination = writable(
        output_path, data, ranges, found["validation_data"], written=found["resume_rounding"]
    )
    options = option_dict(found, bits=stated_bits(found), with_activations=static)
    if "num_samples" in found.stated and data is not None and not is_noise(data):
        # 0.10 had it as a parameter, and ignored it.
        warn(['num_samples has no effect on samples that are given: it is for "random"; see limit'])
    model = open_model(input_path)
    run = Run(found["engine"], found["limit"], found["threads"], found["progress"])
    evaluation = None if control is None else control.source(model)
    source: _core.Source | None = None
    calibrated: Ranges | None = None
    if ranges is not None:
        method = found["method"] if "method" in found.stated else None
        calibrated = _saved(ranges, data, method)
        rounds = {"resume_rounding", "memory_limit"} & found.given.keys()
        if calibrated._ranges.has_moments or rounds:
            calibrated = model._plan(options)._rounded(calibrated, run)
    elif static or data is not None:
        source = sample_source(
            data,
            "calibration_data",
            model._model,
            num_samples=found["num_samples"] if is_noise(data) else NUM_SAMPLES,
            sample_shape=found["sample_shape"],
            seed=found["seed"],
        )
        if control is not None:
            source = _core.Source.again(source)
        checks = control is None and found["check"] != "none"
        calibrated = model._plan(options)._calibrate(source, run, found["method"], keep=checks)
    if control is None:
        quantized = model._plan(options)._applied(calibrated)
        if found["check"] != "none":
            # Its result may be another one, with other warnings.
            quantized = checked(model, quantized, calibrated, run)
    else:
        evaluated = source if control.data is None else evaluation
        quantized = control.quantized(model, options, calibrated, run, evaluated)
    warn_of(quantized, calibrated)
    report = delivered(quantized, destination)
    given = {name: found[name] for name in found.given}
    return stamped(report, found.function, (input_path, output_path), given, data)


def model_info(input_path: ModelSource) -> ModelInfo:
    """Return facts about a model without reading its weights.

    Parameters
    ----------
    input_path : path, bytes or onnx.ModelProto
        The model.

    Returns
    -------
    ModelInfo
        Name, versions, inputs, outputs, operators, sizes.

    Raises
    ------
    ModelError
        The model is not well-formed or not legal ONNX.
    FileNotFoundError, PermissionError, IsADirectoryError, OSError
        The file cannot be read.

    Examples
    --------
    >>> import quantize_rs
    >>> digits = quantize_rs.examples.digits()
    >>> info = quantize_rs.model_info(digits.model)
    >>> info.opset_version, info.inputs, info.outputs
    (17, ['image'], ['logits'])
    """
    return open_model(input_path).info


def _saved(
    ranges: Ranges | str | os.PathLike[str], data: CalibrationData | None, method: str | None
) -> Ranges:
    """Load the given ranges, and reject options that have no effect with them."""
    if data is not None:
        what = "ranges come instead of calibration_data: give one of them"
        raise OptionError(what, option="ranges")
    found = given_ranges("ranges", ranges)
    if method not in (None, found.method):
        what = f"method is {method!r}, the ranges are of {found.method!r}: see Ranges.using"
        raise OptionError(what, option="method")
    return found
