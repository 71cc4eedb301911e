//! Grids that cover the range of a group.

use super::lanes::{Candidates, Ends, LaneParams};
use crate::params::{Symmetric, asymmetric, lopsided};
use crate::{QSpec, Range};

/// [`params`](crate::params()); three candidates if one side of a symmetric grid has an additional
/// step, and two if an asymmetric one has and the range reaches as far on both sides of 0. Weights
/// such as -1, 0 and 1 are between the steps of the whole grid, and on those of one without it.
#[inline(always)]
pub(super) fn choices(ends: &Ends, spec: &QSpec) -> Candidates {
    if !spec.symmetric {
        let (lo, hi) = spec.grid();
        let grid = (f64::from(lo), f64::from(hi));
        let mut found = Candidates::one(LaneParams::of(ends, |range| asymmetric(range, grid)));
        if spec.qtype.bits() <= 8 && ends.any(is_balanced) {
            let even = (grid.0 + 1.0, grid.1);
            let of = |range| asymmetric(range, if is_balanced(range) { even } else { grid });
            found.push(LaneParams::of(ends, of));
        }
        return found;
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

/// Whether a range reaches as far on both sides of 0, and further than 0.
#[inline(always)]
pub(super) fn is_balanced(range: Range) -> bool {
    range.max == -range.min && range.max > 0.0
}
