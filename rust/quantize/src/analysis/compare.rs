//! Compares a float model with the quantized one.

use std::fmt;
use std::mem;
use std::sync::Arc;

use quantize_rs_math::Deviation;
use quantize_rs_onnx::{DataType, Model};
use serde::{Deserialize, Serialize};

use super::integer_outputs::{CastOutputs, Equality};
use super::kernels::Kernels;
use super::latency::{LatencyOptions, speed};
use super::lost_channels::ChannelErrors;
use super::output_metric::{MetricHandle, SampleOutputs};
use super::recorded::{First, Value};
use super::scores::{highest, look_like_classes};
use crate::calibrate::engine::{Engine, Sample, Samples, ValueSink};
use crate::calibrate::padding::{PaddingMask, counted};
use crate::calibrate::pair::Pair;
use crate::calibrate::{Control, Progress, RunOutcome, ValueObserver, observe};
use crate::error::while_unchanged;
use crate::graph::{Graph, InputSpec};
use crate::report::accuracy::part;
use crate::report::{Accuracy, Assessment, IntegerOutputRow, Origin, OutputRow, Speed, worst_sqnr};
use crate::rewrite::with_float_caches;
use crate::{CalibrationError, QuantizeError};

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
        let RunOutcome { observers, samples: count, engine: name, notes } =
            observe(run, &shown, &pair, &mut samples, &mut control, observer)?;
        let (mut seen, mut kept) = (Vec::new(), Vec::new());
        let mut equal = vec![Equality::default(); integers.len()];
        for observer in observers {
            equal = equal.iter().zip(observer.equal).map(|(all, one)| all.and(one)).collect();
            seen.extend(observer.done);
            kept.extend(observer.kept);
        }
        seen.sort_by_key(|(number, _)| *number);
        kept.sort_by_key(|(number, _)| *number);
        let kept: Vec<SampleOutputs> = kept.into_iter().map(|(_, outputs)| outputs).collect();

        let outputs: Vec<OutputRow> =
            observed.iter().enumerate().map(|(index, name)| row(name, index, &seen)).collect();
        let accuracy = match &options.metric {
            Some(metric) => Some(metric.accuracy(&observed, &kept)?),
            None => accuracy(&observed, &scored, &seen, options)?,
        };
        let mut go_on = || (control.progress)(Progress::of(count, Some(count)));
        let first = samples.first.unwrap_or_default();
        let speed = match &options.latency {
            Some(options) => speed(engine, [original, quantized], &first, options, &mut go_on)?,
            None => None,
        };
        let kernels = engine.kernels(&floats, &first)?.map(Kernels::of);
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

/// Rejects models with different inputs.
pub(super) fn same_inputs(original: &Model, quantized: &Model) -> Result<(), QuantizeError> {
    let names = |model: &Model| -> Vec<String> {
        InputSpec::of(model).into_iter().map(|input| input.name).collect()
    };
    let (wanted, found) = (names(original), names(quantized));
    if wanted == found {
        return Ok(());
    }
    let what = format!(
        "has the inputs {}, but the original has {}: the models cannot be compared",
        listed(&found),
        listed(&wanted)
    );
    Err(QuantizeError::option("quantized", what))
}

/// The float outputs, and the names of the others.
pub(crate) fn outputs(
    original: &Model,
    quantized: &Model,
) -> Result<(Vec<String>, Vec<String>), QuantizeError> {
    let theirs: Vec<&str> =
        quantized.graph().output.iter().map(|output| output.name.as_str()).collect();
    let (mut floats, mut others) = (Vec::new(), Vec::new());
    for output in &original.graph().output {
        let name = output.name.clone();
        if !theirs.contains(&name.as_str()) {
            let what = format!("has no output `{name}`, which the original has");
            return Err(QuantizeError::option("quantized", what));
        }
        // An undeclared type is mostly float; the engine finds out.
        let dtype = output.tensor_type().map(|tensor| DataType::from_number(tensor.elem_type));
        match dtype {
            Some(Some(dtype)) if !dtype.is_float() => others.push(name),
            None if output.value_type.is_some() => others.push(name),
            _ => floats.push(name),
        }
    }
    Ok((floats, others))
}

