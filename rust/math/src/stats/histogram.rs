//! Histograms with a bin width that grows with the values.

use crate::Range;
use crate::simd::{SimdLoop, vectorized};

/// A histogram of values on both sides of zero.
///
/// Bin `i` of the positive side contains `[i·w, (i+1)·w)`, that of the negative side
/// `(-(i+1)·w, -i·w]`; both zeros are positive. The width `w` is the smallest power of two for
/// which [`BINS`](Histogram::BINS) bins contain the largest magnitude, so the values span more than
/// half of the bins of a side. The histogram depends only on the values: growing merges
/// neighbouring bins in pairs, which gives the counts that wider bins would have had from the
/// beginning.
///
/// No bin is narrower than the smallest scale of a grid, 2⁻¹²⁶.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    exponent: i32,
    /// All bins of the side, or none as long as it has no values.
    above: Vec<u64>,
    below: Vec<u64>,
}

/// The exponent of the smallest normal f32, which is the smallest scale of
/// [`params`](crate::params).
const MIN_EXPONENT: i32 = f32::MIN_EXP - 1;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { exponent: MIN_EXPONENT, above: Vec::new(), below: Vec::new() }
    }
}

impl Histogram {
    /// Bins per side.
    pub const BINS: usize = 1 << 12;

    /// The exponent `k` of the width `2ᵏ` of a bin.
    pub fn exponent(&self) -> i32 {
        self.exponent
    }

    /// The width of a bin, a power of two.
    pub fn width(&self) -> f64 {
        2_f64.powi(self.exponent)
    }

    /// The bins of zero and the positive values, from zero up; empty when there are no such values.
    pub fn above(&self) -> &[u64] {
        &self.above
    }

    /// The bins of the negative values, from zero down; empty when there are no such values.
    pub fn below(&self) -> &[u64] {
        &self.below
    }

    /// The bins of the magnitudes, from zero up.
    pub(crate) fn magnitudes(&self) -> Vec<u64> {
        let mut bins = vec![0; Self::BINS];
        for side in [&self.above, &self.below] {
            for (bin, &count) in bins.iter_mut().zip(side) {
                *bin = u64::saturating_add(*bin, count);
            }
        }
        bins
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.above.iter().chain(&self.below).fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// A histogram from its sides, each with no bins or all of them, and with at least one value if
    /// it has bins; `None` if the arguments are not valid.
    pub(super) fn of(exponent: i32, above: Vec<u64>, below: Vec<u64>) -> Option<Histogram> {
        let possible = (MIN_EXPONENT..=exponent_for(f32::MAX)).contains(&exponent);
        let side = |bins: &[u64]| {
            bins.is_empty() || bins.len() == Self::BINS && bins.iter().any(|&count| count > 0)
        };
        let whole = possible && side(&above) && side(&below);
        whole.then_some(Histogram { exponent, above, below })
    }

    /// Widens the bins so that they contain a range, which is not empty.
    pub(super) fn fit(&mut self, range: Range) {
        self.grow(exponent_for(range.absmax()));
        if range.max >= 0.0 {
            self.above.resize(Self::BINS, 0);
        }
        if range.min < 0.0 {
            self.below.resize(Self::BINS, 0);
        }
    }

    /// Whether the bins would have to widen for this magnitude.
    pub(super) fn must_grow_for(&self, absmax: f32) -> bool {
        exponent_for(absmax) > self.exponent
    }

    /// Counts values by their bin indices.
    pub(super) fn add(&mut self, places: &[BinIndex]) {
        for place in places {
            let (side, bin) = place.split();
            let side = if side == 0 { &mut self.above } else { &mut self.below };
            if let Some(count) = side.get_mut(bin) {
                *count = count.saturating_add(1);
            }
        }
    }

    /// Both sides.
    pub(super) fn sides_mut(&mut self) -> [&mut [u64]; 2] {
        [&mut self.above, &mut self.below]
    }

    /// Merges another histogram into this one.
    pub(super) fn merge(&mut self, other: &Histogram) {
        self.grow(other.exponent);
        let doublings = doublings(other.exponent, self.exponent);
        for (bins, others) in [(&mut self.above, &other.above), (&mut self.below, &other.below)] {
            if !others.is_empty() {
                bins.resize(Self::BINS, 0);
            }
            for (bin, &count) in others.iter().enumerate() {
                let bin = &mut bins[bin >> doublings];
                *bin = bin.saturating_add(count);
            }
        }
    }

    /// Widens the bins to `2^exponent`, unless they are as wide already.
    fn grow(&mut self, exponent: i32) {
        if exponent <= self.exponent {
            return;
        }
        let doublings = doublings(self.exponent, exponent);
        self.exponent = exponent;
        for bins in [&mut self.above, &mut self.below] {
            // Counts move to the same or a lower bin, whose own count has already moved.
            for bin in 0..bins.len() {
                let count = std::mem::take(&mut bins[bin]);
                let to = &mut bins[bin >> doublings];
                *to = to.saturating_add(count);
            }
        }
    }

    /// The mapping from values to bin indices.
    pub(super) fn places(&self) -> BinIndices {
        // The width and its inverse are normal powers of two, given the bounds of the exponent.
        BinIndices { bins_per_unit: 2_f32.powi(-self.exponent) }
    }
}

/// The bin exponent for values up to this magnitude.
pub(super) fn exponent_for(absmax: f32) -> i32 {
    // 2^e ≤ absmax < 2^(e+1); zero and denormals have the smallest exponent.
    let e = (absmax.to_bits() >> (f32::MANTISSA_DIGITS - 1)) as i32 - (f32::MAX_EXP - 1);
    (e + 1 - Histogram::BINS.ilog2() as i32).max(MIN_EXPONENT)
}

fn doublings(from: i32, to: i32) -> u32 {
    // After as many doublings as an index has bits, all values are in the first bin.
    (to - from).unsigned_abs().min(Histogram::BINS.ilog2())
}

/// A bin index, with the side in the bit above it: 1 below zero.
#[derive(Clone, Copy, Default)]
pub(super) struct BinIndex(pub(super) u32);

impl BinIndex {
    /// The number of indices.
    pub(super) const COUNT: usize = 2 * Histogram::BINS;

