//! The range with the smallest squared error.

use std::borrow::Cow;

use super::density::Density;
use super::tail::TailEstimate;
use super::{Degenerate, FoundRange, RangeFinder, clipped, not_zero};
use crate::stats::{Distribution, Sketch};
use crate::{MathError, QSpec, Range, params};

/// Minimizes the mean squared error of quantizing and dequantizing on the grid of the spec: the
/// error of the observed values, plus the expected error of values of other samples beyond the
/// observed range ([`TailEstimate`]).
///
/// Clipping costs `Σ (|x| - end)²` over the clipped values, and saves `(Δ² - δ²) / 12` for each of
/// the others when it reduces the step from `Δ` to `δ`. Both ends are searched on a logarithmic
/// scale: first all pairs of multiples of half a halving, then around the best with decreasing
/// distances. Steps of floats are finer for smaller values, so clipping saves little there: the
/// search determines the position of the values relative to the powers of two.
///
/// Clipping may count more than once. Rounding errors of neighboring values are independent, and
/// partly cancel where a layer sums them; clipping errors have one sign and lie side by side, so
/// that they add up.
///
/// A grid of 16 bits has steps to spare: nothing is clipped, and values of other samples may be up
/// to four times as large as all that were observed, as long as rounding errors stay 60 dB below
/// the values.
#[derive(Debug)]
pub(super) struct Mse {
    /// How often the clipping error counts.
    clipping_weight: f64,
}

impl Mse {
    pub(super) const USUAL: Mse = Mse { clipping_weight: 1.0 };
}

/// The largest weight of the clipping error.
const MAX_CLIPPING_WEIGHT: f64 = 1000.0;

/// The maximum number of halvings of an end, and the distance between the first candidates.
const MAX_HALVINGS: f64 = 11.0;
const COARSE_STEP: f64 = 0.5;

/// The maximum number of doublings of an end, to leave headroom for other samples.
const MAX_DOUBLINGS: f64 = 1.0;

/// Grids with this many levels have steps to spare.
const MIN_SPARE_LEVELS: u64 = 1 << 14;

/// How much larger than the observed values those of other samples may be on such grids.
const MAX_SPARE_HEADROOM: f64 = 4.0;

/// The part of the mean square of the values that the error of rounding may be then.
const MAX_ROUNDING_PART: f64 = 1e-6;

/// The distance between the last candidates: 2^(1/128) is half a percent, which is a step of 8
/// bits.
const FINE_STEP: f64 = 1.0 / 128.0;

/// The largest ratio of an error to that of the full range for which a range is taken. Values that
/// are spread evenly up to the ends, which should not be clipped, gain nearly one step in 256, so
/// twice that in squared error: the outermost steps have values on one side only.
const MAX_ERROR_RATIO: f64 = 0.99;

impl RangeFinder for Mse {
    fn name(&self) -> Cow<'static, str> {
        if self.clipping_weight == Self::USUAL.clipping_weight {
            "mse".into()
        } else {
            format!("mse:{}", self.clipping_weight).into()
        }
    }

    fn about(&self) -> &'static str {
        "the smallest squared error of quantizing, with headroom for other samples"
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange {
        let values = seen.values();
        let full = values.range();
        if let Some(found) = FoundRange::trivial(full) {
            return found;
        }
        if spec.levels() >= MIN_SPARE_LEVELS {
            return FoundRange::of(with_headroom(&values, spec), full);
        }
        let occurring = not_zero(&values);
        if occurring < spec.levels() {
            return FoundRange::full(full, Degenerate::TooFew { values: occurring });
        }
        let density = Density::of(&values);
        let tails = TailEstimate::of(seen, &density);
        let count = values.count() as f64;
        let weight = self.clipping_weight;
        let candidate = |halvings: [f64; 2], most: f64| {
            let range = moved(full, halvings, spec.symmetric);
            let beyond = tails.clipped(params(range, spec).representable(spec)) / count * weight;
            let error = density.error_up_to(most - beyond, weight, spec, range) + beyond;
            Candidate { halvings, range, error }
        };
        let full_error = candidate([0.0; 2], f64::INFINITY).error;
        let best = search(free(full, &tails, spec.symmetric), candidate);
        FoundRange::of(
            if best.error < MAX_ERROR_RATIO * full_error { best.range } else { full },
            full,
        )
    }

    fn parameter(&self) -> Option<&'static str> {
        Some("WEIGHT")
    }

    fn with(&self, parameter: &str) -> Result<Box<dyn RangeFinder>, MathError> {
        let weight = parameter.parse().ok().filter(|at| (1.0..=MAX_CLIPPING_WEIGHT).contains(at));
        let clipping_weight =
            weight.ok_or_else(|| MathError::ClippingWeight { found: parameter.to_owned() })?;
        Ok(Box::new(Mse { clipping_weight }))
    }
}

