//! Converts a float model to 16-bit floats, and measures what that costs.

mod search;

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use quantize_rs_onnx::{DataType, Model, NodeProto, TensorProto};
use serde::Serialize;

use crate::QuantizeError;
use crate::calibrate::Control;
use crate::calibrate::engine::{Engine, Samples};
use crate::calibrate::magnitudes::{self, Magnitudes};
use crate::error::while_unchanged;
use crate::graph::uses::byte_len;
use crate::options::HalfType;
use crate::plan::ExcludedNodes;
use crate::report::OutputRow;
use crate::transform::half_precision::{
    HalfSettings, KeptNode, KeptReason, kept_by_reason, narrowed, prepared,
};
use crate::util::text::size;
use search::{MeasuredKinds, Search};

/// The SQNR below which the result is warned about, in decibels.
const LEAST_SQNR: [(HalfType, f64); 2] = [(HalfType::Float16, 45.0), (HalfType::BFloat16, 30.0)];

/// How a model is converted to 16-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct HalfOptions {
    /// The type.
    pub half: HalfType,
    /// Whether inputs and outputs of the model stay float32.
    pub keep_io: bool,
    /// Nodes that stay float32: names, patterns, operator types.
    pub exclude: Vec<String>,
    /// Where the worst output has a lower SQNR on the samples, in decibels, kinds of operators are
    /// tried in float32; 0 tries none.
    pub enough_sqnr: f64,
}

impl Default for HalfOptions {
    fn default() -> HalfOptions {
        let half = HalfType::default();
        HalfOptions { half, keep_io: true, exclude: Vec::new(), enough_sqnr: ENOUGH_SQNR }
    }
}

impl HalfOptions {
    /// Rejects a limit that no number reaches or misses.
    fn check(&self) -> Result<(), QuantizeError> {
        if self.enough_sqnr.is_nan() {
            return Err(QuantizeError::option("enough_sqnr", "is NaN, expected decibels"));
        }
        Ok(())
    }
}

/// The SQNR that is good enough, in decibels: rounding to float16 gives 60 to 75 dB where nothing
/// else is lost. bfloat16 has 3 bits less, 18 dB.
const ENOUGH_SQNR: f64 = 60.0;
const BFLOAT16_LESS: f64 = 18.0;

/// A smaller model is not warned about for its size, in bytes: it has few weights.
const LEAST_BYTES: u64 = 1 << 16;

/// A model in 16-bit floats, and the report about it.
#[derive(Clone, Debug)]
pub struct HalfPrecision {
    model: Model,
    report: HalfReport,
}

/// What a conversion to 16-bit floats did, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HalfReport {
    /// The path of the model; `None` for a model in memory.
    pub input: Option<String>,
    /// The path of the result; `None` until it is saved.
    pub output: Option<String>,
    /// The type.
    pub dtype: HalfType,
    /// The size before, in bytes, including external data.
    pub bytes_before: u64,
    /// The size after.
    pub bytes_after: u64,
    /// How many nodes compute in 16 bits.
    pub converted: usize,
    /// The nodes that stay float32, and why.
    pub kept: Vec<KeptNode>,
    /// How many casts were added.
    pub casts: usize,
    /// Constants whose values were clipped, and how.
    pub clipped: Vec<String>,
    /// How many samples were run; 0 without samples.
    pub samples: usize,
    /// The engine that ran them.
    pub engine: Option<String>,
    /// The error of each output on the samples.
    pub outputs: Vec<OutputRow>,
    /// The SQNR of the worst output, in decibels.
    pub sqnr_db: Option<f64>,
    /// What may be wrong with the result.
    pub warnings: Vec<String>,
    /// What is good to know about it.
    pub notes: Vec<String>,
    /// Seconds that it took, without saving.
    pub seconds: f64,
}

