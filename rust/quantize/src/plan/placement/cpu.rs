//! Placement on a CPU: operators with weights compute on integers, and other operators do so
//! between them.

use std::collections::BTreeSet;

use crate::graph::ops::IntegerSupport;
use crate::graph::{Producer, ValueId};
use crate::options::target::Placement;
use crate::plan::activations::ActivationContext;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::integer_ops::IntegerOp;
use crate::plan::{Decision, KeepReason, QuantizeReason, Source};

/// A filter with fewer multiplications for each output than this gains nothing from integer
/// kernels.
const MIN_TAPS: usize = 32;

/// The fraction of convolutions and `Gemm` nodes with weights, one in this many, that may stay
/// float at the start.
const FLOAT_SHARE: usize = 20;

/// The values that are integers between integer ops.
#[derive(Default)]
pub(crate) struct Flow {
    /// Values that integer kernels produce, or that are moved from such a value.
    native: BTreeSet<ValueId>,
    /// Values that lead to an integer op.
    wanted: BTreeSet<ValueId>,
    /// Nodes without weights that compute on integers too.
    interior: BTreeSet<usize>,
}

/// Leaves the first convolutions of a large network in float if they read few channels: integer
/// kernels are not faster there, and an error at the start affects all later layers.
pub(crate) fn leave_stem_float(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let graph = context.graph;
    let ops = decisions.possible_integer_ops();
    let mut left = context.count_layers() / FLOAT_SHARE;
    let mut float: BTreeSet<ValueId> =
        (0..graph.values.len()).filter(|id| context.is_input(*id)).collect();
    let mut op_of: Vec<Option<&IntegerOp>> = vec![None; graph.nodes.len()];
    for op in ops {
        op_of[op.node].get_or_insert(op);
    }
    let mut outcome = Outcome::default();
    for node in context.order.iter().copied() {
        let passes = matches!(
            context.integer(node),
            Some(IntegerSupport::Fused | IntegerSupport::SameAsInput { .. })
        );
        let stays_float = match op_of[node] {
            Some(op) if left > 0 && context.is_narrow(decisions, op, &float) => {
                let reason = Decision::KeepFloat(KeepReason::Stem { node: context.label(node) });
                let weight = op.weight.map(|weight| Outcome::revise(weight, reason));
                outcome = outcome.and(weight.unwrap_or_default()).and(Outcome::float_op(node));
                left -= 1;
                true
            }
            _ => passes && graph.input(node, 0).is_some_and(|id| float.contains(&id)),
        };
        if stays_float {
            float.extend(context.outputs(node));
        }
    }
    outcome
}

/// Finds the nodes between integer ops that compute on integers too: all their inputs arrive as
/// integers, and an integer op comes after them.
///
/// So sums, pools and functions between the convolutions of an image network are included. The sums
/// and normalizations of a transformer are not: its `MatMul` nodes produce floats, and quantizing
/// these to 8 bits would cost accuracy and not improve speed.
pub(crate) fn find_flow(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    let ops: Vec<&IntegerOp> = decisions.integer_ops().collect();
    Outcome::flow(context.flow(&ops))
}

/// Quantizes the inputs of integer ops, and the outputs that integer kernels produce.
pub(crate) fn quantize_integer_ops(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let of_op = |op: &IntegerOp| {
        let inputs = context.observe_inputs(op.node, &op.inputs);
        let output = context.produces_integers(op).then(|| context.observe_output(op.last));
        inputs.and(output.unwrap_or_default()).and(context.record_op(op))
    };
    decisions.integer_ops().map(of_op).collect()
}

/// Quantizes the inputs and outputs of the nodes between integer ops.
pub(crate) fn quantize_interior_ops(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let of_node = |node: &usize| {
        let inputs = context.observe_inputs(*node, &context.flowing(*node));
        inputs.and(context.observe_output(*node))
    };
    decisions.flow.interior.iter().map(of_node).collect()
}

/// Quantizes the outputs of activation functions that are not fused into the preceding node.
pub(crate) fn quantize_functions(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let flow = &decisions.flow;
    let of_node = |node: &usize| {
        let (Some(IntegerSupport::Fused), Some(input), Some(output)) =
            (context.integer(*node), context.graph.input(*node, 0), context.graph.output(*node, 0))
        else {
            return None;
        };
        let because = QuantizeReason::OutputOf(context.label(*node));
        (flow.native.contains(&input) && flow.wanted.contains(&output)).then(|| {
            let quantized = context.quantize(output, Source::Observed, because);
            quantized.and(Outcome::made_on_integers(output))
        })
    };
    context.order.iter().filter_map(of_node).collect()
}

