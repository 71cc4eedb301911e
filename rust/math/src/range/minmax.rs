//! The full range.

use std::borrow::Cow;

use super::{Clipping, FoundRange, RangeFinder};
use crate::QSpec;
use crate::stats::Sketch;

/// The range from the smallest to the largest value: nothing is clipped.
#[derive(Debug)]
pub(super) struct MinMax;

impl RangeFinder for MinMax {
    fn name(&self) -> Cow<'static, str> {
        "minmax".into()
    }

    fn about(&self) -> &'static str {
        "the smallest and the largest value observed"
    }

    fn clipping(&self) -> Clipping {
        Clipping::Nothing
    }

    fn range(&self, seen: &Sketch, _: &QSpec) -> FoundRange {
        let range = seen.range();
        FoundRange::trivial(range).unwrap_or(FoundRange { range, note: None })
    }
}
