//! The extremes of values observed in batches.

use serde::{Deserialize, Serialize};

use super::json;
use crate::Range;

/// The smallest and the largest finite value observed, and counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MinMax {
    /// The smallest finite value; `+inf` (in JSON, null) when there was none.
    #[serde(deserialize_with = "json::null_is_inf")]
    pub min: f32,
    /// The largest finite value; `-inf` (in JSON, null) when there was none.
    #[serde(deserialize_with = "json::null_is_negative_inf")]
    pub max: f32,
    /// The number of finite values.
    pub count: u64,
    /// The number of values that were NaN or infinite; the range does not include them.
    pub non_finite: u64,
}

impl Default for MinMax {
    fn default() -> Self {
        MinMax { min: f32::INFINITY, max: f32::NEG_INFINITY, count: 0, non_finite: 0 }
    }
}

impl MinMax {
    /// Adds a batch of values.
    pub fn observe(&mut self, values: &[f32]) {
        // Short enough for 32-bit counts, which have the same number of SIMD lanes as the values.
        for values in values.chunks(1 << 16) {
            self.merge(&finite_min_max(values));
        }
    }

    /// Merges other extremes into these.
    pub fn merge(&mut self, other: &MinMax) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.non_finite += other.non_finite;
    }

    /// The range of the finite values.
    pub fn range(&self) -> Range {
        Range { min: self.min, max: self.max }
    }
}

fn finite_min_max(values: &[f32]) -> MinMax {
    const LANES: usize = 16;
    let (mut min, mut max) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let mut finite = [0_u32; LANES];
    let mut see = |lane: usize, x: f32| {
        let is_finite = x.abs() <= f32::MAX;
        let (low, high) = if is_finite { (x, x) } else { (f32::INFINITY, f32::NEG_INFINITY) };
        min[lane] = if low < min[lane] { low } else { min[lane] };
        max[lane] = if high > max[lane] { high } else { max[lane] };
        finite[lane] += u32::from(is_finite);
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
    let count = finite.iter().map(|&n| u64::from(n)).sum();
    MinMax {
        // Adding +0 turns -0 into +0, so that the result does not depend on which of the two came
        // first.
        min: min.into_iter().fold(f32::INFINITY, f32::min) + 0.0,
        max: max.into_iter().fold(f32::NEG_INFINITY, f32::max) + 0.0,
        count,
        non_finite: values.len() as u64 - count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> MinMax {
        let mut seen = MinMax::default();
        seen.observe(values);
        seen
    }

    #[test]
    fn non_finite_values_are_counted_and_left_out() {
        let seen = of(&[f32::NAN, 1.0, f32::INFINITY, -3.0, f32::NEG_INFINITY]);
        assert_eq!(seen, MinMax { min: -3.0, max: 1.0, count: 2, non_finite: 3 });
        assert_eq!(of(&[]), MinMax::default());
        assert_eq!(of(&[f32::NAN; 40]).range(), Range::EMPTY);
    }

    #[test]
    fn batches_and_merges_are_independent_of_order() {
        let values: Vec<f32> =
            (0..200_000).map(|i| ((i * 7919) % 10_007) as f32 - 5000.0).collect();
        let whole = of(&values);
        let (mut forth, mut back) = (MinMax::default(), MinMax::default());
        values.chunks(777).for_each(|batch| forth.observe(batch));
        values.rchunks(1001).for_each(|batch| back.merge(&of(batch)));
        assert_eq!((whole, whole), (forth, back));
        assert_eq!(whole.range(), Range { min: -5000.0, max: 5006.0 });
        assert_eq!(whole.count, 200_000);
    }

    #[test]
    fn the_sign_of_zero_does_not_matter() {
        assert_eq!(of(&[0.0, -0.0]).min.to_bits(), of(&[-0.0, 0.0]).min.to_bits());
    }
}