/// Quantizes the input of a node that only moves data if its output is quantized: the node then
/// moves bytes instead of floats.
pub(crate) fn quantize_before_moves(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    node: usize,
) -> Outcome {
    let graph = context.graph;
    let moves = context.integer(node) == Some(IntegerSupport::SameAsInput { same_range: true });
    match (graph.input(node, 0), graph.output(node, 0)) {
        (Some(input), Some(output))
            if moves
                && context.moves_integers(node)
                && decisions.quantized(output).is_some()
                && graph.constant(input).is_none()
                && !graph.values[input].is_output =>
        {
            context.observe(input, QuantizeReason::InputOf(context.label(node)))
        }
        _ => Outcome::default(),
    }
}

/// Gives the outputs of a node that only moves data the scale of its input.
pub(crate) fn pass_on_moved(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    node: usize,
) -> Outcome {
    let passes_on = matches!(context.integer(node), Some(IntegerSupport::SameAsInput { .. }))
        && context.moves_integers(node)
        && context.outputs(node).any(|output| decisions.flow.wanted.contains(&output));
    let input = context.graph.input(node, 0).filter(|_| passes_on);
    context.pass_on(node, input.and_then(|input| decisions.quantized(input)))
}

/// Warns about nodes that multiply in float because there are no integer kernels for their types.
pub(crate) fn warn_float(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    let ops = decisions.possible_integer_ops();
    let in_float = |op: &&IntegerOp| {
        let outputs = if op.quantized_output { context.result(op.last) } else { Vec::new() };
        !context.has_kernels(&[&op.inputs[..], &outputs[..]].concat())
    };
    let in_float: Vec<&IntegerOp> = ops.iter().filter(in_float).collect();
    let Some(first) = in_float.first() else { return Outcome::default() };
    if in_float.len() == ops.len() && !context.selection.asks_activations() {
        return Outcome::warn([format!(
            "ONNX Runtime has no integer kernels for {} activations: the model is smaller, \
             and computes in float",
            context.qtype
        )]);
    }
    let others = match in_float.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    Outcome::warn([format!(
        "{}{others} computes in float: ONNX Runtime has integer kernels only where all inputs and \
         outputs have one type of 8 bits",
        context.label(first.node)
    )])
}

impl ActivationContext<'_, '_> {
    /// Whether an integer kernel produces the output of an integer op.
    fn produces_integers(&self, op: &IntegerOp) -> bool {
        let outputs = self.result(op.last);
        op.quantized_output && self.has_kernels(&[&op.inputs[..], &outputs[..]].concat())
    }

    /// The inputs of a node, and its outputs that are quantized.
    fn inputs_and_result(&self, node: usize) -> Vec<ValueId> {
        let mut values = self.flowing(node);
        values.extend(self.result(node));
        values
    }

    /// The outputs of a node, or of the activation function that is fused into it.
    fn result(&self, node: usize) -> Vec<ValueId> {
        let after = |output| self.function_after(output).map_or(output, |(_, after)| after);
        self.outputs(node).map(after).collect()
    }

    fn is_input(&self, value: ValueId) -> bool {
        matches!(self.graph.values[value].producer, Producer::Input)
    }

    /// The number of convolutions and `Gemm` nodes with weights. Excluded ones count too, and those
    /// with another type of weights, so that an option for one layer decides about no other.
    fn count_layers(&self) -> usize {
        let graph = self.graph;
        let counts = |(node, weight): &(&usize, &ValueId)| {
            let node = graph.nodes[**node];
            let names = self.constants.get(*weight).map(|constant| constant.names(graph));
            let left = names.and_then(|names| self.selection.left_by(&names, node));
            matches!(&*node.op_type, "Conv" | "Gemm")
                && matches!(left, None | Some(KeepReason::Excluded { .. }))
        };
        self.weighted.iter().filter(counts).count()
    }

