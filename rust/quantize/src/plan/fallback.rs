//! The last rules: a reason for every value that no other rule decided about, and warnings about
//! weights that no rule can quantize.

use quantize_rs_onnx::DataType;

use super::KeepReason;
use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use crate::graph::ValueId;
use crate::graph::uses;
use crate::transform::{LIFT_WEIGHTS, weights_left};

/// Gives the reason why each remaining value keeps its type.
pub(super) fn keep_others(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let values = 0..context.graph.values.len();
    let others = values.filter(|value| decisions.get(*value).is_none());
    others.map(|value| Outcome::keep(value, reason(context, value))).collect()
}

fn reason(context: &Context<'_, '_>, id: ValueId) -> KeepReason {
    let graph = context.graph;
    let value = &graph.values[id];
    let reader = value.consumers.first().map(|reader| graph.nodes[reader.node]);
    let only_weights = context.config.activations.is_none();
    match (graph.dtype(id), reader) {
        (Some(dtype), _) if dtype != DataType::Float => {
            KeepReason::NotFloat32 { dtype: Some(dtype) }
        }
        (_, None) if value.is_output => KeepReason::GraphOutput,
        (_, None) if value.used_in_subgraph => KeepReason::Captured,
        _ if only_weights && graph.constant(id).is_none() => KeepReason::WeightsOnly,
        (_, reader) => KeepReason::NoRule { op_type: reader.map(|node| node.op_type.clone()) },
    }
}

/// Warns about weights in subgraphs that were not moved into the main graph, and about functions
/// whose calls were not inlined.
pub(super) fn warn_not_searched(context: &Context<'_, '_>, _: &Decisions) -> Outcome {
    let graph = context.graph;
    let left = uses::inside(graph, &uses::Subgraphs::of(graph)).len();
    let subgraphs = (left > 0).then(|| {
        format!(
            "{left} weights in graphs inside nodes (If, Loop, Scan) stay float: pass \
             `{LIFT_WEIGHTS}`, which makes them weights of the main graph, was left out"
        )
    });
    Outcome::warn(weights_left(graph)).and(Outcome::warn(subgraphs))
}
