//! Grids that cover the range of a group.

use super::Choices;
use crate::params::{choices as lopsided_choices, lopsided};
use crate::{QSpec, Range, params};

/// [`params`](crate::params()); three candidates if one side of a symmetric grid has an additional
/// step.
pub(super) fn choices(range: Range, spec: &QSpec) -> Choices {
    if !lopsided(spec) {
        return Choices::one(params(range, spec));
    }
    let [clipped, between, whole] = lopsided_choices(range, spec);
    Choices::one(clipped).with(between).with(whole)
}
