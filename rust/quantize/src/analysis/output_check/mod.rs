//! Measures the output error of a result on a few samples, and warns where it is large.

mod alternatives;
mod float_layers;
mod speed;

use std::error::Error;
use std::slice;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use quantize_rs_onnx::{Model, Span};

use self::alternatives::Current;
use super::not_finite;
use crate::analysis::compare::compare_outputs;
use crate::analysis::output_deviation::other_shapes;
use crate::apply::{Quantized, SATURATING};
use crate::calibrate::Control;
use crate::calibrate::engine::{Engine, Sample, Samples, ValueSink};
use crate::calibrate::pair::SliceSamples;
use crate::error::{CalibrationErrorKind, QuantizeErrorKind};
use crate::options::format::ONNX_RUNTIME;
use crate::report::{CheckedInputs, LostChannels, OutputCheck};
use crate::{
    Below, CalibrationError, CompareOptions, Format, KvCacheType, LayerRow, OutputRow,
    PreprocessedModel, Progress, QuantizeError, Ranges, Sensitivity, convert_opset,
};

/// An output with a lower SQNR gets a warning: its error has a tenth of its power.
const POOR_DB: f64 = 10.0;

/// How much more calibration samples need: held-out samples had up to 2.3 dB less in the models
/// that were measured.
const MARGIN_DB: f64 = 2.5;

/// If a larger fraction of rows gets another class, there is a warning.
const MANY_FLIPS: f64 = 0.05;

/// The number of layers that a warning names.
const LAYERS_SHOWN: usize = 3;

/// The check runs at least this long if there are samples left, and at most a tenth of the
/// calibration if that is longer.
const SECONDS: f64 = 5.0;

/// The samples of an output check.
#[derive(Clone, Copy, Debug)]
pub struct CheckSamples<'a> {
    /// The samples, in the order in which they are run until the time is used up.
    pub samples: &'a [Sample],
    /// Where they come from.
    pub inputs: CheckedInputs,
    /// Wall-clock seconds of the calibration, or 0.
    pub calibrated: f64,
}

