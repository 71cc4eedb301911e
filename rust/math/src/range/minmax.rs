//! The full range.

use std::borrow::Cow;

use super::{Clips, Found, RangeFinder};
use crate::QSpec;
use crate::stats::Sketch;

/// From the smallest to the largest value: nothing is clipped.
#[derive(Debug)]
pub(super) struct MinMax;

impl RangeFinder for MinMax {
    fn name(&self) -> Cow<'static, str> {
        "minmax".into()
    }

    fn about(&self) -> &'static str {
        "the smallest and the largest value seen"
    }

    fn clips(&self) -> Clips {
        Clips::Nothing
    }

    fn range(&self, seen: &Sketch, _: &QSpec) -> Found {
        let range = seen.range();
        Found::trivial(range).unwrap_or(Found { range, note: None })
    }
}
