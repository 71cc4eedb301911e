//! The range without the rarest values at either end.

use std::borrow::Cow;

use super::{Degenerate, FoundRange, RangeFinder, clipped};
use crate::stats::{Bin, Distribution, Sketch};
use crate::{MathError, QSpec, Range};

/// Clips, at each end, the values beyond a percentile.
///
/// Asymmetric: from the `(100 - p)`-th to the `p`-th percentile. Symmetric: up to the `p`-th
/// percentile of the magnitudes, on both sides. A percentile is the smallest value that at least
/// that share of all values does not exceed, where values are assumed to be spread evenly over
/// their bins.
#[derive(Debug)]
pub(super) struct Percentile {
    /// In percent, above 50 and up to 100.
    percentile: f64,
}

impl Percentile {
    /// The default of ONNX Runtime's tool.
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
        "clips the values beyond a percentile at each end"
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
    // Just above 50 %, rounding can swap the ends.
    Range { min, max: max.max(min) }
}

/// The end of the range that excludes this many values. The bins are given from the outermost
/// inward, each as outer edge, inner edge and count.
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
