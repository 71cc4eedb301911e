//! Coordinate descent on the integers, and scales refitted to them, in turn.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use ndarray::{Array2, s};
use rayon::prelude::*;

use super::panel::{LANES, Panel, WIDE, grid, panels};
use super::{Algorithm, ColumnIntegers, Effort, Rounded, ScaleBounds, WeightColumns, stopped};
use crate::linalg::add_product;
use crate::rounding::round_ties_even;
use crate::simd::{SimdLoop, vectorized};
use crate::{Params, QSpec};

/// What is added to the diagonal of the moments, relative to its mean: where rows are few, the
/// moments say little about others.
const DAMPING: f64 = 0.03;

/// Changes integers and scales of a rounded weight as long as the quadratic error falls.
///
/// The arguments are those of [`round_columns`](crate::round_columns). The moments may be others
/// than those that the weight was rounded with.
///
/// An integer changes to the one nearest to the minimum of the error along its coordinate
/// (Behdin et al., `QuantEase`, 2023). With the integers fixed, the error is a quadratic function
/// of the scale of a block, or of the scale and the zero point, whose minimum has a closed form.
/// Scales that several columns share stay as they are.
pub fn improve(
    parts: &[WeightColumns],
    start: Rounded,
    spec: &QSpec,
    bounds: ScaleBounds<'_>,
    effort: Effort,
    stop: &AtomicBool,
) -> Rounded {
    let own = each_has_its_own(parts, start.params.len());
    let Rounded { mut params, integers, .. } = start;
    let done: Vec<Vec<Improved>> = parts
        .par_iter()
        .zip(&integers)
        .map(|(part, integers)| {
            let damping = damping(&part.moments);
            let moments = damped(&part.moments, damping);
            let row_sums = row_sums(part, &moments);
            let (moments, row_sums) = (&moments[..], &row_sums[..]);
            let task = Task { part, damping, moments, row_sums, spec, bounds, own, stop };
            panels(part, WIDE)
                .par_iter()
                .flat_map(|first| task.of_wide(*first, &params, integers, effort))
                .collect()
        })
        .collect();
    let mut all = Vec::new();
    for (part, done) in parts.iter().zip(done) {
        let mut integers = ColumnIntegers::with_capacity(part.values.len());
        for panel in done {
            integers.extend(panel.integers);
            for (group, found) in panel.params {
                params[group] = found;
            }
        }
        all.push(integers);
    }
    Rounded { algorithm: Algorithm::Descent, params, integers: all }
}

/// Whether no two blocks share a scale.
fn each_has_its_own(parts: &[WeightColumns], groups: usize) -> bool {
    let blocks: usize = parts.iter().map(|part| part.groups.len()).sum();
    let mut known = HashSet::with_capacity(groups);
    blocks == groups && parts.iter().flat_map(|part| &part.groups).all(|group| known.insert(*group))
}

/// What is added to the diagonal.
fn damping(moments: &Array2<f64>) -> f64 {
    let mean = moments.diag().mean().unwrap_or(0.0);
    if mean > 0.0 { DAMPING * mean } else { 1.0 }
}

/// The damped moments in C order, in f32: they are read once for each integer that changes.
fn damped(moments: &Array2<f64>, damping: f64) -> Vec<f32> {
    let mut damped: Vec<f32> = moments.iter().map(|moment| *moment as f32).collect();
    for (at, square) in moments.diag().iter().enumerate() {
        damped[at * (moments.ncols() + 1)] = (square + damping) as f32;
    }
    damped
}

/// The sum of each row of the moments over the elements of its own block.
fn row_sums(part: &WeightColumns, moments: &[f32]) -> Vec<f64> {
    let of_row = |row: usize| {
        let first = row / part.block * part.block;
        let last = (first + part.block).min(part.depth);
        moments[row * part.depth..][first..last].iter().copied().map(f64::from).sum()
    };
    (0..part.depth).map(of_row).collect()
}

/// The new integers of some columns, and their parameters.
struct Improved {
    integers: ColumnIntegers,
    params: Vec<(usize, Params)>,
}

