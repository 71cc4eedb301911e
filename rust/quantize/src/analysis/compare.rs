//! A float model and what became of it, side by side.

use std::fmt;
use std::sync::Arc;

use quantize_rs_math::Deviation;
use quantize_rs_onnx::{DataType, Model};
use serde::{Deserialize, Serialize};

use super::kernels::Kernels;
use super::latency::{LatencyOptions, speed};
use super::pair::{First, Pair, Value};
use super::scores::{highest, look_like_classes};
use crate::calibrate::engine::{Engine, Sample, Samples, Sink};
use crate::calibrate::{Control, Progress, Watched, Watcher, watch};
use crate::error::CalibrationErrorKind as Kind;
use crate::graph::{Graph, InputSpec};
use crate::report::accuracy::part;
use crate::report::{Accuracy, OutputRow, Speed, worst_sqnr};
use crate::{CalibrationError, QuantizeError};

/// What to compare beside the outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareOptions {
    /// The class of every row of every sample, in their order.
    pub labels: Option<Vec<i64>>,
    /// The output whose scores are held against the labels; by default the first that looks like
    /// scores of classes.
    pub scores: Option<String>,
    /// How to measure latency, where it is to be measured.
    pub latency: Option<LatencyOptions>,
}

/// A float model and the quantized one, side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// One row for each output that is a tensor of floats.
    pub outputs: Vec<OutputRow>,
    /// Outputs that are none.
    pub not_compared: Vec<String>,
    /// How often the class was right, where labels were given.
    pub accuracy: Option<Accuracy>,
    /// Bytes of the float model, with the data beside it.
    pub bytes_original: u64,
    /// Bytes of the quantized model, with the data beside it.
    pub bytes_quantized: u64,
    /// How long both take, where that was measured.
    pub speed: Option<Speed>,
    /// What the engine ran on integers, where it tells.
    pub kernels: Option<Kernels>,
    /// Samples run.
    pub samples: usize,
    /// Who ran them.
    pub engine: String,
    /// What the engine had to say.
    pub notes: Vec<String>,
    /// Things the caller should know: that the quantized model is slower, or larger.
    pub warnings: Vec<String>,
}

/// Runs both models on every sample and compares what comes out, how large they are, how long they
/// take, and what runs on integers.
///
/// Numbers depend neither on the number of threads nor, but for the last digits, on the order of the
/// samples. Memory does not grow with their number.
///
/// # Errors
/// Models whose inputs or outputs differ, no samples, samples that do not fit, labels that are not as
/// many as rows of scores, or an engine that cannot run either model.
pub fn compare(
    original: &Model,
    quantized: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    options: &CompareOptions,
    mut control: Control<'_>,
) -> Result<Comparison, QuantizeError> {
    same_inputs(original, quantized)?;
    let (taps, not_compared) = outputs(original, quantized)?;
    let scored = scored(original, &taps, options)?;

    let pair = Pair { engine, second: quantized };
    let mut samples = First { samples, first: None };
    let watcher = || Comparer::new(&taps, &scored);
    let Watched { watchers, samples: count, engine: name, notes } =
        watch(original, &taps, &pair, &mut samples, &mut control, watcher)?;
    let mut seen: Vec<(usize, Vec<Seen>)> =
        watchers.into_iter().flat_map(|watcher| watcher.done).collect();
    seen.sort_by_key(|(number, _)| *number);

    let outputs: Vec<OutputRow> =
        taps.iter().enumerate().map(|(tap, name)| row(name, tap, &seen)).collect();
    let accuracy = accuracy(&taps, &scored, &seen, options)?;
    let mut go_on = || (control.progress)(Progress { done: count, total: Some(count) });
    let first = samples.first.unwrap_or_default();
    let speed = match &options.latency {
        Some(options) => speed(engine, [original, quantized], &first, options, &mut go_on)?,
        None => None,
    };
    let kernels = engine.kernels(quantized, &first)?.map(Kernels::of);
    let mut comparison = Comparison {
        outputs,
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
    };
    comparison.warn();
    Ok(comparison)
}

/// Refuses models that cannot be fed alike.
pub(super) fn same_inputs(original: &Model, quantized: &Model) -> Result<(), QuantizeError> {
    let names = |model: &Model| -> Vec<String> {
        InputSpec::of(model).into_iter().map(|input| input.name).collect()
    };
    let (wanted, found) = (names(original), names(quantized));
    if wanted == found {
        return Ok(());
    }
    let what = format!(
        "has the inputs {}, and the original {}: they cannot be compared",
        listed(&found),
        listed(&wanted)
    );
    Err(QuantizeError::option("quantized", what))
}