/// Converts a copy of a model to 16-bit floats: weights, activations, and what nodes compute,
/// subgraphs and functions included.
///
/// Nodes stay float32 where 16 bits would overflow or lose what counts, and the report names each
/// with its reason. With samples, that is measured; without, operators decide whose results are
/// often large.
///
/// ```
/// use quantize_rs::{HalfOptions, Model, convert_half};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");
/// let model = Model::open(path)?;
/// let made = convert_half(&model, &HalfOptions::default())?;
/// assert!(made.report().bytes_after * 10 < made.report().bytes_before * 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The graph is not well-formed, or an excluded node does not exist.
pub fn convert_half(model: &Model, options: &HalfOptions) -> Result<HalfPrecision, QuantizeError> {
    options.check()?;
    while_unchanged(&[model], || {
        let begun = Instant::now();
        let (float, clipped) = prepared(model, options.half)?;
        let (half, mut report) =
            converted(model, &float, clipped, options, None, &MeasuredKinds::default(), false)?;
        if options.half == HalfType::Float16 {
            let note =
                "no samples were run: the kinds of operators decide which nodes stay float32";
            report.notes.push(note.to_owned());
        }
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(HalfPrecision { model: half, report })
    })
}

/// As [`convert_half`], with samples: values are measured on them, and the outputs of the result
/// are compared with those of the model.
///
/// # Errors
/// As [`convert_half`]; no samples, samples that do not fit the model, or an engine that cannot run
/// it.
pub fn convert_half_with_samples(
    model: &Model,
    options: &HalfOptions,
    engine: &dyn Engine,
    samples: &mut dyn Samples,
    mut control: Control<'_>,
) -> Result<HalfPrecision, QuantizeError> {
    options.check()?;
    while_unchanged(&[model], || {
        let begun = Instant::now();
        let (float, clipped) = prepared(model, options.half)?;
        let found = magnitudes::magnitudes(&float, engine, samples, &mut control)?;
        let search = Search { model, float: &float, options, found: &found, engine };
        let (half, mut report) = search.run(clipped, &mut control)?;
        report.samples = found.samples;
        report.engine = Some(found.engine.to_owned());
        report.warn();
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(HalfPrecision { model: half, report })
    })
}

fn converted(
    model: &Model,
    float: &Model,
    clipped: Vec<String>,
    options: &HalfOptions,
    found: Option<&Magnitudes>,
    measured: &MeasuredKinds,
    simulated: bool,
) -> Result<(Model, HalfReport), QuantizeError> {
    // A node that was evaluated is no mistake.
    let excluded = ExcludedNodes::of(float, "exclude", &options.exclude)
        .or_else(|error| ExcludedNodes::of(model, "exclude", &options.exclude).or(Err(error)))?;
    let reason = |node: &NodeProto| {
        if excluded.contain(node) {
            return Some(KeptReason::Excluded);
        }
        let is_one = measured.kinds.iter().any(|kind| kind.contains(&node.op_type.as_str()));
        is_one.then_some(KeptReason::Measured { gain_db: measured.gain_db })
    };
    let settings = HalfSettings {
        half: options.half,
        keep_io: options.keep_io,
        magnitudes: found.map(|found| &found.values),
        simulated,
        excluded: &reason,
    };
    let (half, changes) = narrowed(float, &settings)?;
    let mut report = HalfReport {
        input: model.path().map(|path| path.display().to_string()),
        dtype: options.half,
        bytes_before: model.byte_len(),
        bytes_after: half.byte_len(),
        converted: changes.converted,
        kept: changes.kept,
        casts: changes.casts,
        clipped,
        ..HalfReport::default()
    };
    report.warn_of_size(model, found.is_some());
    Ok((half, report))
}

impl HalfPrecision {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The report.
    pub fn report(&self) -> &HalfReport {
        &self.report
    }

    /// Writes the model, completely or not at all, and returns the complete report.
    ///
    /// # Errors
    /// See [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<HalfReport, QuantizeError> {
        let saved = self.model.save(path.as_ref())?;
        let output = Some(path.as_ref().display().to_string());
        Ok(HalfReport { output, bytes_after: saved.bytes, ..self.report.clone() })
    }

    /// The model as the bytes of one file.
    ///
    /// # Errors
    /// See [`Model::to_bytes`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, QuantizeError> {
        Ok(self.model.to_bytes()?)
    }
}

