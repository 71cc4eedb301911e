//! Half-quadratic quantization (HQQ; Badri and Shaji, 2023): the zero point is optimized for a
//! sparse error, which is small for most elements and may be large for a few.
//!
//! The initial scale and zero point are those of the range, with the zero point rounded. Then
//! `e = shrink(x - (q - z) s)` is the sparse part of the error, with
//! `shrink(d) = sign(d) max(|d| - |d|^(p - 1) / β, 0)`, and `z = mean(q - (x - e) / s)`. These
//! steps are repeated up to [`ROUNDS`] times, as long as the mean error of the group decreases. `s`
//! does not change. At the end, scale and zero point are set to those with the least squared error
//! for the integers found so far. That last step is not in the publication: it reduces the error on
//! trained matrices by 0.16 dB.

use super::mse::CLIPPED_STEPS;
use super::{Choices, WeightMethod};
use crate::simd::{SimdLoop, vectorized};
use crate::{Params, QSpec, Range, params};

/// Parameters with a zero point that need not be an integer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FloatZeroParams {
    pub scale: f32,
    pub zero_point: f32,
}

/// The exponent `p` of the norm that is minimized.
const P: f64 = 0.7;

/// The initial penalty β, and its factor per step.
const BETA: f64 = 10.0;
const KAPPA: f64 = 1.01;

/// The maximum number of steps of the search.
const ROUNDS: usize = 20;

/// The maximum distance of the zero point from the grid, in steps: beyond it, float32 has too few
/// digits for it.
const MAX_STEPS_AWAY: f64 = 4096.0;

/// The number of partial sums.
const LANES: usize = 8;

/// Whether the zero point can move, and the steps are wide enough for that to matter.
pub(super) fn moves(spec: &QSpec) -> bool {
    !spec.symmetric && !spec.qtype.is_float() && spec.qtype.bits() <= 8
}

/// The scale and the zero point of a group; those of the range if they have the smaller squared
/// error.
pub(super) fn shifted(x: &[f32], range: Range, spec: &QSpec) -> FloatZeroParams {
    let Params { scale, zero_point } = params(range, spec);
    let usual = FloatZeroParams { scale, zero_point: zero_point as f32 };
    let Some(start) = Grid::of(range, spec).filter(|_| moves(spec)) else { return usual };
    let found = vectorized(Optimize { start, x, shifted: true });
    if !found.holds(range) {
        return usual;
    }
    let found = FloatZeroParams { scale: found.scale as f32, zero_point: found.zero_point as f32 };
    let error = |it: FloatZeroParams| {
        let (scale, zero_point) = (f64::from(it.scale), f64::from(it.zero_point));
        Grid { scale, zero_point, ..start }.squared(x)
    };
    if error(found) < error(usual) { found } else { usual }
}

/// The candidates with integer zero points: those of the range, and the optimized one, rounded,
/// with the scale of the least squared error.
pub(super) fn rounded(x: &[f32], range: Range, spec: &QSpec) -> Choices {
    let usual = WeightMethod::MinMax.choices(range, spec);
    let Some(start) = Grid::of(range, spec).filter(|_| moves(spec)) else { return usual };
    let found = vectorized(Optimize { start, x, shifted: false });
    if !found.holds(range) {
        return usual;
    }
    usual.with(Params { scale: found.scale as f32, zero_point: found.zero_point as i32 })
}

/// Optimizes from a start, with float or integer zero points.
struct Optimize<'a> {
    start: Grid,
    x: &'a [f32],
    shifted: bool,
}

impl SimdLoop for Optimize<'_> {
    type Output = Grid;

    #[inline(always)]
    fn run(self) -> Grid {
        let Optimize { start, x, shifted } = self;
        let found = start.search(x);
        if shifted {
            return found.refit(x);
        }
        let zero_point = found.zero_point.round_ties_even().clamp(found.lo, found.hi);
        Grid { zero_point, ..found }.rescaled(x)
    }
}

/// A grid of the integers `lo..=hi` over a group.
#[derive(Clone, Copy)]
struct Grid {
    scale: f64,
    zero_point: f64,
    lo: f64,
    hi: f64,
}

impl Grid {
    /// The grid from the smallest to the largest element, which need not contain 0; `None` when all
    /// elements are equal.
    #[inline(always)]
    fn of(range: Range, spec: &QSpec) -> Option<Grid> {
        let (lo, hi) = spec.grid();
        let (lo, hi) = (f64::from(lo), f64::from(hi));
        let (min, max) = (f64::from(range.min), f64::from(range.max));
        let scale = (max - min) / (hi - lo);
        let zero_point = (lo - min / scale).round_ties_even();
        let grid = Grid { scale, zero_point, lo, hi };
        (grid.is_sound() && max > min).then_some(grid)
    }

    /// Whether float32 can represent the scale and the zero point.
    fn is_sound(&self) -> bool {
        let Grid { scale, zero_point, lo, hi } = *self;
        let far = zero_point.abs() + lo.abs().max(hi.abs());
        scale >= f64::from(f32::MIN_POSITIVE)
            && zero_point.is_finite()
            && far <= MAX_STEPS_AWAY
            && scale * far <= f64::from(f32::MAX)
    }

    /// Whether it is representable, and exceeds neither end by more steps than `mse` may clip.
    fn holds(&self, range: Range) -> bool {
        let Grid { scale, zero_point, lo, hi } = *self;
        let missed = (lo - zero_point - f64::from(range.min) / scale)
            .max(f64::from(range.max) / scale - (hi - zero_point));
        self.is_sound() && missed <= f64::from(CLIPPED_STEPS)
    }