impl Quantized {
    /// Runs the float model and the quantized one on a few samples, and adds the error of each
    /// output to the report. Where the error is large there is a warning, with the layers that
    /// cause most of it.
    ///
    /// `model` is the float model, and `ranges` are those that the plan was applied with. The check
    /// stops with the sample that runs when 5 seconds, or a tenth of the time of the calibration,
    /// are used up. A failure is no error: the report says why nothing was measured.
    ///
    /// # Errors
    /// The check was cancelled.
    pub fn check_outputs(
        &mut self,
        model: &Model,
        ranges: Option<&Ranges>,
        engine: &dyn Engine,
        given: CheckSamples<'_>,
        control: Control<'_>,
    ) -> Result<(), QuantizeError> {
        if !self.is_checked_on(given.inputs) {
            return Ok(());
        }
        let _span = Span::stage("check the outputs");
        let begun = Instant::now();
        let Control { threads, progress } = control;
        let mut check = Check {
            model,
            engine,
            given,
            threads,
            progress,
            seconds_per_sample: 0.0,
            layers: None,
            reduced_is_no_better: false,
        };
        let mut found = check.measured(self);
        let seconds_of_both = begun.elapsed().as_secs_f64();
        if let Ok(measured) = &found {
            #[allow(clippy::cast_precision_loss)] // a few samples
            let runs = 2.0 * measured.samples.max(1) as f64;
            check.seconds_per_sample = seconds_of_both / runs;
        }
        let mut own_ranges = None;
        if let Ok(measured) = &found
            && let Some(better) = check.better(Current { quantized: self, ranges, measured })?
        {
            let seconds = self.report().seconds;
            *self = better.quantized;
            self.report_mut().seconds = seconds;
            own_ranges = better.ranges;
            found = Ok(better.measured);
        }
        let ranges = own_ranges.as_ref().or(ranges);
        if check.reduced_is_no_better {
            self.report_mut().warnings.retain(|warning| warning != SATURATING);
        }
        let (found, warnings) = match found {
            Ok(mut found) => {
                let current = Current { quantized: self, ranges, measured: &found };
                let mut warnings = check.warnings(current)?;
                found.speed = check.speed(self, found.samples, seconds_of_both)?;
                warnings.extend(found.speed.as_ref().and_then(|found| speed::slower(found, self)));
                (found, warnings)
            }
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => {
                let refusal = check.refusal(self, &error);
                let failed = OutputCheck::failed(given.inputs, &error);
                let refused = refusal.is_some();
                (OutputCheck { refused, ..failed }, refusal.into_iter().collect())
            }
        };
        let report = self.report_mut();
        report.warnings.extend(warnings);
        report.output_check = Some(found);
        report.seconds.verify = begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether such inputs say something about this result. Synthetic inputs leave the ranges that
    /// a calibration found in data, and fake quantization is for training.
    fn is_checked_on(&self, inputs: CheckedInputs) -> bool {
        let report = self.report();
        let calibrated = report.config.activations.is_some();
        (report.quantized().next().is_some() || cache_alone(self).is_some())
            && report.config.output_format != Format::FakeQuant
            && (inputs.are_real() || !calibrated)
    }

    /// States in the report why its outputs were not checked.
    pub fn outputs_not_checked(&mut self, inputs: CheckedInputs, error: &QuantizeError) {
        if self.is_checked_on(inputs) {
            self.report_mut().output_check = Some(OutputCheck::failed(inputs, error));
        }
    }
}

/// The type of a quantized cache of keys and values where no value is quantized with it.
fn cache_alone(quantized: &Quantized) -> Option<KvCacheType> {
    let report = quantized.report();
    report.config.kv_cache.filter(|_| report.quantized().next().is_none())
}

/// The error of ONNX Runtime behind another one.
fn by_onnxruntime(error: &QuantizeError) -> Option<&CalibrationError> {
    let QuantizeErrorKind::Calibration(error) = error.kind() else { return None };
    let mut found = Some(error);
    while let Some(error) = found {
        match error.kind() {
            CalibrationErrorKind::Engine { engine: Some("onnxruntime"), .. }
            | CalibrationErrorKind::Unsupported { engine: "onnxruntime", .. } => break,
            _ => found = error.source().and_then(|cause| cause.downcast_ref()),
        }
    }
    found
}

/// Observes nothing.
struct Nothing;

impl ValueSink for Nothing {
    fn observe(&mut self, _: usize, _: &[usize], _: &[f32]) {}
}

/// One output check.
struct Check<'a> {
    model: &'a Model,
    engine: &'a dyn Engine,
    given: CheckSamples<'a>,
    threads: usize,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    /// Wall-clock seconds in which a model runs a sample.
    seconds_per_sample: f64,
    /// The errors of the layers, once they are measured.
    layers: Option<Sensitivity>,
    /// Whether weights of 7 bits were tried, and gain nothing where sums saturate.
    reduced_is_no_better: bool,
}

