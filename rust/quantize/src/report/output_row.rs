//! How far outputs are from those of the float model.

use quantize_rs_math::Metrics;
use serde::{Deserialize, Serialize};

/// How far one output of the quantized model is from that of the float model, over all samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputRow {
    /// The output.
    pub name: String,
    /// How far it is off.
    #[serde(flatten)]
    pub error: Metrics,
    /// In which part of the rows both have the highest score in the same place, for an output that
    /// looks like scores of classes.
    pub top1_agreement: Option<f64>,
}

/// The SQNR of the output that is the farthest off.
pub(crate) fn worst_sqnr(outputs: &[OutputRow]) -> Option<f64> {
    // NaN is the worst there is.
    let worst = |a: f64, b: f64| if a < b || a.is_nan() { a } else { b };
    outputs.iter().map(|output| output.error.sqnr_db).reduce(worst)
}
