//! Replaces the computed shape of a `Reshape` with a constant, if at most one dimension is unknown.
//!
//! A dimension that equals that of the input becomes 0, which copies it. An unknown dimension
//! becomes -1. Both are equivalent to the computed dimension: -1 is used only if the other
//! dimensions cannot be 0, and a copied dimension is 0 whenever the computed one would be.

use std::collections::HashMap;

use super::Changes;
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::constants::{fixed, of_ints};
use crate::graph::infer::Dim;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut pass = PassEdits::of(graph);
    let mut constants: HashMap<Vec<i64>, String> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.op_type != "Reshape" || !node.is_onnx() {
            continue;
        }
        let Some(shape) = constant_shape(graph, index) else { continue };
        let name = constants.entry(shape).or_insert_with_key(|shape| {
            pass.add_constant(&node.output[0], "shape", &of_ints(vec![shape.len()], shape))
        });
        pass.set_input(index, 1, name.clone());
        pass.did(format!("{} has a constant shape", node.label()));
    }
    Ok(pass.finish())
}

/// The constant shape that is equivalent to the computed one.
fn constant_shape(graph: &Graph<'_>, node: usize) -> Option<Vec<i64>> {
    let (input, wanted) = (graph.input(node, 0)?, graph.input(node, 1)?);
    if fixed(graph, wanted).is_some() {
        return None;
    }
    let zero_copies = graph.nodes[node].int("allowzero", 0) == 0;
    let from = graph.fact(input).and_then(|fact| fact.shape.as_deref()).unwrap_or_default();
    let wanted = graph.fact(wanted)?.elements.as_ref()?;
    let length = |(axis, wanted): (usize, &Option<Dim>)| match wanted {
        Some(Dim::Fixed(length)) => Some(*length),
        Some(varies) if zero_copies && from.get(axis) == Some(varies) => Some(0),
        _ => None,
    };
    let lengths: Vec<Option<i64>> = wanted.iter().enumerate().map(length).collect();
    let open = lengths.iter().filter(|length| length.is_none()).count();
    let others_are_sure = || lengths.iter().flatten().all(|length| *length > 0);
    (open == 0 || open == 1 && others_are_sure())
        .then(|| lengths.into_iter().map(|length| length.unwrap_or(-1)).collect())
}
