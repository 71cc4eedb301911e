//! Finds casts from float32 to 16 bits that must not be removed: those that change the meaning of a
//! number instead of only its last digits.
//!
//! The maximum of float16 is 65504, so the -1e9 of an attention mask becomes -inf, which some
//! models test for after a `Softmax`. bfloat16 represents integers exactly up to 256 and float16 up
//! to 2048, so larger positions change. A comparison with a 16-bit constant can only be true if the
//! other number is rounded, too.

use quantize_rs_onnx::{DataType, NodeProto, Tensor};

use crate::graph::constants::fixed;
use crate::graph::elements::{HALVES, to_f32};
use crate::graph::ops;
use crate::graph::uses;
use crate::graph::{Graph, ValueId};

/// The largest finite float16 number.
const MAX_FLOAT16: f32 = 65504.0;

/// Operators that are discontinuous, or that treat non-finite numbers differently.
const DISCONTINUOUS: [&str; 15] = [
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

/// Operators whose results are small and unrelated to large inputs, besides those that multiply by
/// weights.
const BOUNDED: [&str; 10] = [
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

/// The float32 values that may hold numbers whose meaning changes in 16 bits. All false if nothing
/// is cast to 16 bits.
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

/// Whether any element exceeds the range of float16.
fn beyond(tensor: &Tensor) -> bool {
    to_f32(tensor).is_some_and(|all| all.iter().any(|x| x.abs() > MAX_FLOAT16))
}

/// Whether the outputs of a node may hold such numbers.
fn carries(node: &NodeProto, graph: &Graph<'_>, index: usize, far: &[bool]) -> bool {
    let multiplies = ops::rule(node).is_some_and(|rule| rule.takes_weight(1));
    if multiplies || BOUNDED.contains(&&*node.op_type) {
        return false;
    }
    let input = |position: usize| graph.input(index, position);
    match node.op_type.as_str() {
        "Cast" => input(0).is_some_and(|value| far[value] || is_counted(graph, value)),
        // Its bounds are often the largest finite number, which does not matter.
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

/// Whether a value has an integer type with more than 8 bits.
fn is_counted(graph: &Graph<'_>, value: ValueId) -> bool {
    use DataType::{Int16, Int32, Int64, UInt16, UInt32, UInt64};
    let counted = [Int16, Int32, Int64, UInt16, UInt32, UInt64];
    graph.dtype(value).is_some_and(|dtype| counted.contains(&dtype))
}

/// Whether a consumer of a value, or of its `Cast` to float32, depends on the rounding. This
/// includes the difference between `source` and its rounded value, which consists only of the
/// rounding error.
pub(super) fn is_distinguished(graph: &Graph<'_>, value: ValueId, source: ValueId) -> bool {
    let subtracts = |node: usize| {
        let proto = graph.nodes[node];
        proto.op_type == "Sub" && [0, 1].iter().any(|at| graph.input(node, *at) == Some(source))
    };
    let distinguished = |value: ValueId| {
        let mut consumers = graph.values[value].consumers.iter().map(|consumer| consumer.node);
        consumers.any(|node| distinguishes(graph.nodes[node]) || subtracts(node))
    };
    let casts = graph.values[value].consumers.iter().map(|consumer| consumer.node);
    let mut made = casts
        .filter(|node| uses::casts_to_float32(graph.nodes[*node]))
        .filter_map(|node| graph.output(node, 0));
    distinguished(value) || made.any(distinguished)
}

fn distinguishes(node: &NodeProto) -> bool {
    let to_integers = node.op_type == "Cast" && uses::casts(node).is_none();
    node.is_onnx() && (to_integers || DISCONTINUOUS.contains(&&*node.op_type))
}
