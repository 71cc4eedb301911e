//! Several groups side by side, one per lane of a vector: their ranges and candidate parameters.

use super::{Choices, MAX_CHOICES};
use crate::{Params, Range};

/// The number of groups that are processed at once: as many floats as a cache line holds.
pub(crate) const LANES: usize = 16;

/// One element of each group.
pub(crate) type Row = [f32; LANES];

/// The range of each group, which is finite.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) min: Row,
    pub(crate) max: Row,
}

impl Ends {
    /// Those of up to [`LANES`] groups.
    #[inline(always)]
    pub(super) fn gathered(ranges: &[Range]) -> Ends {
        let (mut min, mut max) = ([0.0; LANES], [0.0; LANES]);
        for ((min, max), range) in min.iter_mut().zip(&mut max).zip(ranges) {
            (*min, *max) = (range.min, range.max);
        }
        Ends { min, max }
    }

    /// That of one group.
    #[inline(always)]
    pub(crate) fn lane(&self, lane: usize) -> Range {
        Range { min: self.min[lane], max: self.max[lane] }
    }

    /// Whether something holds for one of the ranges.
    #[inline(always)]
    pub(super) fn any(&self, holds: impl Fn(Range) -> bool) -> bool {
        (0..LANES).fold(false, |any, lane| any | holds(self.lane(lane)))
    }

    /// The ranges, those whose largest magnitude is positive multiplied by -1.
    #[inline(always)]
    pub(crate) fn turned(mut self) -> Ends {
        for lane in 0..LANES {
            let (min, max) = (self.min[lane], self.max[lane]);
            let turned = max > -min;
            self.min[lane] = if turned { -max } else { min };
            self.max[lane] = if turned { -min } else { max };
        }
        self
    }

    /// The ranges, widened to contain 0.
    #[inline(always)]
    pub(super) fn widened(mut self) -> Ends {
        for lane in 0..LANES {
            let range = self.lane(lane).finite();
            (self.min[lane], self.max[lane]) = (range.min, range.max);
        }
        self
    }

    /// The ranges with their ends multiplied by a factor each.
    #[inline(always)]
    pub(super) fn times(mut self, below: f32, above: f32) -> Ends {
        for lane in 0..LANES {
            self.min[lane] *= below;
            self.max[lane] *= above;
        }
        self
    }
}

/// The parameters of each group; zero points of up to 24 bits are exact.
#[derive(Clone, Copy)]
pub(crate) struct LaneParams {
    pub(crate) scale: Row,
    pub(crate) zero: Row,
}

impl LaneParams {
    pub(crate) const UNIT: LaneParams = LaneParams { scale: [1.0; LANES], zero: [0.0; LANES] };

    /// Computes the parameters of each range, which contains 0. `of` has no branches, so that the
    /// loop compiles to vector code.
    #[inline(always)]
    pub(super) fn of(ends: &Ends, of: impl Fn(Range) -> (f32, f64)) -> LaneParams {
        let mut found = LaneParams::UNIT;
        for lane in 0..LANES {
            let (scale, zero) = of(ends.lane(lane));
            (found.scale[lane], found.zero[lane]) = (scale, zero as f32);
        }
        found
    }

    /// Those of one group.
    #[inline(always)]
    pub(crate) fn lane(&self, lane: usize) -> Params {
        Params { scale: self.scale[lane], zero_point: self.zero[lane] as i32 }
    }

    /// Replaces those of one group.
    #[inline(always)]
    pub(crate) fn set(&mut self, lane: usize, params: Params) {
        (self.scale[lane], self.zero[lane]) = (params.scale, params.zero_point as f32);
    }
}

/// The candidates of each group: at least one, the default first.
#[derive(Clone, Copy)]
pub(crate) struct Candidates {
    pub(super) all: [LaneParams; MAX_CHOICES],
    count: usize,
}

impl Candidates {
    #[inline(always)]
    pub(super) fn one(params: LaneParams) -> Candidates {
        Candidates { all: [params; MAX_CHOICES], count: 1 }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, params: LaneParams) {
        if let Some(next) = self.all.get_mut(self.count) {
            *next = params;
            self.count += 1;
        }
    }

    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[LaneParams] {
        &self.all[..self.count]
    }

    /// Those of one group.
    pub(super) fn lane(&self, lane: usize) -> Choices {
        Choices { all: self.all.map(|params| params.lane(lane)), count: self.count }
    }
}
