//! Weights of 7 bits, where sums of 8 bits saturate and miss the accuracy criteria.

use std::borrow::Cow;

use super::candidate::{CandidateEvaluator, EvaluatedCandidate, Reverted};
use crate::analysis::reduced_range::{self, GAIN_DB, reduced, rounded_again};
use crate::{Config, OutputRow, QuantizeError, Report};

/// Options with weights of 7 bits, and the outputs with 8 bits and with 7.
pub(super) struct Reduced {
    pub(super) config: Config,
    before: Vec<OutputRow>,
    now: Vec<OutputRow>,
}

impl Reduced {
    /// Says in a report that the weights have 7 bits.
    pub(super) fn warn(&self, report: &mut Report) {
        reduced_range::warn(report, &self.before, &self.now);
    }
}

impl CandidateEvaluator<'_> {
    /// The model with weights of 7 bits, if sums saturate on this processor, no target is named and
    /// it is much better, or closer to the criteria that the given one misses; otherwise the given
    /// one. Layers that are reverted then are not those whose sums saturate.
    pub(super) fn with_reduced_range(
        &mut self,
        first: EvaluatedCandidate,
    ) -> Result<(EvaluatedCandidate, Option<Reduced>), QuantizeError> {
        let Some(config) = reduced(&first.quantized, &first.engine) else {
            return Ok((first, None));
        };
        let ranges = self.ranges.clone();
        if let Some(found) = self.ranges.as_deref() {
            // Weights are not rounded on the samples that evaluate them.
            let samples = if self.options.held_out { &[] } else { self.samples };
            let (model, given) = (self.model, (self.engine, samples));
            let fitting =
                self.stages.next(|control| rounded_again(model, &config, found, given, control))?;
            self.ranges = fitting.map(Cow::Owned).or(self.ranges.take());
        }
        let other = match self.evaluate(&config, None, &Reverted::default()) {
            Ok(other) if self.is_better(&first, &other) => other,
            Err(error) if error.is_cancelled() => return Err(error),
            _ => {
                self.ranges = ranges;
                return Ok((first, None));
            }
        };
        let (before, now) = (first.attempt.outputs, other.attempt.outputs.clone());
        Ok((other, Some(Reduced { config, before, now })))
    }

    fn is_better(&self, first: &EvaluatedCandidate, other: &EvaluatedCandidate) -> bool {
        let least = first.attempt.sqnr_db().map(|db| db + GAIN_DB);
        let much = !first.misses.is_empty() || other.attempt.sqnr_db() > least;
        much && other.attempt.is_closer(&first.attempt, &self.options.criteria)
    }
}
