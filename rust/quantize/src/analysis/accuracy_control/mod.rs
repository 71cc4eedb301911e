//! A bar for the result: it is measured on data, and where it misses the bar layers are left float,
//! the most sensitive first, until it holds.

mod candidate;

use std::time::Instant;

use quantize_rs_onnx::Model;

use crate::analysis::{Given, all_of, not_finite, speed};
use crate::apply::Quantized;
use crate::calibrate::engine::{Engine, Samples};
use crate::calibrate::{Control, Progress};
use crate::error::QuantizeErrorKind;
use crate::report::{Attempt, FloatLayer, Verified};
use crate::{
    Bar, Config, LatencyOptions, PreprocessedModel, QuantizeError, Ranges, SensitivityOptions,
    sensitivity,
};
use candidate::{Attempted, Judge};

/// What the result has to reach, and what becomes of one that does not.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardOptions {
    /// What it has to reach; by default nothing: then it is only measured.
    pub bar: Bar,
    /// Layers are left float, worst first, until the bar holds; else a miss is an error.
    pub fall_back: bool,
    /// The class of every row of every sample, in their order.
    pub labels: Option<Vec<i64>>,
    /// The output whose scores are held against the labels; by default the first that looks like
    /// scores of classes.
    pub scores: Option<String>,
    /// How latency is measured, where the result has to be faster.
    pub latency: LatencyOptions,
    /// Whether the samples are others than those that the ranges were found in.
    pub held_out: bool,
}

impl Default for GuardOptions {
    fn default() -> GuardOptions {
        GuardOptions {
            bar: Bar::default(),
            fall_back: true,
            labels: None,
            scores: None,
            latency: LatencyOptions::default(),
            held_out: true,
        }
    }
}

impl GuardOptions {
    /// Refuses options that cannot be met, before the work.
    ///
    /// # Errors
    /// A bar that no model can be held against, or one for accuracy without labels.
    pub fn check(&self) -> Result<(), QuantizeError> {
        self.bar.check()?;
        if self.bar.max_accuracy_drop.is_some() && self.labels.is_none() {
            let what = "needs labels: the right class of each row of the data it is judged on";
            return Err(QuantizeError::option("max_accuracy_drop", what));
        }
        Ok(())
    }
}

/// Samples that layers are ranked on at most: more cost time and hardly change their order.
const RANKED_ON: usize = 32;

/// Quantizes `model` and judges the result on samples. Where it misses a bar of accuracy, the layers
/// that cost the most, quantized alone, stay float: as few as are needed, and every model that counts
/// is made and measured. The report says what was tried.
///
/// `ranges` are those that [`calibrate`](crate::calibrate()) found for the plan of `config`. The result
/// is what `config` makes with the layers in [`Config::layer_float`], and does not depend on the
/// number of threads. All samples are kept in memory.
///
/// # Errors
/// A bar that is missed and cannot be held: the error says which, what was measured, and what can be
/// done. Else as [`compare`](crate::compare()) and [`Plan::apply`](crate::Plan::apply).
pub fn guarded(
    model: &Model,
    config: &Config,
    ranges: Option<&Ranges>,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &GuardOptions,
    control: Control<'_>,
) -> Result<Quantized, QuantizeError> {
    options.check()?;
    let begun = Instant::now();
    let samples = all_of(samples)?;
    let Control { threads, progress } = control;
    let control = Control { threads, progress: &mut *progress };
    let mut judge = Judge::new(model, ranges, engine, &samples, options, control);
    let first = judge.attempt(config, &[])?;
    let (chosen, layers, mut earlier) = match &first.misses[..] {
        [] => (first, Vec::new(), Vec::new()),
        _ if !options.fall_back => return Err(missed(&first, options, &unmended(config))),
        _ => fallen_back(&mut judge, config, first, options)?,
    };
    let is_timed = options.bar.require_faster;
    let timed = if is_timed { Some(judge.timed(&chosen)?) } else { None };
    let Attempted { mut quantized, attempt, engine, notes, .. } = chosen;
    earlier.push(attempt);
    let verified = Verified {
        bar: options.bar,
        samples: samples.len(),
        held_out: options.held_out,
        engine,
        attempts: earlier,
        float_layers: layers,
        speed: timed,
    };
    let report = quantized.report_mut();
    for row in &mut report.values {
        if verified.float_layers.iter().any(|layer| layer.name == row.name) {
            row.why = format!("left float, so that {} holds", verified.bar_names());
        }
    }
    report.notes.extend(notes);
    if !verified.held_out {
        let what = "the bar was judged on the samples that ranges were found in: others, given as \
                    verify, show more";
        report.notes.push(what.to_owned());
    }
    let outcome = verified.attempts.last();
    report.warnings.extend(outcome.and_then(|attempt| not_finite(&attempt.outputs)));
    report.verified = Some(verified);
    report.seconds.verify = begun.elapsed().as_secs_f64();
    Ok(quantized)
}

