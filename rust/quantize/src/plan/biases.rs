//! Rules that depend on the scales of a node's input and weight: int32 biases, and 7-bit weights.

use std::collections::BTreeSet;

use quantize_rs_math::{Granularity, QSpec, QType};

use super::activations::ActivationContext;
use super::decisions::{Decisions, Outcome};
use super::{Consumers, Decision, IntegerNode, QuantizeReason, Source, ValuePlan};
use crate::Format;
use crate::graph::ValueId;

/// Quantizes the bias of an integer node to int32, with the scale of the products that it is added
/// to.
pub(super) fn decide(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
    IntegerNode { node, input, weight, bias }: IntegerNode,
) -> Outcome {
    let graph = context.graph;
    let (Some(bias), Some(weights)) = (bias, decisions.quantized(weight)) else {
        return Outcome::default();
    };
    let granularity = match weights.spec.granularity {
        Granularity::PerTensor => Granularity::PerTensor,
        _ => Granularity::PerAxis { axis: 0 },
    };
    let plan = ValuePlan {
        spec: QSpec::new(QType::Int32, true, granularity),
        stored: QType::Int32,
        format: Format::Qdq,
        source: Source::Product {
            input: graph.values[input].name.to_owned(),
            weight: graph.values[weight].name.to_owned(),
        },
        matrix: None,
        consumers: Consumers::All,
        because: QuantizeReason::BiasOf(graph.nodes[node].label()),
    };
    Outcome::revise(bias, Decision::Quantize(plan))
}

/// Reduces int8 weights by one bit for targets on which sums of two products saturate at 16 bits.
///
/// A node with a bias that stays float counts too, if it reads integers: ONNX Runtime quantizes the
/// bias itself.
pub(super) fn reduce_range(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    if !context.profile.reduced {
        return Outcome::default();
    }
    let reads_integers = |node: usize| {
        let input = context.graph.input(node, 0);
        input.is_some_and(|input| decisions.made_on_integers.contains(&input))
    };
    let others = context.weighted.iter().filter(|(node, _)| reads_integers(**node));
    let weights = decisions.integer_nodes.iter().map(|node| node.weight);
    let weights: BTreeSet<ValueId> = weights.chain(others.map(|(_, weight)| *weight)).collect();
    let reduced = |weight: ValueId| {
        let plan = decisions.quantized(weight)?;
        let spec = QSpec { reduce_range: true, ..plan.spec };
        let plan = ValuePlan { spec, ..plan.clone() };
        (spec.qtype == QType::Int8).then(|| Outcome::revise(weight, Decision::Quantize(plan)))
    };
    let reduced: Vec<Outcome> = weights.into_iter().filter_map(reduced).collect();
    let warning = (!reduced.is_empty()).then(|| reduced_warning(context.profile.name));
    reduced.into_iter().collect::<Outcome>().and(Outcome::warn(warning))
}

/// The warning about weights of 7 bits for a target.
pub(crate) fn reduced_warning(target: &str) -> String {
    format!(
        "weights use 7 of their 8 bits for target {target}, where sums of uint8 × int8 saturate; \
         with VNNI ask for target x86, which is closer to the float model"
    )
}
