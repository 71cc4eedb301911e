//! Analysis: what quantization did to a model, measured and not guessed.

mod accuracy;
pub(crate) mod accuracy_control;
mod accuracy_criteria;
mod compare;
mod extract;
mod kernels;
mod latency;
mod layer_errors;
pub(crate) mod mixed_precision;
mod outliers;
mod pair;
pub mod recommend;
mod scores;
mod sensitivity;
mod speed;

pub use accuracy_control::{Attempt, FloatLayer, GuardOptions, Verified, guarded};
pub use mixed_precision::{LayerWidth, MixedOptions, MixedPrecision, mixed_precision};
pub use recommend::{Recommendation, SampleSource, Wanted, Way, recommend};

pub use accuracy::Accuracy;
pub use accuracy_criteria::Bar;
pub use compare::{CompareOptions, Comparison, OutputRow, compare};
pub(crate) use compare::{not_finite, worst_sqnr};
pub use extract::{Extract, extract};
pub use kernels::Kernels;
pub use latency::{Latencies, Latency, LatencyOptions, latency};
pub use layer_errors::{LayerError, LayerErrors, layer_errors};
pub use outliers::{
    OutlierChannel, OutlierElement, OutlierOptions, Outliers, WeightOutliers, outliers,
};
pub(crate) use pair::Given;
pub(crate) use sensitivity::all_of;
pub use sensitivity::{
    LayerRow, Metric, Sensitivity, SensitivityOptions, sensitivity, weight_sensitivity,
};
pub use speed::Speed;
pub(crate) use speed::speed;
