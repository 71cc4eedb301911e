//! Evaluates a `Split` of a constant, whose outputs become initializers: unrolled recurrent cells
//! and fused projections are written with it.

use quantize_rs_onnx::{Edit, TensorProto};

use super::MAX_TRANSPOSED_BYTES;
use crate::graph::Graph;
use crate::graph::constants::{fixed, ints};
use crate::transform::Changes;
use crate::transform::eval;
use crate::transform::pass_edits::PassEdits;
use crate::util::axes::axis_of;

pub(super) fn run(graph: &Graph<'_>) -> Changes {
    let mut pass = PassEdits::of(graph);
    let mut bytes_left = MAX_TRANSPOSED_BYTES;
    for index in 0..graph.nodes.len() {
        let _ = fold(graph, index, &mut pass, &mut bytes_left);
    }
    pass.finish()
}

/// Replaces a node by the parts of its input, if nothing else reads that.
fn fold(
    graph: &Graph<'_>,
    index: usize,
    pass: &mut PassEdits<'_, '_>,
    bytes_left: &mut usize,
) -> Option<()> {
    let node = graph.nodes[index];
    let named = |output: usize| graph.output(index, output);
    if !node.is_onnx()
        || node.op_type != "Split"
        || !(0..node.output.len()).all(|it| named(it).is_some())
    {
        return None;
    }
    let is_output = |output: usize| named(output).is_some_and(|it| graph.values[it].is_output);
    if (0..node.output.len()).any(is_output) {
        return None;
    }
    let source = graph.input(index, 0).filter(|value| graph.is_only_consumer(index, *value))?;
    let tensor = fixed(graph, source)?;
    let left = bytes_left.checked_sub(tensor.data.len())?;
    let axis = axis_of(node.int("axis", 0), tensor.shape.len())?;
    let lengths = match (node.attribute("split"), graph.input(index, 1)) {
        (Some(lengths), _) => Some(lengths.ints.to_vec()),
        (None, Some(lengths)) => Some(ints(&fixed(graph, lengths)?)?),
        (None, None) => None,
    };
    let parts = eval::split(&tensor, axis, node.output.len(), lengths.as_deref())?;
    *bytes_left = left;
    pass.remove(index);
    pass.did(format!("replaced {} with its constant values", node.label()));
    for (name, part) in node.output.iter().zip(parts) {
        pass.edit(Edit::AddInitializer(TensorProto::new(name, &part)));
    }
    Some(())
}
