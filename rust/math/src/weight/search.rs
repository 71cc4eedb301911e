//! Selects the candidate parameters with the smallest squared error of a group.

use rayon::prelude::*;

use super::groups::{Rows, TILE};
use super::{Choices, MAX_CHOICES};
use crate::float_source::Element;
use crate::kernels::reference::{dequantize_one, quantize_one};
use crate::rounding::MAGIC;
use crate::simd::{SimdLoop, vectorized};
use crate::{Params, QSpec};

/// The minimum number of elements per parallel task.
const TASK: usize = 1 << 16;

/// Elements whose errors are added in f32.
const SPAN: usize = 1 << 12;

/// The first of `choices` with the smallest sum of squared errors.
///
/// Sums are computed over tasks of a fixed size and added in order: the result does not depend on
/// the number of threads.
pub(super) fn of<X: Element>(x: &[X], choices: &[Params], spec: &QSpec) -> Params {
    let errors = |x| vectorized(Errors { x, choices, grid: spec.grid() });
    let errors = if x.len() <= TASK {
        errors(x)
    } else {
        let parts: Vec<[f64; MAX_CHOICES]> = x.par_chunks(TASK).map(errors).collect();
        parts.iter().fold([0.0; MAX_CHOICES], |mut total, part| {
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
            total
        })
    };
    first_minimum(choices, &errors, x.len(), spec.grid(), |choice| {
        let parts = x.par_chunks(TASK).map(|x| exact(x.iter(), choice, spec));
        parts.collect::<Vec<f64>>().iter().sum()
    })
}

/// [`of`] for each of the contiguous groups of `depth` elements; the last may have fewer.
pub(super) fn of_each<X: Element>(
    x: &[X],
    depth: usize,
    choices: impl Fn(usize) -> Choices,
    spec: &QSpec,
) -> Vec<Params> {
    if x.len() <= depth {
        return vec![of(x, choices(0).as_slice(), spec)];
    }
    if depth > MAX_SMALL_DEPTH {
        let groups = x.chunks(depth).enumerate();
        return groups.map(|(at, x)| of(x, choices(at).as_slice(), spec)).collect();
    }
    vectorized(Each { x, depth, choices, spec })
}

/// Groups of up to this many elements are so small that the cost of switching to wide vectors is
/// noticeable.
const MAX_SMALL_DEPTH: usize = 1 << 10;

struct Each<'a, X, C> {
    x: &'a [X],
    depth: usize,
    choices: C,
    spec: &'a QSpec,
}

impl<X: Element, C: Fn(usize) -> Choices> SimdLoop for Each<'_, X, C> {
    type Output = Vec<Params>;

    #[inline(always)]
    fn run(self) -> Vec<Params> {
        let Each { x, depth, choices, spec } = self;
        let mut found = Vec::with_capacity(x.len().div_ceil(depth));
        for (at, x) in x.chunks(depth).enumerate() {
            let choices = choices(at);
            let choices = choices.as_slice();
            let errors = Errors { x, choices, grid: spec.grid() }.run();
            let exactly = |choice| exact(x.iter(), choice, spec);
            found.push(first_minimum(choices, &errors, x.len(), spec.grid(), exactly));
        }
        found
    }
}

/// [`of`] for each of the groups that are columns of rows. All columns have the same number of
/// candidates.
pub(super) fn of_columns<X: Element>(
    rows: Rows<'_, X>,
    choices: impl Fn(usize) -> Choices,
    spec: &QSpec,
) -> Vec<Params> {
    if rows.depth > MAX_SMALL_DEPTH {
        return of_each(&rows.gathered(), rows.depth, choices, spec);
    }
    vectorized(Columns { rows, choices, spec })
}

struct Columns<'a, X, C> {
    rows: Rows<'a, X>,
    choices: C,
    spec: &'a QSpec,
}

