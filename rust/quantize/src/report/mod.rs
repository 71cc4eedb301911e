//! The report of a quantization.

pub(crate) mod accuracy;
mod accuracy_control;
mod accuracy_criteria;
pub(crate) mod assessment;
mod latency;
mod origin;
mod others;
mod output_check;
mod output_row;
mod rounding;
mod sizes;
mod speed;
mod suggest;

use std::collections::HashMap;

use quantize_rs_math::{Codebook, Granularity, Metrics, Params, QSpec, QType, Range, Scales};
use quantize_rs_onnx::DataType;
use serde::{Deserialize, Serialize};

use crate::encode::{Encoded, EncodedTensor};
use crate::graph::Graph;
use crate::graph::uses;
use crate::plan::{Decision, Plan, Planned, Role, ValuePlan};
use crate::ranges::{Histogram, RoundingEvidence};
use crate::transform::Step;
use crate::{Config, Format, QuantizeError, Ranges};

pub use accuracy::Accuracy;
pub use accuracy_control::{Candidate, Evaluation, RevertedLayer};
pub use accuracy_criteria::AccuracyCriteria;
pub use assessment::{Assessment, Grade};
pub use latency::{Latencies, Latency};
pub use origin::Origin;
pub use output_check::{CheckedInputs, OutputCheck};
pub(crate) use output_row::worst_sqnr;
pub use output_row::{IntegerOutputRow, LostChannels, OutputRow};
pub use sizes::Sizes;
pub use speed::Speed;

/// The roles that count as weights, and those that count as activations.
pub const WEIGHTS: &[Role] = &[Role::Weight];
/// See [`WEIGHTS`].
pub const ACTIVATIONS: &[Role] = &[Role::Input, Role::Activation];

/// What happened to each value of a model, and its error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The path of the model; `None` for bytes.
    pub input: Option<String>,
    /// The path of the result; `None` while it is in memory.
    pub output: Option<String>,
    /// The options.
    pub config: Config,
    /// The size of the float model in bytes, including external data.
    pub bytes_before: u64,
    /// The size of the result in bytes, including external data.
    pub bytes_after: u64,
    /// The opset of the result, which may be newer than that of the model.
    #[serde(default)]
    pub opset: i64,
    /// The engine that ran the model on samples, if any.
    pub engine: Option<String>,
    /// The range method.
    pub method: Option<String>,
    /// The number of samples.
    pub samples: usize,
    /// The number of biases that were corrected for the mean error of quantized weights.
    pub corrected_biases: usize,
    /// The passes that changed the model before planning.
    pub steps: Vec<Step>,
    /// The result of accuracy control, if it ran.
    #[serde(default)]
    pub verified: Option<Evaluation>,
    /// The error of the outputs on a few samples, unless accuracy control measured it.
    #[serde(default)]
    pub output_check: Option<OutputCheck>,
    /// Wall-clock seconds of each stage.
    pub seconds: Timings,
    /// The values of the main graph, and the matrices of floats that subgraphs define.
    pub values: Vec<ReportRow>,
    /// Notes of calibration: the choice of the engine, or ranges that mean nothing.
    pub notes: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// The version, the date, and what is known of the call.
    #[serde(default)]
    pub origin: Origin,
}

/// Wall-clock seconds of each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Running the model on samples.
    pub calibrate: f64,
    /// Encoding weights and rewriting the graph.
    pub apply: f64,
    /// Running the result beside the float model; for accuracy control also its candidates.
    #[serde(default)]
    pub verify: f64,
    /// Writing the file.
    pub save: f64,
}

/// What happened to one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRow {
    /// The name of the value.
    pub name: String,
    /// Its role in the model.
    pub role: Role,
    /// Its element type in the float model, if known.
    pub dtype: Option<DataType>,
    /// Its shape, if known; null for a dynamic dimension.
    pub shape: Option<Vec<Option<usize>>>,
    /// The size of a constant in the float model in bytes; if it is cast, the size before the cast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_before: Option<u64>,
    /// How it is quantized; `None` if it kept its type.
    pub quantized: Option<QuantizedRow>,
    /// Why it is quantized, or why it is not: `quantized: weight of node ...`.
    pub why: String,
}