/// The outputs that are floats, and the names of the others.
pub(super) fn outputs(
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
        // Whose type nobody wrote down is float more often than not; the engine knows.
        let dtype = output.tensor_type().map(|tensor| DataType::from_number(tensor.elem_type));
        match dtype {
            Some(Some(dtype)) if !is_float(dtype) => others.push(name),
            None if output.value_type.is_some() => others.push(name),
            _ => floats.push(name),
        }
    }
    Ok((floats, others))
}

fn is_float(dtype: DataType) -> bool {
    use DataType::{BFloat16, Double, Float, Float16};
    matches!(dtype, Float | Float16 | BFloat16 | Double)
}

/// Of which taps the highest scores are wanted.
pub(super) fn scored(
    original: &Model,
    taps: &[String],
    options: &CompareOptions,
) -> Result<Vec<bool>, QuantizeError> {
    let graph = Graph::of(original)?;
    let looks =
        |name: &String| graph.value(name).is_some_and(|output| look_like_classes(&graph, output));
    let mut scored: Vec<bool> = taps.iter().map(looks).collect();
    if let Some(wanted) = &options.scores {
        let Some(tap) = taps.iter().position(|name| name == wanted) else {
            let what = format!("is `{wanted}`, expected an output of floats: {}", listed(taps));
            return Err(QuantizeError::option("scores", what));
        };
        scored[tap] = true;
    }
    if options.labels.is_some() && !scored.contains(&true) {
        let what = format!(
            "were given, but no output looks like scores of classes: say which one is with \
             `scores`, one of {}",
            listed(taps)
        );
        return Err(QuantizeError::option("labels", what));
    }
    Ok(scored)
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What one sample showed of one output.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    deviation: Deviation,
    /// How long a row is.
    classes: usize,
    /// The highest scores of each row, of the float model and of the quantized one.
    highest: Option<(Highest, Highest)>,
}

/// The highest scores of each row.
type Highest = Arc<Vec<usize>>;

impl Seen {
    /// What two models made of a sample; with `scored`, in which rows they agree.
    pub(super) fn of(shape: &[usize], wanted: &[f32], values: &[f32], scored: bool) -> Seen {
        let ours = scored.then(|| highest(shape, wanted)).flatten();
        Seen::beside(ours.map(Arc::new), shape, wanted, values)
    }

    /// The same of another model, whose output has the same shape.
    pub(super) fn of_another(&self, shape: &[usize], wanted: &[f32], values: &[f32]) -> Seen {
        let ours = self.highest.as_ref().map(|(ours, _)| ours.clone());
        Seen::beside(ours, shape, wanted, values)
    }

    fn beside(ours: Option<Highest>, shape: &[usize], wanted: &[f32], values: &[f32]) -> Seen {
        let both = ours.and_then(|ours| Some((ours, Arc::new(highest(shape, values)?))));
        let classes = shape.last().copied().unwrap_or(0);
        Seen { deviation: Deviation::of(wanted, values), classes, highest: both }
    }
}

/// Watches both models run a sample, and keeps what they differ by.
struct Comparer<'a> {
    taps: &'a [String],
    scored: &'a [bool],
    number: usize,
    /// What the float model showed.
    wanted: Vec<Value>,
    now: Vec<Seen>,
    misfit: Option<CalibrationError>,
    /// What each sample came to, by its number.
    done: Vec<(usize, Vec<Seen>)>,
}

impl<'a> Comparer<'a> {
    fn new(taps: &'a [String], scored: &'a [bool]) -> Comparer<'a> {
        Comparer {
            taps,
            scored,
            number: 0,
            wanted: Vec::new(),
            now: Vec::new(),
            misfit: None,
            done: Vec::new(),
        }
    }
}

impl Sink for Comparer<'_> {
    fn observe(&mut self, tap: usize, shape: &[usize], values: &[f32]) {
        let Some(output) = tap.checked_sub(self.taps.len()) else {
            self.wanted[tap] = (shape.to_vec(), values.to_vec());
            return;
        };
        let (wanted_shape, wanted) = &self.wanted[output];
        if wanted_shape != shape {
            let name = &self.taps[output];
            self.misfit.get_or_insert_with(|| other_shape(name, wanted_shape, shape));
            return;
        }
        self.now[output] = Seen::of(shape, wanted, values, self.scored[output]);
    }
}

/// The failure of a value that has another shape in the quantized model.
pub(super) fn other_shape(name: &str, wanted: &[usize], found: &[usize]) -> CalibrationError {
    let what =
        format!("`{name}` is {wanted:?} in the original and {found:?} in the quantized model");
    CalibrationError::new(Kind::Engine(what)).at_value(name)
}