/// For each output: whether its highest scores are compared.
pub(super) fn scored(
    original: &Model,
    observed: &[String],
    options: &CompareOptions,
) -> Result<Vec<bool>, QuantizeError> {
    let graph = Graph::of(original)?;
    let looks =
        |name: &String| graph.value(name).is_some_and(|output| look_like_classes(&graph, output));
    let mut scored: Vec<bool> = observed.iter().map(looks).collect();
    if let Some(wanted) = &options.scores {
        let Some(index) = observed.iter().position(|name| name == wanted) else {
            let what = format!("is `{wanted}`, expected a float output: {}", listed(observed));
            return Err(QuantizeError::option("scores", what));
        };
        scored[index] = true;
    }
    if options.labels.is_some() && !scored.contains(&true) {
        let what = format!(
            "were given, but no output looks like class scores: name one with `scores`, one of {}",
            listed(observed)
        );
        return Err(QuantizeError::option("labels", what));
    }
    Ok(scored)
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The number of samples for which the errors of single channels are kept.
const CHANNEL_SAMPLES: usize = 64;

/// The deviation of one output for one sample. Positions that an attention mask hides are left out,
/// except from the highest scores, as each row has a label.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputDeviation {
    deviation: Deviation,
    /// The mask, if it hides a part of the output.
    mask: Option<Arc<PaddingMask>>,
    /// Whether the float model has infinity or NaN where the quantized one has numbers.
    original_not_finite: bool,
    /// The errors of its channels, for the first samples of a comparison.
    channels: Vec<ChannelErrors>,
    /// The length of a row.
    classes: usize,
    /// The positions of the highest scores of each row, in the float model and in the quantized
    /// one.
    highest: Option<(Highest, Highest)>,
}

/// The positions of the highest scores of each row.
type Highest = Arc<Vec<usize>>;

impl OutputDeviation {
    /// The deviation between the outputs of two models for a sample; with `scored`, also the rows
    /// in which they agree.
    pub(super) fn of(
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
        scored: bool,
        mask: Option<&Arc<PaddingMask>>,
    ) -> OutputDeviation {
        let ours = scored.then(|| highest(shape, wanted)).flatten();
        let mask = mask.filter(|mask| mask.covers(shape)).cloned();
        OutputDeviation::beside(ours.map(Arc::new), mask, shape, wanted, values)
    }

    /// As [`OutputDeviation::of`], for another model whose output has the same shape.
    pub(super) fn of_another(
        &self,
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
    ) -> OutputDeviation {
        let ours = self.highest.as_ref().map(|(ours, _)| ours.clone());
        OutputDeviation::beside(ours, self.mask.clone(), shape, wanted, values)
    }

    fn beside(
        ours: Option<Highest>,
        mask: Option<Arc<PaddingMask>>,
        shape: &[usize],
        wanted: &[f32],
        values: &[f32],
    ) -> OutputDeviation {
        let both = ours.and_then(|ours| Some((ours, Arc::new(highest(shape, values)?))));
        let classes = shape.last().copied().unwrap_or(0);
        let [wanted, values] = [wanted, values].map(|all| counted(mask.as_deref(), shape, all));
        let deviation = Deviation::of(&wanted, &values);
        let mut pairs = wanted.iter().zip(&*values);
        let original_not_finite = deviation.metrics().max_abs.is_infinite()
            && pairs.any(|(wanted, value)| !wanted.is_finite() && value.is_finite());
        OutputDeviation {
            deviation,
            original_not_finite,
            mask,
            channels: Vec::new(),
            classes,
            highest: both,
        }
    }

    /// For each row with scores that counts: whether the highest ones are at the same position.
    fn agreement(&self) -> impl Iterator<Item = bool> + Clone {
        let pair = self.highest.as_ref();
        let rows = pair.map_or(0, |(ours, _)| ours.len());
        let counts =
            move |row: &usize| self.mask.as_ref().is_none_or(|mask| mask.counts(*row, rows));
        let same = move |row: usize| pair.is_some_and(|(ours, theirs)| ours[row] == theirs[row]);
        (0..rows).filter(counts).map(same)
    }
}

/// Observes both models while they run a sample, and records the deviations.
struct OutputComparer<'a> {
    /// The float outputs, then those that are cast to float.
    observed: &'a [String],
    /// For each float output: whether its highest scores are compared.
    scored: &'a [bool],
    number: usize,
    mask: Option<Arc<PaddingMask>>,
    /// Of each output that is cast.
    equal: Vec<Equality>,
    /// The outputs of the float model.
    wanted: Vec<Value>,
    now: Vec<OutputDeviation>,
    misfit: Option<CalibrationError>,
    /// The deviations of each sample, by its number.
    done: Vec<(usize, Vec<OutputDeviation>)>,
    /// Whether a metric needs the outputs themselves.
    keeps: bool,
    /// The outputs of the quantized model.
    found: Vec<Value>,
    /// Both outputs of each sample, by its number.
    kept: Vec<(usize, SampleOutputs)>,
}

impl<'a> OutputComparer<'a> {
    fn new(observed: &'a [String], scored: &'a [bool], keeps: bool) -> OutputComparer<'a> {
        OutputComparer {
            observed,
            scored,
            number: 0,
            mask: None,
            equal: vec![Equality::default(); observed.len() - scored.len()],
            wanted: Vec::new(),
            now: Vec::new(),
            misfit: None,
            done: Vec::new(),
            keeps,
            found: Vec::new(),
            kept: Vec::new(),
        }
    }
}

