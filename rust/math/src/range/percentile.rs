//! The range without the rarest values at either end.

use std::borrow::Cow;

use super::{Degenerate, FoundRange, RangeFinder, clipped};
use crate::stats::{Bin, Distribution, Sketch};
use crate::{MathError, QSpec, Range};

/// Leaves out, at each end, what is beyond a percentile of the values.
///
/// Asymmetric: from the `(100 - p)`-th to the `p`-th percentile. Symmetric: up to the `p`-th percentile of the
/// magnitudes, on both sides. A percentile is the smallest value with at least that share of all values up to it, where
/// the values of a bin are spread evenly over it.
#[derive(Debug)]
pub(super) struct Percentile {
    /// In percent, above 50 and up to 100.
    percentile: f64,
}

impl Percentile {
    /// The percentile that ONNX Runtime's tool uses.
    pub(super) const USUAL: Percentile = Percentile { percentile: 99.999 };
}

impl RangeFinder for Percentile {
    fn name(&self) -> Cow<'static, str> {
        if self.percentile == Self::USUAL.percentile {
            "percentile".into()
        } else {
            format!("percentile:{}", self.percentile).into()
        }
    }

    fn about(&self) -> &'static str {
        "leaves out what is beyond a percentile at each end"
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange {
        let values = seen.values();
        let full = values.range();
        if let Some(found) = FoundRange::trivial(full) {
            return found;
        }
        let left_out = (100.0 - self.percentile) / 100.0 * values.count() as f64;
        if left_out > 0.0 && left_out < 1.0 {
            return FoundRange::full(full, Degenerate::TooFew { values: values.count() });
        }
        let range = if spec.symmetric {
            symmetric(&values, left_out)
        } else {
            asymmetric(&values, left_out)
        };
        if range.absmax() == 0.0 {
            return FoundRange::full(full, Degenerate::MostlyZero);
        }
        FoundRange::of(range, full)
    }

    fn parameter(&self) -> Option<&'static str> {
        Some("NN")
    }

    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        let refused = || MathError::Percentile { found: parameter.to_owned() };
        let percentile: f64 = parameter.parse().map_err(|_| refused())?;
        if percentile > 50.0 && percentile <= 100.0 {
            Ok(Box::new(Percentile { percentile }))
        } else {
            Err(refused())
        }
    }
}

fn symmetric(values: &Distribution, left_out: f64) -> Range {
    let bins: Vec<Bin> = values.magnitudes().collect();
    clipped(
        values.range(),
        end(bins.iter().rev().map(|bin| (bin.to, bin.from, bin.count)), left_out),
    )
}

fn asymmetric(values: &Distribution, left_out: f64) -> Range {
    let bins: Vec<Bin> = values.bins().collect();
    let min = end(bins.iter().map(|bin| (bin.from, bin.to, bin.count)), left_out);
    let max = end(bins.iter().rev().map(|bin| (bin.to, bin.from, bin.count)), left_out);
    // Just above 50 %, rounding may let them pass each other.
    Range { min, max: max.max(min) }
}

/// The end of the range when as many values are left out. Of bins from the outermost inward: the outer and the inner
/// edge, and how many values lie between.
fn end(inward: impl Iterator<Item = (f64, f64, u64)>, left_out: f64) -> f32 {
    let mut passed = 0.0;
    let mut end = 0.0;
    for (outer, inner, count) in inward {
        let count = count as f64;
        if passed + count > left_out {
            return (outer + (inner - outer) * ((left_out - passed) / count)) as f32;
        }
        passed += count;
        end = inner;
    }
    end as f32
}
