//! The histogram observer: the range with the smallest expected error.

use super::sketched::one_group;
use super::{Observer, Scheme};
use crate::{Layout, MathError, Range};

/// `HistogramObserver`: a histogram with equal bins over the range of all batches so far. When the
/// range grows, each old bin is spread evenly over sixteen parts, and each part moves to the new
/// bin that contains its center.
///
/// The range is found by excluding bins at either end, those with the smaller share first, as long
/// as the expected error decreases.
#[derive(Debug)]
pub(super) struct Histogram {
    bins: usize,
    /// Values per bin; empty before the first batch.
    counts: Vec<f64>,
    range: Range,
}

/// Parts of a bin when its values move to new bins.
const PARTS: usize = 16;

/// The share of values by which a search step moves an end.
const STEP: f64 = 1e-5;

impl Histogram {
    pub(super) fn new(bins: usize) -> Histogram {
        Histogram { bins, counts: Vec::new(), range: Range::EMPTY }
    }

    /// The bin of a value within `range`; the last bin includes the upper end.
    fn bin(&self, x: f64, range: Range) -> usize {
        let (min, max) = (f64::from(range.min), f64::from(range.max));
        if min == max {
            // A range of width 0 is treated as one unit to either side, with the value in the
            // middle.
            return self.bins / 2;
        }
        (((x - min) / (max - min) * self.bins as f64) as usize).min(self.bins - 1)
    }

    /// The counts in the bins of a wider range.
    fn moved(&self, wider: Range) -> Vec<f64> {
        let mut moved = vec![0.0; self.bins];
        let (min, max) = (f64::from(self.range.min), f64::from(self.range.max));
        if min == max {
            moved[self.bin(min, wider)] = self.counts.iter().sum();
            return moved;
        }
        let part = (max - min) / (self.bins * PARTS) as f64;
        for index in 0..self.bins * PARTS {
            let middle = min + (index as f64 + 0.5) * part;
            moved[self.bin(middle, wider)] += self.counts[index / PARTS] / PARTS as f64;
        }
        moved
    }

    /// The first and the last bin of the range with the smallest error on a grid with this many
    /// `levels`.
    fn search(&self, levels: f64) -> (usize, usize) {
        let total: f64 = self.counts.iter().sum();
        let mut up_to = self.counts.clone();
        for index in 1..up_to.len() {
            up_to[index] += up_to[index - 1];
        }
        let (mut low, mut high) = (0.0, 1.0);
        let (mut first, mut last) = (0, self.bins - 1);
        let mut lowest = f64::INFINITY;
        while low < high {
            let (raised, lowered) = (low + STEP, high - STEP);
            let mut left = first;
            while left < last && up_to[left] < raised * total {
                left += 1;
            }
            let mut right = last;
            while right > first && up_to[right] > lowered * total {
                right -= 1;
            }
            let (mut next_first, mut next_last) = (first, last);
            if left - first > last - right {
                (next_first, low) = (left, raised);
            } else {
                (next_last, high) = (right, lowered);
            }
            if (next_first, next_last) == (first, last) {
                continue;
            }
            let error = self.error(next_first, next_last, levels);
            if error > lowest {
                break;
            }
            (lowest, first, last) = (error, next_first, next_last);
        }
        (first, last)
    }

    /// The squared error of all values when a grid of `levels` covers the bins from `first` to
    /// `last`, in units of the bin width. The values of a bin are assumed to be spread evenly over
    /// it, and each level represents the center of its interval.
    fn error(&self, first: usize, last: usize, levels: f64) -> f64 {
        let step = (last - first + 1) as f64 / levels;
        let level = |at: f64| (at / step).floor().clamp(0.0, levels - 1.0);
        let middle = |level: f64| (level + 0.5) * step;
        // ∫ x² dx, with x relative to the center of a level.
        let square = |from: f64, to: f64| (to.powi(3) - from.powi(3)) / 3.0;
        let one = |(bin, count): (usize, &f64)| {
            let begin = bin as f64 - first as f64;
            let end = begin + 1.0;
            let (low, high) = (level(begin), level(end));
            let whole = (high - low - 1.0) * square(-step / 2.0, step / 2.0);
            let ends =
                square(begin - middle(low), step / 2.0) + square(-step / 2.0, end - middle(high));
            count * (whole + ends)
        };
        self.counts.iter().enumerate().map(one).sum()
    }
}

