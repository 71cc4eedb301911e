//! Integers that are not the nearest, because the elements that a product sums over keep their sum by it.

use quantize_rs_math::{Granularity, QSpec, SumGroups};

use crate::Rounding;
use crate::encode::dequantize::Decoded;
use crate::graph::Graph;
use crate::graph::uses::Constant;

/// How exactly a sum of thousands of errors in float32 is known, in steps.
const SLACK: f64 = 0.01;

/// The elements of a constant whose sums may have been kept.
pub(super) fn summed(
    before: &Graph<'_>,
    constant: &Constant<'_>,
    decoded: &Decoded,
) -> Option<SumGroups> {
    if decoded.qtype.bits() > 8 || !decoded.qtype.is_scaled() || decoded.qtype.is_float() {
        return None;
    }
    // Which elements share a scale is asked for blocks alone, whose sums are those of blocks.
    let granularity = match decoded.layout.granularity() {
        blocks @ Granularity::Blocked { .. } => blocks,
        _ => Granularity::PerTensor,
    };
    let spec = QSpec::new(decoded.qtype, true, granularity);
    let found = Rounding::PreserveSums.summed(before, constant, &decoded.shape, &spec)?;
    (found.groups.elements() == decoded.floats.len()).then_some(found)
}

/// By how many steps elements are off together, those of each part and of each group.
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

    /// Takes in the error of an element: by how many steps what is written is above what it should be.
    pub(super) fn add(&mut self, at: usize, error: f64) {
        self.groups[self.summed.groups.group_of(at)] += error;
        if let Some(part) = self.summed.part {
            self.parts[at / part] += error;
        }
    }

    /// Whether an element that is so far off may have moved: who is off by less than a quarter of a step stays.
    pub(super) fn may_have_moved(error: f64) -> bool {
        error.abs() <= 0.75 + 1e-3
    }

    /// The group of an element, and what is gained if it goes to the other integer beside it, where the squares of errors and
    /// sums become smaller by that: rounding that keeps sums leaves no such element, and a wrong integer is one or makes one.
    pub(super) fn gain(&self, at: usize, error: f64) -> Option<(usize, f64)> {
        let group = self.summed.groups.group_of(at);
        let mut gain = error.abs() + error.signum() * self.groups[group] - 1.0;
        if let Some(part) = self.summed.part {
            gain += error.signum() * self.parts[at / part] - 0.5;
        }
        (gain > SLACK && error.abs() > 0.25 + 1e-3).then_some((group, gain))
    }
}
