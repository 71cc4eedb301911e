//! Where quantization loses accuracy: for each value its own error, and the error it inherits.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicBool;

use quantize_rs_math::{Deviation, Metrics};
use quantize_rs_onnx::{DataType, Model, Tensor, topological};
use serde::{Deserialize, Serialize};

use super::output_deviation::of_another_shape;
use super::outputs::same_inputs;
use super::recorded::{RecordedValues, SampleBuffer, Sizes, Value};
use crate::calibrate::engine::{Engine, Sample, Samples, Session, ValueSink};
use crate::calibrate::padding::{PaddingMask, counted};
use crate::calibrate::pair::OffsetSink;
use crate::calibrate::{Control, Progress, RunOutcome, ValueObserver, observe};
use crate::error::while_unchanged;
use crate::graph::elements::HALVES;
use crate::graph::{Graph, Producer};
use crate::plan::float32;
use crate::report::Origin;
use crate::rewrite::with_float_caches;
use crate::transform;
use crate::transform::{Extract, extract};
use crate::{CalibrationError, QuantizeError};

/// The error of each value of a quantized model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerErrors {
    /// One row for each float32 value that both models have under the same name, in the order of
    /// computation.
    pub values: Vec<LayerError>,
    /// The number of samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: String,
    /// Notes of the engine.
    pub notes: Vec<String>,
    /// The models, the version, the date, and what is known of the call.
    #[serde(default)]
    pub origin: Origin,
}

/// The error of one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerError {
    /// The name of the value.
    pub name: String,
    /// The label of the node that computes it in the float model.
    pub node: String,
    /// Its operator.
    pub op_type: String,
    /// Whether it is dequantized from integers.
    pub quantized: bool,
    /// The error that is added between the preceding values and this one, if those have their float
    /// values: by its weights, its quantized inputs and its own rounding.
    pub own: Metrics,
    /// The error that is added since the inputs of the model.
    pub accumulated: Metrics,
}

/// The headers of the error columns of a table.
const LAYER_ERROR: &str = "layer error (dB)";
const ACCUMULATED_ERROR: &str = "accumulated error (dB)";

/// The maximum memory for the values of a sample that are compared in one pass.
const GROUP_BYTES: usize = 128 << 20;

/// Runs both models on every sample and compares them value by value. The error of each value
/// itself is separated from the error that it inherits.
///
/// For the own errors, the quantized model is cut at all these values, and each part is fed with
/// the values of the float model. Memory does not grow with the number of samples: values are
/// compared in groups. If there are several groups, the samples are kept in memory.
///
/// # Errors
/// See [`compare`](crate::compare).
pub fn layer_errors(
    original: &Model,
    quantized: &Model,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    control: Control<'_>,
) -> Result<LayerErrors, QuantizeError> {
    while_unchanged(&[original, quantized], || {
        let Control { threads, progress } = control;
        same_inputs(original, quantized)?;
        let quantized = &with_float_caches(quantized, original)?;
        // 16-bit floats are compared as the float32 values that replace them.
        let (original, quantized) =
            (&transform::widened(original)?, &transform::widened(quantized)?);
        let rows = matching(original, quantized)?;
        let Some(first) = samples.next_sample().transpose()? else {
            return Err(CalibrationError::no_samples().into());
        };
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        let groups = groups(original, engine, &first, &names)?;
        let mut all = SampleBuffer::one(first);
        if groups.len() > 1 {
            while let Some(sample) = samples.next_sample().transpose()? {
                all.push(sample);
            }
        }
        let total = samples.len_hint().map(|left| (left + all.len()) * groups.len());
        let mut found: BTreeMap<String, [Deviation; 2]> = BTreeMap::new();
        let (mut done, mut count, mut who, mut notes) = (0, 0, engine.name(), Vec::new());
        for group in &groups {
            let parts = extract(quantized, &names, group)?;
            let trio = Trio { engine, quantized, parts: &parts, names: &names, group };
            let observed = trio.observed();
            let mut shown = |now: Progress| progress(Progress::of(done + now.done, total));
            let control = &mut Control { threads, progress: &mut shown };
            let observer = || DeviationCollector::new(group);
            let mut chained = all.again(samples);
            let RunOutcome { observers, samples: ran, engine: name, notes: said } =
                observe(original, &observed, &trio, &mut chained, control, observer)?;
            let mut seen: Vec<_> =
                observers.into_iter().flat_map(|observer| observer.done).collect();
            seen.sort_by_key(|(number, _)| *number);
            for (_, values) in seen {
                for (name, values) in group.iter().zip(values) {
                    let sums = found.entry(name.clone()).or_default();
                    *sums = [sums[0].and(values[0]), sums[1].and(values[1])];
                }
            }
            (done, count, who, notes) = (done + ran, ran, name, said);
        }
        let values = rows.into_iter().map(|row| {
            let [accumulated, own] = found.get(&row.name).copied().unwrap_or_default();
            LayerError { own: own.metrics(), accumulated: accumulated.metrics(), ..row }
        });
        let (values, origin) = (values.collect(), Origin::of(&[original, quantized]));
        Ok(LayerErrors { values, samples: count, engine: who.to_owned(), notes, origin })
    })
}

