//! Accuracy criteria for a quantized model.

use serde::{Deserialize, Serialize};

use crate::QuantizeError;
use crate::options::Fraction;

/// The criteria that a quantized model has to meet; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccuracyCriteria {
    /// The minimum SQNR of its worst output, in decibels.
    pub min_sqnr: Option<f64>,
    /// The maximum loss of accuracy, a fraction from 0 to 1; with a metric of the caller's, the
    /// most by which its score may be worse.
    pub max_accuracy_drop: Option<f64>,
    /// Whether it has to be faster than the float model.
    pub require_faster: bool,
}

impl AccuracyCriteria {
    /// Whether any criterion is set.
    pub fn is_set(&self) -> bool {
        *self != AccuracyCriteria::default()
    }

    /// Rejects invalid criteria.
    ///
    /// # Errors
    /// An SQNR that is not finite, or a drop outside of 0 to 1.
    pub fn check(&self) -> Result<(), QuantizeError> {
        self.check_for(false)
    }

    /// As [`AccuracyCriteria::check`]; `metric` says whether a metric of the caller's is measured,
    /// whose scores may have any size.
    pub(crate) fn check_for(&self, metric: bool) -> Result<(), QuantizeError> {
        match (self.min_sqnr, self.max_accuracy_drop) {
            (Some(least), _) if !least.is_finite() => {
                let what = format!("is {least}, expected a number of decibels");
                Err(QuantizeError::option("min_sqnr", what))
            }
            (_, Some(most)) if metric && most.is_finite() && most >= 0.0 => Ok(()),
            (_, Some(most)) if metric => {
                let what = format!("is {most}, expected a number from 0 on");
                Err(QuantizeError::option("max_accuracy_drop", what))
            }
            (_, Some(most)) if !(0.0..1.0).contains(&most) => {
                let what = format!("is {most}, expected {}", Fraction::EXPECTED);
                Err(QuantizeError::option("max_accuracy_drop", what))
            }
            _ => Ok(()),
        }
    }
}