impl HalfReport {
    /// Warns of a file that is hardly smaller than that of the model, or larger.
    fn warn_of_size(&mut self, model: &Model, measured: bool) {
        let (before, after) = (self.bytes_before, self.bytes_after);
        let smaller = after.saturating_mul(10) < before.saturating_mul(9);
        let larger = after > before;
        if smaller || !larger && before < LEAST_BYTES {
            return;
        }
        let causes = self.causes_of_size(model, measured);
        if !larger && causes.is_empty() {
            return;
        }
        let is = if larger { "larger" } else { "not clearly smaller" };
        let casts = || format!("it has few float32 weights, and {} casts were added", self.casts);
        let why = if causes.is_empty() { casts() } else { causes.join("; ") };
        let (before, after) = (size(before), size(after));
        self.warnings.push(format!("the file is {is} ({before} to {after}): {why}"));
    }

    /// Why the file of a model is not clearly smaller.
    fn causes_of_size(&self, model: &Model, measured: bool) -> Vec<String> {
        let graph = model.graph();
        let bytes = |wanted: &dyn Fn(&TensorProto) -> bool| -> u64 {
            let tensors = graph.initializer.iter().filter(|tensor| wanted(tensor));
            tensors.filter_map(|tensor| byte_len(tensor)).sum()
        };
        let has = |tensor: &TensorProto, dtype: DataType| tensor.dtype() == Some(dtype);
        let is_half = |tensor: &TensorProto| has(tensor, self.dtype.data_type());
        if bytes(&is_half).saturating_mul(2) > self.bytes_before {
            return vec![format!("its weights are {} already", self.dtype)];
        }
        let mut causes = Vec::new();
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        let replaceable = |tensor: &TensorProto| {
            has(tensor, DataType::Float)
                && model.proto().ir_version >= 4
                && inputs.contains(tensor.name.as_str())
        };
        if bytes(&replaceable).saturating_mul(10) > self.bytes_before {
            let count = graph.initializer.iter().filter(|tensor| replaceable(tensor)).count();
            causes.push(format!(
                "{count} constants stay float32 because they are inputs of the model, too, which \
                 callers may replace: take them out of the inputs first"
            ));
        }
        let outputs: HashSet<&str> =
            graph.output.iter().map(|output| output.name.as_str()).collect();
        let shown = |tensor: &TensorProto| {
            has(tensor, DataType::Float) && outputs.contains(tensor.name.as_str())
        };
        if bytes(&shown).saturating_mul(10) > self.bytes_before {
            causes.push("outputs of the model are constants in float32".to_owned());
        }
        if !self.kept.is_empty() {
            let hint = if measured { "" } else { ", and samples may show that more fit" };
            causes.push(format!(
                "{} nodes stay float32, for the reasons under `kept`{hint}",
                self.kept.len()
            ));
        }
        causes
    }

    fn warn(&mut self) {
        let least =
            LEAST_SQNR.iter().find(|(half, _)| *half == self.dtype).map(|(_, least)| *least);
        if let (Some(found), Some(least)) = (self.sqnr_db, least)
            && (found < least || found.is_nan())
        {
            self.warnings.push(format!(
                "the outputs have an SQNR of {found:.1} dB on the samples, where {} usually gives \
                 more than {least:.0}: compare layer_errors, and exclude the layers that lose most",
                self.dtype
            ));
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The nodes that stay float32, those with the same reason together: the reason, how many, and
    /// the names of the first ones.
    pub fn kept_by_reason(&self) -> Vec<(String, usize, Vec<String>)> {
        kept_by_reason(&self.kept)
    }
}

impl std::fmt::Display for HalfReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HalfReport { dtype, bytes_before, bytes_after, converted, kept, casts, .. } = self;
        write!(
            f,
            "{dtype}: {} -> {}; {converted} nodes converted, {} stay float32, {casts} casts",
            size(*bytes_before),
            size(*bytes_after),
            kept.len()
        )?;
        if let Some(sqnr) = self.sqnr_db {
            write!(f, "; SQNR {sqnr:.1} dB")?;
        }
        writeln!(f)?;
        for (why, count, names) in self.kept_by_reason() {
            let more = if count > names.len() { ", …" } else { "" };
            writeln!(f, "  float32: {}{more}: {why}", names.join(", "))?;
        }
        self.clipped.iter().try_for_each(|clipped| writeln!(f, "  {clipped}"))?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
