//! Grids that cover the range of a group.

use super::lanes::{Candidates, Ends, LaneParams};
use crate::QSpec;
use crate::params::{Symmetric, asymmetric, lopsided};

/// [`params`](crate::params()); three candidates if one side of a symmetric grid has an additional
/// step.
#[inline(always)]
pub(super) fn choices(ends: &Ends, spec: &QSpec) -> Candidates {
    if !spec.symmetric {
        let (lo, hi) = spec.grid();
        let grid = (f64::from(lo), f64::from(hi));
        return Candidates::one(LaneParams::of(ends, |range| asymmetric(range, grid)));
    }
    let grid = Symmetric::of(spec);
    let zero_point = f64::from(grid.zero_point);
    let reaching = |above| LaneParams::of(ends, |range| (grid.scale(range, above), zero_point));
    let [clipped, between, whole] = grid.reaches();
    if !lopsided(spec) {
        return Candidates::one(reaching(whole));
    }
    let mut found = Candidates::one(reaching(clipped));
    found.push(reaching(between));
    found.push(reaching(whole));
    found
}

/// The first of [`choices`].
#[inline(always)]
pub(super) fn first(ends: &Ends, spec: &QSpec) -> LaneParams {
    choices(ends, spec).as_slice()[0]
}