impl<X: Element, C: Fn(usize) -> Choices> SimdLoop for Columns<'_, X, C> {
    type Output = Vec<Params>;

    /// Adds in the order of [`squared`], so that the memory layout of a group does not change the
    /// result.
    #[inline(always)]
    fn run(self) -> Vec<Params> {
        let Columns { rows, choices, spec } = self;
        let grid = spec.grid();
        let choices: Vec<Choices> = (0..rows.count).map(choices).collect();
        let count = choices.first().map_or(0, |choices| choices.count);
        let mut floats = vec![[0.0_f32; TILE]; rows.depth];
        for (row, floats) in floats.iter_mut().enumerate() {
            floats.iter_mut().zip(rows.row(row)).for_each(|(float, x)| *float = x.value());
        }
        let mut errors = vec![[0.0; MAX_CHOICES]; rows.count];
        for choice in 0..count {
            let (mut per_unit, mut lo, mut hi) = ([1.0; TILE], [0.0; TILE], [0.0; TILE]);
            for (column, choices) in choices.iter().enumerate() {
                let steps = Steps::of(choices.all[choice], grid);
                (per_unit[column], lo[column], hi[column]) = (steps.per_unit, steps.lo, steps.hi);
            }
            let mut sums = [[0.0_f32; TILE]; LANES];
            for (row, x) in floats.iter().enumerate() {
                let sums = &mut sums[row % LANES];
                for column in 0..TILE {
                    let steps =
                        Steps { per_unit: per_unit[column], lo: lo[column], hi: hi[column] };
                    sums[column] += steps.error(x[column]);
                }
            }
            for (column, errors) in errors.iter_mut().enumerate() {
                let sum: f32 = sums.iter().map(|sums| sums[column]).sum();
                let scale = f64::from(choices[column].all[choice].scale);
                errors[choice] = f64::from(sum) * scale.powi(2);
            }
        }
        let found = choices.iter().zip(&errors).enumerate().map(|(column, (all, errors))| {
            let exactly = |choice| exact(floats.iter().map(|row| &row[column]), choice, spec);
            first_minimum(all.as_slice(), errors, floats.len(), grid, exactly)
        });
        found.collect()
    }
}

/// [`of`] for a few floats. Call it from code that is already compiled for wide vectors.
#[inline(always)]
pub(super) fn of_few(x: &[f32], choices: &[Params], spec: &QSpec) -> Params {
    let [only] = choices else {
        let errors = Errors { x, choices, grid: spec.grid() }.run();
        return first_minimum(choices, &errors, x.len(), spec.grid(), |choice| {
            exact(x.iter(), choice, spec)
        });
    };
    *only
}

/// If the f32 `errors` of `count` elements are too close to compare, `exactly` decides.
#[inline(always)]
fn first_minimum(
    choices: &[Params],
    errors: &[f64; MAX_CHOICES],
    count: usize,
    grid: (i32, i32),
    exactly: impl Fn(Params) -> f64,
) -> Params {
    let errors = &errors[..choices.len()];
    let less = |a: usize, b: usize| if errors[b] < errors[a] { b } else { a };
    let least = (1..errors.len()).fold(0, less);
    // With errors of a seventh of a step and more, the relative error of a sum is up to 14 times
    // that of a position, or 56 times with steps four times as wide. The margin allows for three
    // times both.
    let (off, step) = (off(grid), f64::from(choices[least].scale) / 7.0);
    let near = errors[least] * (1.0 + 224.0 * off);
    // Without unpredictable branches.
    let rivals: usize = errors.iter().map(|error| usize::from(*error <= near)).sum();
    let twins = || {
        let mut pairs = errors.iter().zip(choices);
        pairs.all(|(error, choice)| *error > near || *choice == choices[least])
    };
    if errors[least] > count as f64 * step * step && (rivals == 1 || twins()) {
        return choices[least];
    }
    resolve_near_ties(choices, errors, count, grid, exactly)
}

/// An upper bound of the error of an element's position, in steps: two f32 roundings of numbers up
/// to the length of the grid, doubled to allow for the roundings of sums.
#[inline(always)]
fn off((lo, hi): (i32, i32)) -> f64 {
    f64::from(hi - lo + 4) / f64::from(1 << 22)
}

