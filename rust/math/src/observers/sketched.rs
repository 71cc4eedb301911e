//! Any calibration method as an observer.

use super::{Observer, Scheme};
use crate::range::RangeFinder;
use crate::stats::Sketch;
use crate::{Granularity, Layout, MathError, Range, first_non_finite};

/// The range that a calibration method computes from a sketch. It does not depend on the order of
/// batches.
#[derive(Debug)]
pub(super) struct Sketched {
    finder: Box<dyn RangeFinder>,
    seen: Sketch,
}

impl Sketched {
    pub(super) fn new(finder: Box<dyn RangeFinder>) -> Sketched {
        Sketched { finder, seen: Sketch::default() }
    }
}

impl Observer for Sketched {
    fn observe(&mut self, x: &[f32], layout: &Layout) -> Result<(), MathError> {
        one_group(x, layout)?;
        if !x.is_empty() {
            self.seen.observe(x);
        }
        Ok(())
    }

    fn ranges(&self, scheme: &Scheme) -> Vec<Range> {
        let found = self.finder.range(&self.seen, &scheme.spec(Granularity::PerTensor)).range;
        if found.is_empty() { Vec::new() } else { vec![found] }
    }

    fn reset(&mut self) {
        self.seen = Sketch::default();
    }
}

/// Refuses values that are not finite, and more than one group.
pub(super) fn one_group(x: &[f32], layout: &Layout) -> Result<(), MathError> {
    layout.check(x.len(), layout.groups())?;
    if layout.granularity() != Granularity::PerTensor {
        let (name, found) = ("ch_axis", "given".to_owned());
        let expected = "none: this observer has one range for the whole tensor";
        return Err(MathError::Setting { name, found, expected });
    }
    match first_non_finite(x) {
        Some(index) => Err(MathError::NonFinite { index, value: x[index].to_string() }),
        None => Ok(()),
    }
}