/// Float32 values that nodes of both models compute under the same name, in the order of
/// computation.
fn matching(original: &Model, quantized: &Model) -> Result<Vec<LayerError>, QuantizeError> {
    let (ours, theirs) = (Graph::of(original)?, Graph::of(quantized)?);
    let order = topological(&original.graph().node)?;
    let float = float32::of(&ours, &order);
    let mut rows = Vec::new();
    for index in order {
        let node = ours.nodes[index];
        for name in &node.output {
            let Some(id) = ours.value(name).filter(|id| float[*id]) else { continue };
            let Some(made) = theirs.value(name) else { continue };
            let Producer::Node { node: producer, .. } = theirs.values[made].producer else {
                continue;
            };
            // What a subgraph reads in 16 bits is not widened, and no part takes it in float32.
            let is_half = |dtype: DataType| HALVES.contains(&dtype);
            let narrow = theirs.dtype(made).is_some_and(is_half);
            if narrow || ours.constant(id).is_some() || theirs.constant(made).is_some() {
                continue;
            }
            rows.push(LayerError {
                name: name.clone(),
                node: node.label(),
                op_type: node.op_type.clone(),
                quantized: theirs.nodes[producer].op_type == "DequantizeLinear",
                own: Deviation::default().metrics(),
                accumulated: Deviation::default().metrics(),
            });
        }
    }
    Ok(rows)
}

/// The values in groups that fit in memory, by their sizes in this sample.
fn groups(
    model: &Model,
    engine: &dyn Engine,
    sample: &Sample,
    names: &[String],
) -> Result<Vec<Vec<String>>, CalibrationError> {
    let sizes = Sizes::of(model, engine, sample, names)?;
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut room = 0;
    for (name, elements) in names.iter().zip(sizes.0) {
        // The values of the float model, and those that are fed to the parts.
        let bytes = elements.saturating_mul(2 * size_of::<f32>());
        if groups.is_empty() || bytes > room {
            groups.push(Vec::new());
            room = GROUP_BYTES;
        }
        room = room.saturating_sub(bytes);
        if let Some(group) = groups.last_mut() {
            group.push(name.clone());
        }
    }
    Ok(groups)
}

/// Runs the float model, the quantized model, and the parts of the quantized model on the values of
/// the float model.
///
/// Its observed outputs are the values of a group three times, in this order.
struct Trio<'a> {
    engine: &'a dyn Engine,
    quantized: &'a Model,
    parts: &'a Extract,
    names: &'a [String],
    group: &'a [String],
}