    /// Whether a node reads floats, and its filter is small, has no other consumer and has no
    /// requested type.
    fn is_narrow(&self, decisions: &Decisions, op: &IntegerOp, float: &BTreeSet<ValueId>) -> bool {
        let Some(weight) = op.weight else { return false };
        let taps = self.shape(weight).and_then(|shape| {
            shape.iter().skip(1).try_fold(1usize, |taps, length| taps.checked_mul(*length))
        });
        let value = &self.graph.values[weight];
        let reader = std::iter::once(self.graph.nodes[op.node]);
        let requested = self.selection.weight_type(&[value.name], reader);
        // Whatever the type of its output is: a single value of 16 bits adds no value of 8 bits.
        op.quantized_output
            && self.has_kernels(&op.inputs)
            && decisions.quantized(weight).is_some()
            && op.inputs.iter().all(|input| float.contains(input))
            && taps.is_some_and(|taps| taps < MIN_TAPS)
            && value.consumers.len() == 1
            && requested.is_none()
            && self.has_one_consumer(op.node)
    }

    /// Whether the output of a node, or of the function after it, has one consumer. With several
    /// consumers, quantizing the output costs more time than it saves.
    fn has_one_consumer(&self, node: usize) -> bool {
        self.result(node).first().is_some_and(|last| self.graph.values[*last].consumers.len() == 1)
    }

    /// The values that integer ops read, the values that arrive as integers, and the nodes between
    /// integer ops that compute on integers too.
    fn flow(&self, ops: &[&IntegerOp]) -> Flow {
        let joins = |integer| matches!(integer, Some(IntegerSupport::Computes { kernel: Some(_) }));
        // An `Add` that holds the bias of a MatMul is part of the MatMul.
        let last: BTreeSet<usize> = ops.iter().map(|op| op.last).collect();
        let mut candidates: BTreeSet<usize> = self.order.iter().copied().collect();
        candidates.retain(|node| {
            self.profile.placement == Placement::WeightedAndInterior
                && !last.contains(node)
                && joins(self.integer(*node))
                && self.has_kernels(&self.inputs_and_result(*node))
        });
        // A candidate that is dropped no longer reads integers, so that others may have to be
        // dropped too: repeat until none is.
        loop {
            let flow = self.native(ops, &candidates, self.wanted(ops, &candidates));
            if flow.interior == candidates {
                return flow;
            }
            candidates = flow.interior;
        }
    }

    /// Values that lead to a node that multiplies on integers.
    fn wanted(&self, ops: &[&IntegerOp], candidates: &BTreeSet<usize>) -> BTreeSet<ValueId> {
        let mut wanted: BTreeSet<ValueId> =
            ops.iter().flat_map(|op| op.inputs.iter().copied()).collect();
        for node in self.order.iter().rev() {
            let passes = match self.integer(*node) {
                Some(IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused) => true,
                _ => candidates.contains(node),
            };
            if passes && self.outputs(*node).any(|output| wanted.contains(&output)) {
                wanted.extend(self.flowing(*node));
            }
        }
        wanted
    }

    /// Values that arrive as integers if all `candidates` that can do so compute on integers.
    fn native(
        &self,
        ops: &[&IntegerOp],
        candidates: &BTreeSet<usize>,
        wanted: BTreeSet<ValueId>,
    ) -> Flow {
        let (mut native, mut interior) = (BTreeSet::new(), BTreeSet::new());
        let quantized: BTreeSet<ValueId> =
            ops.iter().flat_map(|op| op.inputs.iter().copied()).collect();
        let producers: BTreeSet<usize> =
            ops.iter().filter(|op| self.produces_integers(op)).map(|op| op.last).collect();
        for node in self.order.iter().copied() {
            let arrives = match self.integer(node) {
                Some(IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused) => {
                    self.graph.input(node, 0).is_some_and(|input| native.contains(&input))
                }
                _ if candidates.contains(&node) => {
                    let inputs = self.flowing(node);
                    let fits = |id: &ValueId| {
                        native.contains(id)
                            || quantized.contains(id)
                            || self.fits_beside_integers(*id)
                    };
                    let joins = inputs.iter().any(|id| native.contains(id))
                        && inputs.iter().all(fits)
                        && self.outputs(node).any(|output| wanted.contains(&output));
                    if joins {
                        interior.insert(node);
                    }
                    joins
                }
                _ => producers.contains(&node),
            };
            if arrives {
                native.extend(self.outputs(node));
            }
        }
        Flow { native, wanted, interior }
    }

    /// Whether a constant can be quantized like an activation.
    ///
    /// On x86 ONNX Runtime converts int8 activations to uint8, but not such constants.
    fn fits_beside_integers(&self, value: ValueId) -> bool {
        !self.types.specs[value].qtype.signed() && self.may_quantize(value).is_ok()
    }
}
