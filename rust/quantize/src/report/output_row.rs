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
    /// The number of these rows; 0 for other outputs.
    #[serde(default)]
    pub top1_rows: usize,
    /// The channels that are lost, if these are many: the error of the whole output may hide them.
    #[serde(default)]
    pub lost_channels: Option<LostChannels>,
    /// Whether the float model has infinity or NaN where the quantized model has numbers. It is not
    /// written to JSON.
    #[serde(skip)]
    pub original_not_finite: bool,
    /// In how many samples the quantized model has another shape, such as another number of
    /// detections. Their error is as large as the output. It is not written to JSON.
    #[serde(skip)]
    pub other_shapes: usize,
}

/// How far an output of integers or booleans, such as the classes of an `ArgMax`, is that of the
/// float model, over all samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntegerOutputRow {
    /// The name of the output.
    pub name: String,
    /// The fraction of elements that are equal in both models. Elements that only one of them has,
    /// because the shape depends on the data, are not.
    pub equal: f64,
    /// The number of elements.
    pub elements: u64,
}

/// If a smaller fraction of an integer output is equal, the result is not good whatever its SQNR.
pub(crate) const MOSTLY_EQUAL: f64 = 0.95;

impl IntegerOutputRow {
    /// Whether many elements have other values.
    pub(crate) fn differs(&self) -> bool {
        self.equal < MOSTLY_EQUAL
    }

    /// `integer output `classes` equal in 92.6 % of its elements`
    pub(crate) fn text(&self) -> String {
        format!("integer output `{}` equal in {:.1} % of its elements", self.name, self.equal * 1e2)
    }
}

/// Channels of an output whose error is as large as they are: an SQNR of 0 dB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostChannels {
    /// The axis of the channels.
    pub axis: usize,
    /// The number of channels that are lost.
    pub lost: usize,
    /// The number of channels that are not 0.
    pub channels: usize,
}

/// The SQNR of the worst output.
pub(crate) fn worst_sqnr(outputs: &[OutputRow]) -> Option<f64> {
    // NaN is worse than any number.
    let worst = |a: f64, b: f64| if a < b || a.is_nan() { a } else { b };
    outputs.iter().map(|output| output.error.sqnr_db).reduce(worst)
}
