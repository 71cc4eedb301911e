//! Formats the plan as a table, and its reasons as text.

use std::fmt;

use quantize_rs_math::{Granularity, QSpec, QType, Scales};

use serde::Serialize;
use serde::ser::SerializeStruct;

use super::{Decision, KeepReason, Plan, Planned, QuantizeReason, Source};
use crate::Format;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "prepared: {step}"))?;
        let mut rows: Vec<[String; 4]> = self.values.iter().map(cells).collect();
        for [value, .., why] in &mut rows {
            if let Some(entries) = self.overrides.get(value) {
                *why = format!("{why}, by {}", entries.join(", "));
            }
        }
        let header = ["value", "type", "numbers from", "why"].map(str::to_owned);
        let mut widths = [0; 3];
        for row in std::iter::once(&header).chain(&rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for [value, kind, source, why] in std::iter::once(&header).chain(&rows) {
            let line = format!(
                "{value:a$}  {kind:b$}  {source:c$}  {why}",
                a = widths[0],
                b = widths[1],
                c = widths[2]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let quantized = self.quantized().count();
        writeln!(f, "{quantized} of {} values are quantized", self.values.len())
    }
}

fn cells(value: &Planned) -> [String; 4] {
    match &value.decision {
        Decision::Quantize(plan) => [
            value.name.clone(),
            kind(&plan.spec, plan.stored, plan.format),
            plan.source.to_string(),
            plan.because.to_string(),
        ],
        Decision::KeepFloat(kept) => {
            let dtype = value.dtype.map_or("-", quantize_rs_onnx::DataType::name);
            [value.name.clone(), dtype.to_owned(), "-".to_owned(), kept.to_string()]
        }
    }
}

/// Type, symmetry and granularity as text: `int8 symmetric axis 0`.
pub(crate) fn kind(spec: &QSpec, stored: QType, format: Format) -> String {
    let QSpec { qtype, symmetric, granularity, reduce_range: reduced, scales, .. } = *spec;
    let name = match (spec.codebook, spec.bits()) {
        (Some(codebook), _) => codebook.name().to_owned(),
        (None, bits) if bits < qtype.bits() => format!("{bits} bits of {qtype}"),
        _ => qtype.name().to_owned(),
    };
    let same = stored == qtype && spec.codebook.is_none();
    let stored = if same { String::new() } else { format!(" in {}", stored.name()) };
    let reduced = if reduced { " of 7 bits" } else { "" };
    let symmetric = if symmetric && qtype.is_scaled() { " symmetric" } else { "" };
    let granularity = match granularity {
        Granularity::PerTensor => String::new(),
        Granularity::PerAxis { axis } => format!(" axis {axis}"),
        Granularity::Blocked { axis, block_size } => {
            format!(" blocks of {block_size} on axis {axis}")
        }
    };
    let format = match format {
        Format::Qdq => String::new(),
        format => format!(" as {format}"),
    };
    let scales = match scales {
        Scales::Float => String::new(),
        scales => format!(" with scales of {}", scales.name()),
    };
    format!("{name}{stored}{symmetric}{granularity}{scales}{reduced}{format}")
}

impl fmt::Display for QuantizeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuantizeReason::WeightOf(node) => write!(f, "weight of {node}"),
            QuantizeReason::SmallWeightOf(node) => {
                write!(f, "one of the smallest weights, of {node}, which get 16 bits")
            }
            QuantizeReason::WiderWeightOf(node, why) => write!(f, "weight of {node}, {why}"),
            QuantizeReason::BiasOf(node) => write!(f, "bias of {node}"),
            QuantizeReason::InputOf(node) => write!(f, "goes into {node}"),
            QuantizeReason::OutputOf(node) => write!(f, "comes out of {node}"),
            QuantizeReason::PassedOnBy(node) => write!(f, "passed on by {node}"),
        }
    }
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepReason::NoRule { op_type: Some(op_type) } => {
                write!(f, "read by {op_type}, which takes it in float")
            }
            KeepReason::NoRule { op_type: None } => f.write_str("read by no node"),
            KeepReason::NotFloat32 { dtype: Some(dtype) } => write!(f, "is {dtype}, not float32"),
            KeepReason::NotFloat32 { dtype: None } => f.write_str("is not float32"),
            KeepReason::Excluded { pattern } => write!(f, "excluded by `{pattern}`"),
            KeepReason::NotIncluded { node } => {
                write!(f, "read by `{node}`, which is not to be quantized")
            }
            KeepReason::OpType { op_type } => write!(f, "read by {op_type}, not one of op_types"),
            KeepReason::TooSmall { elements, min_elements } => {
                write!(f, "has {elements} elements, fewer than {min_elements}")
            }
            KeepReason::In16Bits => {
                f.write_str("in 16-bit floats already, which the smallest weights keep")
            }
            KeepReason::Empty => f.write_str("has no elements"),
            KeepReason::Bias => f.write_str("bias of a node that computes in float"),
            KeepReason::FloatBias { target: Some(target) } => {
                write!(f, "bias, which {target} takes in float")
            }
            KeepReason::FloatBias { target: None } => {
                f.write_str("bias, which quantize_bias leaves in float")
            }
            KeepReason::MisreadBy { node } => {
                write!(f, "read by {node}, which ONNX Runtime averages wrongly on integers")
            }
            KeepReason::FloatOutput { op_type } => {
                write!(f, "output of {op_type}, which float_outputs leaves in float")
            }
            KeepReason::AlsoReadBy { node } => {
                write!(f, "also read by {node}, which needs it in float")
            }
            KeepReason::Already { qtype } => write!(f, "is {qtype} already"),
            KeepReason::NoForm { format, why } => write!(f, "{format} has no form for it: {why}"),
            KeepReason::AtRunTime { node } => {
                write!(f, "becomes uint8 when the model runs, for {node}")
            }
            KeepReason::GraphOutput => f.write_str("is an output of the model"),
            KeepReason::Captured => f.write_str("read by a graph inside a node"),
            KeepReason::Overridable => {
                f.write_str("also a graph input that may replace it; take it out of the inputs")
            }
            KeepReason::AttentionMask => {
                f.write_str("carries an attention mask, which no scale can hold")
            }
            KeepReason::OpenLength => f.write_str(
                "its range depends on a length that the model leaves open: probabilities over \
                 fewer elements are larger",
            ),
            KeepReason::Unseen => f.write_str("calibration did not look at it"),
            KeepReason::LosesInput { input } => {
                write!(f, "one scale for all of its inputs would lose `{input}`")
            }
            KeepReason::Router { node } => {
                write!(f, "its products choose what {node} takes, and errors would choose others")
            }
            KeepReason::UnevenFactors => {
                f.write_str("holds factors that differ too much for one scale")
            }
            KeepReason::NotFinite { found } => write!(f, "is not finite: {found}"),
            KeepReason::TooLarge { found, qtype } => {
                write!(f, "has numbers that {qtype} does not hold: {found}")
            }
            KeepReason::AllZero => {
                f.write_str("was never seen but as 0: any scale would be a guess")
            }
            KeepReason::WeightsOnly => f.write_str("only weights are quantized"),
            KeepReason::FusedInto { node } => write!(f, "fused into {node}"),
            KeepReason::Stem { node } => {
                write!(f, "{node} reads few channels at the entry: float is closer and as fast")
            }
            KeepReason::FloatNode { node, why } => write!(f, "{node} computes in float: {why}"),
        }
    }
}

