//! One candidate: a quantized model and its measurement against the float model.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use quantize_rs_math::QType;
use quantize_rs_onnx::Model;

use super::AccuracyControl;
use crate::analysis::SliceSamples;
use crate::analysis::compare::compare_outputs;
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::{Control, StagedProgress};
use crate::report::{Candidate, RevertedLayer};
use crate::{
    AccuracyCriteria, CompareOptions, Config, Plan, PreprocessedModel, QuantizeError, Ranges,
};

/// Quantizes and measures candidates.
pub(super) struct CandidateEvaluator<'a> {
    /// The float model.
    pub(super) model: &'a Model,
    pub(super) ranges: Option<Cow<'a, Ranges>>,
    pub(super) engine: &'a dyn Engine,
    pub(super) samples: &'a [Sample],
    pub(super) options: &'a AccuracyControl,
    pub(super) stages: StagedProgress<'a>,
}

/// The layers that are not quantized as planned.
#[derive(Clone, Default)]
pub(super) struct Reverted {
    /// Those that are left in float.
    pub(super) float: Vec<RevertedLayer>,
    /// Those whose activations get 16 bits.
    pub(super) wide: Vec<RevertedLayer>,
}

/// How activations of layers get 16 bits.
pub(super) struct Wide {
    pub(super) qtype: QType,
    /// The activations of each layer.
    pub(super) values: HashMap<String, BTreeSet<String>>,
}

impl Wide {
    /// Gives the activations of layers, as far as a plan quantizes them, 16 bits in its options.
    fn extend(&self, config: &mut Config, plan: &Plan, layers: &[RevertedLayer]) {
        let values = layers.iter().filter_map(|layer| self.values.get(&layer.name)).flatten();
        let quantized: BTreeSet<&str> =
            plan.quantized().map(|(value, _)| value.name.as_str()).collect();
        for value in values.filter(|value| quantized.contains(value.as_str())) {
            config.activation_types.insert(value.clone(), self.qtype);
        }
    }
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
            ranges: ranges.map(Cow::Borrowed),
            engine,
            samples,
            options,
            stages: StagedProgress::new(control),
        }
    }

    /// Quantizes the model with some layers reverted, and measures it.
    pub(super) fn evaluate(
        &mut self,
        config: &Config,
        wide: Option<&Wide>,
        reverted: &Reverted,
    ) -> Result<EvaluatedCandidate, QuantizeError> {
        let float = names(&reverted.float);
        let mut prepared = PreprocessedModel::leaving(self.model, config.clone(), &float)?;
        let mut plan = prepared.plan();
        if let Some(wide) = wide.filter(|_| !reverted.wide.is_empty()) {
            let mut config = config.clone();
            wide.extend(&mut config, &plan, &reverted.wide);
            prepared = PreprocessedModel::leaving(self.model, config, &float)?;
            plan = prepared.plan();
        }
        let is_planned = reverted.float.is_empty() && reverted.wide.is_empty();
        if let Some(ranges) = self.ranges.as_deref().filter(|_| !is_planned) {
            // Next to float layers, values may be quantized that were not quantized before.
            plan = plan.without_unseen(ranges);
        }
        let quantized = plan.apply_cached(&prepared.model, self.ranges.as_deref(), None)?;
        drop(prepared);
        let AccuracyControl { labels, scores, metric, criteria, .. } = self.options;
        let options = CompareOptions {
            labels: labels.clone(),
            scores: scores.clone(),
            latency: None,
            metric: metric.clone(),
        };
        let (model, engine, given) =
            (self.model, self.engine, &mut SliceSamples(self.samples.iter()));
        let found = self.stages.next(|control| {
            compare_outputs(model, quantized.model(), engine, given, &options, control)
        })?;
        let misses = found.misses(&AccuracyCriteria { require_faster: false, ..*criteria });
        let attempt = Candidate {
            float_layers: float,
            wide_layers: names(&reverted.wide),
            bytes: found.bytes_quantized,
            outputs: found.outputs,
            integer_outputs: found.integer_outputs,
            accuracy: found.accuracy,
            holds: misses.is_empty(),
        };
        let (samples, engine, notes) = (found.samples, found.engine, found.notes);
        Ok(EvaluatedCandidate { quantized, attempt, misses, samples, engine, notes })
    }
}

fn names(layers: &[RevertedLayer]) -> Vec<String> {
    layers.iter().map(|layer| layer.name.clone()).collect()
}
