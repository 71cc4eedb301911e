//! Selects the candidate parameters with the smallest squared error of a group.

use rayon::prelude::*;

use super::groups::Rows;
use super::lanes::{Candidates, Ends, LANES, LaneParams, Row};
use super::{Choices, MAX_CHOICES, WeightMethod};
use crate::float_source::Element;
use crate::kernels::reference::{dequantize_one, quantize_one};
use crate::rounding::MAGIC;
use crate::simd::{SimdLoop, vectorized};
use crate::{Params, QSpec, Range};

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

/// Groups of up to this many elements are processed in lanes.
const MAX_LANE_DEPTH: usize = 1 << 10;

/// Fewer groups are processed one after the other.
const MIN_LANES: usize = 4;

/// [`of`] for each of the contiguous groups of `depth` elements; the last may have fewer.
pub(super) fn of_each<X: Element>(
    x: &[X],
    depth: usize,
    ranges: &[Range],
    spec: &QSpec,
    method: WeightMethod,
) -> Vec<Params> {
    if (1..=MAX_LANE_DEPTH).contains(&depth) && x.len() >= MIN_LANES * depth {
        return vectorized(Each { x, depth, ranges, spec, method });
    }
    let found = |(x, range): (&[X], &Range)| of(x, method.choices(*range, spec).as_slice(), spec);
    if depth == 0 {
        return ranges.iter().map(|range| found((x, range))).collect();
    }
    x.chunks(depth).zip(ranges).map(found).collect()
}

/// [`of`] for each of the groups that are columns of rows.
pub(super) fn of_columns<X: Element>(
    rows: Rows<'_, X>,
    ranges: &[Range],
    spec: &QSpec,
    method: WeightMethod,
) -> Vec<Params> {
    if rows.depth > MAX_LANE_DEPTH {
        return of_each(&rows.gathered(), rows.depth, ranges, spec, method);
    }
    vectorized(Columns { rows, ranges, spec, method })
}

struct Each<'a, X> {
    x: &'a [X],
    depth: usize,
    ranges: &'a [Range],
    spec: &'a QSpec,
    method: WeightMethod,
}

impl<X: Element> SimdLoop for Each<'_, X> {
    type Output = Vec<Params>;

    #[inline(always)]
    fn run(self) -> Vec<Params> {
        let Each { x, depth, ranges, spec, method } = self;
        let mut found = Vec::with_capacity(x.len().div_ceil(depth));
        let mut rows = vec![[0.0; LANES]; depth];
        for x in x.chunks(depth * LANES) {
            let (whole, rest) = x.split_at(x.len() - x.len() % depth);
            for (x, depth) in [(whole, depth), (rest, rest.len())] {
                if x.is_empty() {
                    continue;
                }
                let rows = &mut rows[..depth];
                for (lane, x) in x.chunks_exact(depth).enumerate() {
                    for (row, x) in rows.iter_mut().zip(x) {
                        row[lane] = x.value();
                    }
                }
                let ranges = &ranges[found.len()..][..x.len() / depth];
                found.extend(of_ranges(rows, ranges, spec, method));
            }
        }
        found
    }
}

struct Columns<'a, X> {
    rows: Rows<'a, X>,
    ranges: &'a [Range],
    spec: &'a QSpec,
    method: WeightMethod,
}

impl<X: Element> SimdLoop for Columns<'_, X> {
    type Output = Vec<Params>;

    #[inline(always)]
    fn run(self) -> Vec<Params> {
        let Columns { rows: from, ranges, spec, method } = self;
        let mut found = Vec::with_capacity(from.count);
        let mut rows = vec![[0.0; LANES]; from.depth];
        for (tile, ranges) in ranges[..from.count].chunks(LANES).enumerate() {
            for (row, into) in rows.iter_mut().enumerate() {
                let x = &from.row(row)[tile * LANES..][..ranges.len()];
                for (into, x) in into.iter_mut().zip(x) {
                    *into = x.value();
                }
            }
            found.extend(of_ranges(&rows, ranges, spec, method));
        }
        found
    }
}

/// [`of_lanes`] for as many groups as there are ranges.
#[inline(always)]
fn of_ranges(
    rows: &[Row],
    ranges: &[Range],
    spec: &QSpec,
    method: WeightMethod,
) -> impl Iterator<Item = Params> {
    let candidates = method.candidates(&Ends::gathered(ranges), spec);
    let found = of_lanes(rows, ranges.len(), &candidates, spec);
    (0..ranges.len()).map(move |lane| found.lane(lane))
}

