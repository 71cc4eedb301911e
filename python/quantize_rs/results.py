"""Classes of the results that the functions of this package return.

Each result can be printed, has ``to_dict()`` and ``to_json()``, and shows a table in a notebook.
You need the names here for annotations and ``isinstance``; the functions create the objects.

>>> import quantize_rs
>>> from quantize_rs.results import Report
>>> digits = quantize_rs.examples.digits()
>>> report = quantize_rs.quantize(digits.model, None)
>>> isinstance(report, Report)
True
"""

from __future__ import annotations

from ._results.accuracy_control import (
    AccuracyCriteria,
    Candidate,
    Evaluation,
    OutputCheck,
    RevertedLayer,
)
from ._results.assessment import Assessment, Origin
from ._results.comparison import Comparison, KernelCounts
from ._results.half_precision import HalfPrecisionReport, KeptNode
from ._results.layer_errors import LayerError, LayerErrors
from ._results.method_comparison import MethodComparison, MethodRow
from ._results.metrics import (
    Accuracy,
    ErrorMetrics,
    IntegerOutputRow,
    Latency,
    LostChannels,
    OutputRow,
    Speed,
)
from ._results.mixed_precision import ActivationWidth, LayerWidth, MixedPrecision
from ._results.model_info import ModelInfo, TensorSpec
from ._results.opset_conversion import OpsetConversion
from ._results.optimization import OptimizationReport
from ._results.outliers import OutlierChannel, OutlierElement, Outliers, WeightOutliers
from ._results.pruning import PrunedWeight, Pruning
from ._results.ranges import Ranges
from ._results.ranges_diff import RangeDifference, RangesDiff
from ._results.recommendation import Alternative, MeasuredStrategy, Reason, Recommendation
from ._results.report import Report, Sizes, Timings
from ._results.rows import PlannedValue, ReportRow
from ._results.sensitivity import LayerSensitivity, Sensitivity
from ._results.shape_inference import ShapeInference
from ._results.steps import Step
from ._results.validation import Problem, StoredWeight, Uncompared, Validation
from ._results.variants import VariantRow, Variants

__all__ = [
    "Accuracy",
    "AccuracyCriteria",
    "ActivationWidth",
    "Alternative",
    "Assessment",
    "Candidate",
    "Comparison",
    "ErrorMetrics",
    "Evaluation",
    "HalfPrecisionReport",
    "IntegerOutputRow",
    "KeptNode",
    "KernelCounts",
    "Latency",
    "LayerError",
    "LayerErrors",
    "LayerSensitivity",
    "LayerWidth",
    "LostChannels",
    "MeasuredStrategy",
    "MethodComparison",
    "MethodRow",
    "MixedPrecision",
    "ModelInfo",
    "OpsetConversion",
    "OptimizationReport",
    "Origin",
    "OutlierChannel",
    "OutlierElement",
    "Outliers",
    "OutputCheck",
    "OutputRow",
    "PlannedValue",
    "Problem",
    "PrunedWeight",
    "Pruning",
    "RangeDifference",
    "Ranges",
    "RangesDiff",
    "Reason",
    "Recommendation",
    "Report",
    "ReportRow",
    "RevertedLayer",
    "Sensitivity",
    "ShapeInference",
    "Sizes",
    "Speed",
    "Step",
    "StoredWeight",
    "TensorSpec",
    "Timings",
    "Uncompared",
    "Validation",
    "VariantRow",
    "Variants",
    "WeightOutliers",
]