impl Check<'_> {
    fn budget(&self) -> Duration {
        Duration::from_secs_f64(SECONDS.max(self.given.calibrated / 10.0))
    }

    /// The error of each output.
    fn measured(&mut self, quantized: &Quantized) -> Result<OutputCheck, QuantizeError> {
        let end = Instant::now() + self.budget();
        let converted = self.converted(quantized)?;
        let float = converted.as_ref().unwrap_or(self.model);
        let mut samples = Within { samples: self.given.samples.iter(), end, begun: false };
        let control = Control { threads: self.threads, progress: &mut *self.progress };
        let options = CompareOptions::default();
        let found = compare_outputs(
            float,
            quantized.model(),
            self.engine,
            &mut samples,
            &options,
            control,
        )?;
        Ok(OutputCheck {
            inputs: self.given.inputs,
            samples: found.samples,
            engine: found.engine,
            outputs: found.outputs,
            integer_outputs: found.integer_outputs,
            speed: None,
            failure: None,
            refused: false,
        })
    }

    /// The warning about a result that ONNX Runtime refuses although it runs the float model. What
    /// it has no kernels for may be for another runtime.
    fn refusal(&self, quantized: &Quantized, error: &QuantizeError) -> Option<String> {
        let refused = by_onnxruntime(error)?;
        let target = quantized.report().config.target;
        let elsewhere = target.is_some_and(|target| !ONNX_RUNTIME.contains(&target));
        if refused.kind().is_unsupported() && elsewhere {
            return None;
        }
        let converted = self.converted(quantized).ok()?;
        let float = converted.as_ref().unwrap_or(self.model);
        let sample = self.given.samples.first()?;
        let session = self.engine.prepare(float, &[], sample).ok()?;
        session.run(sample, &mut Nothing, &AtomicBool::new(false)).ok()?;
        let verb = if refused.value().is_some() { "run" } else { "load" };
        let why = refused.kind().to_string();
        let why = why.lines().next().unwrap_or_default().trim_start_matches("onnxruntime: ");
        Some(format!("the result does not {verb} in onnxruntime: {why}"))
    }

    /// The float model in the opset of the result, if it names no opset: ONNX Runtime refuses such
    /// models.
    fn converted(&self, quantized: &Quantized) -> Result<Option<Model>, QuantizeError> {
        let to = quantized.model().opset("").filter(|_| self.model.proto().opset_import.is_empty());
        to.map(|to| Ok(convert_opset(self.model, to)?.0)).transpose()
    }

    /// A warning for each output whose error is large.
    fn warnings(&mut self, current: Current<'_>) -> Result<Vec<String>, QuantizeError> {
        let Current { quantized, measured: found, .. } = current;
        let mut warnings: Vec<String> = not_finite(&found.outputs).into_iter().collect();
        warnings.extend(other_shapes(&found.outputs, found.samples));
        let mut poor: Vec<String> =
            found.outputs.iter().filter_map(|output| poor(output, found)).collect();
        let integers = found.integer_outputs.iter().filter(|_| found.inputs.are_real());
        poor.extend(integers.filter(|row| row.differs()).map(|row| {
            let (name, other) = (&row.name, 1e2 * (1.0 - row.equal));
            format!("output `{name}` has other integers in {other:.1} % of its elements")
        }));
        if poor.is_empty() {
            return Ok(warnings);
        }
        let on = found.on();
        if let Some(from) = self.blame_of_pruning(quantized, found)? {
            warnings.extend(poor.into_iter().map(|what| format!("{what} on {on}; {from}")));
            return Ok(warnings);
        }
        if let Some(kept) = cache_alone(quantized) {
            let from = match kept {
                KvCacheType::Int4 => "kv_cache=int4, and int8 loses less",
                KvCacheType::Int8 => "kv_cache=int8: leave it out",
            };
            warnings.extend(poor.into_iter().map(|what| format!("{what} on {on}, from {from}")));
            return Ok(warnings);
        }
        let from = match self.layer_errors(current) {
            Err(error) if error.is_cancelled() => return Err(error),
            layers => comes_from(&layers.unwrap_or_default(), found),
        };
        let call = match found.inputs {
            _ if found.outputs.is_empty() => {
                "a metric with max_accuracy_drop and validation_data leaves such layers in float"
            }
            CheckedInputs::Calibration => "min_sqnr=20 leaves such layers in float",
            CheckedInputs::Synthetic => {
                "check it with samples: with validation_data and min_sqnr=20 such layers stay float"
            }
        };
        warnings.extend(poor.into_iter().map(|what| format!("{what} on {on}{from}; {call}")));
        Ok(warnings)
    }

    /// What a warning says of pruning, if that makes an output poor without any integers.
    fn blame_of_pruning(
        &mut self,
        quantized: &Quantized,
        found: &OutputCheck,
    ) -> Result<Option<String>, QuantizeError> {
        let config = &quantized.report().config;
        let option = match config.prune {
            None => return Ok(None),
            Some(Below::Sparsity(_)) => "sparsity",
            Some(_) => "prune",
        };
        let pruned = PreprocessedModel::of(self.model, config.clone())?.model;
        let control = Control { threads: self.threads, progress: &mut *self.progress };
        let checked = &self.given.samples[..self.given.samples.len().min(found.samples)];
        let samples = &mut SliceSamples(checked.iter());
        let options = CompareOptions::default();
        let pruned =
            match compare_outputs(self.model, &pruned, self.engine, samples, &options, control) {
                Err(error) if error.is_cancelled() => return Err(error),
                // What cannot be measured is not blamed.
                Err(_) => return Ok(None),
                Ok(pruned) => pruned,
            };
        let is_poor = pruned.outputs.iter().any(|output| poor(output, found).is_some());
        let worst = lowest(&pruned.outputs).filter(|_| is_poor);
        Ok(worst.map(|db| {
            format!(
                "{option} alone, with all weights in float, has {db:.1} dB: a lower {option} loses \
                 less"
            )
        }))
    }
}