    #[inline]
    fn split(self) -> (usize, usize) {
        let place = self.0 as usize;
        (place / Histogram::BINS, place % Histogram::BINS)
    }
}

/// Maps values to bin indices.
#[derive(Clone, Copy)]
pub(super) struct BinIndices {
    bins_per_unit: f32,
}

impl BinIndices {
    /// Writes the index of each value. All values are finite and fit.
    pub(super) fn of(self, values: &[f32], places: &mut [BinIndex]) {
        vectorized(ComputeBins { by: self, values, places });
    }

    #[inline(always)]
    fn one(self, x: f32) -> BinIndex {
        // From 2²³ on neighbouring f32 values are 1 apart: adding 2²³ rounds, and leaves the
        // integer in the low bits. Where it rounded up, subtract one. A conversion to integer would
        // saturate, which is slow before SSE4.1.
        const INTEGERS: f32 = 8_388_608.0;
        const IN_SIDE: u32 = Histogram::BINS as u32 - 1;
        let bins = x.abs() * self.bins_per_unit;
        let shifted = bins + INTEGERS;
        let up = u32::from(shifted - INTEGERS > bins);
        let bin = shifted.to_bits().wrapping_sub(up) & IN_SIDE;
        BinIndex(bin | u32::from(x < 0.0) << Histogram::BINS.ilog2())
    }
}

struct ComputeBins<'a> {
    by: BinIndices,
    values: &'a [f32],
    places: &'a mut [BinIndex],
}

impl SimdLoop for ComputeBins<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (place, &x) in self.places.iter_mut().zip(self.values) {
            *place = self.by.one(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(histogram: &Histogram, x: f32) -> (usize, usize) {
        histogram.places().one(x).split()
    }

    #[test]
    fn bins_are_as_defined_at_every_edge() {
        for exponent in [MIN_EXPONENT, -40, -3, 0, 5, exponent_for(f32::MAX)] {
            let histogram = Histogram { exponent, ..Histogram::default() };
            let width = 2_f32.powi(exponent);
            for bin in [0_usize, 1, 2, 3, 1000, 1001, 4094, 4095] {
                let edge = bin as f32 * width;
                let end = ((bin + 1) as f32 * width).min(f32::MAX).next_down().max(edge);
                for x in [edge, edge + width / 4.0, edge + width * 0.75, end] {
                    assert_eq!(place(&histogram, x), (0, bin), "{x} with {exponent}");
                    assert_eq!(place(&histogram, -x).1, bin, "-{x} with {exponent}");
                    assert_eq!(place(&histogram, -x).0, usize::from(x > 0.0));
                }
            }
        }
    }

    #[test]
    fn the_width_is_the_smallest_that_holds_the_magnitude() {
        for absmax in [1e-30_f32, 0.3, 1.0, 1.0_f32.next_down(), 4095.9, 4096.0, 6.5e4, f32::MAX] {
            let exponent = exponent_for(absmax);
            let bins = f64::from(absmax) / 2_f64.powi(exponent);
            assert!((2048.0..4096.0).contains(&bins), "{absmax}: {bins}");
        }
        for absmax in [0.0, 1e-45, f32::MIN_POSITIVE] {
            assert_eq!(exponent_for(absmax), MIN_EXPONENT);
        }
    }

    #[test]
    fn growing_far_leaves_everything_in_the_first_bin() {
        let mut histogram = Histogram::default();
        histogram.fit(Range { min: -1e-40, max: 1e-36 });
        let places = histogram.places();
        histogram.add(&[places.one(1e-36), places.one(-1e-40)]);
        histogram.fit(Range { min: 0.0, max: f32::MAX });
        assert_eq!((histogram.above[0], histogram.below[0], histogram.count()), (1, 1, 2));
    }
}