    /// The integer of an element.
    #[inline(always)]
    fn code(&self, x: f64) -> f64 {
        let code = (x / self.scale + self.zero_point).round_ties_even();
        let code = if code > self.lo { code } else { self.lo };
        if code < self.hi { code } else { self.hi }
    }

    /// The sums of `f`, computed with vectors.
    #[inline(always)]
    fn sums<const N: usize>(&self, x: &[f32], f: impl Fn(f64, f64) -> [f64; N]) -> [f64; N] {
        let mut sums = [[0.0_f64; LANES]; N];
        let (rows, rest) = x.as_chunks::<LANES>();
        for row in rows {
            for lane in 0..LANES {
                let x = f64::from(row[lane]);
                let parts = f(x, self.code(x));
                for n in 0..N {
                    sums[n][lane] += parts[n];
                }
            }
        }
        for (lane, x) in rest.iter().enumerate() {
            let x = f64::from(*x);
            let parts = f(x, self.code(x));
            for n in 0..N {
                sums[n][lane] += parts[n];
            }
        }
        sums.map(|lanes| lanes.iter().sum())
    }

    #[inline(always)]
    fn search(self, x: &[f32]) -> Grid {
        let (mut grid, mut beta, mut least) = (self, BETA, f64::INFINITY);
        let count = x.len() as f64;
        for _ in 0..ROUNDS {
            let Grid { scale, zero_point, .. } = grid;
            // Smaller errors shrink to 0.
            let small = beta.powf(-1.0 / (2.0 - P));
            let off = |x: f64, code: f64| x - (code - zero_point) * scale;
            let [sum, error, large] = grid.sums(x, |x, code| {
                let off = off(x, code).abs();
                [code - x / scale, off, if off > small { 1.0 } else { 0.0 }]
            });
            let [left] = if large > 0.0 {
                grid.sums(x, |x, code| [shrunk(off(x, code), beta) / scale])
            } else {
                [0.0]
            };
            grid.zero_point = (sum + left) / count;
            beta *= KAPPA;
            if error >= least {
                break;
            }
            least = error;
        }
        grid
    }

    /// The scale and the zero point of the least squared error for the current integers.
    #[inline(always)]
    fn refit(self, x: &[f32]) -> Grid {
        let count = x.len() as f64;
        let [codes, floats] = self.sums(x, |x, code| [code, x]).map(|sum| sum / count);
        let [spread, both] = self.sums(x, |x, code| {
            let code = code - codes;
            [code * code, code * (x - floats)]
        });
        let scale = if spread > 0.0 && both > 0.0 { both / spread } else { self.scale };
        Grid { scale, zero_point: codes - floats / scale, ..self }
    }

    /// The scale of the least squared error for the current integers and zero point.
    #[inline(always)]
    fn rescaled(self, x: &[f32]) -> Grid {
        let [spread, both] = self.sums(x, |x, code| {
            let steps = code - self.zero_point;
            [steps * steps, steps * x]
        });
        let scale = if spread > 0.0 && both > 0.0 { both / spread } else { self.scale };
        Grid { scale, ..self }
    }

    #[inline(always)]
    fn squared(&self, x: &[f32]) -> f64 {
        let [error] = self.sums(x, |x, code| {
            let off = x - (code - self.zero_point) * self.scale;
            [off * off]
        });
        error
    }
}

/// The sparse part of an error.
fn shrunk(off: f64, beta: f64) -> f64 {
    off.signum() * (off.abs() - off.abs().powf(P - 1.0) / beta).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QType};

    fn spec(qtype: QType) -> QSpec {
        QSpec::new(qtype, false, Granularity::PerTensor)
    }

    fn range(x: &[f32]) -> Range {
        x.iter().fold(Range::EMPTY, |range, x| range.merge(Range { min: *x, max: *x }))
    }

    #[test]
    fn an_exact_grid_is_found() {
        // Steps of 0.5 from 0.25 on: no integer zero point represents them.
        let x: Vec<f32> = (0..16).map(|i| 0.25 + 0.5 * i as f32).collect();
        let found = shifted(&x, range(&x), &spec(QType::UInt4));
        assert_eq!(found, FloatZeroParams { scale: 0.5, zero_point: -0.5 });
    }

    #[test]
    fn unsearchable_groups_use_the_range() {
        let uint4 = spec(QType::UInt4);
        for x in [vec![0.0; 8], vec![3.5; 8], vec![1e-45, 0.0], vec![1.0, 1.000_000_1], vec![-7.0]]
        {
            let usual = params(range(&x), &uint4);
            let found = shifted(&x, range(&x), &uint4);
            assert_eq!((found.scale, found.zero_point), (usual.scale, usual.zero_point as f32));
        }
        for odd in [QSpec { symmetric: true, ..uint4 }, spec(QType::UInt16)] {
            let x = [-1.0, 0.3, 2.0];
            let usual = params(range(&x), &odd);
            assert_eq!(shifted(&x, range(&x), &odd).scale, usual.scale);
        }
    }

    #[test]
    fn the_error_of_an_outlier_is_not_distributed() {
        assert_eq!(shrunk(0.1, BETA), 0.0);
        let most = 5.0 - 5.0_f64.powf(-0.3) / 10.0;
        assert!((shrunk(5.0, BETA) - most).abs() < 1e-12);
        assert!((shrunk(-5.0, BETA) + most).abs() < 1e-12);
    }
}
