//! Scales and zero points of the least error, each element weighted by the mean square of its
//! input.

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;

use super::{ColumnIntegers, ScaleBounds, WeightColumns, stopped};
use crate::rounding::round_ties_even;
use crate::simd::{SimdLoop, vectorized};
use crate::weight::{Choices, clipped_candidates};
use crate::{Params, QSpec, Range};

/// Columns that one task looks at.
const COLUMNS: usize = 16;

/// How often a scale is refitted to the integers that it leads to.
const REFITS: usize = 2;

/// The number of candidates for the part of the range that is covered.
const STEPS: u16 = 12;

/// The part of the range that is covered, from all of it down.
fn kept(spec: &QSpec) -> impl Iterator<Item = f32> {
    // A step of few is a large part of the range.
    let least = match spec.bits() {
        8.. => 0.9,
        4.. => 0.7,
        _ => 0.4,
    };
    (0..STEPS).map(move |step| 1.0 - (1.0 - least) * f32::from(step) / f32::from(STEPS - 1))
}

/// The parameters of each group with the smallest `Σ E[x²]·e²`, among those that cover a part of
/// its range; then refitted to the integers by least squares.
pub(super) fn weighted(
    parts: &[WeightColumns],
    groups: usize,
    spec: &QSpec,
    bounds: ScaleBounds<'_>,
    stop: &AtomicBool,
) -> Vec<Params> {
    let weights: Vec<Vec<f32>> = parts.iter().map(importance).collect();
    let ranges = ranges(parts, groups);
    let mut best: Vec<(f64, Params)> = Vec::new();
    let attempt = |candidates: Vec<Params>, best: &mut Vec<(f64, Params)>| {
        let fits = fits::<false>(parts, &weights, &candidates, spec);
        let errors = fits.iter().map(|fit| fit.error);
        if best.is_empty() {
            *best = errors.zip(candidates).collect();
            return;
        }
        for (best, (error, candidate)) in best.iter_mut().zip(errors.zip(candidates)) {
            if error < best.0 {
                *best = (error, candidate);
            }
        }
    };
    for kept in kept(spec) {
        let all: Vec<Choices> =
            ranges.par_iter().map(|range| clipped_candidates(*range, kept, spec)).collect();
        // Every range has the same number of candidates.
        let count = all.first().map_or(0, |one| one.as_slice().len());
        for choice in 0..count {
            if stopped(stop) && !best.is_empty() {
                break;
            }
            let candidate = |(group, choices): (usize, &Choices)| {
                bounds.allowed(choices.as_slice()[choice], group, spec)
            };
            attempt(all.iter().enumerate().map(candidate).collect(), &mut best);
        }
    }
    for _ in 0..REFITS {
        let found: Vec<Params> = best.iter().map(|(_, params)| *params).collect();
        let fits = fits::<true>(parts, &weights, &found, spec);
        let refitted = found.iter().zip(fits).enumerate().map(|(group, (params, fit))| {
            let scale = (fit.product / fit.square) as f32;
            let same_sign = scale.is_finite() && scale * params.scale > 0.0;
            let scale = if same_sign { scale } else { params.scale };
            bounds.allowed(Params { scale, ..*params }, group, spec)
        });
        attempt(refitted.collect(), &mut best);
    }
    best.into_iter().map(|(_, params)| params).collect()
}

/// The mean square of each input, relative to their mean. What an input that was 0 in all samples
/// may be is not known: it counts as 2 % of the mean, so that its weights are not given up. (With
/// 10 % trained networks, where such inputs are the borders of images, lost up to 0.6 dB.)
fn importance(part: &WeightColumns) -> Vec<f32> {
    const LEAST: f64 = 1e-6;
    const UNSEEN: f64 = 0.02;
    let diagonal = part.moments.diag();
    let mean = diagonal.mean().unwrap_or(0.0);
    if mean <= 0.0 || !mean.is_finite() {
        return vec![1.0; part.depth];
    }
    let of = |square: &f64| if *square == 0.0 { UNSEEN } else { (square / mean).max(LEAST) };
    diagonal.iter().map(|square| of(square) as f32).collect()
}

/// The range of each group.
fn ranges(parts: &[WeightColumns], groups: usize) -> Vec<Range> {
    let mut ranges = vec![Range::EMPTY; groups];
    for part in parts {
        for column in 0..part.width() {
            for (values, group) in part.column_blocks(column) {
                for value in values {
                    ranges[group] = ranges[group].merge(Range { min: *value, max: *value });
                }
            }
        }
    }
    ranges
}