struct Task<'a> {
    part: &'a WeightColumns,
    damping: f64,
    moments: &'a [f32],
    row_sums: &'a [f64],
    spec: &'a QSpec,
    bounds: ScaleBounds<'a>,
    /// Whether each block has its own scale.
    own: bool,
    stop: &'a AtomicBool,
}

impl Task<'_> {
    /// The columns of a wide panel: the gradients of all of them are one product.
    fn of_wide(
        &self,
        first: usize,
        params: &[Params],
        integers: &ColumnIntegers,
        effort: Effort,
    ) -> Vec<Improved> {
        let part = self.part;
        let columns = WIDE.min(part.width() - first);
        let wide = Panel::of(part, params, first, columns.next_multiple_of(LANES));
        let mut values = Array2::<f64>::zeros(wide.weight.dim());
        for lane in 0..columns {
            let integers = &integers[(first + lane) * part.depth..][..part.depth];
            for (at, integer) in integers.iter().enumerate() {
                values[[at, lane]] = f64::from(*integer) - wide.zero[[at / part.block, lane]];
            }
        }
        let mut errors = values.clone();
        for ((at, lane), error) in errors.indexed_iter_mut() {
            let scale = wide.scale[[at / part.block, lane]];
            *error = *error * scale - wide.weight[[at, lane]];
        }
        let mut gradients = Array2::<f64>::zeros(wide.weight.dim());
        gradients.zip_mut_with(&errors, |gradient, error| *gradient = self.damping * error);
        add_product(1.0, &part.moments.view(), &errors.view(), gradients.view_mut());
        let of_lanes = |lane: usize| {
            let cut = s![.., lane..lane + LANES];
            let own = |all: &Array2<f64>| all.slice(cut).iter().copied().collect::<Vec<f64>>();
            let mut state = State {
                depth: part.depth,
                block: part.block,
                moments: self.moments,
                row_sums: self.row_sums,
                grid: grid(self.spec),
                weight: own(&wide.weight),
                integers: own(&values),
                errors: own(&errors),
                gradients: own(&gradients),
                scale: own(&wide.scale),
                zero: own(&wide.zero),
            };
            self.descend(&mut state, wide.first + lane, effort);
            self.improved(&state, wide.first + lane)
        };
        (0..columns).step_by(LANES).map(of_lanes).collect()
    }

    fn descend(&self, state: &mut State<'_>, first: usize, effort: Effort) {
        let count = self.part.width() - first;
        for round in 0..effort.rounds {
            for _ in 0..effort.passes {
                if stopped(self.stop) {
                    return;
                }
                if vectorized(Pass(state)) == 0 {
                    break;
                }
            }
            if !self.own || round + 1 == effort.rounds {
                continue;
            }
            for block in 0..self.part.blocks() {
                self.refit(state, first, block, count.min(LANES));
            }
        }
    }

    /// Sets the scale of a block, and its zero point if it has one, to those of the least error.
    ///
    /// The block represents `s·(q - z)`. A change of `s` by `a`, and of `-s·z` by `b`, changes the
    /// error of the block by `a·q + b`, and the quadratic error by
    /// `a² qᵀHq + 2ab qᵀH1 + b² 1ᵀH1 + 2a qᵀg + 2b 1ᵀg`, where `g = H·e` is the gradient.
    fn refit(&self, state: &mut State<'_>, first: usize, block: usize, lanes: usize) {
        let sums = vectorized(BlockSums { state, block });
        let (low, high) = state.grid;
        let mut changes = [Change::default(); LANES];
        for lane in 0..lanes {
            let at = block * LANES + lane;
            let (scale, zero) = (state.scale[at], state.zero[at]);
            let [qq, q1, one, qg, g] = sums.map(|sums| sums[lane]);
            // The integers are stored without their zero point.
            let cost = |a: f64, b: f64| {
                a * a * qq + 2.0 * a * b * q1 + b * b * one + 2.0 * (a * qg + b * g)
            };
            // With another zero point, what stays zero would have another integer.
            let shifts = !self.spec.symmetric && !state.has_zeros(block, lane);
            let zeros: &[f64] = if shifts { &[0.0, -1.0, 1.0] } else { &[0.0] };
            let mut best = (0.0, scale, 0.0);
            for shift in zeros {
                if !(low..=high).contains(&(zero + shift)) {
                    continue;
                }
                // With the zero point moved by d, the block represents s'·(q - d): b = -s'·d,
                // a = s' - s.
                let square = qq - 2.0 * shift * q1 + shift * shift * one;
                let slope = (qg - shift * g) - scale * shift * (q1 - shift * one);
                let wanted = scale - slope / square;
                // Where all integers are the zero point, any scale is as good.
                if square <= 0.0 || !wanted.is_finite() || wanted * scale <= 0.0 {
                    continue;
                }
                let group = self.group(first + lane, block);
                let params = Params { scale: wanted as f32, zero_point: (zero + shift) as i32 };
                let stored = f64::from(self.bounds.allowed(params, group, self.spec).scale);
                let found = cost(stored - scale, -stored * shift);
                if found < best.0 {
                    best = (found, stored, *shift);
                }
            }
            let (_, stored, shift) = best;
            changes[lane] = Change { factor: stored - scale, offset: -stored * shift, shift };
            state.scale[at] = stored;
            state.zero[at] = zero + shift;
        }
        if changes.iter().any(|change| *change != Change::default()) {
            vectorized(Shift { state, block, changes });
        }
    }

    fn group(&self, column: usize, block: usize) -> usize {
        self.part.groups[column * self.part.blocks() + block] as usize
    }

    /// Reads the result of some lanes.
    fn improved(&self, state: &State<'_>, first: usize) -> Improved {
        let part = self.part;
        let (low, high) = state.grid;
        let lanes = LANES.min(part.width() - first);
        let mut integers = ColumnIntegers::with_capacity(lanes * part.depth);
        let mut params = Vec::new();
        for lane in 0..lanes {
            integers.extend((0..part.depth).map(|at| {
                let zero = state.zero[at / part.block * LANES + lane];
                (state.integers[at * LANES + lane] + zero).clamp(low, high) as i16
            }));
            if !self.own {
                continue;
            }
            params.extend((0..part.blocks()).map(|block| {
                let at = block * LANES + lane;
                let (scale, zero_point) = (state.scale[at] as f32, state.zero[at] as i32);
                (self.group(first + lane, block), Params { scale, zero_point })
            }));
        }
        Improved { integers, params }
    }
}

