//! Sum-preserving rounding: integers that are not the nearest, because the elements that are summed
//! preserve their sum.

use quantize_rs_math::{Granularity, QSpec, SumGroups};

use crate::Rounding;
use crate::encode::dequantize::Decoded;
use crate::graph::Graph;
use crate::graph::uses::Constant;

/// The accuracy of a sum of thousands of float32 errors, in steps.
const SLACK: f64 = 0.01;

/// The elements of a constant whose sums may have been preserved.
pub(super) fn summed(
    before: &Graph<'_>,
    constant: &Constant<'_>,
    decoded: &Decoded,
) -> Option<SumGroups> {
    if decoded.qtype.bits() > 8 || !decoded.qtype.is_scaled() || decoded.qtype.is_float() {
        return None;
    }
    // Only blocks need to know which elements share a scale: their sums are those of blocks.
    let granularity = match decoded.layout.granularity() {
        blocks @ Granularity::Blocked { .. } => blocks,
        _ => Granularity::PerTensor,
    };
    let spec = QSpec::new(decoded.qtype, true, granularity);
    let found = Rounding::PreserveSums.summed(before, constant, &decoded.shape, &spec)?;
    (found.groups.elements() == decoded.floats.len()).then_some(found)
}

/// The accumulated error in steps, for each part and each group.
pub(super) struct Sums<'a> {
    summed: &'a SumGroups,
    groups: Vec<f64>,
    parts: Vec<f64>,
}

impl<'a> Sums<'a> {
    pub(super) fn new(summed: &'a SumGroups) -> Sums<'a> {
        let parts = summed.part.map_or(0, |part| summed.groups.elements() / part);
        Sums { summed, groups: vec![0.0; summed.groups.groups()], parts: vec![0.0; parts] }
    }

    /// Adds the error of an element, in steps above its exact value.
    pub(super) fn add(&mut self, at: usize, error: f64) {
        self.groups[self.summed.groups.group_of(at)] += error;
        if let Some(part) = self.summed.part {
            self.parts[at / part] += error;
        }
    }

    /// Whether an element with this error may have been moved: elements with an error below a
    /// quarter of a step are not moved.
    pub(super) fn may_have_moved(error: f64) -> bool {
        error.abs() <= 0.75 + 1e-3
    }

    /// The group of an element, and the gain of moving it to the other neighboring integer, if the
    /// squared errors of elements and sums decrease. Sum-preserving rounding leaves no such
    /// element; a wrong integer is one or causes one.
    pub(super) fn gain(&self, at: usize, error: f64) -> Option<(usize, f64)> {
        let group = self.summed.groups.group_of(at);
        let mut gain = error.abs() + error.signum() * self.groups[group] - 1.0;
        if let Some(part) = self.summed.part {
            gain += error.signum() * self.parts[at / part] - 0.5;
        }
        (gain > SLACK && error.abs() > 0.25 + 1e-3).then_some((group, gain))
    }
}
