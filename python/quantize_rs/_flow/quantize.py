"""The functions that quantize a model in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy.typing as npt

from .. import _core
from .._inputs.engines import Engine
from .._inputs.files import writable
from .._inputs.model_source import ModelSource
from .._inputs.progress import Callback
from .._inputs.run import Run
from .._inputs.samples import CalibrationData, sample_source
from .._options import check
from .._options.option_dict import OptionDict
from .._results.model_info import ModelInfo
from .._results.ranges import Ranges
from .._results.report import Report
from ..errors import OptionError
from .accuracy_control import accuracy_check
from .model import open as open_model
from .plan import delivered

__all__ = ["model_info", "quantize", "quantize_with_calibration"]


def quantize(
    input_path: ModelSource,
    output_path: str | os.PathLike[str] | None,
    bits: int = 8,
    per_channel: bool = False,
    excluded_layers: Iterable[str] | None = None,
    min_elements: int = 0,
    layer_bits: Mapping[str, int | str] | None = None,
    native_int4: bool | None = None,
    symmetric: bool = False,
    *,
    weights: str | None = None,
    layer_dtype: Mapping[str, str] | None = None,
    block_size: int | None = None,
    weight_method: str | None = None,
    rounding: str | None = None,
    narrow_range: bool | None = None,
    target: str | None = None,
    op_types: Iterable[str] | None = None,
    included_layers: Iterable[str] | None = None,
    prune: float | None = None,
    sparsity: float | None = None,
    optimize: bool | Iterable[str] = True,
    opset: int | None = None,
    output_format: str = "qdq",
    accuracy_level: int | None = None,
    dynamic_lstm: bool = False,
    calibration_data: CalibrationData | None = None,
    limit: int | None = None,
    verify: CalibrationData | None = None,
    min_sqnr: float | None = None,
    max_accuracy_drop: float | None = None,
    require_faster: bool = False,
    fall_back: bool = True,
    labels: npt.ArrayLike | None = None,
    scores: str | None = None,
    engine: Engine = "auto",
    threads: int | None = None,
    progress: bool | Callback | None = None,
) -> Report:
    """Quantize the weights of a model; it keeps computing in float.

    With `calibration_data` it comes nearer to the original: quantized weights shift the mean of
    what a layer puts out, and biases take that back (Nagel et al., ICCV 2019, section 4.2).

    Parameters
    ----------
    input_path : path, bytes or onnx.ModelProto
        The model, which is not changed.
    output_path : path or None
        Where to write the quantized model; it may be `input_path`. None gives it as
        ``report.model``, in bytes.
    bits : int
        Bits of a weight: 2, 4, 8 or 16. 4 and 16 need opset 21, 2 opset 25; a model
        of an older one is converted, see `convert_opset`.
    per_channel : bool
        One scale for each output channel instead of one for the whole tensor: more accurate, and
        never larger by more than the scales. Needs opset 13; where a node of an older model cannot
        be converted, weights get one scale each, with a warning.
    excluded_layers : iterable of str, optional
        Weights and nodes to leave in float: names, patterns with ``*``, ``?`` and ``[...]``,
        regular expressions behind ``re:``, or types of operators.
    min_elements : int
        Weights with fewer elements stay float.
    layer_bits : dict of str to (int or str), optional
        Bits, or a type, for some weights: by the name of a weight or node, by pattern as in
        `excluded_layers`, or by type of operator: ``{"conv1.weight": 16, "Gemm": "uint4"}``. A
        name goes before a pattern, that before a type of operator. ``"float32"`` leaves them float.
    layer_dtype : dict of str to str, optional
        The same for types alone: ``{"classifier": "fp16", "MatMul": "mxfp4"}``.
    native_int4 : bool or None
        4-bit weights are packed, two in a byte (None, True), or stored in a byte each (False),
        which costs accuracy and saves nothing.
    symmetric : bool
        Zero points are 0.
    weights : str, optional
        The type of weights, instead of `bits`: ``"int8"``, ``"uint8"``, ``"int4"``, ...,
        ``"float8e4m3fn"`` (or ``"float8"``), ``"float8e5m2"``, ``"float16"``, ``"bfloat16"``.
        Floats of 8 bits need opset 19; those of 16 bits have no scale and are cast. Or a layout of
        blocks with scales of 8 bits: ``"mxfp4"``, ``"mxfp8"`` (opset 24; for the target generic),
        ``"nvfp4"`` (opset 23; for the targets tensorrt and generic).
    block_size : int, optional
        One scale for each so many elements along the axis that is summed over: a power of two
        from 16 on. Needs opset 21.
    weight_method : str, optional
        How the scales of weights are chosen: ``"minmax"`` by the smallest and the largest weight
        that share one, ``"mse"`` by the least squared error, where either end may be cut by a step,
        ``"hqq"`` by half-quadratic quantization, whose zero points are floats in
        ``"matmul_nbits"``: nearer, and slower in ONNX Runtime. By default blocks of up to 4 bits
        take the least error, but those of convolutions do not.
    rounding : str, optional
        Which of the two integers around it a weight becomes: ``"sums"`` the nearest, but for the
        few that go to the other so that the weights of a kernel and of an output channel keep
        their sum, ``"nearest"`` that one always. By default convolutions and the
        integer products of ``"dynamic"`` keep their sums, where what they meet lies on one side
        of 0.
    narrow_range : bool or None
        Symmetric weights leave out the most negative value of their type, such as -128 (True), or
        use it (False). By default 8 and 16 bits leave it out, as integer kernels want, and 4 and 2
        bits use it: the largest element of each group meets it, for which a scale may be negative.
    target : str, optional
        The runtime that the model is made for, which may need weights of another kind: ``"x86"``,
        ``"x86-avx2"``, ``"arm"``, ``"tensorrt"``, ``"openvino"``, ``"qnn"`` or ``"generic"``.
    op_types : iterable of str, optional
        Only weights of operators of these types are quantized: ``["Conv", "Gemm"]``.
    included_layers : iterable of str, optional
        Only these weights, and those of these nodes, are quantized, written as in
        `excluded_layers`, which goes before.
    prune : float, optional
        Before anything else, weights become 0 where ``abs(w) < prune``, as the function `prune`
        does it, and stay exactly 0; those of `excluded_layers` are left alone. The steps of the
        report say how many.
    sparsity : float, optional
        The same for the smallest of each weight, until this part of it is 0.
    optimize : bool or iterable of str
        Before planning, passes that change no result fold and clean up the model where that
        serves quantization; names say which ones, False leaves the model as it is.
    opset : int, optional
        The operator set of the result: a model of an older one is converted to it, and what needs a
        newer one is refused. By default it is converted no further than the result needs.
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
        For ``"matmul_nbits"``: how exactly products are computed. 1 in float32, 4 with activations
        brought to 8 bits, which is faster; 0, or None, leaves it to ONNX Runtime.
    dynamic_lstm : bool
        For ``"dynamic"``: LSTMs multiply integers too, as ONNX Runtime's ``DynamicQuantizeLSTM``:
        faster, and less exact than weights of 8 bits alone, which is what they have otherwise.
    calibration_data : path, ImageFolder, array, dict of arrays, iterable, or reader, optional
        Samples that the model is run on, as in `quantize_with_calibration`: some dozen real ones.
        Activations stay float; biases of products by quantized weights are corrected, and a Conv,
        ConvTranspose or Gemm that has none is given one.
    limit : int, optional
        Take the first so many samples of `calibration_data` only.
    verify : path, ImageFolder, array, dict of arrays, iterable, reader, or "random", optional
        The evaluation data, in the forms of `calibration_data`; all of it is kept in memory.
        Without it, criteria are evaluated on `calibration_data`, and the report says so. The
        measurements are in `Report.accuracy_control`; without criteria they are only reported.
    min_sqnr : float, optional
        A bar: the least SQNR of the worst output against the float model's, in decibels.
    max_accuracy_drop : float, optional
        A bar: the most accuracy that may be lost, from 0 to 1; needs `labels`.
    require_faster : bool
        A bar: the result has to be faster than the float model.
    fall_back : bool
        Where `min_sqnr` or `max_accuracy_drop` is missed, layers are left float, the most sensitive
        first, until the bar holds; the report says which. False makes a miss an error at once.
    labels : array of int, optional
        The right class of every row of `verify`.
    scores : str, optional
        The output with the scores of the classes; by default the first that looks like it.
    engine : "auto", "tract", "onnxruntime", or an object with ``run(dict) -> dict``
        Who runs the model on `calibration_data`, as in `Plan.calibrate`, and the models on
        `verify`, where auto is onnxruntime if it is installed, and tract else. An object does not
        judge: that is done as with "auto".
    threads : int, optional
        Samples that run at once; by default as many as there are cores.
    progress : bool or callable, optional
        Shows how far running the samples has come, as in `quantize_with_calibration`.

    Returns
    -------
    Report
        What was done to each value, and what it cost.

    Raises
    ------
    ModelError
        The model cannot be read, or not quantized like this; see `quantize_rs.errors`.
    OptionError
        An option is unknown, out of range, contradicts another, has no effect beside the others, or
        names nothing in the model.
    AccuracyCriteriaError
        A bar is missed, and leaving layers float does not help, or must not. Nothing is written.
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

    With samples, biases are corrected:

    >>> nearer = quantize_rs.quantize(
    ...     digits.model,
    ...     "digits.int8.onnx",
    ...     per_channel=True,
    ...     calibration_data=digits.calibration,
    ... )
    >>> nearer.samples, nearer.corrected_biases
    (200, 5)

    With a bar, layers stay float where they have to:

    >>> report = quantize_rs.quantize(
    ...     digits.model,
    ...     "digits.int4.onnx",
    ...     bits=4,
    ...     verify=digits.calibration,
    ...     min_sqnr=25,
    ... )
    >>> report.verified.sqnr_db >= 25
    True
    """
    control = accuracy_check(
        verify,
        min_sqnr=min_sqnr,
        max_accuracy_drop=max_accuracy_drop,
        require_faster=require_faster,
        fall_back=fall_back,
        labels=labels,
        scores=scores,
        calibrated=calibration_data,
    )
    if calibration_data is None:
        check.reject_unused("without calibration_data", limit=limit is not None)
        if control is None:
            why = "without calibration_data and verify"
            check.reject_unused(why, engine=engine != "auto", threads=threads is not None)
        elif not isinstance(engine, str):
            what = (
                "engine is an object, which runs the model on calibration_data and does not judge"
            )
            raise OptionError(what, option="engine")
    destination = writable(output_path, calibration_data, verify)
    options = _option_dict(
        bits,
        per_channel,
        excluded_layers,
        min_elements,
        (layer_bits, layer_dtype),
        native_int4,
        symmetric,
    )
    options["target"] = target
    options["op_types"] = check.optional_names("op_types", op_types)
    options["include"] = check.optional_names("included_layers", included_layers)
    options["prune"] = check.pruning(prune, sparsity)
    options["weights"] = weights
    options["block_size"] = check.optional_count("block_size", block_size)
    options["weight_method"] = weight_method
    options["rounding"] = rounding
    options["passes"] = check.passes(optimize)
    options["opset"] = check.optional_count("opset", opset, least=1)
    options["narrow_range"] = narrow_range
    options["output_format"] = output_format
    options["accuracy_level"] = check.optional_count("accuracy_level", accuracy_level)
    options["dynamic_lstm"] = dynamic_lstm
    model = open_model(input_path)
    run = Run(engine, limit, threads, progress)
    source: _core.Source | None = None
    found: Ranges | None = None
    if calibration_data is not None:
        source = sample_source(
            calibration_data, "calibration_data", num_samples=100, sample_shape=None, seed=0
        )
        if control is not None:
            source = _core.Source.again(source)
        found = model._plan(options)._calibrate(source, run, "minmax")
    if control is None:
        return delivered(model._plan(options).apply(found), destination)
    return delivered(control.quantized(model, options, found, run, source), destination)


def quantize_with_calibration(
    input_path: ModelSource,
    output_path: str | os.PathLike[str] | None,
    calibration_data: CalibrationData | None = None,
    bits: int = 8,
    per_channel: bool = False,
    method: str = "minmax",
    num_samples: int = 100,
    sample_shape: Iterable[int] | None = None,
    native_int4: bool | None = None,
    symmetric: bool = False,
    excluded_layers: Iterable[str] | None = None,
    min_elements: int = 0,
    layer_bits: Mapping[str, int | str] | None = None,
    *,
    weights: str | None = None,
    layer_dtype: Mapping[str, str] | None = None,
    activations: str | None = None,
    activation_types: Mapping[str, str] | None = None,
    target: str | None = None,
    engine: Engine = "auto",
    op_types: Iterable[str] | None = None,
    included_layers: Iterable[str] | None = None,
    prune: float | None = None,
    sparsity: float | None = None,
    rounding: str | None = None,
    narrow_range: bool | None = None,
    bias_correction: bool = True,
    smooth: bool = True,
    optimize: bool | Iterable[str] = True,
    opset: int | None = None,
    ranges: Ranges | str | os.PathLike[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callback | None = None,
    verify: CalibrationData | None = None,
    min_sqnr: float | None = None,
    max_accuracy_drop: float | None = None,
    require_faster: bool = False,
    fall_back: bool = True,
    labels: npt.ArrayLike | None = None,
    scores: str | None = None,
) -> Report:
    """Quantize weights and activations, so that a runtime can compute in integers.

    The model is run on samples, which show in what ranges its activations live. The result
    depends neither on the number of threads nor on the order of the samples. Ctrl-C stops the run
    within a second and leaves nothing behind.

    Parameters
    ----------
    input_path, output_path, bits, per_channel, native_int4, symmetric, excluded_layers, \