impl Watcher for Comparer<'_> {
    fn begin(&mut self, number: usize, _: &Sample) {
        self.number = number;
        self.wanted = vec![Value::default(); self.taps.len()];
        self.now = vec![Seen::default(); self.taps.len()];
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        self.done.push((self.number, std::mem::take(&mut self.now)));
        self.misfit.take().map_or(Ok(()), Err)
    }
}

pub(super) fn row(name: &str, tap: usize, seen: &[(usize, Vec<Seen>)]) -> OutputRow {
    let of_tap = || seen.iter().map(|(_, outputs)| &outputs[tap]);
    let deviation = of_tap().fold(Deviation::default(), |all, one| all.and(one.deviation));
    let pairs = || of_tap().filter_map(|one| one.highest.as_ref());
    let same = pairs().flat_map(|(ours, theirs)| ours.iter().zip(&**theirs).map(|(a, b)| a == b));
    OutputRow { name: name.to_owned(), error: deviation.metrics(), top1_agreement: part(same) }
}

/// How often the class was right, where labels say which one is.
fn accuracy(
    taps: &[String],
    scored: &[bool],
    seen: &[(usize, Vec<Seen>)],
    options: &CompareOptions,
) -> Result<Option<Accuracy>, QuantizeError> {
    let Some(labels) = &options.labels else { return Ok(None) };
    let named = options.scores.as_ref().and_then(|name| taps.iter().position(|tap| tap == name));
    let Some(tap) = named.or_else(|| scored.iter().position(|scored| *scored)) else {
        return Ok(None);
    };
    let pairs = seen.iter().filter_map(|(_, outputs)| outputs[tap].highest.as_ref());
    let (ours, theirs): (Vec<_>, Vec<_>) =
        pairs.flat_map(|(ours, theirs)| ours.iter().copied().zip(theirs.iter().copied())).unzip();
    let classes = seen.iter().map(|(_, outputs)| outputs[tap].classes).min().unwrap_or(0);
    Accuracy::of(&taps[tap], classes, [&ours, &theirs], labels).map(Some)
}

/// What the caller should know of outputs of which one model makes numbers, and the other does not.
pub(crate) fn not_finite(outputs: &[OutputRow]) -> Option<String> {
    let far = outputs.iter().filter(|output| output.error.max_abs.is_infinite());
    let names: Vec<String> = far.map(|output| output.name.clone()).collect();
    (!names.is_empty())
        .then(|| format!("{}: infinity or NaN where the original has other values", listed(&names)))
}

impl Comparison {
    /// How many times smaller the quantized model is.
    #[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
    pub fn ratio(&self) -> f64 {
        self.bytes_original as f64 / self.bytes_quantized.max(1) as f64
    }

    /// The SQNR of the output that is the farthest off, in decibels; `None` without such outputs.
    pub fn sqnr_db(&self) -> Option<f64> {
        worst_sqnr(&self.outputs)
    }

    /// The comparison as JSON, with `ratio` and `sqnr_db`; what is not finite is null.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.document()).unwrap_or_default()
    }

    /// What [`Comparison::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<> {
        // Names and numbers, no maps with odd keys: this cannot fail.
        let mut document = serde_json::to_value(self).unwrap_or_default();
        document["ratio"] = self.ratio().into();
        document["sqnr_db"] = self.sqnr_db().into();
        if let Some(kernels) = &self.kernels {
            document["kernels"]["share"] = kernels.share().into();
        }
        document
    }

    /// The comparison out of JSON.
    ///
    /// # Errors
    /// The text is not what [`Comparison::to_json`] writes.
    pub fn from_json(text: &str) -> Result<Comparison, QuantizeError> {
        let refused = |error| QuantizeError::option("comparison", format!("is none: {error}"));
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
        let longest = self.outputs.iter().map(|output| output.name.chars().count()).max();
        let width = longest.unwrap_or(0).max("output".len());
        writeln!(
            f,
            "{:<width$}  {:>8}  {:>10}  {:>11}  {:>10}",
            "output", "SQNR dB", "cosine", "max error", "same top-1"
        )?;
        for OutputRow { name, error, top1_agreement } in &self.outputs {
            let same = top1_agreement.map_or("-".to_owned(), |part| format!("{:.2} %", part * 1e2));
            writeln!(
                f,
                "{name:<width$}  {:>8.2}  {:>10.6}  {:>11.4e}  {same:>10}",
                error.sqnr_db, error.cosine, error.max_abs
            )?;
        }
        if !self.not_compared.is_empty() {
            writeln!(f, "no floats, not compared: {}", self.not_compared.join(", "))?;
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
