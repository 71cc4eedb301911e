//! Probabilities over an axis of open length stay float if no sample came near the largest.

use super::{Decision, KeepReason, Plan, Source};
use crate::Ranges;
use crate::graph::info::inputs;
use crate::graph::qlinear::SOFTMAX_ALONG_ONE_AXIS;
use crate::graph::value_range::{bounds, source_of_bounds};
use crate::graph::{Graph, ValueId};
use crate::options::target::Placement;
use crate::ranges::covers;
use crate::util::axes::axis_of;

impl Plan {
    /// The plan without the outputs of a Softmax whose range depends on a length that the model
    /// leaves open.
    ///
    /// Over 64 tokens, the probabilities of a sentence model reach 0.04. In a sentence of 4 tokens
    /// all of them are larger, and would be clipped: the outputs had 14 dB instead of 40.
    pub(crate) fn without_open_probabilities(self, graph: &Graph<'_>, ranges: &Ranges) -> Plan {
        let open = |id: ValueId| {
            let planned = &self.values[id];
            let Decision::Quantize(how) = &planned.decision else { return false };
            let (Some(bounds), Some(range)) = (bounds(graph, id), ranges.values.get(&planned.name))
            else {
                return false;
            };
            how.source == Source::Observed
                && how.spec.qtype.bits() < 16
                && !covers(*range, bounds)
                && !ranges.is_given(&planned.name)
                && is_softmax_over_open_axis(graph, id)
        };
        let has_open_input = inputs(graph.model.graph()).iter().any(|input| {
            input.shape.as_ref().is_none_or(|shape| shape.iter().any(Option::is_none))
        });
        let found = (0..self.values.len()).filter(|id| has_open_input && open(*id));
        let found: Vec<String> = found.map(|id| self.values[id].name.clone()).collect();
        if found.is_empty() {
            return self;
        }
        // An accelerator may not compute the product in float.
        if self.config.profile().placement == Placement::AllOps {
            let mut plan = self;
            let others = match found.len() - 1 {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            plan.warnings.push(format!(
                "probabilities over an axis whose length the model leaves open (`{}`{others}): \
                 their ranges hold for lengths like those of the samples alone; give samples of \
                 all lengths, or fix the lengths of the inputs",
                found[0]
            ));
            return plan;
        }
        self.without(found.into_iter().map(|name| (name, KeepReason::OpenLength)).collect())
    }
}

/// Whether a Softmax produces a value, over an axis whose length the graph does not tell.
fn is_softmax_over_open_axis(graph: &Graph<'_>, value: ValueId) -> bool {
    let Some(node) = source_of_bounds(graph, value) else { return false };
    let proto = graph.nodes[node];
    if proto.op_type != "Softmax" {
        return false;
    }
    let Some(shape) = graph.output(node, 0).and_then(|output| graph.shape(output)) else {
        return true;
    };
    let flattens = graph.model.opset("").unwrap_or(1) < SOFTMAX_ALONG_ONE_AXIS;
    let axis = proto.int("axis", if flattens { 1 } else { -1 });
    let Some(axis) = axis_of(axis, shape.len()) else { return true };
    let lengths = if flattens { &shape[axis..] } else { &shape[axis..=axis] };
    lengths.iter().any(Option::is_none)
}
