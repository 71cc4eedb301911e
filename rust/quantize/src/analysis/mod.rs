//! Analysis: measures the effect of quantization on a model.

pub(crate) mod accuracy_control;
mod accuracy_criteria;
mod assessments;
mod compare;
mod half_precision;
mod integer_outputs;
mod kernels;
mod latency;
mod layer_errors;
mod lost_channels;
pub(crate) mod mixed_precision;
mod outliers;
mod output_check;
mod output_deviation;
mod output_metric;
mod outputs;
pub mod recommend;
mod recorded;
mod reduced_range;
mod scores;
mod sensitivity;
mod variants;

pub use accuracy_control::{AccuracyControl, quantize_with_accuracy_control};
pub use mixed_precision::{
    ActivationWidth, LayerWidth, MixedOptions, MixedPrecision, mixed_precision,
};
pub use recommend::{
    MeasuredStrategy, Recommendation, Request, SampleSource, Strategy, recommend,
    recommend_measured,
};

pub(crate) use crate::calibrate::pair::SliceSamples;
pub(crate) use compare::not_finite;
pub use compare::{CompareOptions, Comparison, compare};
pub use half_precision::{
    HalfOptions, HalfPrecision, HalfReport, convert_half, convert_half_with_samples,
};
pub use kernels::Kernels;
pub(crate) use latency::speed;
pub use latency::{LatencyOptions, latency};
pub use layer_errors::{LayerError, LayerErrors, layer_errors};
pub use outliers::{
    OutlierChannel, OutlierElement, OutlierOptions, Outliers, WeightOutliers, outliers,
};
pub use output_check::CheckSamples;
pub use output_metric::{MetricHandle, OutputMetric, OutputValue, SampleOutputs};
pub(crate) use outputs::outputs;
pub use sensitivity::{
    LayerRow, Metric, Sensitivity, SensitivityOptions, sensitivity, weight_sensitivity,
};
pub(crate) use sensitivity::{activations, all_of};
pub use variants::{SETS, Variant, VariantOptions, VariantRow, VariantSet, Variants, variants};
