//! The range of a typical sample.

use std::borrow::Cow;

use super::{Clipping, Degenerate, FoundRange, RangeFinder};
use crate::QSpec;
use crate::stats::Sketch;

/// The mean over the samples of their smallest values, and that of their largest.
///
/// The arithmetic mean, as ONNX Runtime's tool computes it under the name of `CalibMovingAverage`: unlike an exponential
/// average, it does not depend on the order of the samples.
#[derive(Debug)]
pub(super) struct MovingAverage;

impl RangeFinder for MovingAverage {
    fn name(&self) -> Cow<'static, str> {
        "moving_average".into()
    }

    fn about(&self) -> &'static str {
        "the mean of the samples' smallest and of their largest values"
    }

    fn clipping(&self) -> Clipping {
        Clipping::MostSamples
    }

    fn range(&self, seen: &Sketch, _: &QSpec) -> FoundRange {
        let full = seen.range();
        if let Some(found) = FoundRange::trivial(full) {
            return found;
        }
        if seen.samples() == 1 {
            return FoundRange::full(full, Degenerate::OneSample);
        }
        FoundRange::of(seen.mean_range(), full)
    }
}
