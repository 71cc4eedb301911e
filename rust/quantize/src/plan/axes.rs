//! How many axes values have, where the file does not say: enough to tell a matrix from a batch of
//! them.

use crate::graph::{Graph, Maker, ValueId};

/// The number of axes of every value; `None` where it does not follow from what the file says.
pub(super) fn of(graph: &Graph<'_>, order: &[usize]) -> Vec<Option<usize>> {
    let mut axes: Vec<Option<usize>> =
        (0..graph.values.len()).map(|id| graph.shape(id).map(|shape| shape.len())).collect();
    for node in order.iter().copied() {
        let made = made(graph, node, &axes);
        for name in &graph.nodes[node].output {
            if let Some(output) = graph.value(name) {
                axes[output] = axes[output].or(made);
            }
        }
    }
    axes
}

/// How many axes a node makes, of what its inputs have.
fn made(graph: &Graph<'_>, node: usize, axes: &[Option<usize>]) -> Option<usize> {
    let proto = graph.nodes[node];
    let of = |input: usize| axes[graph.input(node, input)?];
    let widest = || {
        let inputs = (0..proto.input.len()).map(of).collect::<Option<Vec<usize>>>()?;
        inputs.into_iter().max()
    };
    match proto.op_type.as_str() {
        "Flatten" | "Gemm" => Some(2),
        "Reshape" => elements(graph, graph.input(node, 1)?),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Where" | "Max" | "Min" => widest(),
        "MatMul" => widest().filter(|_| of(0) >= Some(2) && of(1) >= Some(2)),
        "Gather" => (of(0)? + of(1)?).checked_sub(1),
        "Relu" | "Clip" | "LeakyRelu" | "Sigmoid" | "Tanh" | "Erf" | "Gelu" | "Sqrt"
        | "Softmax" | "LayerNormalization" | "BatchNormalization" | "Identity" | "Dropout"
        | "Cast" | "Transpose" | "Slice" | "Split" | "Concat" | "Conv" | "MaxPool"
        | "AveragePool" | "GlobalAveragePool" => of(0),
        _ => None,
    }
}

/// How many elements a vector has: a constant, or several joined.
fn elements(graph: &Graph<'_>, value: ValueId) -> Option<usize> {
    if let Some([Some(length)]) = graph.shape(value).as_deref() {
        return Some(*length);
    }
    let maker = |value: ValueId| match graph.values[value].maker {
        Maker::Node { node, .. } => Some(graph.nodes[node]),
        _ => None,
    };
    // As exporters write them: one length after the other, each made a vector of one element.
    let joined = maker(value).filter(|node| node.op_type == "Concat")?;
    let length = |name: &String| {
        let part = graph.value(name)?;
        match graph.shape(part).as_deref() {
            Some([Some(length)]) => Some(*length),
            _ => maker(part).filter(|node| node.op_type == "Unsqueeze").map(|_| 1),
        }
    };
    joined.input.iter().map(length).sum()
}