/// The lowest SQNR of outputs.
fn lowest(outputs: &[OutputRow]) -> Option<f64> {
    let all = outputs.iter().map(|output| output.error.sqnr_db).filter(|db| db.is_finite());
    all.min_by(f64::total_cmp)
}

/// What a warning says of the layers that cause the largest error alone. Most of the error comes
/// from them if their errors together are half of it.
fn comes_from(layers: &[LayerRow], found: &OutputCheck) -> String {
    let layers = &layers[..layers.len().min(LAYERS_SHOWN)];
    let power = |db: f64| 10_f64.powf(-db / 10.0);
    let theirs: f64 = layers.iter().map(|layer| power(layer.score)).sum();
    let is_most = lowest(&found.outputs).is_none_or(|db| theirs >= power(db) / 2.0);
    let names =
        layers.iter().map(|layer| format!("`{}` ({:.1} dB alone)", layer.name, layer.score));
    let names: Vec<String> = names.collect();
    match (names.is_empty(), is_most) {
        (true, _) => String::new(),
        (_, true) => format!("; most of it comes from {}", names.join(", ")),
        (_, false) => format!("; the layers that lose most alone are {}", names.join(", ")),
    }
}

/// Whether an output gets a warning.
fn is_poor(found: &OutputCheck) -> bool {
    found.outputs.iter().any(|output| poor(output, found).is_some())
}

/// What is poor about an output, if something is.
fn poor(output: &OutputRow, found: &OutputCheck) -> Option<String> {
    let (name, db) = (&output.name, output.error.sqnr_db);
    let margin = if found.inputs.are_real() { MARGIN_DB } else { 0.0 };
    if db.is_nan() || db < POOR_DB + margin {
        return Some(format!(
            "output `{name}` is far from that of the float model: an SQNR of {db:.1} dB"
        ));
    }
    if let Some(LostChannels { axis, lost, channels }) = output.lost_channels {
        return Some(format!(
            "output `{name}` loses {lost} of {channels} channels along axis {axis}: their error \
             is as large as they are"
        ));
    }
    // Noise belongs to no class.
    let flips = 1.0 - output.top1_agreement.filter(|_| found.inputs.are_real())?;
    #[allow(clippy::cast_precision_loss)] // the rows of a few samples
    let several = flips * output.top1_rows as f64 >= 2.0;
    (flips > MANY_FLIPS && several).then(|| {
        format!(
            "output `{name}` has its highest score elsewhere in {:.0} % of the rows",
            flips * 1e2
        )
    })
}

/// Samples until the time is used up, but at least one.
struct Within<'a> {
    samples: slice::Iter<'a, Sample>,
    end: Instant,
    begun: bool,
}

impl Samples for Within<'_> {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        if !is_first && Instant::now() >= self.end {
            return None;
        }
        self.samples.next().cloned().map(Ok)
    }
}
