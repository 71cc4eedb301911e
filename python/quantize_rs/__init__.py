"""Makes ONNX models smaller and faster, and says honestly what it cost.

>>> import quantize_rs
>>> report = quantize_rs.quantize("examples/digits/digits_cnn.onnx", "digits.int8.onnx")
>>> print(f"{report.bytes_before} bytes became {report.bytes_after}")
226812 bytes became 58916

With samples, activations are quantized too, so that a runtime can compute in integers:

>>> report = quantize_rs.quantize_with_calibration(
...     "examples/digits/digits_cnn.onnx", "digits.int8.onnx", "examples/digits/calibration.npy"
... )

The same, one verb at a time; every noun can be printed, kept as JSON and handed on:

>>> model = quantize_rs.open("examples/digits/digits_cnn.onnx")
>>> plan = model.plan(weights="int8", activations="uint8", per_channel=True)
>>> ranges = plan.calibrate("examples/digits/calibration.npy")
>>> report = plan.apply(ranges).save("digits.int8.onnx")

Warnings go to the logger ``quantize_rs``; nothing is printed. What can go wrong is in
`quantize_rs.errors`.
"""

from __future__ import annotations

from . import compat, errors, examples, kernels, observers, training
from ._api import model_info, quantize, quantize_with_calibration
from ._compare import Comparison, Kernels, compare
from ._comparison import MethodComparison, MethodRow
from ._conversion import Conversion, convert_opset
from ._core import __version__
from ._diff import Difference, RangesDiff
from ._images import ImageFolder
from ._inference import Inference, infer_shapes
from ._info import ModelInfo, TensorSpec
from ._insert import insert_fake_quant
from ._layer_errors import ErrorMetrics, LayerError, LayerErrors, layer_errors
from ._measures import Accuracy, Latency, OutputRow, Speed
from ._mixed import LayerWidth, MixedPrecision, mixed_precision
from ._model import Model, open  # noqa: A004 - `quantize_rs.open`
from ._optimize import OptimizationReport, optimize
from ._outliers import OutlierChannel, OutlierElement, Outliers, WeightOutliers, outliers
from ._plan import Plan, Quantized
from ._pruning import PrunedWeight, Pruning, prune
from ._qconfig import Prepared, QConfig, QConfigDict, prepare
from ._ranges import Ranges
from ._recommendation import Alternative, Reason, Recommendation, recommend
from ._report import Report, Seconds, Sizes, Step
from ._sensitivity import LayerSensitivity, Sensitivity, sensitivity
from ._validation import Problem, StoredWeight, Uncompared, Validation, validate
from ._values import PlannedValue, Value
from ._verified import Attempt, Bar, FloatLayer, Verified
from .errors import (
    BelowBarError,
    CalibrationError,
    ExternalDataError,
    MissingPackageError,
    ModelError,
    ModelFormatError,
    OptionError,
    QuantizeError,
    UnsupportedModelError,
)

__all__ = [
    "Accuracy",
    "Alternative",
    "Attempt",
    "Bar",
    "BelowBarError",
    "CalibrationError",
    "Comparison",
    "Conversion",
    "Difference",
    "ErrorMetrics",
    "ExternalDataError",
    "FloatLayer",
    "ImageFolder",
    "Inference",
    "Kernels",
    "Latency",
    "LayerError",
    "LayerErrors",
    "LayerSensitivity",
    "LayerWidth",
    "MethodComparison",
    "MethodRow",
    "MissingPackageError",
    "MixedPrecision",
    "Model",
    "ModelError",
    "ModelFormatError",
    "ModelInfo",
    "OptimizationReport",
    "OptionError",
    "OutlierChannel",
    "OutlierElement",
    "Outliers",
    "OutputRow",
    "Plan",
    "PlannedValue",
    "Prepared",
    "Problem",
    "PrunedWeight",
    "Pruning",
    "QConfig",
    "QConfigDict",
    "QuantizeError",
    "Quantized",
    "Ranges",
    "RangesDiff",
    "Reason",
    "Recommendation",
    "Report",
    "Seconds",
    "Sensitivity",
    "Sizes",
    "Speed",
    "Step",
    "StoredWeight",
    "TensorSpec",
    "Uncompared",
    "UnsupportedModelError",
    "Validation",
    "Value",
    "Verified",
    "WeightOutliers",
    "__version__",
    "compare",
    "compat",
    "convert_opset",
    "errors",
    "examples",
    "infer_shapes",
    "insert_fake_quant",
    "kernels",
    "layer_errors",
    "mixed_precision",
    "model_info",
    "observers",
    "open",
    "optimize",
    "outliers",
    "prepare",
    "prune",
    "quantize",
    "quantize_with_calibration",
    "recommend",
    "sensitivity",
    "training",
    "validate",
]
