//! The weights that choose the experts of a mixture, which stay float: an error in them makes
//! tokens go to other experts, and they have few elements.

use std::collections::HashSet;

use quantize_rs_onnx::NodeProto;

use super::decisions::{Decisions, Outcome};
use super::rules::Context;
use super::{Decision, KeepReason};
use crate::graph::moe::{is_moe, is_qmoe};
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};

/// Operators between the product and the choice.
const BETWEEN: &[&str] = &[
    "Add",
    "Cast",
    "Flatten",
    "Identity",
    "Reshape",
    "Sigmoid",
    "Softmax",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The fraction of the elements of all weights, one in this many, that a weight before a `TopK`
/// may have: a large one makes the scores of tokens or classes.
const SHARE: usize = 50;

/// Keeps the weights of routers float, unless the options name what to quantize.
pub(super) fn keep(context: &Context<'_, '_>, decisions: &Decisions) -> Outcome {
    let Context { graph, constants, config, selection, .. } = *context;
    let named = config.include.is_some() || config.op_types.is_some() || config.onnxruntime_names;
    if named || !graph.nodes.iter().any(|node| is_choice(node, 0) || is_choice(node, 1)) {
        return Outcome::default();
    }
    let elements = |constant: &Constant<'_>| constant.shape.iter().product::<usize>();
    let all: usize = constants.iter().filter(|it| it.is_weight()).map(elements).sum();
    let routers = constants.iter().filter_map(|constant| {
        decisions.quantized(constant.anchor)?;
        let nodes = constant.multipliers(graph);
        if selection.weight_type(&constant.names(graph), nodes).is_some() {
            return None;
        }
        let node = router_of(graph, constant, elements(constant) <= all / SHARE)?;
        let kept = KeepReason::Router { node: graph.nodes[node].label() };
        Some(Outcome::revise(constant.anchor, Decision::KeepFloat(kept)))
    });
    routers.collect()
}

/// The node that chooses experts by the products of a weight, of which there must be one each.
fn router_of(graph: &Graph<'_>, constant: &Constant<'_>, is_small: bool) -> Option<usize> {
    let mut chosen = None;
    for usage in &constant.uses {
        let multiplier = usage.multiplier(graph)?;
        if !multiplier.node.is_onnx() || !matches!(&*multiplier.node.op_type, "MatMul" | "Gemm") {
            return None;
        }
        chosen = Some(choice_after(graph, graph.output(multiplier.index?, 0)?, is_small)?);
    }
    chosen
}

/// The node that chooses experts by a value, past operators that keep its elements apart.
fn choice_after(graph: &Graph<'_>, value: ValueId, is_small: bool) -> Option<usize> {
    let (mut pending, mut seen) = (vec![value], HashSet::from([value]));
    while let Some(value) = pending.pop() {
        for consumer in &graph.values[value].consumers {
            let node = graph.nodes[consumer.node];
            if is_choice(node, consumer.input) && (is_small || node.op_type != "TopK") {
                return Some(consumer.node);
            }
            if node.is_onnx() && BETWEEN.contains(&&*node.op_type) {
                let made = graph.output(consumer.node, 0);
                pending.extend(made.filter(|made| seen.insert(*made)));
            }
        }
    }
    None
}

/// Whether a node chooses by an input: experts, or the largest elements.
fn is_choice(node: &NodeProto, input: usize) -> bool {
    let of_experts = (is_moe(node) || is_qmoe(node)) && input == 1;
    of_experts || node.is_onnx() && node.op_type == "TopK" && input == 0
}