/// [`of`] for each of `count` groups side by side.
#[inline(always)]
pub(super) fn of_lanes(
    x: &[Row],
    count: usize,
    candidates: &Candidates,
    spec: &QSpec,
) -> LaneParams {
    let all = candidates.as_slice();
    let [first, others @ ..] = all else { return LaneParams::UNIT };
    if others.is_empty() {
        return *first;
    }
    let grid = spec.grid();
    // Candidates that do not exist never have the smallest error.
    let mut errors = [[f64::INFINITY; LANES]; MAX_CHOICES];
    for at in 0..all.len() {
        errors[at] = squared_in_lanes(x, &all[at], grid);
    }
    let depth = x.len() as f64;
    let (mut scale, mut zero, mut close) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    // One loop, in f64 throughout: the compiler unrolls shorter ones to scalar code.
    for lane in 0..LANES {
        let (mut scales, mut zeros) = ([0.0; MAX_CHOICES], [0.0; MAX_CHOICES]);
        for at in 0..MAX_CHOICES {
            scales[at] = f64::from(candidates.all[at].scale[lane]);
            zeros[at] = f64::from(candidates.all[at].zero[lane]);
        }
        let (mut least, mut best, mut point) = (errors[0][lane], scales[0], zeros[0]);
        for at in 1..MAX_CHOICES {
            let less = errors[at][lane] < least;
            least = if less { errors[at][lane] } else { least };
            best = if less { scales[at] } else { best };
            point = if less { zeros[at] } else { point };
        }
        // The conditions of `first_minimum`.
        let mut unsure = least <= coarse(depth, best);
        for at in 0..MAX_CHOICES {
            let differs = scales[at] != best || zeros[at] != point;
            unsure |= (errors[at][lane] <= near(least, grid)) & differs;
        }
        (scale[lane], zero[lane]) = (best, point);
        close[lane] = if unsure { 1.0 } else { 0.0 };
    }
    let mut found = LaneParams::UNIT;
    for lane in 0..LANES {
        (found.scale[lane], found.zero[lane]) = (scale[lane] as f32, zero[lane] as f32);
    }
    for lane in 0..count {
        if close[lane] != 0.0 {
            let errors = errors.map(|errors| errors[lane]);
            found.set(lane, decide(x, lane, &candidates.lane(lane), &errors, spec));
        }
    }
    found
}

/// The choice for a lane with close errors.
#[cold]
#[inline(never)]
fn decide(
    x: &[Row],
    lane: usize,
    choices: &Choices,
    errors: &[f64; MAX_CHOICES],
    spec: &QSpec,
) -> Params {
    let exactly = |choice| exact(x.iter().map(|row| &row[lane]), choice, spec);
    first_minimum(choices.as_slice(), errors, x.len(), spec.grid(), exactly)
}

/// [`squared`] in each lane.
#[inline(always)]
fn squared_in_lanes(x: &[Row], params: &LaneParams, (lo, hi): (i32, i32)) -> [f64; LANES] {
    let (mut per_unit, mut low, mut high) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        per_unit[lane] = 1.0 / params.scale[lane];
        low[lane] = lo as f32 - params.zero[lane];
        high[lane] = hi as f32 - params.zero[lane];
    }
    let mut total = [0.0; LANES];
    for stretch in x.chunks(SPAN) {
        let mut sums = [[0.0_f32; LANES]; PARTS];
        let (whole, rest) = stretch.as_chunks::<PARTS>();
        for rows in whole {
            for lane in 0..LANES {
                let steps = Steps { per_unit: per_unit[lane], lo: low[lane], hi: high[lane] };
                for part in 0..PARTS {
                    sums[part][lane] += steps.error(rows[part][lane]);
                }
            }
        }
        for part in 0..rest.len() {
            for lane in 0..LANES {
                let steps = Steps { per_unit: per_unit[lane], lo: low[lane], hi: high[lane] };
                sums[part][lane] += steps.error(rest[part][lane]);
            }
        }
        for lane in 0..LANES {
            let mut sum = 0.0;
            for part in &sums {
                sum += part[lane];
            }
            total[lane] += f64::from(sum);
        }
    }
    for (total, scale) in total.iter_mut().zip(params.scale) {
        *total *= f64::from(scale) * f64::from(scale);
    }
    total
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
    let near = near(errors[least], grid);
    // Without unpredictable branches.
    let rivals: usize = errors.iter().map(|error| usize::from(*error <= near)).sum();
    let twins = || {
        let mut pairs = errors.iter().zip(choices);
        pairs.all(|(error, choice)| *error > near || *choice == choices[least])
    };
    if errors[least] > coarse(count as f64, f64::from(choices[least].scale))
        && (rivals == 1 || twins())
    {
        return choices[least];
    }
    resolve_near_ties(choices, errors, count, grid, exactly)
}

/// The sum of squares of errors of a seventh of a step.
#[inline(always)]
fn coarse(count: f64, scale: f64) -> f64 {
    let step = scale / 7.0;
    count * step * step
}

/// Errors up to this are too close to `least` to compare, if that is more than [`coarse`]. With
/// errors of a seventh of a step and more, the relative error of a sum is up to 14 times that of a
/// position, or 56 times with steps four times as wide. The margin allows for three times both.
#[inline(always)]
fn near(least: f64, grid: (i32, i32)) -> f64 {
    least * (1.0 + 224.0 * off(grid))
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
const PARTS: usize = 8;

/// The sum of squared errors, computed in units of steps so that it neither overflows nor
/// underflows.
#[inline(always)]
fn squared<X: Element>(x: &[X], params: Params, grid: (i32, i32)) -> f64 {
    let steps = Steps::of(params, grid);
    let mut total = 0.0;
    for stretch in x.chunks(SPAN) {
        let mut sums = [0.0_f32; PARTS];
        let (rows, rest) = stretch.as_chunks::<PARTS>();
        for row in rows {
            for part in 0..PARTS {
                sums[part] += steps.error(row[part].value());
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