/// Some columns, element by element with [`LANES`] columns each.
struct State<'a> {
    depth: usize,
    block: usize,
    /// The damped moments in C order.
    moments: &'a [f32],
    row_sums: &'a [f64],
    grid: (f64, f64),
    weight: Vec<f64>,
    /// The integers without their zero points.
    integers: Vec<f64>,
    errors: Vec<f64>,
    /// The moments times the errors.
    gradients: Vec<f64>,
    /// Of each block.
    scale: Vec<f64>,
    zero: Vec<f64>,
}

impl State<'_> {
    /// Whether weights of a block are zero.
    fn has_zeros(&self, block: usize, lane: usize) -> bool {
        let last = ((block + 1) * self.block).min(self.depth);
        (block * self.block..last).any(|at| self.weight[at * LANES + lane] == 0.0)
    }
}

type Lanes = [f64; LANES];

/// Adds the product of each moment of a row and a change to the gradients.
#[inline(always)]
fn add_to_gradients(gradients: &mut [f64], row: &[f32], change: &Lanes) {
    let (gradients, _) = gradients.as_chunks_mut::<LANES>();
    for (gradient, moment) in gradients.iter_mut().zip(row) {
        let moment = f64::from(*moment);
        for lane in 0..LANES {
            gradient[lane] += moment * change[lane];
        }
    }
}

/// Visits every integer once. Returns how many changed.
struct Pass<'s, 'a>(&'s mut State<'a>);

