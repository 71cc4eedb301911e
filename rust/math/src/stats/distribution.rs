//! The distribution of finite values: extremes, count, sum and histogram.

use std::iter;

use serde::{Deserialize, Serialize};

use super::exact_sum::Sum;
use super::histogram::{BinIndex, Histogram, exponent_for};
use super::histogram_scratch::HistogramScratch;
use super::json;
use crate::Range;
use crate::simd::{SimdLoop, vectorized};

/// The distribution of finite values.
///
/// In JSON, the counts of the histogram are base64 text, and the ends are null when there are no
/// values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Serialized", try_from = "Serialized")]
pub struct Distribution {
    range: Range,
    count: u64,
    zeros: u64,
    sum: Sum,
    histogram: Histogram,
}

/// An interval of values and the number of values in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The lower end of the interval.
    pub from: f64,
    /// The upper end of the interval.
    pub to: f64,
    /// The number of values in the interval.
    pub count: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            range: Range::EMPTY,
            count: 0,
            zeros: 0,
            sum: Sum::default(),
            histogram: Histogram::default(),
        }
    }
}

impl Distribution {
    /// The smallest and the largest value; [`Range::EMPTY`] when there are none.
    pub fn range(&self) -> Range {
        self.range
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The number of zeros.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// The histogram of the values, zeros included.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// The arithmetic mean; `None` when there are no values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }

    /// The standard deviation, assuming that the values of a bin are spread evenly over it; `None`
    /// when there are no values.
    pub fn std(&self) -> Option<f64> {
        let mean = self.mean()?;
        let squares = self.bins().map(|Bin { from, to, count }| {
            let (from, to) = (from - mean, to - mean);
            // The mean square over the interval.
            count as f64 * (from * from + from * to + to * to) / 3.0
        });
        Some((squares.sum::<f64>() / self.count as f64).sqrt())
    }

    /// The bins that have values, in ascending order. The outermost bins end at the extremes, and
    /// zeros are a bin of width 0.
    pub fn bins(&self) -> impl Iterator<Item = Bin> {
        let width = self.histogram.width();
        let (min, max) = (f64::from(self.range.min), f64::from(self.range.max));
        let held = |&(_, &count): &(usize, &u64)| count > 0;
        let below = self.histogram.below().iter().enumerate().rev().filter(held);
        let below = below.map(move |(bin, &count)| {
            let (near, far) = (bin as f64 * -width, (bin + 1) as f64 * -width);
            Bin { from: far.max(min), to: near.min(max), count }
        });
        let zeros = Bin { from: 0.0, to: 0.0, count: self.zeros };
        let above = self.histogram.above().iter().enumerate().filter(held);
        let above = above.map(move |(bin, &count)| {
            let (near, far) = (bin as f64 * width, (bin + 1) as f64 * width);
            let zeros = if bin == 0 { self.zeros } else { 0 };
            Bin { from: near.max(min), to: far.min(max), count: count.saturating_sub(zeros) }
        });
        below.chain(iter::once(zeros)).chain(above).filter(|bin| bin.count > 0)
    }

    /// As [`bins`](Distribution::bins), for the magnitudes of the values.
    pub fn magnitudes(&self) -> impl Iterator<Item = Bin> {
        let (width, absmax) = (self.histogram.width(), f64::from(self.range.absmax()));
        let zeros = Bin { from: 0.0, to: 0.0, count: self.zeros };
        let counts = self.histogram.magnitudes().into_iter().enumerate();
        let others = counts.map(move |(bin, count)| {
            let zeros = if bin == 0 { self.zeros } else { 0 };
            let (from, to) = (bin as f64 * width, (bin + 1) as f64 * width);
            Bin { from, to: to.min(absmax), count: count.saturating_sub(zeros) }
        });
        iter::once(zeros).chain(others).filter(|bin| bin.count > 0)
    }

    /// Merges another distribution into this one.
    pub fn merge(&mut self, other: &Distribution) {
        self.range = self.range.merge(other.range);
        self.count = self.count.saturating_add(other.count);
        self.zeros = self.zeros.saturating_add(other.zeros);
        self.sum.merge(&other.sum);
        self.histogram.merge(&other.histogram);
    }

    /// Adds a chunk of at least one value, all finite, with its summary. Without a `tally` the
    /// histogram is updated at once, which is faster for small tensors.
    pub(super) fn observe(
        &mut self,
        values: &[f32],
        summary: &Summary,
        places: &mut [BinIndex],
        tally: Option<&mut HistogramScratch>,
    ) {
        let Summary { range, zeros, sum } = *summary;
        self.range = self.range.merge(range);
        self.count = self.count.saturating_add(values.len() as u64);
        self.zeros = self.zeros.saturating_add(u64::from(zeros));
        self.sum.add(sum);
        let places = &mut places[..values.len()];
        if let Some(tally) = tally {
            if self.histogram.must_grow_for(range.absmax()) {
                tally.empty_into(&mut self.histogram);
            }
            self.histogram.fit(range);
            self.histogram.places().of(values, places);
            tally.add(places, &mut self.histogram);
        } else {
            self.histogram.fit(range);
            self.histogram.places().of(values, places);
            self.histogram.add(places);
        }
    }

    /// Moves the counts of the tally into the histogram.
    pub(super) fn settle(&mut self, tally: &mut HistogramScratch) {
        tally.empty_into(&mut self.histogram);
    }
}

/// The range and the sum of a chunk.
pub(super) struct Summary {
    /// The smallest and the largest value, NaN ignored.
    pub(super) range: Range,
    zeros: u32,
    /// The sum of all values.
    pub(super) sum: f64,
}

impl Summary {
    /// Summarizes a chunk of at most 2³² values.
    pub(super) fn of(values: &[f32]) -> Summary {
        vectorized(Summarize(values))
    }

