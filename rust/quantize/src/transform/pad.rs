//! Makes a `Pad` with an input `axes` list the pads of all axes.
//!
//! ONNX Runtime 1.32 may run a `Pad` in channels-last layout, but then expects pads of all axes. A
//! model with such a `Pad` between two integer convolutions fails otherwise.

use super::Changes;
use super::pass_edits::PassEdits;
use crate::QuantizeError;
use crate::graph::Graph;
use crate::graph::constants::{fixed, ints, of_ints};
use crate::util::axes::axis_of;

/// The inputs of `Pad` that hold the pads, and the axes that they belong to.
const PADS: usize = 1;
const AXES: usize = 3;

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn all_axes(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut pass = PassEdits::of(graph);
    for (node, proto) in graph.nodes.iter().enumerate() {
        if proto.op_type != "Pad" || !proto.is_onnx() {
            continue;
        }
        let Some(pads) = complete(graph, node) else { continue };
        let pads =
            pass.add_constant(&proto.input[PADS], "all_axes", &of_ints(vec![pads.len()], &pads));
        pass.set_input(node, PADS, pads);
        pass.set_input(node, AXES, String::new());
        pass.did(format!("{} lists all axes", proto.label()));
    }
    Ok(pass.finish())
}

/// The pads of all axes of a `Pad` with an input `axes`: all that are before the elements, then all
/// that are after them. `None` if they are unknown.
fn complete(graph: &Graph<'_>, node: usize) -> Option<Vec<i64>> {
    let given = |input| ints(&fixed(graph, graph.input(node, input)?)?);
    let axes = given(AXES)?;
    let pads = given(PADS).filter(|pads| pads.len() == 2 * axes.len())?;
    let rank = graph.shape(graph.input(node, 0)?)?.len();
    let (before, after) = pads.split_at(axes.len());
    let mut all = vec![0; 2 * rank];
    for ((axis, before), after) in axes.iter().zip(before).zip(after) {
        let axis = axis_of(*axis, rank)?;
        all[axis] = *before;
        all[rank + axis] = *after;
    }
    Some(all)
}