impl Trio<'_> {
    /// The values of the float model to observe: those of the group, then the other inputs of the
    /// parts.
    fn observed(&self) -> Vec<String> {
        let group: HashSet<&String> = self.group.iter().collect();
        let lent = self.lent().filter(|name| !group.contains(name)).cloned();
        self.group.iter().cloned().chain(lent).collect()
    }

    /// The values that the parts are fed with, besides inputs of the model.
    fn lent(&self) -> impl Iterator<Item = &String> {
        let names: HashSet<&String> = self.names.iter().collect();
        self.parts.inputs.iter().filter(move |name| names.contains(name))
    }
}

impl Engine for Trio<'_> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn prepare(
        &self,
        model: &Model,
        observed: &[String],
        sample: &Sample,
    ) -> Result<Box<dyn Session>, CalibrationError> {
        let float = self.engine.prepare(model, observed, sample)?;
        let quantized = self.engine.prepare(self.quantized, self.group, sample)?;
        let mut kept = RecordedValues::of(observed);
        float.run(sample, &mut kept, &AtomicBool::new(false))?;
        let feed = feed(&self.parts.inputs, sample, &kept)?;
        let parts = self.engine.prepare(&self.parts.model, &self.parts.outputs, &feed)?;
        let (observed, inputs) = (observed.to_vec(), self.parts.inputs.clone());
        Ok(Box::new(TrioSession {
            float,
            quantized,
            parts,
            observed,
            inputs,
            group: self.group.len(),
        }))
    }
}

struct TrioSession {
    float: Box<dyn Session>,
    quantized: Box<dyn Session>,
    parts: Box<dyn Session>,
    observed: Vec<String>,
    /// Inputs of the parts.
    inputs: Vec<String>,
    group: usize,
}

impl Session for TrioSession {
    fn run(
        &self,
        sample: &Sample,
        sink: &mut dyn ValueSink,
        cancelled: &AtomicBool,
    ) -> Result<(), CalibrationError> {
        let mut kept = RecordedValues::of(&self.observed);
        self.float.run(sample, &mut kept, cancelled)?;
        for (index, (shape, values)) in kept.values.iter().take(self.group).enumerate() {
            sink.observe(index, shape, values);
        }
        let feed = feed(&self.inputs, sample, &kept)?;
        drop(kept);
        self.quantized.run(sample, &mut OffsetSink { sink, by: self.group }, cancelled)?;
        self.parts.run(&feed, &mut OffsetSink { sink, by: 2 * self.group }, cancelled)
    }

    fn any_shape(&self) -> bool {
        [&self.float, &self.quantized, &self.parts].iter().all(|runner| runner.any_shape())
    }

    fn engine(&self) -> Option<&'static str> {
        self.quantized.engine()
    }

    fn note(&self) -> Option<&str> {
        self.quantized.note()
    }
}

/// The inputs of a part of a model: inputs of the whole model, and values that were computed
/// before.
pub(super) fn feed(
    inputs: &[String],
    sample: &Sample,
    computed: &RecordedValues,
) -> Result<Sample, CalibrationError> {
    let value = |name: &String| {
        if let Some((shape, values)) = computed.get(name) {
            return Ok((name.clone(), Tensor::from_f32(shape.clone(), values)));
        }
        let missing = || CalibrationError::input_mismatch(format!("input `{name}` is missing"));
        let given = sample.get(name).ok_or_else(missing);
        Ok((name.clone(), given.map_err(|error| error.at_value(name))?.clone()))
    };
    Ok(Sample { inputs: inputs.iter().map(value).collect::<Result<_, CalibrationError>>()? })
}

/// Observes the three models, and records the deviations of each value: accumulated and own.
struct DeviationCollector<'a> {
    group: &'a [String],
    number: usize,
    mask: Option<PaddingMask>,
    float: Vec<Value>,
    now: Vec<[Deviation; 2]>,
    misfit: Option<CalibrationError>,
    done: Vec<(usize, Vec<[Deviation; 2]>)>,
}

