//! Compares a float model with the quantized one.

use std::fmt;

use quantize_rs_onnx::Model;
use serde::{Deserialize, Serialize};

use super::integer_outputs::CastOutputs;
use super::kernels::Kernels;
use super::latency::{LatencyOptions, speed};
use super::output_deviation::{Compared, OutputComparer, accuracy, of_metrics, other_shapes, row};
use super::output_metric::MetricHandle;
use super::outputs::{listed, outputs, same_inputs, scored};
use super::recorded::First;
use crate::calibrate::engine::{Engine, Samples};
use crate::calibrate::pair::{FloatTypes, Pair};
use crate::calibrate::{Control, Progress, RunOutcome, observe};
use crate::error::while_unchanged;
use crate::report::{Accuracy, Assessment, IntegerOutputRow, Origin, OutputRow, Speed, worst_sqnr};
use crate::rewrite::with_float_caches;
use crate::{CalibrationErrorKind, QuantizeError};

/// What to compare in addition to the outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareOptions {
    /// The class of each row of each sample, in order.
    pub labels: Option<Vec<i64>>,
    /// The output with the class scores; by default the first output that looks like class scores.
    pub scores: Option<String>,
    /// How to measure latency; `None` does not measure it.
    pub latency: Option<LatencyOptions>,
    /// A metric that takes the place of the accuracy. The outputs of all samples are kept in memory
    /// for it.
    pub metric: Option<MetricHandle>,
}

/// The comparison of a float model with the quantized one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// One row for each float output.
    pub outputs: Vec<OutputRow>,
    /// One row for each output of integers or booleans.
    #[serde(default)]
    pub integer_outputs: Vec<IntegerOutputRow>,
    /// Outputs of other types.
    pub not_compared: Vec<String>,
    /// The accuracy, if labels were given.
    pub accuracy: Option<Accuracy>,
    /// The size of the float model in bytes, including external data.
    pub bytes_original: u64,
    /// The size of the quantized model in bytes, including external data.
    pub bytes_quantized: u64,
    /// The latency of both models, if it was measured.
    pub speed: Option<Speed>,
    /// The operators that the engine ran, if it reports them.
    pub kernels: Option<Kernels>,
    /// The number of samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: String,
    /// Notes of the engine.
    pub notes: Vec<String>,
    /// Warnings: for example that the quantized model is slower, or larger.
    pub warnings: Vec<String>,
    /// The models, the version, the date, and what is known of the call.
    #[serde(default)]
    pub origin: Origin,
}

/// Runs both models on every sample and compares their outputs, sizes, latency and integer
/// operators.
///
/// Positions that an input whose name ends with `attention_mask` marks as padding do not count in
/// the errors. Quantized caches of keys and values take the floats of the samples, and give floats.
///
/// The results do not depend on the number of threads. They depend on the order of the samples only
/// in the last digits. Memory does not grow with the number of samples.
///
/// # Errors
/// Models with different inputs or outputs, no samples, samples that do not fit, a number of labels
/// that differs from the number of rows, or an engine that cannot run one of the models.
pub fn compare(
    original: &Model,
    quantized: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &CompareOptions,
    control: Control<'_>,
) -> Result<Comparison, QuantizeError> {
    compared(original, quantized, engine, samples, (options, true), control)
}

/// As [`compare`], without the operators that the engine runs: they need a session of their own.
pub(crate) fn compare_outputs(
    original: &Model,
    quantized: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &CompareOptions,
    control: Control<'_>,
) -> Result<Comparison, QuantizeError> {
    compared(original, quantized, engine, samples, (options, false), control)
}

fn compared(
    original: &Model,
    quantized: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    (options, counts_operators): (&CompareOptions, bool),
    mut control: Control<'_>,
) -> Result<Comparison, QuantizeError> {
    while_unchanged(&[original, quantized], || {
        same_inputs(original, quantized)?;
        let (observed, mut not_compared) = outputs(original, quantized)?;
        let scored = scored(original, &observed, options)?;
        let floats = with_float_caches(quantized, original)?;
        let cast = CastOutputs::of(original, &floats, &mut not_compared)?;
        let (run, second) =
            cast.as_ref().map_or((original, &*floats), |cast| (&cast.original, &cast.quantized));
        let integers = cast.as_ref().map_or(&[][..], |cast| &cast.outputs);
        let shown: Vec<String> =
            observed.iter().chain(integers.iter().map(|(_, float)| float)).cloned().collect();

        let pair = Pair { engine, second };
        let mut samples = First { samples, first: None };
        let keeps = options.metric.is_some();
        let observer = || OutputComparer::new(&shown, &scored, keeps);
        let RunOutcome { observers, samples: count, engine: name, mut notes } =
            observe(run, &shown, &pair, &mut samples, &mut control, observer)?;
        let Compared { deviations: seen, kept, equal } =
            OutputComparer::joined(observers, integers.len());

        let outputs: Vec<OutputRow> =
            observed.iter().enumerate().map(|(index, name)| row(name, index, &seen)).collect();
        let accuracy = match &options.metric {
            Some(metric) => {
                let all = observed.iter().chain(integers.iter().map(|(name, _)| name));
                let all: Vec<String> = all.cloned().collect();
                Some(metric.accuracy(of_metrics(&all, observed.len()), &kept)?)
            }
            None => accuracy(&observed, &scored, &seen, options)?,
        };
        let mut go_on = || (control.progress)(Progress::of(count, Some(count)));
        let first = samples.first.unwrap_or_default();
        let speed = match &options.latency {
            Some(options) => speed(engine, [original, quantized], &first, options, &mut go_on)?,
            None => None,
        };
        let own = FloatTypes::of(&floats).convert(&first);
        let ran = if counts_operators { engine.kernels(&floats, &own) } else { Ok(None) };
        let kernels = match ran {
            Ok(ran) => ran.map(|(name, by_op_type)| Kernels::of_model(quantized, name, by_op_type)),
            Err(error) if matches!(error.kind(), CalibrationErrorKind::Cancelled) => {
                return Err(error.into());
            }
            // The models ran, in another engine.
            Err(error) => {
                notes.push(format!("operators on integers are not counted: {error}"));
                None
            }
        };
        let mut integer_outputs = Vec::new();
        for ((name, _), equal) in integers.iter().zip(equal) {
            match equal.row(name) {
                Some(row) => integer_outputs.push(row),
                None => not_compared.push(name.clone()),
            }
        }
        let mut comparison = Comparison {
            outputs,
            integer_outputs,
            not_compared,
            accuracy,
            bytes_original: original.byte_len(),
            bytes_quantized: quantized.byte_len(),
            speed,
            kernels,
            samples: count,
            engine: name.to_owned(),
            notes,
            warnings: Vec::new(),
            origin: Origin::of(&[original, quantized]),
        };
        comparison.warn();
        Ok(comparison)
    })
}