min_elements, layer_bits, layer_dtype, weights, narrow_range
        As in `quantize`.
    calibration_data : path, ImageFolder, array, dict of arrays, iterable, reader, or "random"
        Samples as the model will see them: some hundred real ones, prepared in the same way.

        - A path: ``.npy`` for models with one input, ``.npz`` or ``.safetensors`` with an array for
          each input; or a folder of JPEG and PNG images, or a pattern such as ``"photos/*.jpg"``.
        - An `ImageFolder`, which also says how pixels become numbers.
        - An array, or a dict of one array for each input. Samples lie along the first axis; an
          array with one axis more than the input holds whole inputs. Arrays in C order are read
          where they are and must not be written to meanwhile.
        - An iterable of arrays or dicts, a torch ``DataLoader`` included: of a tuple or list the
          first element counts. Each item is copied. It may be a sample, also one without its first
          axis, or a batch, which is cut into samples: where the first axis of all inputs varies in
          length and the model calls it a batch (``N``, ``batch_size``), or calls it nothing and the
          inputs have four axes or more. Else an item of exactly the shapes of the inputs is one
          sample, such as a sequence, and another is cut as arrays are.
        - An object with ``get_next()``, as ONNX Runtime's calibration data readers have it.
        - ``"random"``: noise. The ranges of noise are not those of data; only for trying things.

        Elements are converted to the type of the input where nothing is lost but digits.
        With `ranges`, None.
    method : str
        How ranges follow from what is seen: ``"minmax"``, ``"moving_average"``, ``"percentile"``
        (or with its number, ``"percentile:99.9"``), ``"entropy"``, ``"mse"``, or ``"auto"``, which
        judges them on samples held back where there are 128 or more, and else takes ``"mse"``
        (of one sample ``"minmax"``).
        `Plan.compare_methods` shows them all.
    num_samples : int
        How many samples ``"random"`` makes; other data is used whole, see `limit`.
    sample_shape : sequence of int, optional
        The shape of a random sample without its first axis, where the model leaves it open.
    activations : str, optional
        The type of activations: ``"uint8"``, ``"int8"``, ``"uint16"`` or ``"int16"``; for the
        targets tensorrt and generic ``"float8e4m3fn"`` (or ``"float8"``), for the latter
        ``"float8e5m2"``. By default uint8, or what `target` likes best.
    activation_types : dict of str to str, optional
        Other types for some activations: by the name of a value, by the name or the type of the
        operator that makes or reads it, or by pattern as in `excluded_layers`:
        ``{"head/*": "uint16"}``. A value has one type: that asked for itself, else for what makes
        it, else the widest asked for those who read it. ONNX Runtime computes in integers where
        all that an operator reads and makes is of one type of 8 bits, else in float.
    target : str, optional
        The runtime that the model is made for: ``"x86"``, ``"x86-avx2"``, ``"arm"``,
        ``"tensorrt"``, ``"openvino"``, ``"qnn"`` or ``"generic"``. It decides which operators run
        on integers, and brings the types and zero points that it needs. ONNX Runtime on a current
        x86 by default.
    engine : "auto", "tract", "onnxruntime", or an object with ``run(dict) -> dict``
        Who runs the model, as in `Plan.calibrate`.
    op_types : iterable of str, optional
        Only operators of these types are quantized: ``["Conv", "Gemm"]``.
    included_layers : iterable of str, optional
        Only these weights and nodes are quantized, written as in `excluded_layers`, which goes
        before.
    rounding : str, optional
        Which of the two integers around it a weight becomes, as in `quantize`.
    bias_correction : bool
        Biases take back what quantized weights shift in the mean.
    smooth : bool
        Large channels behind a normalization are divided by numbers that the weights after it are
        multiplied by, where that makes the errors of both smaller.
    prune, sparsity : float, optional
        Before anything else, weights of small magnitude become 0, as in `quantize`.
    optimize : bool or iterable of str
        Before planning, passes that change no result fold and clean up the model where that
        serves quantization; names say which ones, False leaves the model as it is.
    opset : int, optional
        The operator set of the result: a model of an older one is converted to it, and what needs a
        newer one is refused. By default it is converted no further than the result needs.
    ranges : Ranges or path, optional
        Ranges of an earlier calibration, or where `Ranges.save` wrote them, instead of
        `calibration_data`: nothing is run.
    limit : int, optional
        Take the first so many samples only.
    seed : int
        The seed of ``"random"``.
    threads : int, optional
        Samples that run at once; by default as many as there are cores, or one where `engine`
        is an object.
    progress : bool or callable, optional
        True shows a bar on standard error; a function is called with the number of samples done,
        and of samples in all or None. What it raises stops the run.
    verify : path, ImageFolder, array, dict of arrays, iterable, reader, or "random", optional
        The evaluation data, as in `quantize`. Without it, criteria are evaluated on
        `calibration_data`; the report says so, as the result looks more accurate on calibration
        samples than on new ones. If `engine` is an object, evaluation uses "auto" instead.
    min_sqnr, max_accuracy_drop, require_faster, fall_back, labels, scores
        Bars, and what becomes of a result that misses one, as in `quantize`.

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
    control = accuracy_check(
        verify,
        min_sqnr=min_sqnr,
        max_accuracy_drop=max_accuracy_drop,
        require_faster=require_faster,
        fall_back=fall_back,
        labels=labels,
        scores=scores,
        calibrated=calibration_data,
    )
    if ranges is not None:
        why = "with ranges: no sample is looked at"
        noise = {"sample_shape": sample_shape is not None, "seed": seed != 0}
        check.reject_unused(why, limit=limit is not None, **noise)
        if control is None:
            check.reject_unused(why, engine=engine != "auto", threads=threads is not None)
    destination = writable(output_path, calibration_data, ranges, verify)
    options = _option_dict(
        bits,
        per_channel,
        excluded_layers,
        min_elements,
        (layer_bits, layer_dtype),
        native_int4,
        symmetric,
    )
    options["with_activations"] = True
    options["weights"] = weights
    options["activations"] = activations
    options["activation_types"] = check.types_by_name("activation_types", activation_types)
    options["target"] = target
    options["op_types"] = check.optional_names("op_types", op_types)
    options["include"] = check.optional_names("included_layers", included_layers)
    options["prune"] = check.pruning(prune, sparsity)
    options["rounding"] = rounding
    options["narrow_range"] = narrow_range
    options["bias_correction"] = bias_correction
    options["smooth"] = smooth
    options["passes"] = check.passes(optimize)
    options["opset"] = check.optional_count("opset", opset, least=1)
    model = open_model(input_path)
    run = Run(engine, limit, threads, progress)
    source: _core.Source | None = None
    if ranges is None:
        source = sample_source(
            calibration_data,
            "calibration_data",
            num_samples=num_samples,
            sample_shape=sample_shape,
            seed=seed,
        )
        if control is not None:
            source = _core.Source.again(source)
        found = model._plan(options)._calibrate(source, run, method)
    else:
        found = _saved(ranges, calibration_data, method)
    if control is None:
        return delivered(model._plan(options).apply(found), destination)
    return delivered(control.quantized(model, options, found, run, source), destination)


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


