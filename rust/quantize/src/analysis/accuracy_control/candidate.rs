//! One candidate: a quantized model and its measurement against the float model.

use quantize_rs_onnx::Model;

use super::AccuracyControl;
use crate::analysis::SliceSamples;
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::{Control, StagedProgress};
use crate::report::{Candidate, RevertedLayer};
use crate::{
    AccuracyCriteria, CompareOptions, Config, PreprocessedModel, QuantizeError, Ranges, compare,
};

/// Quantizes and measures candidates.
pub(super) struct CandidateEvaluator<'a> {
    /// The float model.
    pub(super) model: &'a Model,
    pub(super) ranges: Option<&'a Ranges>,
    pub(super) engine: &'a dyn Engine,
    pub(super) samples: &'a [Sample],
    pub(super) options: &'a AccuracyControl,
    pub(super) stages: StagedProgress<'a>,
}

/// A candidate with its measurement.
pub(super) struct EvaluatedCandidate {
    pub(super) quantized: Quantized,
    pub(super) attempt: Candidate,
    /// A sentence for each accuracy criterion that it misses.
    pub(super) misses: Vec<String>,
    pub(super) samples: usize,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

impl<'a> CandidateEvaluator<'a> {
    pub(super) fn new(
        model: &'a Model,
        ranges: Option<&'a Ranges>,
        engine: &'a dyn Engine,
        samples: &'a [Sample],
        options: &'a AccuracyControl,
        control: Control<'a>,
    ) -> CandidateEvaluator<'a> {
        CandidateEvaluator {
            model,
            ranges,
            engine,
            samples,
            options,
            stages: StagedProgress::new(control),
        }
    }

    /// Quantizes the model with these layers reverted to float, and measures it.
    pub(super) fn evaluate(
        &mut self,
        config: &Config,
        float: &[RevertedLayer],
    ) -> Result<EvaluatedCandidate, QuantizeError> {
        let prepared = PreprocessedModel::of(self.model, with_float(config, float))?;
        let mut plan = prepared.plan();
        if let Some(ranges) = self.ranges.filter(|_| !float.is_empty()) {
            // Next to float layers, values may be quantized that were not quantized before.
            plan = plan.without_unseen(ranges).into_owned();
        }
        let quantized = plan.apply_cached(&prepared.model, self.ranges, None)?;
        drop(prepared);
        let AccuracyControl { labels, scores, bar, .. } = self.options;
        let options =
            CompareOptions { labels: labels.clone(), scores: scores.clone(), latency: None };
        let (model, engine, given) =
            (self.model, self.engine, &mut SliceSamples(self.samples.iter()));
        let found = self
            .stages
            .next(|control| compare(model, quantized.model(), engine, given, &options, control))?;
        let misses = found.misses(&AccuracyCriteria { require_faster: false, ..*bar });
        let attempt = Candidate {
            float_layers: float.iter().map(|layer| layer.name.clone()).collect(),
            bytes: found.bytes_quantized,
            outputs: found.outputs,
            accuracy: found.accuracy,
            holds: misses.is_empty(),
        };
        let (samples, engine, notes) = (found.samples, found.engine, found.notes);
        Ok(EvaluatedCandidate { quantized, attempt, misses, samples, engine, notes })
    }
}

/// The options with these layers in float.
fn with_float(config: &Config, float: &[RevertedLayer]) -> Config {
    let mut config = config.clone();
    config.exclude.extend(float.iter().map(|layer| layer.name.clone()));
    config
}