impl Decision {
    /// Why the value is quantized, or why it is not, as a text that says which of them.
    pub fn why(&self) -> String {
        match self {
            Decision::Quantize(plan) => format!("quantized: {}", plan.because),
            Decision::KeepFloat(kept @ KeepReason::AtRunTime { .. }) => {
                format!("quantized at run time: {kept}")
            }
            Decision::KeepFloat(kept) => not_quantized(kept),
        }
    }
}

/// Why a value is not quantized, as [`Decision::why`] has it.
pub(crate) fn not_quantized(reason: impl fmt::Display) -> String {
    format!("not quantized: {reason}")
}

/// The fields, and the reason as text.
impl Serialize for Planned {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Planned", 6)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("role", &self.role)?;
        fields.serialize_field("dtype", &self.dtype)?;
        fields.serialize_field("shape", &self.shape)?;
        fields.serialize_field("decision", &self.decision)?;
        fields.serialize_field("why", &self.decision.why())?;
        fields.end()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Weights => f.write_str("weights"),
            Source::Observed => f.write_str("calibration"),
            Source::SameAs(value) => write!(f, "same as `{value}`"),
            Source::Fixed(range) => write!(f, "always in {} to {}", range.min, range.max),
            Source::Product { input, weight } => write!(f, "`{input}` × `{weight}`"),
        }
    }
}

impl Serialize for QuantizeReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for KeepReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
