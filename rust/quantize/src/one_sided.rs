//! Values that are never below 0, or hardly ever: whose mean is as large as what they deviate from it.

use std::collections::HashSet;

use crate::graph::{Graph, Maker, ValueId};

/// Operators whose results are like that, whatever comes in.
const FUNCTIONS: &[&str] = &[
    "Abs",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Swish",
    "ThresholdedRelu",
];

/// Operators whose results are like that where their first input is.
const PASSING: &[&str] = &[
    "AveragePool",
    "Cast",
    "DepthToSpace",
    "Dropout",
    "Flatten",
    "Gather",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "Pad",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Resize",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Upsample",
];

/// Operators whose results are like that where all their inputs are.
const JOINING: &[&str] = &["Add", "Concat", "Max", "Sum"];

/// Whether a value lies on one side of 0 because of what makes it.
pub(crate) fn one_sided(graph: &Graph<'_>, value: ValueId) -> bool {
    let mut waiting = vec![value];
    let mut seen = HashSet::new();
    // A list, not a recursion: a chain of a million nodes must not exhaust the stack.
    while let Some(value) = waiting.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Maker::Node { node, .. } = graph.values[value].maker else { return false };
        let op_type = &*graph.nodes[node].op_type;
        let inputs = || (0..graph.nodes[node].input.len()).filter_map(|at| graph.input(node, at));
        if !graph.nodes[node].is_onnx() {
            return false;
        }
        if FUNCTIONS.contains(&op_type) || op_type == "Clip" && clips_below(graph, node) {
            continue;
        }
        if PASSING.contains(&op_type) {
            waiting.extend(inputs().next());
        } else if JOINING.contains(&op_type) {
            waiting.extend(inputs());
        } else if op_type == "Mul" {
            // What multiplies by numbers above 0 turns nothing over.
            let others = || inputs().filter(|input| !is_positive(graph, *input));
            waiting.extend(others().filter(|_| !gates(graph, node)));
        } else {
            return false;
        }
    }
    true
}

/// Whether a node cuts off what is below 0.
fn clips_below(graph: &Graph<'_>, node: usize) -> bool {
    let clip = graph.nodes[node];
    match graph.input(node, 1) {
        Some(least) => floats(graph, least).is_some_and(|least| least.iter().all(|x| *x >= 0.0)),
        None => clip.float("min", f32::MIN) >= 0.0,
    }
}

/// Whether a product is that of a value and how much of it passes, such as `x · sigmoid(x)` and `x · (erf(x) + 1)`.
fn gates(graph: &Graph<'_>, node: usize) -> bool {
    let maker = |value: ValueId| match graph.values[value].maker {
        Maker::Node { node, .. } => Some((node, &*graph.nodes[node].op_type)),
        _ => None,
    };
    let gate = |value: ValueId| match maker(value) {
        Some((_, "Sigmoid" | "HardSigmoid")) => true,
        Some((sum, "Add")) => (0..2)
            .filter_map(|input| maker(graph.input(sum, input)?))
            .any(|(_, op_type)| matches!(op_type, "Erf" | "Tanh")),
        _ => false,
    };
    (0..2).filter_map(|input| graph.input(node, input)).any(gate)
}

fn is_positive(graph: &Graph<'_>, value: ValueId) -> bool {
    floats(graph, value).is_some_and(|all| all.iter().all(|x| *x > 0.0))
}

/// The few numbers of a constant.
fn floats(graph: &Graph<'_>, value: ValueId) -> Option<Vec<f32>> {
    const FEW: i64 = 1 << 16;
    let constant = graph.constant(value)?;
    let few = constant.dims.iter().try_fold(1_i64, |all, dim| all.checked_mul(*dim))? <= FEW;
    graph.model.tensor(constant).ok().filter(|_| few)?.to_f32()
}