impl<'a> DeviationCollector<'a> {
    fn new(group: &'a [String]) -> DeviationCollector<'a> {
        let (float, now, done) = (Vec::new(), Vec::new(), Vec::new());
        DeviationCollector { group, number: 0, mask: None, float, now, misfit: None, done }
    }
}

impl ValueSink for DeviationCollector<'_> {
    fn observe(&mut self, index: usize, shape: &[usize], values: &[f32]) {
        let (round, value) = (index / self.group.len(), index % self.group.len());
        if round == 0 {
            self.float[value] = (shape.to_vec(), values.to_vec());
            return;
        }
        let (wanted_shape, wanted) = &self.float[value];
        let found = if wanted_shape == shape {
            let of = |all| counted(self.mask.as_ref(), shape, all);
            Ok(Deviation::of(&of(wanted), &of(values)))
        } else {
            of_another_shape(&self.group[value], &self.float[value], shape)
        };
        match found {
            Ok(deviation) => self.now[value][round - 1] = deviation,
            Err(error) => {
                self.misfit.get_or_insert(error);
            }
        }
    }
}

impl ValueObserver for DeviationCollector<'_> {
    fn begin(&mut self, number: usize, sample: &Sample) {
        self.number = number;
        self.mask = PaddingMask::of(sample);
        self.float = vec![(Vec::new(), Vec::new()); self.group.len()];
        self.now = vec![[Deviation::default(); 2]; self.group.len()];
    }

    fn finish(&mut self, _: &Sample) -> Result<(), CalibrationError> {
        self.float.clear();
        self.done.push((self.number, std::mem::take(&mut self.now)));
        self.misfit.take().map_or(Ok(()), Err)
    }
}

impl LayerErrors {
    /// The rows, those with the lowest own SQNR first.
    pub fn worst(&self) -> Vec<&LayerError> {
        let mut rows: Vec<&LayerError> = self.values.iter().collect();
        // NaN is worse than any number.
        let key = |row: &LayerError| match row.own.sqnr_db {
            db if db.is_nan() => f64::NEG_INFINITY,
            db => db,
        };
        rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
        rows
    }

    /// The errors as JSON; non-finite numbers are null.
    pub fn to_json(&self) -> String {
        // Names and numbers, no maps with odd keys: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads errors from JSON.
    ///
    /// # Errors
    /// The text was not written by [`LayerErrors::to_json`].
    pub fn from_json(text: &str) -> Result<LayerErrors, QuantizeError> {
        let refused = |error| {
            QuantizeError::option("layer_errors", format!("is not a list of layer errors: {error}"))
        };
        serde_json::from_str(text).map_err(refused)
    }

    /// A table of the worst values, at most `most` of them.
    pub fn table(&self, most: usize) -> String {
        let rows = self.worst();
        let shown = &rows[..most.min(rows.len())];
        let width = shown.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(5);
        let mut lines =
            vec![format!("{:<width$}  {LAYER_ERROR}  {ACCUMULATED_ERROR}  operator", "value")];
        lines.extend(shown.iter().map(|row| {
            let LayerError { name, op_type, own, accumulated, quantized, .. } = row;
            let integers = if *quantized { ", quantized" } else { "" };
            let (own, all) = (own.sqnr_db, accumulated.sqnr_db);
            format!("{name:<width$}  {own:>16.2}  {all:>22.2}  {op_type}{integers}")
        }));
        if rows.len() > shown.len() {
            lines.push(format!("and {} more with smaller errors", rows.len() - shown.len()));
        }
        let plural = if self.samples == 1 { "" } else { "s" };
        lines.push(format!("{} sample{plural} ({})", self.samples, self.engine));
        lines.join("\n") + "\n"
    }
}

impl fmt::Display for LayerErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(usize::MAX))
    }
}