/// The weighted sums of a group; the last two are 0 where only the error is needed.
#[derive(Clone, Copy, Default)]
struct Fit {
    /// `Σ h·e²`.
    error: f64,
    /// `Σ h·w·d`, where `d` are the integers without the zero point.
    product: f64,
    /// `Σ h·d²`.
    square: f64,
}

/// The sums of each group, added column by column in order; `ALL` of them, or the error alone.
fn fits<const ALL: bool>(
    parts: &[WeightColumns],
    weights: &[Vec<f32>],
    params: &[Params],
    spec: &QSpec,
) -> Vec<Fit> {
    let of_part = |(part, weights): (&WeightColumns, &Vec<f32>)| {
        let of_column = |column: usize| {
            let blocks = part.column_blocks(column).zip(weights.chunks(part.block));
            blocks.map(|((values, group), weights)| {
                let (params, grid) = (params[group], spec.grid());
                vectorized(FitLoop::<ALL> { values, weights, params, grid })
            })
        };
        let mut found = vec![Fit::default(); part.groups.len()];
        let columns = found.par_chunks_mut(part.blocks().max(1) * COLUMNS).enumerate();
        columns.for_each(|(chunk, found)| {
            let columns = chunk * COLUMNS..((chunk + 1) * COLUMNS).min(part.width());
            found.iter_mut().zip(columns.flat_map(of_column)).for_each(|(to, fit)| *to = fit);
        });
        found
    };
    let found: Vec<Vec<Fit>> = parts.par_iter().zip(weights).map(of_part).collect();
    let mut all = vec![Fit::default(); params.len()];
    for (part, found) in parts.iter().zip(found) {
        for (fit, group) in found.iter().zip(&part.groups) {
            let sum = &mut all[*group as usize];
            sum.error += fit.error;
            sum.product += fit.product;
            sum.square += fit.square;
        }
    }
    all
}

struct FitLoop<'a, const ALL: bool> {
    values: &'a [f32],
    weights: &'a [f32],
    params: Params,
    grid: (i32, i32),
}

impl<const ALL: bool> SimdLoop for FitLoop<'_, ALL> {
    type Output = Fit;

    #[inline(always)]
    fn run(self) -> Fit {
        /// Partial sums, so that the order of addition does not depend on the vectors.
        const SUMS: usize = 8;
        let FitLoop { values, weights, params, grid } = self;
        let scale = f64::from(params.scale);
        let zero = f64::from(params.zero_point);
        let (low, high) = (f64::from(grid.0) - zero, f64::from(grid.1) - zero);
        let inverse = 1.0 / scale;
        let mut sums = [[0.0_f64; SUMS]; 3];
        let mut add = |lane: usize, value: f32, weight: f32| {
            let (value, weight) = (f64::from(value), f64::from(weight));
            let integer = round_ties_even((value * inverse).clamp(low, high));
            let error = integer * scale - value;
            sums[0][lane] += weight * error * error;
            if ALL {
                sums[1][lane] += weight * value * integer;
                sums[2][lane] += weight * integer * integer;
            }
        };
        let (heads, tail) = values.as_chunks::<SUMS>();
        let (weight_heads, weight_tail) = weights.as_chunks::<SUMS>();
        for (values, weights) in heads.iter().zip(weight_heads) {
            for lane in 0..SUMS {
                add(lane, values[lane], weights[lane]);
            }
        }
        for (lane, (value, weight)) in tail.iter().zip(weight_tail).enumerate() {
            add(lane, *value, *weight);
        }
        let [error, product, square] = sums.map(|sums| sums.iter().sum());
        Fit { error, product, square }
    }
}

/// The nearest integers.
pub(super) fn nearest(part: &WeightColumns, params: &[Params], spec: &QSpec) -> ColumnIntegers {
    let (low, high) = spec.grid();
    let of_column = |column: usize| {
        part.column_blocks(column).flat_map(move |(values, group)| {
            let Params { scale, zero_point } = params[group];
            values.iter().map(move |value| {
                let integer = round_ties_even(f64::from(*value) / f64::from(scale));
                (integer + f64::from(zero_point)).clamp(f64::from(low), f64::from(high)) as i16
            })
        })
    };
    (0..part.width()).flat_map(of_column).collect()
}
