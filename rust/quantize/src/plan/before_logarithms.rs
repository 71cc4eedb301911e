//! Which nodes compute what a logarithm reads, such as the spectrum of a sound. Quantization has an
//! absolute error, and a logarithm turns it into a large one wherever the value is small.

use std::collections::BTreeSet;

use crate::graph::{Graph, Producer, ValueId};

/// Why such nodes compute in float.
pub(super) const WHY: &str = "a logarithm follows, for which 8 bits are too coarse near 0";

/// Operators that keep ratios: where the input is small, the output is. Any other operator, such as
/// an activation function, ends the search.
const KEEP_RATIOS: &[&str] = &[
    "Abs",
    "Add",
    "AveragePool",
    "Cast",
    "Clip",
    "Concat",
    "Conv",
    "ConvTranspose",
    "Div",
    "Einsum",
    "Flatten",
    "Gemm",
    "Identity",
    "MatMul",
    "Max",
    "Mul",
    "Neg",
    "Pad",
    "Pow",
    "ReduceL2",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "Reshape",
    "Slice",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Transpose",
    "Unsqueeze",
];

/// The nodes from which a `Log` is reached through nodes that keep ratios.
pub(super) fn of(graph: &Graph<'_>) -> BTreeSet<usize> {
    let is_log = |node: &usize| graph.nodes[*node].is_onnx() && graph.nodes[*node].op_type == "Log";
    let logarithms = (0..graph.nodes.len()).filter(is_log);
    let mut read: Vec<ValueId> = logarithms.filter_map(|node| graph.input(node, 0)).collect();
    let mut found = BTreeSet::new();
    while let Some(value) = read.pop() {
        let Producer::Node { node, .. } = graph.values[value].producer else { continue };
        let proto = graph.nodes[node];
        if proto.is_onnx() && KEEP_RATIOS.contains(&&*proto.op_type) && found.insert(node) {
            read.extend((0..proto.input.len()).filter_map(|input| graph.input(node, input)));
        }
    }
    found
}