impl SimdLoop for Pass<'_, '_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Pass(state) = self;
        let (low, high) = state.grid;
        let mut changed = 0;
        for at in 0..state.depth {
            let row = &state.moments[at * state.depth..][..state.depth];
            let moment = f64::from(row[at]);
            let block = at / state.block * LANES;
            let mut change: Lanes = [0.0; LANES];
            for (lane, change) in change.iter_mut().enumerate() {
                let here = at * LANES + lane;
                let (scale, zero) = (state.scale[block + lane], state.zero[block + lane]);
                let (weight, error) = (state.weight[here], state.errors[here]);
                let gradient = state.gradients[here];
                let target = (weight + error - gradient / moment) / scale;
                let integer = round_ties_even(target.clamp(low - zero, high - zero));
                let new = integer * scale - weight;
                let step = new - error;
                let falls = step * (2.0 * gradient + step * moment) < 0.0;
                // Zeros stay, also those of pruned weights.
                if falls && weight != 0.0 && integer != state.integers[here] {
                    *change = step;
                    state.integers[here] = integer;
                    state.errors[here] = new;
                    changed += 1;
                }
            }
            if change != [0.0; LANES] {
                add_to_gradients(&mut state.gradients, row, &change);
            }
        }
        changed
    }
}

/// The sums over a block that the refit needs: `qᵀHq`, `qᵀH1`, `1ᵀH1`, `qᵀg`, `1ᵀg`.
struct BlockSums<'s, 'a> {
    state: &'s State<'a>,
    block: usize,
}

impl SimdLoop for BlockSums<'_, '_> {
    type Output = [Lanes; 5];

    #[inline(always)]
    fn run(self) -> [Lanes; 5] {
        let BlockSums { state, block } = self;
        let first = block * state.block;
        let last = (first + state.block).min(state.depth);
        let mut sums = [[0.0; LANES]; 5];
        let (integers, _) = state.integers[first * LANES..last * LANES].as_chunks::<LANES>();
        let (gradients, _) = state.gradients[first * LANES..last * LANES].as_chunks::<LANES>();
        for (at, (q, g)) in integers.iter().zip(gradients).enumerate() {
            let row = &state.moments[(first + at) * state.depth..][first..last];
            let mut products: Lanes = [0.0; LANES];
            for (moment, other) in row.iter().zip(integers) {
                let moment = f64::from(*moment);
                for lane in 0..LANES {
                    products[lane] += moment * other[lane];
                }
            }
            let row_sum = state.row_sums[first + at];
            for lane in 0..LANES {
                sums[0][lane] += q[lane] * products[lane];
                sums[1][lane] += q[lane] * row_sum;
                sums[2][lane] += row_sum;
                sums[3][lane] += q[lane] * g[lane];
                sums[4][lane] += g[lane];
            }
        }
        sums
    }
}

/// A change of the scale and the zero point of a block.
#[derive(Clone, Copy, Default, PartialEq)]
struct Change {
    /// What is added to the errors: `factor·q + offset`.
    factor: f64,
    offset: f64,
    /// What is added to the zero point.
    shift: f64,
}

/// Applies changes to the errors, gradients and integers of a block.
struct Shift<'s, 'a> {
    state: &'s mut State<'a>,
    block: usize,
    changes: [Change; LANES],
}

impl SimdLoop for Shift<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Shift { state, block, changes } = self;
        let first = block * state.block;
        for at in first..(first + state.block).min(state.depth) {
            let mut change: Lanes = [0.0; LANES];
            let here = at * LANES..(at + 1) * LANES;
            let integers = state.integers[here.clone()].iter_mut();
            let values = integers.zip(&mut state.errors[here]);
            for ((change, of_lane), (integer, error)) in change.iter_mut().zip(changes).zip(values)
            {
                let Change { factor, offset, shift } = of_lane;
                *change = factor * *integer + offset;
                *error += *change;
                *integer -= shift;
            }
            let row = &state.moments[at * state.depth..][..state.depth];
            add_to_gradients(&mut state.gradients, row, &change);
        }
    }
}