/// How one value is quantized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedRow {
    /// Its quantized type.
    pub qtype: QType,
    /// The type stored in the file.
    pub stored: QType,
    /// The output format.
    pub format: Format,
    /// Whether the zero point is fixed.
    pub symmetric: bool,
    /// Whether the range is reduced by one bit.
    pub reduced: bool,
    /// How many bits of an integer type are used; 0 stands for all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub used_bits: u32,
    /// The numbers that codes stand for; `None` if values are numbers themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codebook: Option<Codebook>,
    /// Which elements share a scale.
    pub granularity: Granularity,
    /// The type of the scales.
    #[serde(default, skip_serializing_if = "Scales::are_wide")]
    pub scales: Scales,
    /// The source of the scale.
    pub source: String,
    /// The smallest and the largest magnitude of its scales.
    pub scale: (f32, f32),
    /// The zero point of an activation.
    pub zero_point: Option<i32>,
    /// The calibrated range.
    pub range: Option<Range>,
    /// The method that `auto` chose for it.
    pub method: Option<String>,
    /// The error of a constant, dequantized, against its float values.
    pub error: Option<Metrics>,
    /// How a weight was rounded with the help of samples, and what that gained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<RoundingEvidence>,
    /// The stored size of a constant; `None` for activations, and for constants that are stored as
    /// float.
    pub bytes: Option<StoredBytes>,
    /// The histogram of an activation.
    pub histogram: Option<Histogram>,
}

/// The stored size of a quantized constant, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBytes {
    /// Its integers.
    pub elements: u64,
    /// Its scales, and its zero points where they are not fixed.
    pub scales: u64,
}

impl ReportRow {
    /// The reason alone, where it is clear whether the value is quantized.
    pub fn reason(&self) -> &str {
        let parts = self.why.split_once(": ");
        let stated = parts.filter(|(stated, _)| matches!(*stated, "quantized" | "not quantized"));
        stated.map_or(&self.why, |(_, reason)| reason)
    }

