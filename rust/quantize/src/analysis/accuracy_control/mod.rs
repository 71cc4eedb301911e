//! Accuracy control: measures the quantized model on data. If it misses an accuracy criterion, the
//! most sensitive layers are reverted to float until it meets the criterion.

mod candidate;
mod fall_back;
mod reduced_range;

use std::time::Instant;

use quantize_rs_onnx::Model;

use crate::analysis::latency::how_to_be_faster;
use crate::analysis::output_deviation::other_shapes;
use crate::analysis::outputs::needs_float_output;
use crate::analysis::{all_of, not_finite, speed};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Samples};
use crate::calibrate::{Control, Progress, round_weights};
use crate::error::{QuantizeErrorKind, while_unchanged};
use crate::plan::not_quantized;
use crate::report::Evaluation;
use crate::{
    AccuracyCriteria, Config, KvCacheType, LatencyOptions, MetricHandle, PreprocessedModel,
    QuantizeError, Ranges,
};
use candidate::{CandidateEvaluator, EvaluatedCandidate, Reverted};

/// The accuracy criteria, and what happens if they are missed.
#[derive(Clone, Debug, PartialEq)]
pub struct AccuracyControl {
    /// The accuracy criteria; by default none, and the result is only measured.
    pub criteria: AccuracyCriteria,
    /// Whether layers are reverted to float, the most sensitive first, until the criteria are met;
    /// otherwise a missed criterion is an error.
    pub fall_back: bool,
    /// The class of each row of each sample, in order.
    pub labels: Option<Vec<i64>>,
    /// The output with the class scores; by default the first output that looks like class scores.
    pub scores: Option<String>,
    /// A metric that takes the place of the accuracy.
    pub metric: Option<MetricHandle>,
    /// How latency is measured, if the result has to be faster.
    pub latency: LatencyOptions,
    /// Whether the samples differ from the calibration samples.
    pub held_out: bool,
}

impl Default for AccuracyControl {
    fn default() -> AccuracyControl {
        AccuracyControl {
            criteria: AccuracyCriteria::default(),
            fall_back: true,
            labels: None,
            scores: None,
            metric: None,
            latency: LatencyOptions::default(),
            held_out: true,
        }
    }
}

impl AccuracyControl {
    /// Rejects invalid options before any work is done.
    ///
    /// # Errors
    /// An invalid criterion, or one for accuracy without labels.
    pub fn check(&self) -> Result<(), QuantizeError> {
        self.criteria.check_for(self.metric.is_some())?;
        let measured = self.labels.is_some() || self.metric.is_some();
        if self.criteria.max_accuracy_drop.is_some() && !measured {
            let what = "needs labels, the class of each row of the validation data, or a metric";
            return Err(QuantizeError::option("max_accuracy_drop", what));
        }
        Ok(())
    }
}

/// Quantizes `model` and measures the result on samples. If it misses an accuracy criterion, layers
/// are reverted to float: those with the most noise for the bytes that they save come first, and
/// those that turn out not to be needed are quantized again. For a target that computes all
/// operators in integers, layers get activations of 16 bits instead, as far as that is enough.
/// Layers are weights, and operators without weight that compute on integers. Every candidate is
/// quantized and measured, and the report lists them.
///
/// `ranges` are the ranges that [`calibrate`](crate::calibrate()) found for the plan of `config`.
/// The result is what `config` produces with the layers in [`Config::exclude`], except that their
/// weights are pruned as well, if `config` prunes. It does not depend on the number of threads. All
/// samples are kept in memory.
///
/// # Errors
/// A criterion that cannot be met: the error names it, with the measured value and what you can do.
/// Otherwise see [`compare`](crate::compare()) and [`Plan::apply`](crate::Plan::apply).
pub fn quantize_with_accuracy_control(
    model: &Model,
    config: &Config,
    ranges: Option<&Ranges>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &AccuracyControl,
    control: Control<'_>,
) -> Result<Quantized, QuantizeError> {
    while_unchanged(&[model], || {
        options.check()?;
        if options.criteria.min_sqnr.is_some() {
            needs_float_output(model)?;
        }
        let begun = Instant::now();
        let samples = all_of(samples)?;
        let Control { threads, progress } = control;
        let held = ranges.filter(|ranges| ranges.moments.is_some()).map(|ranges| {
            let prepared = PreprocessedModel::of(model, config.clone())?;
            let control = Control { threads, progress: &mut *progress };
            round_weights(&prepared.model, &prepared.plan(), ranges, None, control)
        });
        let held = held.transpose()?;
        let ranges = held.as_ref().or(ranges);
        let control = Control { threads, progress: &mut *progress };
        let mut evaluator =
            CandidateEvaluator::new(model, ranges, engine, &samples, options, control);
        let first = evaluator.evaluate(config, None, &Reverted::default())?;
        let (first, reduced) = evaluator.with_reduced_range(first)?;
        let config = reduced.as_ref().map_or(config, |reduced| &reduced.config);
        let (chosen, layers, mut earlier) = match &first.misses[..] {
            [] => (first, Reverted::default(), Vec::new()),
            _ if !options.fall_back => {
                return Err(missed(&first, options, &without_fall_back(config)));
            }
            _ => fall_back::to_wider(&mut evaluator, config, first, options)?,
        };
        let is_timed = options.criteria.require_faster;
        let timed = if is_timed { Some(evaluator.timed(&chosen)?) } else { None };
        let EvaluatedCandidate { mut quantized, attempt, engine, notes, .. } = chosen;
        quantized.refuse_larger()?;
        earlier.push(attempt);
        let verified = Evaluation {
            criteria: options.criteria,
            samples: samples.len(),
            held_out: options.held_out,
            engine,
            attempts: earlier,
            float_layers: layers.float,
            wide_layers: layers.wide,
            speed: timed,
        };
        let report = quantized.report_mut();
        for row in &mut report.values {
            if verified.float_layers.iter().any(|layer| layer.name == row.name) {
                row.why =
                    not_quantized(format!("left float to meet {}", verified.criteria_names()));
            }
        }
        report.notes.extend(notes);
        if let Some(reduced) = &reduced {
            reduced.warn(report);
        }
        if !verified.held_out {
            let what = "accuracy was measured on the calibration samples: pass other samples as \
                    validation data for a more reliable result";
            report.notes.push(what.to_owned());
        }
        let outcome = verified.attempts.last();
        report.warnings.extend(outcome.and_then(|attempt| not_finite(&attempt.outputs)));
        let shapes = outcome.and_then(|found| other_shapes(&found.outputs, verified.samples));
        report.warnings.extend(shapes);
        report.verified = Some(verified);
        report.seconds.verify = begun.elapsed().as_secs_f64();
        Ok(quantized)
    })
}

