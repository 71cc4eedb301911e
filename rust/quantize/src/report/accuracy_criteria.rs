//! What a quantized model has to reach to be taken.

use serde::{Deserialize, Serialize};

use crate::QuantizeError;
use crate::options::Fraction;

/// What a quantized model has to reach; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// The least SQNR of its worst output, in decibels.
    pub min_sqnr: Option<f64>,
    /// The most accuracy that may be lost, from 0 to 1.
    pub max_accuracy_drop: Option<f64>,
    /// Whether it has to be faster than the float model.
    pub require_faster: bool,
}

impl Bar {
    /// Whether there is any.
    pub fn is_set(&self) -> bool {
        *self != Bar::default()
    }

    /// Refuses what no model can be held against.
    ///
    /// # Errors
    /// An SQNR that is no number, or a drop that is no part of 1.
    pub fn check(&self) -> Result<(), QuantizeError> {
        match (self.min_sqnr, self.max_accuracy_drop) {
            (Some(least), _) if !least.is_finite() => {
                let what = format!("is {least}, expected a number of decibels");
                Err(QuantizeError::option("min_sqnr", what))
            }
            (_, Some(most)) if !(0.0..1.0).contains(&most) => {
                let what = format!("is {most}, expected {}", Fraction::EXPECTED);
                Err(QuantizeError::option("max_accuracy_drop", what))
            }
            _ => Ok(()),
        }
    }
}
