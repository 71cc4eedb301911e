//! The range of a typical sample.

use std::borrow::Cow;

use super::{Clipping, Degenerate, FoundRange, RangeFinder};
use crate::QSpec;
use crate::stats::Sketch;

/// The mean over samples of their minima and of their maxima.
///
/// It is the arithmetic mean, which ONNX Runtime's tool computes as `CalibMovingAverage`: unlike an
/// exponential moving average, it does not depend on the order of samples.
#[derive(Debug)]
pub(super) struct MovingAverage;

impl RangeFinder for MovingAverage {
    fn name(&self) -> Cow<'static, str> {
        "moving_average".into()
    }

    fn about(&self) -> &'static str {
        "the mean of the samples' minima and of their maxima"
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
