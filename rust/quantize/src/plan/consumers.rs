//! Decides which nodes read the dequantized value.

use std::collections::BTreeSet;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::DataType;

use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::{Consumers, Decision, QuantizeReason, Source, ValuePlan};
use crate::Format;
use crate::graph::{Consumer, ValueId};
use crate::options::target::Placement;

/// Decides for each quantized value which nodes read it dequantized.
///
/// The output of an integer kernel exists only in quantized form. A value that is computed in float
/// stays float for nodes that compute in float, which costs neither time nor accuracy.
pub(super) fn decide(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    let graph = context.graph;
    let nodes = &decisions.integer_nodes;
    let rearranged: BTreeSet<ValueId> = nodes
        .iter()
        .filter(|integer| graph.input(integer.node, 1) != Some(integer.weight))
        .map(|integer| integer.weight)
        .collect();
    let weighted: BTreeSet<(usize, ValueId)> =
        nodes.iter().map(|integer| (integer.node, integer.weight)).collect();
    let consumers = |id: ValueId, plan: &ValuePlan| {
        let rearranged = rearranged.contains(&id);
        let multiplies = |reader: &Consumer| weighted.contains(&(reader.node, id));
        let of_constant = match context.beside_look_ups(id, plan).as_deref() {
            Some([]) => Some(Consumers::GatheredRows),
            Some(others) if rearranged || others.iter().all(multiplies) => {
                Some(Consumers::TiedEmbedding)
            }
            _ => rearranged.then_some(Consumers::AfterReshape),
        };
        if of_constant.is_some() {
            return of_constant;
        }
        if matches!(
            plan.because,
            QuantizeReason::WeightOf(_)
                | QuantizeReason::SmallWeightOf(_)
                | QuantizeReason::BiasOf(_)
        ) {
            return None;
        }
        let value = &graph.values[id];
        let reads_integers = |reader: &Consumer| decisions.on_integers.contains(&reader.node);
        let all = decisions.made_on_integers.contains(&id)
            || value.consumers.iter().all(reads_integers) && !value.is_read_outside();
        Some(if all { Consumers::All } else { Consumers::IntegerOps })
    };
    let revised = decisions.all_quantized().filter_map(|(id, plan)| {
        let consumers = (plan.format != Format::FakeQuant).then(|| consumers(id, plan))??;
        let plan = ValuePlan { consumers, ..plan.clone() };
        Some(Outcome::revise(id, Decision::Quantize(plan)))
    });
    revised.collect()
}

impl ActivationContext<'_, '_> {
    /// The consumers of a constant other than the `Gather` nodes that take its rows. `None` if no
    /// node takes rows, or if rows cannot be dequantized one by one: ONNX Runtime would then
    /// dequantize the whole constant at every inference.
    pub(super) fn beside_look_ups(&self, id: ValueId, plan: &ValuePlan) -> Option<Vec<Consumer>> {
        let value = &self.graph.values[id];
        let looks_up = |consumer: &Consumer| {
            let node = self.graph.nodes[consumer.node];
            node.op_type == "Gather" && consumer.input == 0 && node.int("axis", 0) == 0
        };
        let apart = match plan.spec.granularity {
            Granularity::PerTensor => true,
            Granularity::PerAxis { axis } => {
                axis == 0 && plan.spec.symmetric && plan.spec.zero_point_midpoint() == 0
            }
            Granularity::Blocked { .. } => false,
        };
        let float32 =
            self.constants.get(&id).is_some_and(|found| found.dtype == Some(DataType::Float));
        let by_row = self.profile.placement == Placement::WeightedAndInterior
            && float32
            && plan.consumers == Consumers::All
            && plan.source == Source::Weights
            && plan.stored.bits() == 8
            && apart
            && !value.is_read_outside()
            && value.consumers.iter().any(looks_up);
        let others = || value.consumers.iter().filter(|consumer| !looks_up(consumer));
        by_row.then(|| others().copied().collect())
    }
}