/// The model with the fewest layers left float that holds the bar, these layers, and what was tried
/// with fewer.
fn fallen_back(
    judge: &mut Judge<'_>,
    config: &Config,
    first: Attempted,
    options: &GuardOptions,
) -> Result<(Attempted, Vec<FloatLayer>, Vec<Attempt>), QuantizeError> {
    let ranked = judge.ranked(config)?;
    let names: Vec<String> = ranked.iter().map(|layer| layer.name.clone()).collect();
    // With all of them float nothing would be left to quantize.
    let most = names.len().saturating_sub(1);
    // Models are large: of those that miss the bar the last is kept, for what is said of it.
    let (mut failed, mut last) = (Vec::new(), first);
    let mut holding: Option<(usize, Attempted)> = None;
    let mut below = 0;
    loop {
        // Twice as many each time until it holds, then halfway between.
        let count = match &holding {
            Some((above, _)) if above - below <= 1 => break,
            Some((above, _)) => below + (above - below) / 2,
            None if below == most => break,
            None => (below * 2).clamp(1, most),
        };
        let tried = judge.attempt(config, &names[..count])?;
        if tried.misses.is_empty() {
            holding = Some((count, tried));
        } else {
            below = count;
            failed.push(std::mem::replace(&mut last, tried).attempt);
        }
    }
    if let Some((count, chosen)) = holding {
        let layers = ranked.into_iter().take(count).collect();
        failed.push(last.attempt);
        return Ok((chosen, layers, failed));
    }
    let why = format!(
        "with {most} of {} layers left float; with all of them nothing would be quantized: lower the \
         bar, or {}",
        names.len(),
        better(config)
    );
    Err(missed(&last, options, &why))
}

/// What a miss comes to where layers must not be left float.
fn unmended(config: &Config) -> String {
    format!("fall_back would leave layers float until it holds; or {}", better(config))
}

/// What makes a result nearer, beside leaving layers float.
fn better(config: &Config) -> &'static str {
    if config.prune.is_some() {
        return "prune fewer weights";
    }
    let bits = config.weights.bits();
    match (config.activations, config.per_channel || config.block_size.is_some()) {
        (_, false) => "give every channel its own scale (per_channel)",
        (None, true) if bits < 8 => "give weights more bits",
        (Some(_), true) if bits <= 8 => "try 16 bits for some values (activation_types)",
        _ => "keep the model float",
    }
}

/// The error of a model that misses the bar.
fn missed(tried: &Attempted, options: &GuardOptions, why: &str) -> QuantizeError {
    let attempt = &tried.attempt;
    let (bar, measured, expected) = attempt.worst_miss(&options.bar);
    let what = format!(
        "below the bar: {} ({}); {why}. Nothing was written",
        tried.misses.join("; "),
        on(tried)
    );
    QuantizeError::new(QuantizeErrorKind::BelowBar {
        bar: bar.to_owned(),
        measured,
        expected,
        what,
    })
}

fn on(tried: &Attempted) -> String {
    let plural = if tried.samples == 1 { "" } else { "s" };
    format!("{} sample{plural}, {}", tried.samples, tried.engine)
}

impl Judge<'_> {
    /// The layers of the plan, those that cost the most first.
    fn ranked(&mut self, config: &Config) -> Result<Vec<FloatLayer>, QuantizeError> {
        let prepared = PreprocessedModel::of(self.model, config.clone())?;
        let plan = prepared.plan();
        let some = &self.samples[..self.samples.len().min(RANKED_ON)];
        let (engine, ranges, given) = (self.engine, self.ranges, &mut Given(some.iter()));
        let options = SensitivityOptions::default();
        let found = self.works.next(|control| {
            sensitivity(&prepared.model, &plan, ranges, engine, given, &options, control)
        })?;
        let layers = found.layers.into_iter();
        Ok(layers.map(|row| FloatLayer { name: row.name, outputs: row.outputs }).collect())
    }

    /// How long the float model and the quantized one take.
    fn timed(&mut self, chosen: &Attempted) -> Result<crate::Speed, QuantizeError> {
        let (model, engine, first) = (self.model, self.engine, &self.samples[0]);
        let (options, quantized) = (self.options.latency, &chosen.quantized);
        let found = self.works.next(|control| {
            let mut go_on = || (control.progress)(Progress { done: 0, total: None });
            speed(engine, [model, quantized.model()], first, &options, &mut go_on)
        })?;
        let below = |measured, expected, what: String| {
            let bar = "require_faster".to_owned();
            QuantizeError::new(QuantizeErrorKind::BelowBar { bar, measured, expected, what })
        };
        let Some(found) = found else {
            let what = "below the bar: it has to be faster, and this engine's time says nothing of \
                        that of a deployed model; install onnxruntime. Nothing was written";
            return Err(below(None, None, what.to_owned()));
        };
        if found.speedup > 1.0 {
            return Ok(found);
        }
        let (float, now) = (found.original.median_ms, found.quantized.median_ms);
        let plural = if found.threads == 1 { "" } else { "s" };
        let what = format!(
            "below the bar: it takes {now:.3} ms, and the float model {float:.3} ms ({}, {} \
             thread{plural}); {}. Nothing was written",
            found.engine,
            found.threads,
            faster(chosen)
        );
        Err(below(Some(now), Some(float), what))
    }
}

/// What may make a result faster.
fn faster(chosen: &Attempted) -> &'static str {
    let config = &chosen.quantized.report().config;
    if config.activations.is_some() {
        "compare says what runs on integers; name the target it is made for, or leave it float"
    } else if config.computes_on_integers() {
        "what becomes integers when it runs takes its time, convolutions above all: calibrate, so that \
         ranges are known before, or leave float what the warnings name"
    } else {
        "weights alone come back as floats before anything is multiplied by them: calibrate, so \
         that activations are quantized too, or take the output format dynamic"
    }
}
