//! The range with the least error.

use std::borrow::Cow;

use super::density::Density;
use super::{Degenerate, Found, RangeFinder, clipped, not_zero, within};
use crate::stats::Sketch;
use crate::{QSpec, Range};

/// Minimises the mean squared error of quantizing and dequantizing, on the very grid that the spec would lay.
///
/// Clipping costs `Σ (|x| - end)²` over what is clipped, and saves `(Δ² - δ²) / 12` for each of the others when it makes
/// steps of `Δ` into steps of `δ`. Both ends are searched, by how often each is halved: first all pairs of
/// half a halving, then around the best with ever smaller ones. Steps of floats are finer the smaller the values are, so
/// that clipping saves little there: the search decides how the values lie to the powers of two.
#[derive(Debug)]
pub(super) struct Mse;

/// The most often that an end is halved, and how far apart the first candidates are.
const MOST: f64 = 11.0;
const COARSE: f64 = 0.5;

/// The distance of the last candidates: 2^(1/128) is half a percent, a step of 8 bits.
const FINE: f64 = 1.0 / 128.0;

/// Clipping has to save this much. Values that are spread evenly up to the end, as nothing should be cut from, gain
/// nearly one step in 256, twice that squared: the outermost steps only have values on one side.
const WORTH: f64 = 0.99;

impl RangeFinder for Mse {
    fn name(&self) -> Cow<'static, str> {
        "mse".into()
    }

    fn about(&self) -> &'static str {
        "the least squared error of quantizing"
    }

    fn range(&self, seen: &Sketch, spec: &QSpec) -> Found {
        let values = seen.values();
        let full = values.range();
        if let Some(found) = Found::trivial(full) {
            return found;
        }
        let occurring = not_zero(&values);
        if occurring < spec.levels() {
            return Found::full(full, Degenerate::TooFew { values: occurring });
        }
        let density = Density::of(&values);
        let candidate = |halvings: [f64; 2], most: f64| {
            let range = shrunk(full, halvings, spec.symmetric);
            Candidate { halvings, range, error: density.error_up_to(most, spec, range) }
        };
        let free = if spec.symmetric { [true, false] } else { [full.min < 0.0, full.max > 0.0] };
        let (all, best) = (candidate([0.0; 2], f64::INFINITY), search(free, candidate));
        Found::of(if best.error < WORTH * all.error { best.range } else { full }, full)
    }
}

/// What is clipped by halving the lower and the upper end so often; if symmetric, the magnitude as often as the lower.
fn shrunk(full: Range, [down, up]: [f64; 2], symmetric: bool) -> Range {
    let halved = |end: f32, halvings: f64| (f64::from(end) * (-halvings).exp2()) as f32;
    if symmetric {
        return clipped(full, halved(full.absmax(), down));
    }
    // An end on the other side of zero is not the grid's, which begins at zero.
    let min = if full.min < 0.0 { halved(full.min, down) } else { full.min };
    let max = if full.max > 0.0 { halved(full.max, up) } else { full.max };
    within(full, Range { min, max })
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

/// The candidate with the least error, over how often each end that is free to move is halved. Of candidates with more
/// than an error that is there already the error need not be found.
fn search(free: [bool; 2], candidate: impl Fn([f64; 2], f64) -> Candidate) -> Candidate {
    let last = |free: bool| if free { (MOST / COARSE) as u32 } else { 0 };
    let mut best = candidate([0.0; 2], f64::INFINITY);
    for down in 0..=last(free[0]) {
        for up in 0..=last(free[1]) {
            let halvings = [down, up].map(|steps| f64::from(steps) * COARSE);
            best = best.or(candidate(halvings, best.error));
        }
    }
    let directions = |free: bool| if free { &[-1.0, 0.0, 1.0][..] } else { &[0.0] };
    let mut step = COARSE / 2.0;
    while step >= FINE {
        // Twice, which gets anywhere within the step before.
        for _ in 0..2 {
            let [from_down, from_up] = best.halvings;
            for down in directions(free[0]) {
                for up in directions(free[1]) {
                    let halvings = [from_down + down * step, from_up + up * step];
                    let halvings = halvings.map(|halvings| halvings.max(0.0));
                    best = best.or(candidate(halvings, best.error));
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
                    let range = shrunk(seen.range(), halvings, symmetric);
                    let error = density.error(&spec, range);
                    let found = density.error_up_to(most, &spec, range);
                    left_out.set(left_out.get() + u32::from(found > error));
                    assert!(found == error || error > most, "{found} {error} {most} {range:?}");
                    Candidate { halvings, range, error }
                };
                search([true, !symmetric], candidate);
                assert!(left_out.get() > 5, "{qtype:?} {power}: {}", left_out.get());
            }
        }
    }
}
