//! Which values are float32, where the file does not say: a scale of float32 goes with no other
//! type.

use quantize_rs_onnx::DataType;

use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};

/// Operators without a rule that make what they are given first: floats of floats.
const SAME_TYPE: &[&str] = &[
    "Abs",
    "Ceil",
    "Celu",
    "Cos",
    "CumSum",
    "Dropout",
    "Erf",
    "Exp",
    "Floor",
    "GroupNormalization",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "Mean",
    "Mish",
    "Mod",
    "Neg",
    "Pow",
    "RMSNormalization",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceProd",
    "ReduceSumSquare",
    "RotaryEmbedding",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sum",
    "Swish",
    "ThresholdedRelu",
    "Trilu",
];

/// Whether each value is known to be float32: it is said to be, or meets one that is.
pub(crate) fn of(graph: &Graph<'_>, order: &[usize]) -> Vec<bool> {
    let said = |id: ValueId| graph.dtype(id).filter(|_| !is_sparse(graph, id));
    let mut float: Vec<bool> =
        (0..graph.values.len()).map(|id| said(id) == Some(DataType::Float)).collect();
    for node in order.iter().copied() {
        let alike = alike(graph, node);
        if makes_float32(graph, node, &float) || alike.iter().any(|id| float[*id]) {
            let values = alike.into_iter().chain(outputs(graph, node));
            let unsaid = |id: &ValueId| said(*id).is_none() && !is_sparse(graph, *id);
            values.filter(unsaid).for_each(|id| float[id] = true);
        }
    }
    float
}

/// Whether a value is a sparse constant, which is no tensor that could be looked at.
fn is_sparse(graph: &Graph<'_>, value: ValueId) -> bool {
    match graph.values[value].producer {
        Producer::Sparse => true,
        Producer::Node { node, .. } => graph.nodes[node].attribute("sparse_value").is_some(),
        _ => false,
    }
}

/// What flows out of a node: its first output, which others only describe, and all parts of a
/// `Split`.
pub(super) fn outputs(graph: &Graph<'_>, node: usize) -> impl Iterator<Item = ValueId> {
    let proto = graph.nodes[node];
    let count = if proto.op_type == "Split" { proto.output.len() } else { 1 };
    proto.output.iter().take(count).filter_map(|name| graph.value(name))
}

/// Inputs of a node that have the type of its output.
fn alike(graph: &Graph<'_>, node: usize) -> Vec<ValueId> {
    let proto = graph.nodes[node];
    let rule = ops::rule(proto);
    let is_alike = |input: usize| match rule {
        Some(rule) => rule.takes_activation(input) || rule.takes_weight(input),
        None => input == 0 && proto.is_onnx() && SAME_TYPE.contains(&proto.op_type.as_str()),
    };
    (0..proto.input.len())
        .filter(|input| is_alike(*input))
        .filter_map(|input| graph.input(node, input))
        .collect()
}

/// Whether a node makes float32 of something else.
fn makes_float32(graph: &Graph<'_>, node: usize, float: &[bool]) -> bool {
    let proto = graph.nodes[node];
    match proto.op_type.as_str() {
        "DequantizeLinear" => graph.input(node, 1).is_some_and(|scale| float[scale]),
        _ => uses::casts_to_float32(proto),
    }
}