/// A warning about outputs that are finite in only one of the models.
pub(crate) fn not_finite(outputs: &[OutputRow]) -> Option<String> {
    let names = |of_original: bool| -> Vec<String> {
        let is_far = |output: &&OutputRow| {
            output.error.max_abs.is_infinite() && output.original_not_finite == of_original
        };
        outputs.iter().filter(is_far).map(|output| output.name.clone()).collect()
    };
    let (ours, theirs) = (names(true), names(false));
    let ours = (!ours.is_empty()).then(|| {
        let names = listed(&ours);
        format!("{names}: the original has infinity or NaN where the quantized model has numbers")
    });
    let theirs = (!theirs.is_empty()).then(|| {
        format!("{}: infinity or NaN where the original has other values", listed(&theirs))
    });
    let both: Vec<String> = ours.into_iter().chain(theirs).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

impl Comparison {
    /// The size of the float model divided by that of the quantized model.
    #[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
    pub fn ratio(&self) -> f64 {
        self.bytes_original as f64 / self.bytes_quantized.max(1) as f64
    }

    /// The SQNR of the worst output, in decibels; `None` without float outputs.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// The comparison as JSON, with `ratio`, `sqnr_db` and `assessment`; numbers that are not
    /// finite are null.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }

    /// What [`Comparison::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<> {
        // Names and numbers, no maps with odd keys: this cannot fail.
        let mut document = serde_json::to_value(self).unwrap_or_default();
        document["ratio"] = self.ratio().into();
        document["sqnr_db"] = self.sqnr_db().into();
        document["assessment"] = serde_json::to_value(self.assessment()).unwrap_or_default();
        if let Some(kernels) = &self.kernels {
            document["kernels"]["share"] = kernels.share().into();
        }
        document
    }

    /// Reads a comparison from JSON.
    ///
    /// # Errors
    /// The text was not written by [`Comparison::to_json`].
    pub fn from_json(text: &str) -> Result<Comparison, QuantizeError> {
        let refused =
            |error| QuantizeError::option("comparison", format!("is not a comparison: {error}"));
        serde_json::from_str(text).map_err(refused)
    }

    fn warn(&mut self) {
        if self.bytes_quantized >= self.bytes_original {
            self.warnings.push(format!(
                "the quantized model is not smaller: {} bytes, and the original {}",
                self.bytes_quantized, self.bytes_original
            ));
        }
        self.warnings.extend(not_finite(&self.outputs));
        self.warnings.extend(other_shapes(&self.outputs, self.samples));
        self.warnings.extend(self.speed.as_ref().and_then(Speed::warning));
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Assessment { grade, sentence, next } = self.assessment();
        writeln!(f, "{}: {sentence}", grade.name())?;
        next.iter().try_for_each(|what| writeln!(f, "next: {what}"))?;
        let longest = self.outputs.iter().map(|output| output.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("output".len());
        writeln!(
            f,
            "{:<width$}  {:>8}  {:>10}  {:>11}  {:>10}",
            "output", "SQNR dB", "cosine", "max error", "same top-1"
        )?;
        for OutputRow { name, error, top1_agreement, .. } in &self.outputs {
            let same = top1_agreement.map_or("-".to_owned(), |part| format!("{:.2} %", part * 1e2));
            writeln!(
                f,
                "{name:<width$}  {:>8.2}  {:>10.6}  {:>11.4e}  {same:>10}",
                error.sqnr_db, error.cosine, error.max_abs
            )?;
        }
        self.integer_outputs.iter().try_for_each(|row| writeln!(f, "{}", row.text()))?;
        if !self.not_compared.is_empty() {
            writeln!(f, "not compared: {}", self.not_compared.join(", "))?;
        }
        if let Some(accuracy) = &self.accuracy {
            writeln!(f, "{accuracy}")?;
        }
        writeln!(
            f,
            "size: {} bytes, {} quantized, {:.2} times smaller",
            self.bytes_original,
            self.bytes_quantized,
            self.ratio()
        )?;
        if let Some(speed) = &self.speed {
            write!(f, "{speed}")?;
        }
        if let Some(kernels) = &self.kernels {
            writeln!(f, "{kernels}")?;
        }
        let plural = if self.samples == 1 { "" } else { "s" };
        writeln!(f, "{} sample{plural} ({})", self.samples, self.engine)?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}
