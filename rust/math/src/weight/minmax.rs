//! Grids that reach the ends of what is there.

use super::Choices;
use crate::params::{choices as lopsided_choices, lopsided};
use crate::{QSpec, Range, params};

/// [`params`](crate::params()); three of them where a symmetric grid has one step more on one side.
pub(super) fn choices(range: Range, spec: &QSpec) -> Choices {
    if !lopsided(spec) {
        return Choices::one(params(range, spec));
    }
    let [clipped, between, whole] = lopsided_choices(range, spec);
    Choices::one(clipped).with(between).with(whole)
}
