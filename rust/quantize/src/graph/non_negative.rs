//! Finds values that are never negative, or almost never. Their mean is about as large as their
//! standard deviation.

use std::collections::HashSet;

use crate::graph::elements::to_f32;
use crate::graph::{Graph, Producer, ValueId};

/// Operators whose results are (almost) non-negative for any input.
const FUNCTIONS: &[&str] = &[
    "Abs",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Swish",
];

/// Operators whose results are non-negative if their first input is.
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

/// Operators whose results are non-negative if all their inputs are.
const JOINING: &[&str] = &["Add", "Concat", "Max", "Sum"];

/// Whether a value is (almost) non-negative because of the operators that produce it.
pub(crate) fn one_sided(graph: &Graph<'_>, value: ValueId) -> bool {
    let mut waiting = vec![value];
    let mut seen = HashSet::new();
    // An explicit stack instead of recursion: a chain of a million nodes must not overflow the call
    // stack.
    while let Some(value) = waiting.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Producer::Node { node, .. } = graph.values[value].producer else { return false };
        let op_type = &*graph.nodes[node].op_type;
        let inputs = || (0..graph.nodes[node].input.len()).filter_map(|at| graph.input(node, at));
        if !graph.nodes[node].is_onnx() {
            return false;
        }
        if FUNCTIONS.contains(&op_type) || is_cut(graph, node) {
            continue;
        }
        if PASSING.contains(&op_type) {
            waiting.extend(inputs().next());
        } else if JOINING.contains(&op_type) {
            waiting.extend(inputs());
        } else if op_type == "Mul" {
            // Multiplication by positive numbers preserves the sign.
            let others = || inputs().filter(|input| !is_positive(graph, *input));
            waiting.extend(others().filter(|_| !gates(graph, node)));
        } else {
            return false;
        }
    }
    true
}

/// Whether a node clips negative values, or at least damps them.
fn is_cut(graph: &Graph<'_>, node: usize) -> bool {
    let function = graph.nodes[node];
    let all = |input: usize, holds: fn(f32) -> bool| {
        let value = graph.input(node, input);
        value.map(|value| floats(graph, value).is_some_and(|all| all.into_iter().all(holds)))
    };
    let slope = |slope: f32| (0.0..=0.5).contains(&slope);
    match &*function.op_type {
        "Clip" => all(1, |least| least >= 0.0).unwrap_or(function.float("min", f32::MIN) >= 0.0),
        "LeakyRelu" => slope(function.float("alpha", 0.01)),
        "PRelu" => all(1, slope).unwrap_or(false),
        "ThresholdedRelu" => function.float("alpha", 1.0) >= 0.0,
        _ => false,
    }
}

/// Whether a product gates a value by a function of itself: `x · sigmoid(x)`, `x · (erf(x) + 1)`
/// and similar.
fn gates(graph: &Graph<'_>, node: usize) -> bool {
    let (Some(a), Some(b)) = (graph.input(node, 0), graph.input(node, 1)) else { return false };
    let is_gate_of = |gate: ValueId, value: ValueId| {
        let Some((made, op_type)) = producer(graph, gate) else { return false };
        let inner = match op_type {
            "Sigmoid" | "HardSigmoid" => graph.input(made, 0),
            "Add" => (0..2).find_map(|input| {
                let bent = graph.input(made, input)?;
                let one = graph.input(made, 1 - input).filter(|one| is_positive(graph, *one));
                let (inner, op_type) = producer(graph, bent)?;
                one.filter(|_| matches!(op_type, "Erf" | "Tanh"))?;
                graph.input(inner, 0)
            }),
            _ => None,
        };
        inner.is_some_and(|inner| root(graph, inner) == root(graph, value))
    };
    is_gate_of(a, b) || is_gate_of(b, a)
}

fn producer<'g>(graph: &'g Graph<'_>, value: ValueId) -> Option<(usize, &'g str)> {
    match graph.values[value].producer {
        Producer::Node { node, .. } => Some((node, &*graph.nodes[node].op_type)),
        _ => None,
    }
}

/// The value that another is derived from by arithmetic with constants. For both `x / √2` and
/// `√(2/π) · (x + 0.04 x³)`, this is `x`.
fn root(graph: &Graph<'_>, mut value: ValueId) -> ValueId {
    const MAX_STEPS: usize = 8;
    for _ in 0..MAX_STEPS {
        let Some((node, "Mul" | "Div" | "Add")) = producer(graph, value) else { return value };
        let inputs = [graph.input(node, 0), graph.input(node, 1)];
        let mut own = inputs.into_iter().flatten().filter(|id| graph.constant(*id).is_none());
        let Some(next) = own.next() else { return value };
        value = next;
    }
    value
}

fn is_positive(graph: &Graph<'_>, value: ValueId) -> bool {
    floats(graph, value).is_some_and(|all| all.iter().all(|x| *x > 0.0))
}

/// The elements of a small constant.
fn floats(graph: &Graph<'_>, value: ValueId) -> Option<Vec<f32>> {
    const MAX_ELEMENTS: i64 = 1 << 16;
    let constant = graph.constant(value)?;
    let few =
        constant.dims.iter().try_fold(1_i64, |all, dim| all.checked_mul(*dim))? <= MAX_ELEMENTS;
    to_f32(&graph.model.tensor(constant).ok().filter(|_| few)?)
}
