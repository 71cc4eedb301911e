//! The range with the least error.

use std::borrow::Cow;

use super::density::Density;
use super::tail::TailEstimate;
use super::{Degenerate, FoundRange, RangeFinder, clipped, not_zero};
use crate::stats::Sketch;
use crate::{QSpec, Range, params};

/// Minimises the mean squared error of quantizing and dequantizing, on the very grid that the spec would lay: that of what
/// was seen, and of what samples that were not seen are expected to hold beyond it ([`TailEstimate`]).
///
/// Clipping costs `Σ (|x| - end)²` over what is clipped, and saves `(Δ² - δ²) / 12` for each of the others when it makes
/// steps of `Δ` into steps of `δ`. Both ends are searched, by how often each is halved: first all pairs of
/// half a halving, then around the best with ever smaller ones. Steps of floats are finer the smaller the values are, so
/// that clipping saves little there: the search decides how the values lie to the powers of two.
#[derive(Debug)]
pub(super) struct Mse;

/// The most often that an end is halved, and how far apart the first candidates are.
const MAX_HALVINGS: f64 = 11.0;
const COARSE_STEP: f64 = 0.5;

/// The most often that an end is doubled, where samples that were not seen may go further.
const MAX_DOUBLINGS: f64 = 1.0;

/// The distance of the last candidates: 2^(1/128) is half a percent, a step of 8 bits.
const FINE_STEP: f64 = 1.0 / 128.0;

/// Another range than the full one has to save this much. Values that are spread evenly up to the end, as nothing should
/// be cut from, gain nearly one step in 256, twice that squared: the outermost steps only have values on one side.
const MAX_ERROR_RATIO: f64 = 0.99;

impl RangeFinder for Mse {
    fn name(&self) -> Cow<'static, str> {
        "mse".into()
    }

    fn about(&self) -> &'static str {
        "the least squared error of quantizing, with room for what other samples hold"
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> FoundRange {
        let values = seen.values();
        let full = values.range();
        if let Some(found) = FoundRange::trivial(full) {
            return found;
        }
        let occurring = not_zero(&values);
        if occurring < spec.levels() {
            return FoundRange::full(full, Degenerate::TooFew { values: occurring });
        }
        let density = Density::of(&values);
        let tails = TailEstimate::of(seen, &density);
        let count = values.count() as f64;
        let candidate = |halvings: [f64; 2], most: f64| {
            let range = moved(full, halvings, spec.symmetric);
            let beyond = tails.clipped(params(range, spec).representable(spec)) / count;
            let error = density.error_up_to(most - beyond, spec, range) + beyond;
            Candidate { halvings, range, error }
        };
        let full_error = candidate([0.0; 2], f64::INFINITY).error;
        let best = search(free(full, &tails, spec.symmetric), candidate);
        FoundRange::of(
            if best.error < MAX_ERROR_RATIO * full_error { best.range } else { full },
            full,
        )
    }
}

/// How often each end may be halved, from and to; if symmetric, the magnitude as often as the lower.
fn free(full: Range, tails: &TailEstimate, symmetric: bool) -> [[f64; 2]; 2] {
    let from = tails.ends().map(|end| if end { -MAX_DOUBLINGS } else { 0.0 });
    if symmetric {
        return [[from[0].min(from[1]), MAX_HALVINGS], [0.0; 2]];
    }
    // An end on the other side of zero is not the grid's, which begins at zero.
    let span = |from: f64, is_end: bool| if is_end { [from, MAX_HALVINGS] } else { [0.0; 2] };
    [span(from[0], full.min < 0.0), span(from[1], full.max > 0.0)]
}

/// The range with the lower and the upper end halved so often; if symmetric, the magnitude as often as the lower.
fn moved(full: Range, [down, up]: [f64; 2], symmetric: bool) -> Range {
    let halved = |end: f32, halvings: f64| {
        let end = f64::from(end) * (-halvings).exp2();
        end.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    };
    if !symmetric {
        // Values on one side of zero: no end gets past all of them.
        let (min, max) = (halved(full.min, down), halved(full.max, up));
        return Range { min: min.min(full.max), max: max.max(full.min) };
    }
    let absmax = halved(full.absmax(), down);
    if down >= 0.0 {
        return clipped(full, absmax);
    }
    // The end that is further from zero is the one that decides.
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
    /// The one with the lesser error; this one when neither is.
    fn or(self, other: Candidate) -> Candidate {
        if other.error < self.error { other } else { self }
    }
}

/// The candidate with the least error, over how often each end is halved, within these bounds. Of candidates with more
/// than an error that is there already the error need not be found.
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
        // Twice, which gets anywhere within the step before.
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
    fn what_is_left_out_would_not_have_been_taken() {
        for (qtype, symmetric) in [(QType::UInt8, false), (QType::Int8, true), (QType::Int4, false)]
        {
            let spec = QSpec::new(qtype, symmetric, Granularity::PerTensor);
            for power in 1..8 {
                let mut seen = Sketch::default();
                let value = |i: i32| (f64::from(i * 7919 % 20_011) / 1e4 - 0.7).powi(power) as f32;
                seen.observe(&(0..20_011).map(value).collect::<Vec<f32>>());
                let density = Density::of(&seen.values());
                let left_out = Cell::new(0);
                let candidate = |halvings: [f64; 2], most: f64| {
                    let range = moved(seen.range(), halvings, symmetric);
                    let error = density.error(&spec, range);
                    let found = density.error_up_to(most, &spec, range);
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
