//! Which nodes compute sizes, counts or positions in float, from the shapes of values alone. A
//! small error makes another size.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use quantize_rs_onnx::{DataType, NodeProto};

use crate::graph::{Graph, Producer, ValueId};

/// Why such nodes compute in float.
pub(super) const WHY: &str = "it computes a size or a position, of which an error makes another";

/// The nodes that compute, from shapes and constants alone, what is rounded, compared or read as a
/// size. `order` are all nodes, each after those that it reads.
pub(super) fn of(graph: &Graph<'_>, order: &[usize]) -> BTreeSet<usize> {
    let shapes = from_shapes(graph, order);
    let read = |node: &usize| {
        let inputs = exact_inputs(graph.nodes[*node]);
        inputs.filter_map(|input| graph.input(*node, input)).collect::<Vec<ValueId>>()
    };
    let mut read: Vec<ValueId> = order.iter().flat_map(read).collect();
    let mut found = BTreeSet::new();
    while let Some(value) = read.pop() {
        let Producer::Node { node, .. } = graph.values[value].producer else { continue };
        if shapes.contains(&value) && found.insert(node) {
            read.extend(inputs(graph, node));
        }
    }
    found
}

/// The inputs of a node that must not have an error.
fn exact_inputs(node: &NodeProto) -> Range<usize> {
    let to = || DataType::from_number(i32::try_from(node.int("to", 0)).unwrap_or(0));
    match node.op_type.as_str() {
        _ if !node.is_onnx() => 0..0,
        "Cast" if to().is_some_and(DataType::is_float) => 0..0,
        "Cast" | "Ceil" | "Floor" | "Round" => 0..1,
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => 0..2,
        "Range" => 0..3,
        "Resize" => 1..3,
        "Upsample" => 1..2,
        _ => 0..0,
    }
}

/// The values that follow from the shapes of others, and from constants.
fn from_shapes(graph: &Graph<'_>, order: &[usize]) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    for node in order {
        let proto = graph.nodes[*node];
        let begins = proto.is_onnx() && matches!(proto.op_type.as_str(), "Shape" | "Size");
        let (some, rest): (Vec<ValueId>, Vec<ValueId>) =
            inputs(graph, *node).partition(|value| found.contains(value));
        let follows =
            !some.is_empty() && rest.iter().all(|value| graph.fixed_constant(*value).is_some());
        if begins || follows && proto.subgraphs().next().is_none() {
            let outputs = 0..proto.output.len();
            found.extend(outputs.filter_map(|output| graph.output(*node, output)));
        }
    }
    found
}

fn inputs<'g>(graph: &'g Graph<'_>, node: usize) -> impl Iterator<Item = ValueId> + 'g {
    let count = graph.nodes[node].input.len();
    (0..count).filter_map(move |input| graph.input(node, input))
}
