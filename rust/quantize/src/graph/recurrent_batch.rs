//! The batch sizes that recurrent operators fix by their initial states.

use std::collections::HashMap;

use quantize_rs_onnx::{GraphProto, Model};

use super::infer::Dim;
use super::ops::is_recurrent;
use super::{Graph, InputSpec};

/// Fills in the lengths of dynamic axes of inputs that a recurrent operator fixes: its input and
/// its states must have the same batch size, and that of a constant state cannot change.
pub(crate) fn fill_in(model: &Model, inputs: &mut [InputSpec]) {
    let is_dynamic = |input: &InputSpec| input.shape.iter().flatten().any(Option::is_none);
    if !has_states(model.graph()) || !inputs.iter().any(is_dynamic) {
        return;
    }
    let Ok(graph) = Graph::of(model) else { return };
    let fixed = fixed(&graph);
    if fixed.is_empty() {
        return;
    }
    for input in inputs {
        let fact = graph.value(&input.name).and_then(|value| graph.fact(value));
        let Some(inferred) = fact.and_then(|fact| fact.shape.as_ref()) else { continue };
        for (length, dim) in input.shape.iter_mut().flatten().zip(inferred) {
            *length = length.or_else(|| fixed.get(dim).copied());
        }
    }
}

fn has_states(graph: &GraphProto) -> bool {
    graph.node.iter().any(|node| is_recurrent(node) && node.input.len() > LENGTHS)
}

/// The inputs of a recurrent operator that have a batch axis, besides the first.
const LENGTHS: usize = 4;
const STATES: [usize; 2] = [5, 6];

/// The dynamic dimensions that a recurrent operator fixes.
fn fixed(graph: &Graph<'_>) -> HashMap<Dim, usize> {
    let mut fixed = HashMap::new();
    let recurrent = graph.nodes.iter().enumerate();
    for (index, node) in recurrent.filter(|(_, node)| is_recurrent(node)) {
        let dim = |input: usize, axis: usize| {
            let shape = graph.fact(graph.input(index, input)?)?.shape.as_ref()?;
            shape.get(axis).copied()
        };
        // With layout 1, the batch axis comes first.
        let axis = usize::from(node.int("layout", 0) == 0);
        let dims = [dim(0, axis), dim(LENGTHS, 0), dim(STATES[0], axis), dim(STATES[1], axis)];
        let length = dims.iter().flatten().find_map(|dim| usize::try_from(dim.fixed()?).ok());
        let Some(length) = length else { continue };
        for dim in dims.into_iter().flatten().filter(|dim| dim.fixed().is_none()) {
            fixed.entry(dim).or_insert(length);
        }
    }
    fixed
}
