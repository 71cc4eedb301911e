//! Placement for runtimes that want Q and DQ in places of their own: on what is read, or on
//! everything.

use std::collections::BTreeSet;

use quantize_rs_math::{Granularity, QSpec};

use crate::Format;
use crate::graph::ValueId;
use crate::graph::ops::{IntegerSupport, Slot};
use crate::options::target::Bias;
use crate::plan::activations::Planner;
use crate::plan::integer_ops::Lead;
use crate::plan::{Because, Decision, Draft, IntegerNode, Kept, Readers, Source, ValuePlan};

impl Planner<'_, '_> {
    /// What is multiplied is quantized where it is read, and nothing where it is made: the runtime
    /// finds out by itself what lies between. A sum is fused with the convolution before it when
    /// what is added to that is quantized.
    pub(crate) fn inputs(&self, draft: &mut Draft, leads: &[Lead]) {
        for lead in leads {
            self.observe_inputs(draft, lead.node, &lead.inputs);
            Planner::record(draft, lead);
        }
        let made: BTreeSet<ValueId> = leads
            .iter()
            .filter(|lead| lead.quantized_output)
            .flat_map(|lead| self.outputs(lead.node))
            .collect();
        for node in self.order.iter().copied() {
            let adds = self.graph.nodes[node].op_type == "Add" && self.rule(node).is_some();
            if !adds {
                continue;
            }
            if let [a, b] = self.flowing(node)[..]
                && self.graph.constant(a).is_none()
                && self.graph.constant(b).is_none()
            {
                match (made.contains(&a), made.contains(&b)) {
                    (true, _) => self.observe_inputs(draft, node, &[b]),
                    (false, true) => self.observe_inputs(draft, node, &[a]),
                    (false, false) => {}
                }
            }
        }
    }

    /// Everything that has a rule: what flows in, what comes out, and constants in between.
    pub(crate) fn everything(&self, draft: &mut Draft, leads: &[Lead]) {
        for lead in leads {
            self.observe_inputs(draft, lead.node, &lead.inputs);
            Planner::record(draft, lead);
        }
        for node in self.order.iter().copied() {
            let flowing = self.flowing(node);
            let leads = draft.on_integers.contains(&node);
            let known = !flowing.is_empty() && flowing.iter().all(|input| self.float32[*input]);
            let Some(integer) = self.integer(node).filter(|_| known) else { continue };
            // What only moves data, or is folded, passes on what is quantized for the sake of others.
            let passes_on = !integer.computes() && !self.selection.asks_for(self.graph, node);
            if passes_on && flowing.iter().all(|input| draft.quantized(*input).is_none()) {
                continue;
            }
            match integer {
                IntegerSupport::No(_) => {}
                IntegerSupport::SameAsInput { .. } => {
                    if self.graph.constant(flowing[0]).is_none() {
                        self.observe_inputs(draft, node, &flowing);
                        self.pass_on(draft, node);
                    } else {
                        self.observe_output(draft, node);
                    }
                }
                IntegerSupport::FloatOutput | IntegerSupport::QuantizedOutput { .. } if !leads => {}
                _ => {
                    if let Err(why) = self.constants_fit(draft, node) {
                        self.stays_float(draft, node, &flowing, why);
                        continue;
                    }
                    self.observe_inputs(draft, node, &flowing);
                    for output in self.outputs(node) {
                        self.observe(draft, output, Because::OutputOf(self.label(node)));
                        draft.made_on_integers.insert(output);
                    }
                    self.scale_channels(draft, node);
                }
            }
        }
        self.share_with_functions(draft);
    }

    /// Whether all constants that a node reads can be quantized, or are; else why not.
    fn constants_fit(&self, draft: &Draft, node: usize) -> Result<(), &'static str> {
        let graph = self.graph;
        let scales = self.scales_channels(node);
        let scale = if scales { 1..3 } else { 0..0 };
        let scale = scale.filter_map(|input| graph.input(node, input));
        self.flowing(node)
            .into_iter()
            .chain(scale)
            .filter(|id| graph.constant(*id).is_some() && draft.quantized(*id).is_none())
            .try_for_each(|id| self.may_quantize(id))
    }

    /// Says why what flows into a node keeps its type, where nothing else is said.
    fn stays_float(&self, draft: &mut Draft, node: usize, flowing: &[ValueId], why: &'static str) {
        for id in flowing {
            let decision = draft
                .decisions
                .entry(*id)
                .or_insert(Decision::Keep(Kept::NoRule { op_type: None }));
            if matches!(decision, Decision::Keep(Kept::NoRule { .. })) {
                *decision = Decision::Keep(Kept::FloatNode { node: self.label(node), why });
            }
        }
    }

    /// Whether a node is a normalization, which scales channels and then adds to them.
    fn scales_channels(&self, node: usize) -> bool {
        self.rule(node).is_some_and(|(rule, _)| matches!(rule.slot(1), Slot::Scale))
    }

    /// The scale of a normalization becomes a weight, what it adds a bias.
    fn scale_channels(&self, draft: &mut Draft, node: usize) {
        let graph = self.graph;
        let vector = |input: usize| {
            let found = graph.input(node, input).filter(|_| self.scales_channels(node))?;
            let value = &graph.values[found];
            let alone = !value.used_in_subgraph && !value.is_output;
            (alone && graph.constant(found)?.dims.len() == 1).then_some(found)
        };
        let (Some(input), Some(weight)) = (graph.input(node, 0), vector(1)) else { return };
        let spec = QSpec::new(self.profile.weights[0], true, Granularity::PerTensor);
        let because = Because::WeightOf(self.label(node));
        let (source, consumers) = (Source::Weights, Readers::All);
        let (stored, matrix, format) = (spec.qtype, None, Format::Qdq);
        let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
        draft.decisions.insert(weight, Decision::Quantize(plan));
        let beside = self.types.specs[input].qtype;
        let bias = vector(2).filter(|_| self.profile.bias_beside(beside) == Bias::Int32);
        draft.integer_nodes.push(IntegerNode { node, input, weight, bias });
    }

    /// What goes into an activation function alone need hold no more than what comes out of it.
    fn share_with_functions(&self, draft: &mut Draft) {
        for node in self.order.iter().rev().copied() {
            let Some(input) = self.graph.input(node, 0) else { continue };
            let Some((_, after)) =
                self.function_after(input).filter(|(consumer, _)| *consumer == node)
            else {
                continue;
            };
            let shared = draft.quantized(after).map(|plan| plan.spec);
            let name = self.graph.values[after].name.to_owned();
            if let Some(Decision::Quantize(plan)) = draft.decisions.get_mut(&input)
                && plan.source == Source::Observed
                && let Some(spec) = shared
            {
                (plan.spec, plan.stored) = (spec, spec.qtype);
                plan.source = Source::SameAs(name);
            }
        }
    }
}