impl ValueSink for OutputComparer<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        let Some(output) = index.checked_sub(self.observed.len()) else {
            self.wanted[index] = (shape.to_vec(), values.to_vec());
            return;
        };
        let (wanted_shape, wanted) = &self.wanted[output];
        if let Some(cast) = output.checked_sub(self.scored.len()) {
            self.equal[cast].add(wanted, values);
            return;
        }
        if wanted_shape != shape {
            let name = &self.observed[output];
            self.misfit.get_or_insert_with(|| other_shape(name, wanted_shape, shape));
            return;
        }
        let scored = self.scored[output];
        let mut found = OutputDeviation::of(shape, wanted, values, scored, self.mask.as_ref());
        if self.number < CHANNEL_SAMPLES {
            let of = |all| counted(found.mask.as_deref(), shape, all);
            found.channels = ChannelErrors::of(shape, &of(wanted), &of(values));
        }
        self.now[output] = found;
        if self.keeps {
            self.found[output] = (shape.to_vec(), values.to_vec());
        }
    }
}

/// The error of a value that has another shape in the quantized model.
pub(super) fn other_shape(name: &str, wanted: &[usize], found: &[usize]) -> CalibrationError {
    let what =
        format!("`{name}` is {wanted:?} in the original and {found:?} in the quantized model");
    CalibrationError::engine(None, what).at_value(name)
}

impl ValueObserver for OutputComparer<'_> {
    fn begin(&mut self, number: usize, sample: &Sample) {
        self.number = number;
        self.mask = PaddingMask::of(sample).map(Arc::new);
        self.wanted = vec![Value::default(); self.observed.len()];
        self.now = vec![OutputDeviation::default(); self.scored.len()];
        self.found = vec![Value::default(); self.scored.len()];
    }

    fn finish(&mut self, sample: &Sample) -> Result<(), CalibrationError> {
        if self.keeps {
            let (mut original, quantized) =
                (mem::take(&mut self.wanted), mem::take(&mut self.found));
            original.truncate(self.scored.len());
            let outputs = SampleOutputs { sample: sample.clone(), original, quantized };
            self.kept.push((self.number, outputs));
        }
        self.done.push((self.number, std::mem::take(&mut self.now)));
        self.misfit.take().map_or(Ok(()), Err)
    }
}

pub(super) fn row(name: &str, index: usize, seen: &[(usize, Vec<OutputDeviation>)]) -> OutputRow {
    let of_output = || seen.iter().map(|(_, outputs)| &outputs[index]);
    let deviation = of_output().fold(Deviation::default(), |all, one| all.and(one.deviation));
    let same = of_output().flat_map(OutputDeviation::agreement);
    let mut channels: Option<Vec<ChannelErrors>> = None;
    for output in of_output().take(CHANNEL_SAMPLES) {
        match &mut channels {
            Some(all) => ChannelErrors::add(all, &output.channels),
            None => channels = Some(output.channels.clone()),
        }
    }
    OutputRow {
        name: name.to_owned(),
        error: deviation.metrics(),
        top1_rows: same.clone().count(),
        top1_agreement: part(same),
        lost_channels: ChannelErrors::lost(&channels.unwrap_or_default()),
        original_not_finite: of_output().any(|one| one.original_not_finite),
    }
}

/// The accuracy, if there are labels.
fn accuracy(
    observed: &[String],
    scored: &[bool],
    seen: &[(usize, Vec<OutputDeviation>)],
    options: &CompareOptions,
) -> Result<Option<Accuracy>, QuantizeError> {
    let Some(labels) = &options.labels else { return Ok(None) };
    let named =
        options.scores.as_ref().and_then(|name| observed.iter().position(|own| own == name));
    let Some(index) = named.or_else(|| scored.iter().position(|scored| *scored)) else {
        return Ok(None);
    };
    let pairs = seen.iter().filter_map(|(_, outputs)| outputs[index].highest.as_ref());
    let (ours, theirs): (Vec<_>, Vec<_>) =
        pairs.flat_map(|(ours, theirs)| ours.iter().copied().zip(theirs.iter().copied())).unzip();
    let classes = seen.iter().map(|(_, outputs)| outputs[index].classes).min().unwrap_or(0);
    Accuracy::of(&observed[index], classes, [&ours, &theirs], labels).map(Some)
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
            writeln!(f, "{kernels} ({})", self.engine)?;
        }
        let plural = if self.samples == 1 { "" } else { "s" };
        writeln!(f, "{} sample{plural} ({})", self.samples, self.engine)?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}
