//! Where a rounding from float32 to 16 bits may be left out: where it changes last digits, and not
//! where it changes what a number is taken for.
//!
//! float16 ends at 65504, so that the -1e9 of a mask becomes -inf, which some look for behind a
//! `Softmax`. bfloat16 has integers up to 256 and float16 up to 2048, so that positions become others.
//! And a number is equal to a constant of 16 bits only when it is rounded too.

use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use super::widen_floats::HALVES;
use crate::graph::constants::fixed;
use crate::graph::elements::to_f32;
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Graph, ValueId};

/// The largest finite number of float16.
const LARGEST: f32 = 65504.0;

/// Operators whose result jumps where its input changes by a digit, or is other for what is not finite.
const DISTINGUISH: [&str; 15] = [
    "ArgMax",
    "ArgMin",
    "Ceil",
    "Equal",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Mod",
    "NonZero",
    "Round",
    "Sign",
];

/// Operators behind which numbers are small and new, besides those that multiply by weights.
const SETTLE: [&str; 10] = [
    "Cos",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "Sigmoid",
    "Sin",
    "Softmax",
    "Sqrt",
    "Tanh",
];

/// The values of float32 among which may be numbers that 16 bits make others of, where something is
/// rounded to 16 bits.
pub(super) fn far(graph: &Graph<'_>) -> Vec<bool> {
    let mut far = vec![false; graph.values.len()];
    let rounds = |node: &&NodeProto| uses::casts(node).is_some_and(|to| HALVES.contains(&to));
    if !graph.nodes.iter().any(rounds) {
        return far;
    }
    let mut weighs = vec![false; graph.values.len()];
    for constant in uses::constants(graph).iter().filter(|found| found.is_weight()) {
        weighs[constant.anchor] = true;
    }
    for value in (0..graph.values.len()).filter(|value| !weighs[*value]) {
        let float = graph.dtype(value) == Some(DataType::Float);
        far[value] = float && fixed(graph, value).as_ref().is_some_and(beyond);
    }
    for index in 0..graph.nodes.len() {
        let node = graph.nodes[index];
        if !carries(node, graph, index, &far) {
            continue;
        }
        for output in node.output.iter().filter_map(|name| graph.value(name)) {
            far[output] = graph.dtype(output) == Some(DataType::Float);
        }
    }
    far
}

/// Whether numbers of a tensor are too large for float16.
fn beyond(tensor: &Tensor) -> bool {
    to_f32(tensor).is_some_and(|all| all.iter().any(|x| x.abs() > LARGEST))
}

/// Whether what a node makes may be such numbers.
fn carries(node: &NodeProto, graph: &Graph<'_>, index: usize, far: &[bool]) -> bool {
    let multiplies = ops::rule(node).is_some_and(|rule| rule.takes_weight(1));
    if multiplies || SETTLE.contains(&&*node.op_type) {
        return false;
    }
    let input = |position: usize| graph.input(index, position);
    match node.op_type.as_str() {
        "Cast" => input(0).is_some_and(|value| far[value] || is_counted(graph, value)),
        // Its limits are often the largest number there is.
        "Clip" => input(0).is_some_and(|value| far[value]),
        "ConstantOfShape" => node.attribute("value").is_some_and(|attribute| {
            let tensor = attribute.t.as_deref().and_then(|tensor| graph.model.tensor(tensor).ok());
            tensor.as_ref().is_some_and(beyond)
        }),
        _ => {
            node.subgraphs().next().is_some()
                || (0..node.input.len()).filter_map(input).any(|value| far[value])
        }
    }
}

/// Whether a value is of integers that 16 bits do not hold.
fn is_counted(graph: &Graph<'_>, value: ValueId) -> bool {
    use DataType::{Int16, Int32, Int64, UInt16, UInt32, UInt64};
    let counted = [Int16, Int32, Int64, UInt16, UInt32, UInt64];
    graph.dtype(value).is_some_and(|dtype| counted.contains(&dtype))
}

/// Whether one who reads a value, or what a `Cast` makes of it, tells apart what is rounded and what is
/// not. What is left of `source` when the rounded value is taken from it is nothing but the rounding.
pub(super) fn is_told_apart(graph: &Graph<'_>, value: ValueId, source: ValueId) -> bool {
    let subtracts = |node: usize| {
        let proto = graph.nodes[node];
        proto.op_type == "Sub" && [0, 1].iter().any(|at| graph.input(node, *at) == Some(source))
    };
    let told = |value: ValueId| {
        let mut readers = graph.values[value].readers.iter().map(|reader| reader.node);
        readers.any(|node| distinguishes(graph.nodes[node]) || subtracts(node))
    };
    let casts = graph.values[value].readers.iter().map(|reader| reader.node);
    let mut made = casts
        .filter(|node| uses::casts_to_float32(graph.nodes[*node]))
        .filter_map(|node| graph.output(node, 0));
    told(value) || made.any(told)
}

fn distinguishes(node: &NodeProto) -> bool {
    let to_integers = node.op_type == "Cast" && uses::casts(node).is_none();
    node.is_onnx() && (to_integers || DISTINGUISH.contains(&&*node.op_type))
}
