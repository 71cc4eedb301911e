//! What follows from the scales of a node's input and weight: int32 biases, and weights that leave
//! room for sums.

use quantize_rs_math::{Granularity, QSpec, QType};

use super::{Because, Decision, Draft, IntegerNode, Readers, Source, ValuePlan};
use crate::Format;
use crate::graph::Graph;
use crate::options::target::Profile;

/// Biases of integer nodes become int32 in the scale of what they are added to.
pub(super) fn plan(graph: &Graph<'_>, draft: &mut Draft) {
    for IntegerNode { node, input, weight, bias } in draft.integer_nodes.clone() {
        let (Some(bias), Some(weights)) = (bias, draft.quantized(weight)) else { continue };
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
            consumers: Readers::All,
            because: Because::BiasOf(graph.nodes[node].label()),
        };
        draft.decisions.insert(bias, Decision::Quantize(plan));
    }
}

/// Takes one bit from weights that are multiplied where sums of pairs saturate.
pub(super) fn narrow_weights(profile: &Profile, draft: &mut Draft) {
    if !profile.reduced {
        return;
    }
    let mut narrowed = false;
    for IntegerNode { weight, .. } in draft.integer_nodes.clone() {
        if let Some(Decision::Quantize(plan)) = draft.decisions.get_mut(&weight)
            && plan.spec.qtype == QType::Int8
        {
            plan.spec.reduced = true;
            narrowed = true;
        }
    }
    if narrowed {
        draft.warnings.push(format!(
            "weights use 7 of their 8 bits for target {}, where sums of uint8 × int8 saturate; with \
             VNNI ask for target x86, which is closer to the float model",
            profile.name
        ));
    }
}