    /// Whether it is a float value that was not quantized.
    pub fn stayed_float(&self) -> bool {
        self.quantized.is_none() && self.dtype.is_some_and(DataType::is_float)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(bits: &u32) -> bool {
    *bits == 0
}

impl QuantizedRow {
    /// The bits of its integers, which may be stored with more.
    pub fn bits(&self) -> u32 {
        if self.used_bits == 0 { self.qtype.bits() } else { self.used_bits }
    }

    /// Type, symmetry and granularity as text: `int8 symmetric axis 0`.
    pub fn kind(&self) -> String {
        self.kind_with(self.granularity)
    }

    pub(crate) fn kind_with(&self, granularity: Granularity) -> String {
        let spec = QSpec::new(self.qtype, self.symmetric, granularity);
        let (used_bits, scales, codebook) = (self.used_bits, self.scales, self.codebook);
        let spec = QSpec { reduce_range: self.reduced, used_bits, scales, codebook, ..spec };
        crate::plan::kind(&spec, self.stored, self.format)
    }
}

impl Report {
    pub(crate) fn of(
        graph: &Graph<'_>,
        plan: &Plan,
        ranges: Option<&Ranges>,
        encoded: &Encoded,
    ) -> Report {
        let mut constants: HashMap<&str, &EncodedTensor> =
            encoded.weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        for node in plan.integer_nodes() {
            if let (Some(bias), Some(tensor)) = (node.bias, encoded.biases.get(&node.node)) {
                constants.insert(graph.values[bias].name, tensor);
            }
        }
        let row = |value: &Planned| {
            let name = value.name.as_str();
            let quantized = match &value.decision {
                Decision::Quantize(how) => {
                    let constant = constants.get(name).copied();
                    let activation = encoded.activations.get(name);
                    Some(quantized(value, how, ranges, constant, activation))
                }
                Decision::KeepFloat(_) => None,
            };
            ReportRow {
                name: value.name.clone(),
                role: value.role,
                dtype: value.dtype,
                shape: value.shape.clone(),
                bytes_before: graph.value(name).and_then(|id| uses::bytes(graph, id)),
                quantized,
                why: value.decision.why(),
            }
        };
        let mut warnings = ranges.map_or_else(Vec::new, |ranges| ranges.warnings.clone());
        warnings.extend(plan.warnings.iter().cloned());
        warnings.extend(encoded.warnings.iter().cloned());
        let mut notes = ranges.map_or_else(Vec::new, Ranges::said);
        let values: Vec<ReportRow> =
            plan.values.iter().map(row).chain(inside_subgraphs(graph)).collect();
        notes.extend(rounding::note(&values));
        warnings.extend(plan.nothing_quantized());
        Report {
            input: graph.model.path().map(|path| path.display().to_string()),
            config: plan.config.clone(),
            bytes_before: graph.model.byte_len(),
            opset: graph.model.opset("").unwrap_or(0),
            engine: ranges.map(|ranges| ranges.engine.clone()),
            method: ranges.map(|ranges| ranges.method.clone()),
            samples: ranges.map_or(0, |ranges| ranges.samples),
            corrected_biases: encoded.corrected,
            values,
            notes,
            warnings,
            origin: Origin::default(),
            ..Report::default()
        }
    }

    /// The size of the float model divided by that of the result.
    #[allow(clippy::cast_precision_loss)] // sizes of files, shown to two digits
    pub fn ratio(&self) -> f64 {
        self.bytes_before as f64 / self.bytes_after.max(1) as f64
    }

    /// Warns if the model did not become smaller although something was quantized; fake-quantized
    /// weights stay float.
    pub(crate) fn warn_of_size(&mut self) {
        let trained = self.config.output_format == Format::FakeQuant;
        let (before, after) = (self.bytes_before, self.bytes_after);
        if after >= before && !trained && self.quantized().next().is_some() {
            self.warnings.push(format!(
                "the quantized model is not smaller: {after} bytes, and the float model {before}"
            ));
        }
    }

    /// The number of quantized values with these roles: `3 of 4`.
    pub fn count(&self, roles: &[Role]) -> String {
        let all = self.values.iter().filter(|row| roles.contains(&row.role)).count();
        let quantized = self.quantized().filter(|(row, _)| roles.contains(&row.role)).count();
        format!("{quantized} of {all}")
    }

    /// How many weights are in 16-bit floats among others in fewer bits, as text.
    fn halves(&self) -> String {
        let weights = self.quantized().filter(|(row, _)| WEIGHTS.contains(&row.role));
        let halves = weights.filter(|(_, how)| !how.qtype.is_scaled()).count();
        if halves == 0 || !self.config.weights.qtype().is_scaled() {
            return String::new();
        }
        format!(", {halves} of them to 16-bit floats")
    }

    /// The quantized values.
    pub fn quantized(&self) -> impl Iterator<Item = (&ReportRow, &QuantizedRow)> {
        self.values.iter().filter_map(|row| Some((row, row.quantized.as_ref()?)))
    }

    /// Suggestions for what to try next.
    pub fn suggestions(&self) -> Vec<String> {
        let all = suggest::ALL.iter().filter_map(|suggest| suggest(self));
        all.map(|suggestion| self.origin.said(&suggestion)).collect()
    }

    /// What the bytes of the model are used for, before and after.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(self)
    }

    /// The report as JSON, with `ratio`, `sizes`, `suggestions` and `assessment`.
    pub fn to_json(&self) -> String {
        // In a value, keys are in alphabetical order, and floats have the digits of a double.
        serde_json::to_value(self.document()).map_or_else(|_| String::new(), |it| it.to_string())
    }

    /// What [`Report::to_json`] writes, for any format of serde.
    pub fn document(&self) -> impl Serialize + use<'_> {
        Document {
            report: self,
            ratio: self.ratio(),
            sizes: self.sizes(),
            suggestions: self.suggestions(),
            assessment: self.assessment(),
        }
    }

    /// Reads a report from JSON.
    ///
    /// # Errors
    /// The text was not written by [`Report::to_json`].
    pub fn from_json(text: &str) -> Result<Report, QuantizeError> {
        let refused = |error| QuantizeError::option("report", format!("is not a report: {error}"));
        serde_json::from_str(text).map_err(refused)
    }
}

