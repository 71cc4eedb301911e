//! Summaries of values, for comparing the results of two engines.

use std::collections::HashMap;
use std::fmt;

use quantize_rs::ValueSink;

/// The tolerance between two engines, relative to the largest absolute value.
const TOLERANCE: f32 = 1e-3;

/// The summary of each observed value.
#[derive(Default)]
pub(super) struct ValueSummaries(pub(super) HashMap<usize, ValueSummary>);

/// The summary of one observed value.
pub(super) struct ValueSummary {
    shape: Vec<usize>,
    /// Of the finite values.
    min: f32,
    max: f32,
    /// The root mean square of the finite values.
    rms: f64,
    /// The number of values that are infinite or NaN.
    non_finite: usize,
    /// At most [`COMPARED_ELEMENTS`] values, [`stride`] elements apart.
    elements: Vec<f32>,
}

/// The number of elements of an observed value that are compared one by one.
const COMPARED_ELEMENTS: usize = 64;

/// The distance between compared elements: odd, so that they are not all in one channel.
fn stride(elements: usize) -> usize {
    elements.div_ceil(COMPARED_ELEMENTS) | 1
}

impl ValueSink for ValueSummaries {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        self.0.insert(index, ValueSummary::of(shape, values));
    }
}

impl ValueSummary {
    pub(super) fn of(shape: &[usize], values: &[f32]) -> ValueSummary {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let count = finite().count();
        let squares: f64 = finite().map(|value| f64::from(value).powi(2)).sum();
        #[allow(clippy::cast_precision_loss)] // a length
        let mean = squares / count.max(1) as f64;
        ValueSummary {
            shape: shape.to_vec(),
            min: finite().fold(f32::INFINITY, f32::min),
            max: finite().fold(f32::NEG_INFINITY, f32::max),
            rms: mean.sqrt(),
            non_finite: values.len() - count,
            elements: values.iter().copied().step_by(stride(values.len())).collect(),
        }
    }

    /// The first difference, as its value here and there.
    pub(super) fn difference(&self, other: &ValueSummary) -> Option<(String, String)> {
        let ends = [self.min, self.max, other.min, other.max];
        // The ends are not finite if no value is.
        let finite = ends.into_iter().filter(|end| end.is_finite());
        let largest = finite.map(f32::abs).fold(0.0, f32::max);
        // Engines may flush subnormal numbers to 0.
        let allowed = TOLERANCE * largest + f32::MIN_POSITIVE;
        let near = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= allowed;
        if self.shape != other.shape
            || self.non_finite != other.non_finite
            || !near(self.min, other.min)
            || !near(self.max, other.max)
        {
            return Some((self.to_string(), other.to_string()));
        }
        if (self.rms - other.rms).abs() > f64::from(allowed) {
            return Some((format!("of root mean square {}", self.rms), other.rms.to_string()));
        }
        let mut elements = self.elements.iter().zip(&other.elements).enumerate();
        let (place, (a, b)) = elements.find(|(_, (a, b))| !near(**a, **b))?;
        let place = place * stride(self.shape.iter().product());
        Some((format!("with element {place} {a}"), b.to_string()))
    }
}

impl fmt::Display for ValueSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "as {:?} between {} and {}", self.shape, self.min, self.max)?;
        if self.non_finite > 0 {
            write!(f, " with {} values that are not finite", self.non_finite)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> ValueSummary {
        ValueSummary::of(&[values.len()], values)
    }

    #[test]
    fn engines_agree_up_to_a_thousandth_of_the_largest_value() {
        let nan = f32::NAN;
        let cases: [(&[f32], bool); 6] = [
            (&[-1.0, 0.5, 2.0], true),
            (&[-1.001, 0.501, 2.001], true),
            (&[-1.0, 0.5, 2.003], false),
            (&[-1.003, 0.5, 2.0], false),
            (&[-1.0, 0.503, 2.0], false),
            (&[-1.0, nan, 2.0], false),
        ];
        let ours = of(&[-1.0, 0.5, 2.0]);
        for (other, same) in cases {
            assert_eq!(ours.difference(&of(other)).is_none(), same, "{other:?}");
        }
        let turned = ValueSummary::of(&[1, 3], &[-1.0, 0.5, 2.0]);
        assert!(ours.difference(&turned).is_some());
        let same = |a: &[f32], b: &[f32]| of(a).difference(&of(b)).is_none();
        assert!(same(&[], &[]));
        assert!(same(&[nan, nan], &[nan, nan]));
        assert!(!same(&[nan, nan], &[0.0, 0.0]));
        assert!(!same(&[nan, 1.0], &[1.0, nan]));
        assert!(same(&[0.0, 1e-40], &[0.0, 0.0]));
    }

    #[test]
    fn values_between_the_ends_are_compared_too() {
        let ramp: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let ours = of(&ramp);
        // The same values in other positions: the ends and the sum of squares are equal.
        let mut turned = ramp.clone();
        turned[1..999].reverse();
        assert_eq!(
            ours.difference(&of(&turned)),
            Some(("with element 17 17".to_owned(), "982".to_owned()))
        );
        // Different values except at the compared positions.
        let mut between = ramp.clone();
        for (place, value) in between.iter_mut().enumerate().take(999) {
            if place % stride(1000) != 0 {
                *value = 0.0;
            }
        }
        let (ours, _) = ours.difference(&of(&between)).expect("a difference");
        assert!(ours.starts_with("of root mean square 576.9"), "{ours}");
    }
}
