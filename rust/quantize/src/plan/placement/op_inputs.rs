//! Placement for runtimes that determine by themselves which operators between integer operators
//! run on integers: inputs of operators are quantized, and outputs are not.

use std::collections::BTreeSet;

use crate::graph::ValueId;
use crate::plan::IntegerNode;
use crate::plan::activations::ActivationContext;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::integer_ops::IntegerOp;

/// Quantizes the inputs of integer ops.
pub(crate) fn quantize_inputs(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let of_op =
        |op: &IntegerOp| context.observe_inputs(op.node, &op.inputs).and(context.record_op(op));
    decisions.integer_ops().map(of_op).collect()
}

/// Quantizes the other input of an addition to the output of a convolution: the runtime then fuses
/// the two.
pub(crate) fn quantize_added(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let outputs: BTreeSet<ValueId> = decisions
        .integer_ops()
        .filter(|op| op.quantized_output)
        .flat_map(|op| context.outputs(op.node))
        .collect();
    let of_node = |node: usize| {
        let adds = context.graph.nodes[node].op_type == "Add" && context.rule(node).is_some();
        let [a, b] = context.flowing(node)[..] else { return None };
        let constant = [a, b].iter().any(|id| context.graph.constant(*id).is_some());
        match (outputs.contains(&a), outputs.contains(&b)) {
            _ if !adds || constant => None,
            (true, _) => Some(context.observe_inputs(node, &[b])),
            (false, true) => Some(context.observe_inputs(node, &[a])),
            (false, false) => None,
        }
    };
    context.order.iter().copied().filter_map(of_node).collect()
}

impl ActivationContext<'_, '_> {
    /// Records that an integer op reads dequantized values, and its weight and bias.
    pub(super) fn record_op(&self, op: &IntegerOp) -> Outcome {
        let (node, bias) = (op.node, op.bias);
        let integers = match (op.weight, &op.inputs[..]) {
            (Some(weight), [input, ..]) => {
                self.record(IntegerNode { node, input: *input, weight, bias })
            }
            _ => Outcome::default(),
        };
        Outcome::on_integers(node).and(integers)
    }
}