/// A report with what follows from it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a Report,
    ratio: f64,
    sizes: Sizes,
    suggestions: Vec<String>,
    assessment: Assessment,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Assessment { grade, sentence, next } = self.assessment();
        writeln!(f, "{}: {sentence}", grade.name())?;
        next.iter().try_for_each(|what| writeln!(f, "next: {what}"))?;
        let (before, after) = (self.bytes_before, self.bytes_after);
        writeln!(f, "{before} -> {after} bytes, {:.2} times smaller", self.ratio())?;
        if let Some(check) = &self.output_check {
            writeln!(f, "output error: {}", check.summary())?;
        }
        let (weights, others) = (self.count(WEIGHTS), self.others(WEIGHTS));
        writeln!(f, "{weights} weights quantized{}{others}", self.halves())?;
        if self.samples > 0 {
            let engine = self.engine.as_deref().unwrap_or("saved ranges");
            writeln!(f, "calibrated on {} samples ({engine})", self.samples)?;
        }
        if self.config.activations.is_some() {
            let others = self.others(ACTIVATIONS);
            writeln!(f, "{} activations quantized{others}", self.count(ACTIVATIONS))?;
        }
        if let Some(verified) = &self.verified {
            write!(f, "{verified}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "prepared: {step}"))?;
        for row in self.values.iter().filter(|row| row.role == Role::Weight) {
            match &row.quantized {
                Some(how) => {
                    let sqnr = how.error.map_or(f64::NAN, |error| error.sqnr_db);
                    writeln!(f, "  {}: {}, SQNR {sqnr:.1} dB", row.name, how.kind())?;
                }
                None => writeln!(f, "  {}: kept, {}", row.name, row.reason())?,
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

/// Rows for matrices that subgraphs define. Those that are weights were moved out by a pass.
fn inside_subgraphs(graph: &Graph<'_>) -> impl Iterator<Item = ReportRow> {
    uses::tensors_inside(graph).into_iter().map(|(body, name, tensor)| {
        let body = body.name.as_deref().unwrap_or_default();
        let why = format!(
            "it belongs to subgraph `{body}`; only weights that the pass `lift_weights` moves out \
             are quantized"
        );
        let lengths = tensor.dims.iter().map(|length| usize::try_from(*length).ok());
        ReportRow {
            name: name.to_owned(),
            role: Role::Weight,
            dtype: tensor.dtype(),
            shape: Some(lengths.collect()),
            bytes_before: uses::byte_len(tensor),
            quantized: None,
            why,
        }
    })
}

fn quantized(
    value: &Planned,
    how: &ValuePlan,
    ranges: Option<&Ranges>,
    constant: Option<&EncodedTensor>,
    activation: Option<&Params>,
) -> QuantizedRow {
    let range = ranges.and_then(|ranges| ranges.values.get(&value.name)).copied();
    QuantizedRow {
        qtype: how.spec.qtype,
        stored: how.stored,
        format: how.format,
        symmetric: how.spec.symmetric,
        reduced: how.spec.reduce_range,
        used_bits: how.spec.used_bits,
        codebook: how.spec.codebook,
        granularity: how.spec.granularity,
        scales: how.spec.scales,
        source: how.source.to_string(),
        scale: constant.map_or_else(|| scale_of(activation), scales_of),
        zero_point: activation.map(|params| params.zero_point),
        range,
        method: ranges.and_then(|ranges| ranges.chosen.get(&value.name)).cloned(),
        error: constant.and_then(|constant| constant.metrics),
        rounding: constant
            .zip(ranges.and_then(|ranges| ranges.rounded.get(&value.name)))
            .filter(|(constant, rounded)| rounded.is_stored_as(constant.rounded))
            .map(|(_, rounded)| rounded.evidence.clone()),
        bytes: constant.filter(|_| how.format != Format::FakeQuant).map(|c| stored(how, c)),
        histogram: ranges.and_then(|ranges| ranges.histogram(&value.name)),
    }
}

fn stored(how: &ValuePlan, constant: &EncodedTensor) -> StoredBytes {
    let bytes = |tensor: &quantize_rs_onnx::Tensor| tensor.data.len() as u64;
    let zero_points = if how.spec.symmetric { 0 } else { bytes(&constant.zero_point) };
    StoredBytes {
        elements: bytes(&constant.quantized),
        scales: bytes(&constant.scale) + zero_points,
    }
}

fn scale_of(params: Option<&Params>) -> (f32, f32) {
    params.map_or((0.0, 0.0), |params| (params.scale, params.scale))
}

fn scales_of(constant: &EncodedTensor) -> (f32, f32) {
    let scales = constant.scale.to_f32().unwrap_or_default();
    // Floats that are cast have no scale.
    if scales.is_empty() {
        return scale_of(None);
    }
    let sizes = || scales.iter().map(|scale| scale.abs());
    (sizes().fold(f32::INFINITY, f32::min), sizes().fold(0.0, f32::max))
}
