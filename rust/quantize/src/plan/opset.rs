//! The opset that a quantized value needs.

use std::collections::HashSet;
use std::fmt;

use quantize_rs_math::{Granularity, QSpec, QType, Scales};
use quantize_rs_onnx::{Model, NodeProto};

use super::{Plan, ValuePlan};
use crate::error::QuantizeErrorKind;
use crate::graph::Graph;
use crate::options::target::Bias;
use crate::transform::NEWEST_OPSET;
use crate::{Format, QuantizeError};

/// The first opset in which `QuantizeLinear` and `DequantizeLinear` support this type; for types
/// without a scale, the first in which `Cast` does.
fn since(qtype: QType) -> i64 {
    match qtype {
        QType::Int8 | QType::UInt8 | QType::Int32 => 10,
        QType::Float8E4M3FN | QType::Float8E5M2 => 19,
        QType::Int16 | QType::UInt16 | QType::Int4 | QType::UInt4 => 21,
        QType::Float4E2M1 => 23,
        QType::Int2 | QType::UInt2 => 25,
        QType::Float16 => 6,
        QType::BFloat16 => 13,
    }
}

/// The opset needed for values of this type and granularity.
///
/// Source: the change log of `DequantizeLinear`, <https://onnx.ai/onnx/operators/>.
pub(crate) fn needed(qtype: QType, granularity: Granularity) -> i64 {
    let granular = match granularity {
        _ if !qtype.is_scaled() => 1,
        Granularity::PerTensor => 10,
        Granularity::PerAxis { .. } => 13,
        Granularity::Blocked { .. } => 21,
    };
    since(qtype).max(granular)
}

/// The first opset with `Round`.
const ROUND: i64 = 11;

/// Operators that ONNX Runtime lets take integers whatever the opset is, if their input and output
/// are quantized, and the first opset in which they do (observed in 1.32).
const TAKE_INTEGERS: &[(&str, i64)] = &[("DepthToSpace", 11), ("ReduceMax", 12), ("ReduceMin", 12)];

/// The first opset in which `DequantizeLinear` supports scales of this type.
fn known(spec: &QSpec) -> i64 {
    match spec.scales {
        Scales::Float => 1,
        Scales::Float8E4M3FN => 19,
        Scales::Float8E8M0 => 24,
    }
}

/// Rejects opsets that are newer than the newest known one.
pub(super) fn check_known(graph: &Graph<'_>) -> Result<(), QuantizeError> {
    match graph.model.opset("") {
        Some(have) if have > NEWEST_OPSET => Err(unsupported(
            format!("opset {have}"),
            format!("the model uses opset {have}; the newest known here is {NEWEST_OPSET}"),
        )),
        _ => Ok(()),
    }
}

/// A value that the opset of the model does not support.
pub(crate) struct Need {
    /// The first opset that supports it.
    pub(crate) opset: i64,
    /// The value, and its type.
    value: String,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs opset {}", self.value, self.opset)
    }
}

impl Plan {
    /// The value that needs the newest opset, if it is newer than the opset of the model.
    pub(crate) fn needs_more_than(&self, model: &Model) -> Option<Need> {
        let have = model.opset("").unwrap_or(0);
        let values = self.value_needs(have).into_iter();
        let nodes = self.float_bias_needs(model, have).into_iter().chain(self.moves(model, have));
        values.chain(nodes).max_by_key(|need| need.opset)
    }

    /// A node between quantized values that would take integers before its operator does.
    fn moves(&self, model: &Model, have: i64) -> Option<Need> {
        let since = |node: &NodeProto| {
            let row = TAKE_INTEGERS.iter().find(|(op_type, _)| *op_type == node.op_type);
            row.map(|(_, since)| *since).filter(|since| node.is_onnx() && *since > have)
        };
        let later = model.graph().node.iter().filter_map(|node| Some((node, since(node)?)));
        let mut later = later.peekable();
        later.peek()?;
        let quantized: HashSet<&str> = self.quantized().map(|(it, _)| it.name.as_str()).collect();
        let is_quantized =
            |names: &[String]| names.first().is_some_and(|name| quantized.contains(name.as_str()));
        let found = later.find(|(node, _)| is_quantized(&node.input) && is_quantized(&node.output));
        let (node, opset) = found?;
        Some(Need { opset, value: format!("{} between integers", node.label()) })
    }

    /// A float bias of a node that runs on integers. ONNX Runtime quantizes it itself, with an
    /// operator that the opset of the model may not have (`Round`, observed in 1.32).
    fn float_bias_needs(&self, model: &Model, have: i64) -> Option<Need> {
        let graph = model.graph();
        let mut nodes = self.integer_nodes.iter().filter(|_| have < ROUND);
        let node = nodes.find(|integer| {
            let node = &graph.node[integer.node];
            let corrected = self.config.bias_correction && self.config.bias() != Bias::Int32;
            let has_bias = node.input.get(2).is_some_and(|name| !name.is_empty()) || corrected;
            integer.bias.is_none() && has_bias && node.op_type != "MatMul"
        })?;
        let name = graph.node[node.node].label();
        Some(Need { opset: ROUND, value: format!("the float bias of {name} beside integers") })
    }

    fn value_needs(&self, have: i64) -> Option<Need> {
        let need_of = |how: &ValuePlan| match how.format {
            Format::Qdq | Format::FakeQuant => {
                needed(how.stored, how.spec.granularity).max(known(&how.spec))
            }
            format => format.row().since,
        };
        // If several values need the newest opset, the first: a weight rather than the bias that
        // follows.
        let most = self.quantized().reduce(|a, b| if need_of(b.1) > need_of(a.1) { b } else { a });
        let (value, how) = most.filter(|(_, how)| need_of(how) > have)?;
        let kind = match how.spec.granularity {
            _ if how.format != Format::Qdq => how.format.name().to_owned(),
            Granularity::PerTensor => how.stored.name().to_owned(),
            Granularity::PerAxis { .. } => format!("per-channel {}", how.stored.name()),
            Granularity::Blocked { .. } => format!("blocked {}", how.stored.name()),
        };
        Some(Need { opset: need_of(how), value: format!("`{}` as {kind}", value.name) })
    }
}

/// Rejects a model whose opset is too old for the plan.
pub(super) fn check_enough(graph: &Graph<'_>, plan: &Plan) -> Result<(), QuantizeError> {
    let have = graph.model.opset("").unwrap_or(0);
    if let Some(asked) = plan.config.opset.filter(|asked| *asked != have) {
        let what =
            format!("is {asked}, the model has {have}; prepare it (`PreprocessedModel::of`)");
        return Err(QuantizeError::option("opset", what));
    }
    let Some(need) = plan.needs_more_than(graph.model) else { return Ok(()) };
    Err(unsupported(
        format!("opset {}", need.opset),
        format!(
            "{need} or newer, the model has opset {have}; prepare it (`PreprocessedModel::of`), \
             which converts it"
        ),
    ))
}

fn unsupported(feature: String, what: String) -> QuantizeError {
    QuantizeError::new(QuantizeErrorKind::Unsupported { feature, what })
}
