//! One model on trial: made, and measured against the float model.

use quantize_rs_onnx::Model;

use super::GuardOptions;
use crate::analysis::Given;
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Sample};
use crate::calibrate::{Control, Works};
use crate::report::Attempt;
use crate::{Bar, CompareOptions, Config, PreprocessedModel, QuantizeError, Ranges, compare};

/// All that models are judged by.
pub(super) struct Judge<'a> {
    /// The float model.
    pub(super) model: &'a Model,
    pub(super) ranges: Option<&'a Ranges>,
    pub(super) engine: &'a dyn Engine,
    pub(super) samples: &'a [Sample],
    pub(super) options: &'a GuardOptions,
    pub(super) works: Works<'a>,
}

/// A model that was made and measured.
pub(super) struct Attempted {
    pub(super) quantized: Quantized,
    pub(super) attempt: Attempt,
    /// Where it misses the bar, a sentence for each.
    pub(super) misses: Vec<String>,
    pub(super) samples: usize,
    pub(super) engine: String,
    pub(super) notes: Vec<String>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        model: &'a Model,
        ranges: Option<&'a Ranges>,
        engine: &'a dyn Engine,
        samples: &'a [Sample],
        options: &'a GuardOptions,
        control: Control<'a>,
    ) -> Judge<'a> {
        Judge { model, ranges, engine, samples, options, works: Works::new(control) }
    }

    /// Makes the model with these layers left float, and measures it.
    pub(super) fn attempt(
        &mut self,
        config: &Config,
        float: &[String],
    ) -> Result<Attempted, QuantizeError> {
        let prepared = PreprocessedModel::of(self.model, with_float(config, float))?;
        let mut plan = prepared.plan();
        if let Some(ranges) = self.ranges.filter(|_| !float.is_empty()) {
            // What runs beside floats may be quantized where it was not before.
            plan = plan.without_unseen(ranges).into_owned();
        }
        let quantized = plan.apply(&prepared.model, self.ranges)?;
        drop(prepared);
        let GuardOptions { labels, scores, bar, .. } = self.options;
        let options =
            CompareOptions { labels: labels.clone(), scores: scores.clone(), latency: None };
        let (model, engine, given) = (self.model, self.engine, &mut Given(self.samples.iter()));
        let found = self
            .works
            .next(|control| compare(model, quantized.model(), engine, given, &options, control))?;
        let misses = found.misses(&Bar { require_faster: false, ..*bar });
        let attempt = Attempt {
            float_layers: float.to_vec(),
            bytes: found.bytes_quantized,
            outputs: found.outputs,
            accuracy: found.accuracy,
            holds: misses.is_empty(),
        };
        let (samples, engine, notes) = (found.samples, found.engine, found.notes);
        Ok(Attempted { quantized, attempt, misses, samples, engine, notes })
    }
}

/// The wishes with these weights left float, whatever else was asked for them by name.
fn with_float(config: &Config, float: &[String]) -> Config {
    let mut config = config.clone();
    for name in float {
        config.layer_bits.remove(name);
        config.layer_types.remove(name);
        config.layer_float.insert(name.clone());
    }
    config
}
