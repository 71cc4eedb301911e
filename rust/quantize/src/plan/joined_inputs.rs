//! Values that join elements of several inputs stay float if one scale for all of them would lose
//! one input.

use std::collections::BTreeMap;

use quantize_rs_math::Range;
use quantize_rs_onnx::DataType;

use super::{Decision, KeepReason, Plan, Source, ValuePlan};
use crate::Ranges;
use crate::graph::{Graph, Producer, ValueId};
use crate::options::target::Placement;

/// Operators whose output consists of elements of their inputs.
const JOIN: [&str; 5] = ["Concat", "Where", "Max", "Min", "Pad"];

/// The largest element of an input has at least this many steps of the scale of the output.
const MIN_STEPS: f32 = 8.0;

impl Plan {
    /// The plan without the outputs of which one input would be lost: boxes in pixels and scores
    /// from 0 to 1 that meet in one Concat. The output stays float, and each input keeps its own
    /// scale.
    pub(crate) fn without_lost_inputs(self, graph: &Graph<'_>, ranges: &Ranges) -> Plan {
        let lost_input = |id: ValueId| {
            let Decision::Quantize(how) = &self.values[id].decision else { return None };
            let Producer::Node { node, .. } = graph.values[id].producer else { return None };
            let output = ranges.values.get(&self.values[id].name)?;
            self.lost_input(graph, ranges, node, *output, how)
        };
        let lost: BTreeMap<String, String> = (0..self.values.len())
            .filter_map(|id| Some((self.values[id].name.clone(), lost_input(id)?)))
            .collect();
        if lost.is_empty() {
            return self;
        }
        let kept = lost.iter().map(|(output, input)| {
            (output.clone(), KeepReason::LosesInput { input: input.clone() })
        });
        let is_accelerator = self.config.profile().placement == Placement::AllOps;
        let mut plan = self.without(kept.collect());
        // A CPU computes the node in float as well. An accelerator may not.
        if is_accelerator {
            plan.warnings.extend(lost.iter().map(|(output, input)| {
                format!(
                    "`{output}` stays float, because one scale of 8 bits for all its inputs would \
                     lose `{input}`: keep these values in separate outputs, or give `{output}` 16 \
                     bits with activation_types"
                )
            }));
        }
        plan
    }

    /// The input of a node whose elements have too few steps of the scale of the output.
    fn lost_input(
        &self,
        graph: &Graph<'_>,
        ranges: &Ranges,
        node: usize,
        output: Range,
        how: &ValuePlan,
    ) -> Option<String> {
        let proto = graph.nodes[node];
        if !proto.is_onnx() || !JOIN.contains(&&*proto.op_type) {
            return None;
        }
        let width =
            if how.spec.symmetric { 2.0 * output.absmax() } else { output.max - output.min };
        #[expect(clippy::cast_precision_loss, reason = "a type has at most 65,536 levels")]
        let step = width / (how.spec.qtype.levels() - 1) as f32;
        let inputs = (0..proto.input.len()).filter_map(|input| graph.input(node, input));
        let is_lost = |input: &ValueId| {
            let largest = self.largest(graph, ranges, *input);
            largest.is_some_and(|largest| largest > 0.0 && largest < MIN_STEPS * step)
        };
        inputs.into_iter().find(is_lost).map(|input| graph.values[input].name.to_owned())
    }

    /// The largest magnitude of a value, if it is known.
    fn largest(&self, graph: &Graph<'_>, ranges: &Ranges, value: ValueId) -> Option<f32> {
        if let Some(constant) = graph.constant(value) {
            if constant.dtype() != Some(DataType::Float) {
                return None;
            }
            let elements = graph.model.tensor(constant).ok()?.to_f32()?;
            return elements.iter().map(|element| element.abs()).reduce(f32::max);
        }
        let name = graph.values[value].name;
        let range = match &self.values.get(value)?.decision {
            Decision::Quantize(ValuePlan { source: Source::SameAs(source), .. }) => {
                *ranges.values.get(source)?
            }
            Decision::Quantize(ValuePlan { source: Source::Fixed(range), .. }) => *range,
            _ => *ranges.values.get(name)?,
        };
        (!range.is_empty()).then(|| range.absmax())
    }
}
