//! How far outputs are from those of the float model.

use quantize_rs_math::Metrics;
use serde::{Deserialize, Serialize};

/// The error of one output of the quantized model, over all samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputRow {
    /// The name of the output.
    pub name: String,
    /// Its error.
    #[serde(flatten)]
    pub error: Metrics,
    /// The fraction of rows for which both models have the same highest score, for an output that
    /// looks like class scores.
    pub top1_agreement: Option<f64>,
}

/// The SQNR of the worst output.
pub(crate) fn worst_sqnr(outputs: &[OutputRow]) -> Option<f64> {
    // NaN is worse than any number.
    let worst = |a: f64, b: f64| if a < b || a.is_nan() { a } else { b };
    outputs.iter().map(|output| output.error.sqnr_db).reduce(worst)
}
