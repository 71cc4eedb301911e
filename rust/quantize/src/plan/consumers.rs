//! Who reads what comes back from integers.

use std::collections::BTreeSet;

use quantize_rs_math::Granularity;
use quantize_rs_onnx::DataType;

use super::activations::Planner;
use super::{Because, Decision, Draft, Readers, Source, ValuePlan};
use crate::Format;
use crate::graph::{Consumer, ValueId};
use crate::options::target::Placement;

impl Planner<'_, '_> {
    /// Says for each quantized value who reads what came back from integers.
    ///
    /// What an integer kernel makes is there in no other form. What is made in float stays so for
    /// those who compute in float: it costs them nothing, and they lose nothing.
    pub(super) fn settle_readers(&self, draft: &mut Draft) {
        let graph = self.graph;
        let rearranged: BTreeSet<ValueId> = draft
            .integer_nodes
            .iter()
            .filter(|integer| graph.input(integer.node, 1) != Some(integer.weight))
            .map(|integer| integer.weight)
            .collect();
        let weighted: BTreeSet<(usize, ValueId)> =
            draft.integer_nodes.iter().map(|integer| (integer.node, integer.weight)).collect();
        let Draft { decisions, on_integers, made_on_integers, .. } = draft;
        for (id, decision) in decisions {
            let Decision::Quantize(plan) = decision else { continue };
            if plan.format == Format::FakeQuant {
                continue;
            }
            let rearranged = rearranged.contains(id);
            let multiplies = |consumer: &Consumer| weighted.contains(&(consumer.node, *id));
            let taken = match self.beside_look_ups(*id, plan).as_deref() {
                Some([]) => Some(Readers::Rows),
                Some(others) if rearranged || others.iter().all(multiplies) => Some(Readers::Tied),
                _ => rearranged.then_some(Readers::Rearranged),
            };
            if let Some(taken) = taken {
                plan.consumers = taken;
                continue;
            }
            if matches!(plan.because, Because::WeightOf(_) | Because::BiasOf(_)) {
                continue;
            }
            let value = &graph.values[*id];
            let everyone =
                value.consumers.iter().all(|consumer| on_integers.contains(&consumer.node));
            let all = made_on_integers.contains(id)
                || everyone && !value.is_output && !value.used_in_subgraph;
            plan.consumers = if all { Readers::All } else { Readers::OnIntegers };
        }
    }

    /// Who reads a constant beside those who look it up; `None` where nobody does, or its rows cannot be
    /// brought back one by one: ONNX Runtime would bring back all of it at every run.
    pub(super) fn beside_look_ups(&self, id: ValueId, plan: &ValuePlan) -> Option<Vec<Consumer>> {
        let value = &self.graph.values[id];
        let looks_up = |consumer: &Consumer| {
            let node = self.graph.nodes[consumer.node];
            node.op_type == "Gather" && consumer.input == 0 && node.int("axis", 0) == 0
        };
        let apart = match plan.spec.granularity {
            Granularity::PerTensor => true,
            Granularity::PerAxis { axis } => {
                axis == 0 && plan.spec.symmetric && plan.spec.middle() == 0
            }
            Granularity::Blocked { .. } => false,
        };
        let float32 =
            self.constants.get(&id).is_some_and(|found| found.dtype == Some(DataType::Float));
        let by_row = self.profile.placement == Placement::Between
            && float32
            && plan.consumers == Readers::All
            && plan.source == Source::Weights
            && plan.stored.bits() == 8
            && apart
            && !value.used_in_subgraph
            && !value.is_output
            && value.consumers.iter().any(looks_up);
        let others = || value.consumers.iter().filter(|consumer| !looks_up(consumer));
        by_row.then(|| others().copied().collect())
    }
}
