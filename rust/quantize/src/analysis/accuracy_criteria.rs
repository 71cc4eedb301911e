//! What a quantized model has to reach to be taken.

use serde::{Deserialize, Serialize};

use super::Comparison;
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

impl Comparison {
    /// Where the quantized model does not reach the bar, a sentence for each; what was not measured
    /// is not reached.
    pub fn misses(&self, bar: &Bar) -> Vec<String> {
        let mut misses = Vec::new();
        if let Some(least) = bar.min_sqnr {
            match self.sqnr_db() {
                Some(found) if found >= least => {}
                Some(found) => misses.push(format!("SQNR is {found:.2} dB, expected {least}")),
                None => misses.push(format!("no output has an SQNR, expected {least} dB")),
            }
        }
        if let Some(most) = bar.max_accuracy_drop {
            match &self.accuracy {
                Some(accuracy) if accuracy.drop <= most => {}
                Some(accuracy) => misses.push(format!(
                    "accuracy fell by {:.2} points, expected {:.2} at most",
                    accuracy.drop * 1e2,
                    most * 1e2
                )),
                None => misses.push("accuracy is not known without labels".to_owned()),
            }
        }
        if bar.require_faster {
            match &self.speed {
                Some(speed) if speed.speedup > 1.0 => {}
                Some(speed) => misses.push(format!(
                    "it takes {:.3} ms, and the float model {:.3} ms",
                    speed.quantized.median_ms, speed.original.median_ms
                )),
                None => misses.push("latency was not measured".to_owned()),
            }
        }
        misses
    }
}