impl Observer for Histogram {
    fn observe(&mut self, x: &[f32], layout: &Layout) -> Result<(), MathError> {
        one_group(x, layout)?;
        let batch = x.iter().fold(Range::EMPTY, |all, x| all.merge(Range { min: *x, max: *x }));
        if batch.is_empty() {
            return Ok(());
        }
        let wider = self.range.merge(batch);
        if self.counts.is_empty() {
            self.counts = vec![0.0; self.bins];
        } else if wider != self.range {
            self.counts = self.moved(wider);
        }
        self.range = wider;
        for x in x {
            let bin = self.bin(f64::from(*x), wider);
            self.counts[bin] += 1.0;
        }
        Ok(())
    }

    fn ranges(&self, scheme: &Scheme) -> Vec<Range> {
        if self.counts.is_empty() {
            return Vec::new();
        }
        if self.range.min == self.range.max {
            return vec![self.range];
        }
        let levels = 2_f64.powi(scheme.qtype.bits().cast_signed());
        let (first, last) = self.search(levels);
        let min = f64::from(self.range.min);
        let width = (f64::from(self.range.max) - min) / self.bins as f64;
        let at = |bin: usize| (min + width * bin as f64) as f32;
        // An end from which nothing was excluded is exactly the observed one, without rounding.
        let max = if last + 1 == self.bins { self.range.max } else { at(last + 1) };
        vec![Range { min: at(first), max }]
    }

    fn reset(&mut self) {
        *self = Histogram::new(self.bins);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QType};

    fn seen(bins: usize, batches: &[&[f32]]) -> Histogram {
        let mut observer = Histogram::new(bins);
        for batch in batches {
            let layout = Layout::of(&[batch.len()], Granularity::PerTensor).unwrap();
            observer.observe(batch, &layout).unwrap();
        }
        observer
    }

    #[test]
    fn values_are_counted_in_their_bin() {
        // Bins [0, 1), [1, 2), [2, 3), [3, 4].
        assert_eq!(seen(4, &[&[0.0, 0.5, 1.0, 2.5, 3.0, 4.0]]).counts, [2.0, 1.0, 1.0, 2.0]);
        // A batch within the range is added to the bins.
        let within: [&[f32]; 2] = [&[0.0, 4.0], &[1.5, 2.0]];
        assert_eq!(seen(4, &within).counts, [1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn counts_move_to_the_bins_of_a_wider_range() {
        // Two bins over [0, 2] with one value each. Over [0, 4] both are in the first bin, the new
        // values in the second.
        let doubled: [&[f32]; 2] = [&[0.5, 0.0, 2.0], &[4.0, 3.0]];
        assert_eq!(seen(2, &doubled).counts, [3.0, 2.0]);
        // Over [0, 3], with bins of 1.5, half of the upper bin [1, 2] is below 1.5: eight of its
        // sixteen parts.
        let third: [&[f32]; 2] = [&[0.0, 2.0], &[3.0]];
        assert_eq!(seen(2, &third).counts, [1.5, 1.5]);
        // A single value moves to the bin that contains it.
        let single: [&[f32]; 2] = [&[1.0, 1.0], &[0.0, 4.0]];
        assert_eq!(seen(4, &single).counts, [1.0, 2.0, 0.0, 1.0]);
    }

    #[test]
    fn the_error_of_a_grid_is_the_integral_over_its_intervals() {
        // One value in each of four bins, two levels: each level represents two bins, with errors
        // up to 1 on either side: ∫₀¹ x² dx = 1/3 per bin.
        let even = seen(4, &[&[0.0, 1.0, 2.0, 4.0]]);
        assert_eq!(even.counts, [1.0; 4]);
        assert!((even.error(0, 3, 2.0) - 4.0 / 3.0).abs() < 1e-12);
        // A grid over the first two bins: levels at 0.5 and 1.5, with errors up to half a bin: 2 ·
        // 1/12. The values of bins 2 and 3 are 0.5 to 1.5 and 1.5 to 2.5 beyond the last level:
        // 13/12 and 49/12.
        let expected = 2.0 / 12.0 + 13.0 / 12.0 + 49.0 / 12.0;
        assert!((even.error(0, 1, 2.0) - expected).abs() < 1e-12);
    }

    #[test]
    fn a_single_outlier_is_clipped_and_uniform_values_are_not() {
        let scheme = Scheme::new(QType::Int4, false);
        let mut x: Vec<f32> = (0..20_000_u16).map(|i| f32::from(i % 1000) / 1000.0).collect();
        let even = seen(2048, &[&x]).ranges(&scheme)[0];
        assert!(even.min == 0.0 && even.max > 0.99, "{even:?}");
        x.push(20.0);
        let clipped = seen(2048, &[&x]).ranges(&scheme)[0];
        assert!(clipped.max < 3.0, "{clipped:?}");
        let constant = seen(2048, &[&[2.0, 2.0]]).ranges(&scheme)[0];
        assert_eq!(constant, Range { min: 2.0, max: 2.0 });
    }
}