/// The advice if layers must not be reverted to float.
fn without_fall_back(config: &Config) -> String {
    format!("fall_back reverts layers to float until the criterion is met; or {}", advice(config))
}

/// What makes a result more accurate, other than float layers.
fn advice(config: &Config) -> &'static str {
    if config.prune.is_some() {
        return "prune fewer weights";
    }
    let bits = config.weights.bits();
    match (config.activations, config.scales_per_channel() || config.block_size.is_some()) {
        (_, false) => "give each channel its own scale (per_channel)",
        (None, true) if bits < 8 => "give weights more bits",
        (Some(_), true) if bits <= 8 => "try 16 bits for some values (activation_types)",
        _ => "keep the model float",
    }
}

/// The error of a model that misses an accuracy criterion.
fn missed(tried: &EvaluatedCandidate, options: &AccuracyControl, why: &str) -> QuantizeError {
    let attempt = &tried.attempt;
    let (criterion, measured, expected) = attempt.first_missed(&options.criteria);
    let cache = match tried.quantized.report().config.kv_cache {
        Some(KvCacheType::Int4) => "; kv_cache is int4, whose error counts too: try int8",
        Some(KvCacheType::Int8) => "; kv_cache is int8, whose error counts too: omit it",
        None => "",
    };
    let what = format!(
        "below the accuracy criterion: {} ({}); {why}{cache}. No model was written",
        tried.misses.join("; "),
        on(tried)
    );
    QuantizeError::new(QuantizeErrorKind::BelowCriteria {
        criterion: criterion.to_owned(),
        measured,
        expected,
        what,
    })
}

fn on(tried: &EvaluatedCandidate) -> String {
    let plural = if tried.samples == 1 { "" } else { "s" };
    format!("{} sample{plural}, {}", tried.samples, tried.engine)
}

impl CandidateEvaluator<'_> {
    /// The latency of the float model and of the quantized one.
    fn timed(&mut self, chosen: &EvaluatedCandidate) -> Result<crate::Speed, QuantizeError> {
        let (model, engine, first) = (self.model, self.engine, &self.samples[0]);
        let (options, quantized) = (self.options.latency, &chosen.quantized);
        let found = self.stages.next(|control| {
            let mut go_on = || (control.progress)(Progress::of(0, None));
            speed(engine, [model, quantized.model()], first, &options, &mut go_on)
        })?;
        let below = |measured, expected, what: String| {
            let criterion = "require_faster".to_owned();
            QuantizeError::new(QuantizeErrorKind::BelowCriteria {
                criterion,
                measured,
                expected,
                what,
            })
        };
        let Some(found) = found else {
            let what = "below the accuracy criterion: the result has to be faster, and the latency \
                        of this engine does not predict that of a deployed model; install \
                        onnxruntime. No model was written";
            return Err(below(None, None, what.to_owned()));
        };
        if found.speedup > 1.0 {
            return Ok(found);
        }
        let (float, now) = (found.original.median_ms, found.quantized.median_ms);
        let plural = if found.threads == 1 { "" } else { "s" };
        let what = format!(
            "below the accuracy criterion: it takes {now:.3} ms, and the float model {float:.3} ms \
             ({}, {} thread{plural}); {}. No model was written",
            found.engine,
            found.threads,
            how_to_be_faster(&chosen.quantized)
        );
        Err(below(Some(now), Some(float), what))
    }
}