    /// Whether all values are finite. A sum of finite f32 is finite in f64.
    pub(super) fn is_finite(&self) -> bool {
        self.sum.is_finite()
    }
}

struct Summarize<'a>(&'a [f32]);

impl SimdLoop for Summarize<'_> {
    type Output = Summary;

    #[inline(always)]
    fn run(self) -> Summary {
        let (range, zeros) = ends_and_zeros(self.0);
        Summary { range, zeros, sum: sum(self.0) }
    }
}

/// Enough lanes that none waits for its own previous result, and few enough vectors for the 16
/// registers that every x86-64 has. Two loops over a cached chunk are twice as fast as one that
/// needs more registers.
const LANES: usize = 16;

#[inline(always)]
fn ends_and_zeros(values: &[f32]) -> (Range, u32) {
    let (mut min, mut max) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let mut zeros = [0_u32; LANES];
    let mut see = |lane: usize, x: f32| {
        min[lane] = if x < min[lane] { x } else { min[lane] };
        max[lane] = if x > max[lane] { x } else { max[lane] };
        zeros[lane] += u32::from(x == 0.0);
    };
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (lane, &x) in row.iter().enumerate() {
            see(lane, x);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        see(lane, x);
    }
    // Adding +0 turns -0 into +0, so that the result does not depend on which of the two came
    // first.
    let min = min.into_iter().fold(f32::INFINITY, f32::min) + 0.0;
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max) + 0.0;
    (Range { min, max }, zeros.iter().sum())
}

/// The sum of a chunk in f64. The order of additions depends only on the length.
#[inline(always)]
pub(super) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (lane, &x) in row.iter().enumerate() {
            lanes[lane] += f64::from(x);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        lanes[lane] += f64::from(x);
    }
    lanes.iter().sum()
}

/// The JSON form of [`Distribution`].
#[derive(Serialize, Deserialize)]
struct Serialized {
    min: Option<f64>,
    max: Option<f64>,
    count: u64,
    zeros: u64,
    sum: Sum,
    exponent: i32,
    above: String,
    below: String,
}

impl From<Distribution> for Serialized {
    fn from(of: Distribution) -> Serialized {
        Serialized {
            min: json::end(of.range.min),
            max: json::end(of.range.max),
            count: of.count,
            zeros: of.zeros,
            sum: of.sum,
            exponent: of.histogram.exponent(),
            above: json::counts_to_text(of.histogram.above()),
            below: json::counts_to_text(of.histogram.below()),
        }
    }
}

impl TryFrom<Serialized> for Distribution {
    type Error = &'static str;

    fn try_from(written: Serialized) -> Result<Distribution, &'static str> {
        let Serialized { min, max, count, zeros, sum, exponent, above, below } = written;
        let range = match (min, max) {
            (Some(min), Some(max)) => Range { min: min as f32, max: max as f32 },
            (None, None) => Range::EMPTY,
            _ => return Err("one end of a distribution is null"),
        };
        let side = |text: String| {
            if text.is_empty() {
                return Some(Vec::new());
            }
            json::counts_from_text(&text, Histogram::BINS)
        };
        let histogram = side(above)
            .zip(side(below))
            .and_then(|(above, below)| Histogram::of(exponent, above, below))
            .ok_or("counts or exponent that no histogram has")?;
        let counted = histogram.above().iter().chain(histogram.below());
        let counted = counted.copied().try_fold(0, u64::checked_add);
        let first = histogram.above().first().copied().unwrap_or(0);
        let fits = if range.is_empty() {
            count == 0 && histogram == Histogram::default()
        } else {
            range.min.is_finite()
                && range.max.is_finite()
                && exponent == exponent_for(range.absmax())
                && (range.max >= 0.0) != histogram.above().is_empty()
                && (range.min < 0.0) != histogram.below().is_empty()
        };
        if !fits || counted != Some(count) || zeros > first {
            return Err("a histogram that does not hold the values of its distribution");
        }
        Ok(Distribution { range, count, zeros, sum, histogram })
    }
}
