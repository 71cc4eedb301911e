"""Makes ONNX models smaller and faster, and reports what it cost.

>>> import quantize_rs
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_rs.quantize(digits.model, "digits.int8.onnx")
>>> print(f"{report.bytes_before} bytes became {report.bytes_after}")
226812 bytes became 59856

With samples, activations are quantized too, so that the runtime can compute with integers:

>>> report = quantize_rs.quantize_with_calibration(
...     digits.model, "digits.int8.onnx", digits.calibration
... )

The same in single steps; you can print each object, or save it as JSON:

>>> model = quantize_rs.open(digits.model)
>>> plan = model.plan(weights="int8", activations="uint8", per_channel=True)
>>> ranges = plan.calibrate(digits.calibration)
>>> report = plan.apply(ranges).save("digits.int8.onnx")

Warnings go to the logger ``quantize_rs``; nothing is printed. Exceptions are in
`quantize_rs.errors`, the classes of results in `quantize_rs.results`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from . import (
    compat,
    distributed,
    errors,
    examples,
    kernels,
    metrics,
    observers,
    results,
    training,
)
from ._analysis.compare import compare
from ._analysis.layer_errors import layer_errors
from ._analysis.mixed_precision import mixed_precision
from ._analysis.outliers import outliers
from ._analysis.recommend import recommend
from ._analysis.sensitivity import sensitivity
from ._analysis.validate import validate
from ._core import __version__
from ._flow.model import Model, open  # noqa: A004 - `quantize_rs.open`
from ._flow.options import AccuracyControl, CalibrationOptions, QuantizeOptions, RunOptions
from ._flow.plan import Plan, Quantized
from ._flow.quantize import model_info, quantize, quantize_with_calibration
from ._flow.trace import trace
from ._flow.variants import variants
from ._inputs.described import Samples
from ._inputs.images import ImageFolder
from ._inputs.text import TextSamples
from ._options.match import Match
from ._transforms.convert_opset import convert_opset
from ._transforms.half_precision import convert_bfloat16, convert_float16
from ._transforms.infer_shapes import infer_shapes
from ._transforms.optimize import optimize
from ._transforms.prune import prune
from .errors import AccuracyCriteriaError as AccuracyCriteriaError
from .errors import CalibrationError, ModelError, OptionError, QuantizeError
from .errors import ExternalDataError as ExternalDataError
from .errors import MissingPackageError as MissingPackageError
from .errors import ModelFormatError as ModelFormatError
from .errors import UnsupportedModelError as UnsupportedModelError
from .results import Accuracy as Accuracy
from .results import Alternative as Alternative
from .results import Comparison as Comparison
from .results import ErrorMetrics as ErrorMetrics
from .results import HalfPrecisionReport as HalfPrecisionReport
from .results import KeptNode as KeptNode
from .results import Latency as Latency
from .results import LayerError as LayerError
from .results import LayerErrors as LayerErrors
from .results import LayerSensitivity as LayerSensitivity
from .results import LayerWidth as LayerWidth
from .results import MeasuredStrategy as MeasuredStrategy
from .results import MethodComparison as MethodComparison
from .results import MethodRow as MethodRow
from .results import MixedPrecision as MixedPrecision
from .results import ModelInfo as ModelInfo
from .results import OptimizationReport as OptimizationReport
from .results import OutlierChannel as OutlierChannel
from .results import OutlierElement as OutlierElement
from .results import Outliers as Outliers
from .results import OutputRow as OutputRow
from .results import PlannedValue as PlannedValue
from .results import Problem as Problem
from .results import PrunedWeight as PrunedWeight
from .results import Pruning as Pruning
from .results import Ranges
from .results import RangesDiff as RangesDiff
from .results import Reason as Reason
from .results import Recommendation as Recommendation
from .results import Report as Report
from .results import Sensitivity as Sensitivity
from .results import Sizes as Sizes
from .results import Speed as Speed
from .results import Step as Step
from .results import StoredWeight as StoredWeight
from .results import TensorSpec as TensorSpec
from .results import Uncompared as Uncompared
from .results import Validation as Validation
from .results import VariantRow as VariantRow
from .results import Variants as Variants
from .results import WeightOutliers as WeightOutliers
from .training.insert_fake_quant import insert_fake_quant
from .training.qconfig import QConfig as QConfig
from .training.qconfig import QConfigDict as QConfigDict
from .training.qconfig import prepare

# Names of earlier versions: the module and the name of today.
_RENAMED = {
    "Attempt": ("results", "Candidate"),
    "Bar": ("results", "AccuracyCriteria"),
    "BelowBarError": ("errors", "AccuracyCriteriaError"),
    "Conversion": ("results", "OpsetConversion"),
    "Difference": ("results", "RangeDifference"),
    "FloatLayer": ("results", "RevertedLayer"),
    "Inference": ("results", "ShapeInference"),
    "Kernels": ("results", "KernelCounts"),
    "Prepared": ("training", "CalibrationSession"),
    "Seconds": ("results", "Timings"),
    "Value": ("results", "ReportRow"),
    "Verified": ("results", "Evaluation"),
}

if TYPE_CHECKING:
    Attempt = results.Candidate
    Bar = results.AccuracyCriteria
    BelowBarError = errors.AccuracyCriteriaError
    Conversion = results.OpsetConversion
    Difference = results.RangeDifference
    FloatLayer = results.RevertedLayer
    Inference = results.ShapeInference
    Kernels = results.KernelCounts
    Prepared = training.CalibrationSession
    Seconds = results.Timings
    Value = results.ReportRow
    Verified = results.Evaluation
else:

    def __getattr__(name: str) -> Any:
        """Return a renamed class, with a warning that has the new name."""
        if name not in _RENAMED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, new = _RENAMED[name]
        warnings.warn(
            f"quantize_rs.{name} is now quantize_rs.{module}.{new}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(globals()[module], new)


def __dir__() -> list[str]:
    """List the public names; names of earlier versions import too."""
    return __all__


__all__ = [
    "AccuracyControl",
    "CalibrationError",
    "CalibrationOptions",
    "ImageFolder",
    "Match",
    "Model",
    "ModelError",
    "OptionError",
    "Plan",
    "QuantizeError",
    "QuantizeOptions",
    "Quantized",
    "Ranges",
    "RunOptions",
    "Samples",
    "TextSamples",
    "__version__",
    "compare",
    "compat",
    "convert_bfloat16",
    "convert_float16",
    "convert_opset",
    "distributed",
    "errors",
    "examples",
    "infer_shapes",
    "insert_fake_quant",
    "kernels",
    "layer_errors",
    "metrics",
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
    "results",
    "sensitivity",
    "trace",
    "training",
    "validate",
    "variants",
]
