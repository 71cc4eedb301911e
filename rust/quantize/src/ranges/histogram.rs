//! A coarse histogram of the calibrated values of an activation, for plots.

// Counts are shown, not computed with.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

use quantize_rs_math::Range;
use quantize_rs_math::stats::Distribution;
use serde::{Deserialize, Serialize};

/// The number of bins.
const BINS: usize = 48;

/// A histogram of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// The smallest value.
    pub from: f64,
    /// The largest value.
    pub to: f64,
    /// The number of values in each of the bins of equal width.
    pub counts: Vec<u64>,
    /// The fraction of values outside the chosen range, 0 to 1.
    pub outside: f64,
}

impl Histogram {
    /// The histogram of `seen` with the range `chosen` for it; `None` if all values are equal.
    pub(crate) fn of(seen: &Distribution, chosen: Range) -> Option<Histogram> {
        let (from, to) = (f64::from(seen.range().min), f64::from(seen.range().max));
        if from >= to {
            return None;
        }
        let (low, high) = (f64::from(chosen.min), f64::from(chosen.max));
        let (mut counts, mut outside) = (vec![0_u64; BINS], 0_u64);
        for bin in seen.bins() {
            let middle = f64::midpoint(bin.from, bin.to);
            let place = ((middle - from) / (to - from) * BINS as f64) as usize;
            counts[place.min(BINS - 1)] += bin.count;
            if middle < low || middle > high {
                outside += bin.count;
            }
        }
        let outside = outside as f64 / seen.count().max(1) as f64;
        Some(Histogram { from, to, counts, outside })
    }
}

#[cfg(test)]
mod tests {
    use quantize_rs_math::stats::Sketch;

    use super::*;

    #[test]
    fn all_values_are_counted_and_those_outside_the_range_apart() {
        let mut sketch = Sketch::default();
        let values: Vec<f32> = (0_u16..1000).map(|i| f32::from(i) - 200.0).collect();
        sketch.observe(&values);
        let found = Histogram::of(&sketch.values(), Range { min: -200.0, max: 699.5 }).unwrap();
        assert_eq!((found.from, found.to), (-200.0, 799.0));
        assert_eq!(found.counts.iter().sum::<u64>(), 1000);
        assert!(found.counts.iter().all(|count| (19..=23).contains(count)), "{found:?}");
        assert!((found.outside - 0.1).abs() < 2e-3, "{}", found.outside);
    }

    #[test]
    fn one_value_has_no_histogram() {
        let mut sketch = Sketch::default();
        sketch.observe(&[2.5; 9]);
        assert_eq!(Histogram::of(&sketch.values(), Range { min: 0.0, max: 2.5 }), None);
        assert_eq!(Histogram::of(&Sketch::default().values(), Range::EMPTY), None);
    }
}
