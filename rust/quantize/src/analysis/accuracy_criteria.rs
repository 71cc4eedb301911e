//! Which criteria a comparison misses.

use super::Comparison;
use crate::report::{Accuracy, AccuracyCriteria};

impl Comparison {
    /// A sentence for each criterion that the quantized model misses; a criterion that was not
    /// measured is missed.
    pub fn misses(&self, criteria: &AccuracyCriteria) -> Vec<String> {
        let mut misses = Vec::new();
        if let Some(least) = criteria.min_sqnr {
            match self.sqnr_db() {
                Some(found) if found >= least => {}
                Some(found) => misses.push(format!("SQNR is {found:.2} dB, expected {least}")),
                None => misses.push(format!("no output has an SQNR, expected {least} dB")),
            }
        }
        if let Some(most) = criteria.max_accuracy_drop {
            match &self.accuracy {
                Some(accuracy) if accuracy.drop <= most => {}
                Some(Accuracy { metric: Some(metric), drop, .. }) if drop.is_nan() => {
                    misses.push(format!("{metric} has a score that is not finite"));
                }
                Some(Accuracy { metric: Some(metric), drop, .. }) => {
                    misses.push(format!("{metric} is {drop:.5} worse, expected {most} at most"));
                }
                Some(accuracy) => misses.push(format!(
                    "accuracy fell by {:.2} points, expected {:.2} at most",
                    accuracy.drop * 1e2,
                    most * 1e2
                )),
                None => misses.push("accuracy is not known without labels".to_owned()),
            }
        }
        if criteria.require_faster {
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
