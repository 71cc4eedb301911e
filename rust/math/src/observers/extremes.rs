//! Min-max observers: the extremes of each group, over all batches or as a moving average.

use super::{Observer, Scheme};
use crate::{Layout, MathError, Range, ranges_checked};

/// `MinMaxObserver`, `MovingAverageMinMaxObserver`, and their per-channel variants.
#[derive(Debug)]
pub(super) struct Extremes {
    /// The weight of a new batch in the moving average; `None` for the extremes of all batches.
    weight: Option<f32>,
    ranges: Vec<Range>,
}

impl Extremes {
    pub(super) fn new(weight: Option<f32>) -> Extremes {
        Extremes { weight, ranges: Vec::new() }
    }
}

impl Observer for Extremes {
    fn observe(&mut self, x: &[f32], layout: &Layout) -> Result<(), MathError> {
        layout.check(x.len(), layout.groups())?;
        if x.is_empty() {
            return Ok(());
        }
        let batch = ranges_checked(x, layout)?;
        if self.ranges.is_empty() {
            // The average starts from the first batch, not from 0.
            self.ranges = batch;
            return Ok(());
        }
        if self.ranges.len() != batch.len() {
            let (found, expected) = (batch.len(), self.ranges.len());
            return Err(MathError::Length { what: "channels", found, expected });
        }
        for (all, new) in self.ranges.iter_mut().zip(batch) {
            *all = match self.weight {
                None => all.merge(new),
                Some(weight) => Range {
                    min: all.min + weight * (new.min - all.min),
                    max: all.max + weight * (new.max - all.max),
                },
            };
        }
        Ok(())
    }

    fn ranges(&self, _: &Scheme) -> Vec<Range> {
        self.ranges.clone()
    }

    fn reset(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granularity, QType};

    fn seen(weight: Option<f32>, batches: &[&[f32]], granularity: Granularity) -> Vec<Range> {
        let mut observer = Extremes::new(weight);
        for batch in batches {
            let layout = Layout::of(&[2, batch.len() / 2], granularity).unwrap();
            observer.observe(batch, &layout).unwrap();
        }
        observer.ranges(&Scheme::new(QType::UInt8, false))
    }

    #[test]
    fn the_average_starts_from_the_first_batch() {
        // max: 3, then 3 + 0.01 · (5 - 3) = 3.02; min: -1, then -1 + 0.01 · (-3 - -1) = -1.02
        let batches: [&[f32]; 2] = [&[-1.0, 3.0], &[-3.0, 5.0]];
        let [found] = seen(Some(0.01), &batches, Granularity::PerTensor)[..] else { panic!() };
        assert_eq!(found, Range { min: -1.0 + 0.01 * -2.0, max: 3.0 + 0.01 * 2.0 });
        let [all] = seen(None, &batches, Granularity::PerTensor)[..] else { panic!() };
        assert_eq!(all, Range { min: -3.0, max: 5.0 });
        // The average of ten batches with a maximum of 3 is 3.
        let same: [&[f32]; 10] = [&[0.0, 3.0]; 10];
        assert_eq!(seen(Some(0.01), &same, Granularity::PerTensor)[0].max, 3.0);
    }

    #[test]
    fn each_channel_has_its_own_range() {
        let batches: [&[f32]; 2] = [&[1.0, -2.0, 0.5, 4.0], &[0.0, 3.0, -1.0, 2.0]];
        let found = seen(None, &batches, Granularity::PerAxis { axis: 0 });
        assert_eq!(found, [Range { min: -2.0, max: 3.0 }, Range { min: -1.0, max: 4.0 }]);
        let mut observer = Extremes::new(None);
        let of = |n: usize| Layout::of(&[n, 1], Granularity::PerAxis { axis: 0 }).unwrap();
        observer.observe(&[1.0; 2], &of(2)).unwrap();
        let other = observer.observe(&[1.0; 3], &of(3)).unwrap_err();
        assert_eq!(other.to_string(), "3 channels, expected 2");
    }
}
