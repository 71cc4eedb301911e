//! Placement for runtimes that compute whole models on integers: the inputs and outputs of every
//! operator are quantized.

use quantize_rs_math::{Granularity, QSpec};

use crate::graph::ValueId;
use crate::graph::ops::{IntegerSupport, Slot};
use crate::options::target::Bias;
use crate::plan::activations::ActivationContext;
use crate::plan::decisions::{Decisions, Outcome};
use crate::plan::{
    Consumers, Decision, IntegerNode, KeepReason, QuantizeReason, Source, ValuePlan,
};

/// Quantizes the inputs and outputs of a node that has a rule, and constants among them.
pub(crate) fn quantize_node(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    node: usize,
) -> Outcome {
    let flowing = context.flowing(node);
    let multiplies = decisions.on_integers.contains(&node);
    let known = !flowing.is_empty() && flowing.iter().all(|input| context.float32[*input]);
    let Some(integer) = context.integer(node).filter(|_| known) else { return Outcome::default() };
    // A node that only moves data, or is fused, passes on values that are quantized for other
    // nodes.
    let passes_on = !integer.computes() && !context.selection.asks_for(context.graph, node);
    if passes_on && flowing.iter().all(|input| decisions.quantized(*input).is_none()) {
        return Outcome::default();
    }
    match integer {
        IntegerSupport::No(_) | IntegerSupport::OperatorAlone => Outcome::default(),
        IntegerSupport::SameAsInput { .. } if context.graph.constant(flowing[0]).is_some() => {
            context.observe_output(node)
        }
        IntegerSupport::SameAsInput { .. } => {
            let inputs = context.observe_inputs(node, &flowing);
            let input = context.graph.input(node, 0);
            let plan = input.and_then(|input| decisions.quantized_after(&inputs, input));
            let outputs = context.pass_on(node, plan);
            inputs.and(outputs)
        }
        IntegerSupport::FloatOutput | IntegerSupport::QuantizedOutput { .. } if !multiplies => {
            Outcome::default()
        }
        _ => {
            if let Err(why) = context.constants_fit(decisions, node) {
                return context.stays_float(decisions, node, &flowing, why);
            }
            let of_output = |output| {
                let because = QuantizeReason::OutputOf(context.label(node));
                context.observe(output, because).and(Outcome::made_on_integers(output))
            };
            let outputs: Outcome = context.outputs(node).map(of_output).collect();
            let inputs = context.observe_inputs(node, &flowing);
            inputs.and(outputs).and(context.scale_channels(node))
        }
    }
}

/// Gives the input of an activation function the scale of its output: the function is the only
/// consumer, and clips all values outside that range.
pub(crate) fn share_scale(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    node: usize,
) -> Outcome {
    let shared = || {
        let input = context.graph.input(node, 0)?;
        let (_, after) = context.function_after(input).filter(|(reader, _)| *reader == node)?;
        let spec = decisions.quantized(after)?.spec;
        let plan = decisions.quantized(input).filter(|plan| plan.source == Source::Observed)?;
        let source = Source::SameAs(context.graph.values[after].name.to_owned());
        let plan = ValuePlan { spec, stored: spec.qtype, source, ..plan.clone() };
        Some(Outcome::revise(input, Decision::Quantize(plan)))
    };
    shared().unwrap_or_default()
}

impl ActivationContext<'_, '_> {
    /// Checks that all constants that a node reads are quantized or can be.
    ///
    /// # Errors
    /// The reason why one of them cannot.
    fn constants_fit(&self, decisions: &Decisions, node: usize) -> Result<(), &'static str> {
        let graph = self.graph;
        let scales = self.scales_channels(node);
        let scale = if scales { 1..3 } else { 0..0 };
        let scale = scale.filter_map(|input| graph.input(node, input));
        self.flowing(node)
            .into_iter()
            .chain(scale)
            .filter(|id| graph.constant(*id).is_some() && decisions.quantized(*id).is_none())
            .try_for_each(|id| self.may_quantize(id))
    }

    /// Gives the reason why the inputs of a node keep their type, unless there is a more specific
    /// one.
    fn stays_float(
        &self,
        decisions: &Decisions,
        node: usize,
        flowing: &[ValueId],
        why: &'static str,
    ) -> Outcome {
        let unexplained = |id: &&ValueId| {
            let decision = decisions.get(**id);
            matches!(decision, None | Some(Decision::KeepFloat(KeepReason::NoRule { .. })))
        };
        let reason = || Decision::KeepFloat(KeepReason::FloatNode { node: self.label(node), why });
        flowing.iter().filter(unexplained).map(|id| Outcome::revise(*id, reason())).collect()
    }

    /// Whether a node is a normalization, which scales channels and adds a bias.
    fn scales_channels(&self, node: usize) -> bool {
        self.rule(node).is_some_and(|(rule, _)| matches!(rule.slot(1), Slot::Scale))
    }

    /// Quantizes the scale of a normalization as a weight, and its bias as a bias.
    fn scale_channels(&self, node: usize) -> Outcome {
        let graph = self.graph;
        let vector = |input: usize| {
            let found = graph.input(node, input).filter(|_| self.scales_channels(node))?;
            let value = &graph.values[found];
            let alone = !value.is_read_outside();
            (alone && graph.constant(found)?.dims.len() == 1).then_some(found)
        };
        let (Some(input), Some(weight)) = (graph.input(node, 0), vector(1)) else {
            return Outcome::default();
        };
        let spec = QSpec::new(self.profile.weights[0], true, Granularity::PerTensor);
        let because = QuantizeReason::WeightOf(self.label(node));
        let (source, consumers) = (Source::Weights, Consumers::All);
        let (stored, matrix, format) = (spec.qtype, None, self.format(&source));
        let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
        let beside = self.types.specs[input].qtype;
        // The scale of an int32 bias would be that of an activation times that of the weight.
        let flows = graph.constant(input).is_none();
        let bias = vector(2).filter(|_| flows && self.profile.bias_beside(beside) == Bias::Int32);
        Outcome::revise(weight, Decision::Quantize(plan)).and(self.record(IntegerNode {
            node,
            input,
            weight,
            bias,
        }))
    }
}
