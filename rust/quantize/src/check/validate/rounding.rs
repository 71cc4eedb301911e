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

/// An element, or a sum of elements, in units of its scale.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    /// The error, above the exact value.
    pub(super) error: f64,
    /// The largest part of it that a scale has caused that was rounded after the integers were
    /// chosen. All elements with this scale have it in the same direction.
    pub(super) scale_error: f64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.error += other.error;
        self.scale_error += other.scale_error;
    }
}

/// The accumulated error in steps, for each part and each group.
pub(super) struct Sums<'a> {
    summed: &'a SumGroups,
    groups: Vec<Sum>,
    parts: Vec<Sum>,
}

impl<'a> Sums<'a> {
    pub(super) fn new(summed: &'a SumGroups) -> Sums<'a> {
        let parts = summed.part.map_or(0, |part| summed.groups.elements() / part);
        let (groups, parts) =
            (vec![Sum::default(); summed.groups.groups()], vec![Sum::default(); parts]);
        Sums { summed, groups, parts }
    }

    /// Adds an element.
    pub(super) fn add(&mut self, at: usize, element: Sum) {
        self.groups[self.summed.groups.group_of(at)].add(element);
        if let Some(part) = self.summed.part {
            self.parts[at / part].add(element);
        }
    }

    /// Whether an element with this error may have been moved: elements with an error below a
    /// quarter of a step are not moved.
    pub(super) fn may_have_moved(element: Sum) -> bool {
        element.error.abs() <= 0.75 + 1e-3 + element.scale_error.abs()
    }

    /// The group of an element, and the gain of moving it to the other neighboring integer, if the
    /// squared errors of elements and sums decrease. Sum-preserving rounding leaves no such
    /// element; a wrong integer is one or causes one.
    pub(super) fn gain(&self, at: usize, element: Sum) -> Option<(usize, f64)> {
        let group = self.summed.groups.group_of(at);
        let (error, own) = (element.error, element.scale_error.abs());
        let of = |sum: Sum| error.signum() * sum.error - sum.scale_error.abs();
        let mut gain = error.abs() - own + of(self.groups[group]) - 1.0;
        if let Some(part) = self.summed.part {
            gain += of(self.parts[at / part]) - 0.5;
        }
        (gain > SLACK && error.abs() > 0.25 + 1e-3 + own).then_some((group, gain))
    }
}
