//! Finds the values that are float32 if the file does not declare their type. A float32 scale
//! requires a float32 value.

use quantize_rs_onnx::DataType;

use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Graph, Producer, ValueId};

/// Operators without a rule whose output has the type of their first input.
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

/// Whether each value is known to be float32: the file declares it, or an operator that requires
/// equal types reads it together with a float32 value.
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

/// Whether a value is a sparse constant, which is not read as a tensor here.
fn is_sparse(graph: &Graph<'_>, value: ValueId) -> bool {
    match graph.values[value].producer {
        Producer::Sparse => true,
        Producer::Node { node, .. } => graph.nodes[node].attribute("sparse_value").is_some(),
        _ => false,
    }
}

/// The outputs of a node that hold data: the first one, and all of a `Split`. Others hold
/// statistics or indices.
pub(super) fn outputs(graph: &Graph<'_>, node: usize) -> impl Iterator<Item = ValueId> {
    let proto = graph.nodes[node];
    let count = if proto.op_type == "Split" { proto.output.len() } else { 1 };
    proto.output.iter().take(count).filter_map(|name| graph.value(name))
}

/// The inputs of a node that have the type of its output.
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

/// Whether a node converts another type to float32.
fn makes_float32(graph: &Graph<'_>, node: usize, float: &[bool]) -> bool {
    let proto = graph.nodes[node];
    match proto.op_type.as_str() {
        "DequantizeLinear" => graph.input(node, 1).is_some_and(|scale| float[scale]),
        _ => uses::casts_to_float32(proto),
    }
}