def weight_options(
    *, per_channel: bool, symmetric: bool, excluded_layers: Iterable[str] | None
) -> OptionDict:
    """Return the options of a weight-only quantization."""
    return _option_dict(8, per_channel, excluded_layers, 0, (None, None), None, symmetric)


def _option_dict(
    bits: int,
    per_channel: bool,
    excluded_layers: Iterable[str] | None,
    min_elements: int,
    layers: tuple[Mapping[str, int | str] | None, Mapping[str, str] | None],
    native_int4: bool | None,
    symmetric: bool,
) -> OptionDict:
    widths, types = check.layers(*layers)
    return OptionDict(
        bits=check.bits("bits", bits),
        weights=None,
        with_activations=False,
        activations=None,
        activation_types={},
        per_channel=per_channel,
        symmetric=symmetric,
        activation_symmetric=False,
        narrow_range=None,
        block_size=None,
        weight_method=None,
        rounding=None,
        native_int4=native_int4,
        exclude=check.names("excluded_layers", excluded_layers),
        include=None,
        min_elements=check.count("min_elements", min_elements),
        layer_bits=widths,
        layer_types=types,
        target=None,
        op_types=None,
        prune=None,
        bias_correction=True,
        smooth=True,
        passes=None,
        opset=None,
        output_format="qdq",
        accuracy_level=None,
        dynamic_lstm=False,
    )


def _saved(
    ranges: Ranges | str | os.PathLike[str], data: CalibrationData | None, method: str
) -> Ranges:
    """Load the given ranges, and reject options that have no effect with them."""
    if data is not None:
        what = "ranges come instead of calibration_data: give one of them"
        raise OptionError(what, option="ranges")
    found = ranges if isinstance(ranges, Ranges) else Ranges.load(ranges)
    if method not in ("minmax", found.method):  # minmax is the default
        what = f"method is {method!r}, the ranges are of {found.method!r}: see Ranges.using"
        raise OptionError(what, option="method")
    return found