/// [`first_minimum`] when two candidates have nearly equal errors.
///
/// For n elements with errors e, in steps, that are each off by up to o, the sum of squares is off
/// by up to `2 o √(n Σe²) + n o²`. The comparison is squared to avoid the root.
#[cold]
fn resolve_near_ties(
    choices: &[Params],
    errors: &[f64],
    count: usize,
    grid: (i32, i32),
    exactly: impl Fn(Params) -> f64,
) -> Params {
    // (a + b)² is at most 2 a² + 2 b².
    let squared = |at: usize| {
        let off = (off(grid) * f64::from(choices[at].scale)).powi(2);
        2.0 * off * count as f64 * (4.0 * errors[at] + count as f64 * off)
    };
    let mut least = 0;
    for next in 1..choices.len() {
        let apart = errors[least] - errors[next];
        let unsure = apart * apart <= 2.0 * (squared(least) + squared(next));
        let (a, b) = (choices[least], choices[next]);
        if apart > 0.0 && !unsure || unsure && a != b && exactly(b) < exactly(a) {
            least = next;
        }
    }
    choices[least]
}

/// The sum of squared errors, by definition.
#[cold]
fn exact<'a, X: Element + 'a>(x: impl Iterator<Item = &'a X>, params: Params, spec: &QSpec) -> f64 {
    let squared = |x: &X| {
        let back = dequantize_one(quantize_one(x.value(), params, spec), params, spec.qtype);
        (f64::from(x.value()) - f64::from(back)).powi(2)
    };
    x.map(squared).sum()
}

/// The squared error of each candidate.
struct Errors<'a, X> {
    x: &'a [X],
    choices: &'a [Params],
    grid: (i32, i32),
}

impl<X: Element> SimdLoop for Errors<'_, X> {
    type Output = [f64; MAX_CHOICES];

    #[inline(always)]
    fn run(self) -> [f64; MAX_CHOICES] {
        let mut errors = [0.0; MAX_CHOICES];
        for (error, params) in errors.iter_mut().zip(self.choices) {
            *error = squared(self.x, *params, self.grid);
        }
        errors
    }
}

/// The number of partial sums.
const LANES: usize = 8;

/// The sum of squared errors, computed in units of steps so that it neither overflows nor
/// underflows.
#[inline(always)]
fn squared<X: Element>(x: &[X], params: Params, grid: (i32, i32)) -> f64 {
    let steps = Steps::of(params, grid);
    let mut total = 0.0;
    for stretch in x.chunks(SPAN) {
        let mut sums = [0.0_f32; LANES];
        let (rows, rest) = stretch.as_chunks::<LANES>();
        for row in rows {
            for lane in 0..LANES {
                sums[lane] += steps.error(row[lane].value());
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += steps.error(x.value());
        }
        total += f64::from(sums.iter().sum::<f32>());
    }
    total * f64::from(params.scale).powi(2)
}

/// A grid in steps from 0.
#[derive(Clone, Copy)]
struct Steps {
    /// Steps per unit: a multiplication is faster than a division, and accurate enough for a
    /// comparison.
    per_unit: f32,
    lo: f32,
    hi: f32,
}

impl Steps {
    #[inline(always)]
    fn of(params: Params, (lo, hi): (i32, i32)) -> Steps {
        let zero = params.zero_point as f32;
        Steps { per_unit: 1.0 / params.scale, lo: lo as f32 - zero, hi: hi as f32 - zero }
    }

    /// The squared error of an element, in steps.
    #[inline(always)]
    fn error(self, x: f32) -> f32 {
        let steps = x * self.per_unit;
        let inside = if steps > self.lo { steps } else { self.lo };
        let inside = if inside < self.hi { inside } else { self.hi };
        let off = steps - ((inside + MAGIC) - MAGIC);
        off * off
    }
}