/// The range of the values, and the headroom that a grid with steps to spare allows.
fn with_headroom(values: &Distribution, spec: &QSpec) -> Range {
    let full = values.range();
    let (mean, std) = (values.mean().unwrap_or(0.0), values.std().unwrap_or(0.0));
    let rounding = f64::from(params(full, spec).scale).powi(2) / 12.0;
    let headroom = ((mean * mean + std * std) * MAX_ROUNDING_PART / rounding).sqrt();
    let doublings = headroom.min(MAX_SPARE_HEADROOM).log2();
    if doublings > 0.0 {
        // The grid begins at zero, so that an end on the other side of it does not matter.
        let moves = |is_end: bool| if is_end { -doublings } else { 0.0 };
        let ends = [moves(spec.symmetric || full.min < 0.0), moves(full.max > 0.0)];
        moved(full, ends, spec.symmetric)
    } else {
        full
    }
}

/// The interval of halvings of each end. If symmetric, the first is that of the magnitude.
fn free(full: Range, tails: &TailEstimate, symmetric: bool) -> [[f64; 2]; 2] {
    let from = tails.ends().map(|end| if end { -MAX_DOUBLINGS } else { 0.0 });
    if symmetric {
        return [[from[0].min(from[1]), MAX_HALVINGS], [0.0; 2]];
    }
    // An end on the other side of zero does not matter, because the grid begins at zero.
    let span = |from: f64, is_end: bool| if is_end { [from, MAX_HALVINGS] } else { [0.0; 2] };
    [span(from[0], full.min < 0.0), span(from[1], full.max > 0.0)]
}

/// The range with both ends halved this often. If symmetric, the first is that of the magnitude.
fn moved(full: Range, [down, up]: [f64; 2], symmetric: bool) -> Range {
    let halved = |end: f32, halvings: f64| {
        let end = f64::from(end) * (-halvings).exp2();
        end.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    };
    if !symmetric {
        // All values on one side of zero: no end moves past all of them.
        let (min, max) = (halved(full.min, down), halved(full.max, up));
        return Range { min: min.min(full.max), max: max.max(full.min) };
    }
    let absmax = halved(full.absmax(), down);
    if down >= 0.0 {
        return clipped(full, absmax);
    }
    // The end that is further from zero determines the range.
    if -full.min > full.max {
        Range { min: -absmax, ..full }
    } else {
        Range { max: absmax, ..full }
    }
}

/// A range and its error.
#[derive(Clone, Copy)]
struct Candidate {
    halvings: [f64; 2],
    range: Range,
    error: f64,
}

impl Candidate {
    /// The candidate with the smaller error; this one if they are equal.
    fn or(self, other: Candidate) -> Candidate {
        if other.error < self.error { other } else { self }
    }
}

/// The candidate with the smallest error within the bounds of halvings of each end. The error of a
/// candidate need not be computed further once it exceeds the best so far.
fn search(bounds: [[f64; 2]; 2], candidate: impl Fn([f64; 2], f64) -> Candidate) -> Candidate {
    let coarse = |[from, to]: [f64; 2]| {
        (0..=((to - from) / COARSE_STEP) as u32)
            .map(move |steps| from + f64::from(steps) * COARSE_STEP)
    };
    let mut best = candidate([0.0; 2], f64::INFINITY);
    for down in coarse(bounds[0]) {
        for up in coarse(bounds[1]) {
            best = best.or(candidate([down, up], best.error));
        }
    }
    let mut step = COARSE_STEP / 2.0;
    while step >= FINE_STEP {
        // Twice, which reaches any point within the previous step.
        for _ in 0..2 {
            let [from_down, from_up] = best.halvings;
            let around = |from: f64, [least, most]: [f64; 2]| {
                let directions = if least < most { &[-1.0, 0.0, 1.0][..] } else { &[0.0] };
                directions.iter().map(move |way| (from + way * step).max(least))
            };
            for down in around(from_down, bounds[0]) {
                for up in around(from_up, bounds[1]) {
                    best = best.or(candidate([down, up], best.error));
                }
            }
        }
        step /= 2.0;
    }
    best
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Granularity, QType};

    #[test]
    fn skipped_candidates_would_not_have_been_chosen() {
        for (qtype, symmetric) in [(QType::UInt8, false), (QType::Int8, true), (QType::Int4, false)]
        {
            let spec = QSpec::new(qtype, symmetric, Granularity::PerTensor);
            for (power, weight) in (1..8).flat_map(|power| [(power, 1.0), (power, 3.0)]) {
                let mut seen = Sketch::default();
                let value = |i: i32| (f64::from(i * 7919 % 20_011) / 1e4 - 0.7).powi(power) as f32;
                seen.observe(&(0..20_011).map(value).collect::<Vec<f32>>());
                let density = Density::of(&seen.values());
                let left_out = Cell::new(0);
                let candidate = |halvings: [f64; 2], most: f64| {
                    let range = moved(seen.range(), halvings, symmetric);
                    let error = density.error_up_to(f64::INFINITY, weight, &spec, range);
                    let found = density.error_up_to(most, weight, &spec, range);
                    left_out.set(left_out.get() + u32::from(found > error));
                    assert!(found == error || error > most, "{found} {error} {most} {range:?}");
                    Candidate { halvings, range, error }
                };
                search(
                    [[0.0, MAX_HALVINGS], [0.0, if symmetric { 0.0 } else { MAX_HALVINGS }]],
                    candidate,
                );
                assert!(left_out.get() > 5, "{qtype:?} {power}: {}", left_out.get());
            }
        }
    }
}
