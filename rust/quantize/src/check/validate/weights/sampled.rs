//! Weights that were rounded with the help of samples: their integers need not be the nearest.

use super::Comparison;
use super::nearest::WrongElement;
use crate::encode::dequantize::Decoded;

/// Sums over the elements of a group, in steps of its scale.
#[derive(Clone, Copy, Default)]
struct GroupSums {
    first: Option<usize>,
    count: f64,
    squares: f64,
    products: f64,
    errors: f64,
}

impl Comparison<'_> {
    /// The first element of each group that was not rounded to this, however samples were weighed:
    /// its errors are twice as large as its elements, and as two steps, on average; or, of many
    /// elements, what they stand for is another multiple of what they were. Elements whose inputs
    /// were always 0 may be anything.
    pub(super) fn beyond_any_rounding(&self, reference: &[f32]) -> Vec<WrongElement> {
        /// Elements from which on a factor is no chance, and how much it may differ from 1.
        const MANY: f64 = 16.0;
        const FACTOR: f64 = 0.5;
        let Decoded { floats, layout, params, qtype, .. } = self.decoded;
        let mut sums = vec![GroupSums::default(); params.len()];
        for (at, (w, float)) in reference.iter().zip(floats).enumerate() {
            let group = layout.group_of(at);
            let scale = f64::from(params[group].scale);
            if scale == 0.0 {
                continue;
            }
            let (exact, there) = (f64::from(*w) / scale, f64::from(*float) / scale);
            let sums = &mut sums[group];
            sums.first = sums.first.or(Some(at));
            sums.count += 1.0;
            sums.squares += exact * exact;
            sums.products += exact * there;
            sums.errors += (there - exact) * (there - exact);
        }
        let is_beyond = |sums: &&GroupSums| {
            let fine = qtype.bits() >= 8 && sums.count >= MANY && sums.squares > sums.count;
            let scaled = (sums.products / sums.squares - 1.0).abs() > FACTOR;
            sums.errors > 4.0 * sums.squares.max(sums.count) || fine && scaled
        };
        let beyond = sums.iter().filter(is_beyond);
        beyond
            .filter_map(|sums| {
                let steps = (sums.errors / sums.count).sqrt();
                Some(WrongElement { at: sums.first?, steps })
            })
            .collect()
    }
}
