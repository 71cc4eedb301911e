//! The layers of a plan, and the plan restricted to some of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::graph::ops;
use crate::graph::ops::IntegerSupport;
use crate::graph::{Graph, ValueId};
use crate::plan::{Decision, KeepReason, Plan, Planned, Role, Source};
use crate::{QuantizeError, Ranges};

/// A weight, and all values that are quantized for the nodes that multiply by it; or an operator
/// without weight (a sum, a product, a pool) that computes on integers, and its values.
pub(super) struct Layer {
    /// The weight, or the operator.
    pub(super) name: String,
    /// The nodes, by index.
    pub(super) nodes: BTreeSet<usize>,
    /// The weight, and the inputs, biases and outputs of these nodes.
    pub(super) values: HashSet<String>,
    /// The value whose type is shown: the weight, or a value of the operator.
    pub(super) typed: String,
    /// Whether it is a weight.
    pub(super) is_weight: bool,
}

/// The layers of a plan, in the order in which the first node of each is computed.
pub(super) fn layers(graph: &Graph<'_>, plan: &Plan, order: &[usize]) -> Vec<Layer> {
    let mut rank = vec![usize::MAX; graph.nodes.len()];
    order.iter().enumerate().for_each(|(place, node)| rank[*node] = place);
    let constants = plan.constants(graph);
    let integer_nodes = plan.integer_nodes();
    let mut layers: Vec<Layer> = Vec::new();
    for (value, how) in plan.quantized() {
        let Some(id) = graph.value(&value.name) else { continue };
        if value.role != Role::Weight || how.source != Source::Weights {
            continue;
        }
        let constant = constants.iter().find(|constant| constant.anchor == id);
        let weighing = constant.map_or(&[][..], |constant| &constant.weighing);
        let mut nodes: BTreeSet<usize> = weighing.iter().map(|consumer| consumer.node).collect();
        if nodes.is_empty() {
            nodes.extend(graph.values[id].consumers.iter().map(|consumer| consumer.node));
        }
        let mut values = HashSet::from([value.name.clone()]);
        for node in integer_nodes.iter().filter(|node| node.weight == id) {
            nodes.insert(node.node);
            let around = [Some(node.input), node.bias, result(graph, plan, node.node)];
            values.extend(around.into_iter().flatten().map(|id| graph.values[id].name.to_owned()));
        }
        let (name, typed) = (value.name.clone(), value.name.clone());
        layers.push(Layer { name, nodes, values, typed, is_weight: true });
    }
    let of_weights: BTreeSet<usize> =
        layers.iter().flat_map(|layer| layer.nodes.iter().copied()).collect();
    let others = plan.on_integers.iter().filter(|node| !of_weights.contains(node));
    layers.extend(others.filter_map(|node| operator(graph, plan, *node)));
    layers.sort_by_key(|layer| layer.nodes.iter().map(|node| rank[*node]).min());
    layers
}

/// The layers that can be quantized alone: weights that one node reads as integers, or none of
/// them, are one layer with the name of the first.
pub(super) fn separable_layers(graph: &Graph<'_>, plan: &Plan, order: &[usize]) -> Vec<Layer> {
    let joint = plan.joint_weights(graph);
    let mut joined: Vec<Layer> = Vec::new();
    for layer in layers(graph, plan, order) {
        let set = joint.iter().find(|set| layer.is_weight && set.contains(&layer.name));
        let before = set.and_then(|set| joined.iter_mut().find(|it| set.contains(&it.name)));
        if let Some(before) = before {
            before.nodes.extend(layer.nodes);
            before.values.extend(layer.values);
        } else {
            joined.push(layer);
        }
    }
    joined
}

/// An operator without weight that computes new values on integers, such as a sum or the product
/// of two activations.
fn operator(graph: &Graph<'_>, plan: &Plan, node: usize) -> Option<Layer> {
    let proto = graph.nodes[node];
    let rule = ops::rule(proto)?;
    let computes = match (rule.integer)(graph, node) {
        IntegerSupport::Computes { .. }
        | IntegerSupport::FloatOutput
        | IntegerSupport::OperatorAlone
        | IntegerSupport::QuantizedOutput { .. } => true,
        IntegerSupport::No(_) | IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused => false,
    };
    if !computes {
        return None;
    }
    let inputs = (0..proto.input.len()).filter(|input| rule.takes_activation(*input));
    let inputs = inputs.filter_map(|input| graph.input(node, input));
    let values = inputs.chain(result(graph, plan, node));
    let is_quantized = |id: &ValueId| plan.values.get(*id).is_some_and(Planned::is_quantized);
    let values: Vec<&str> = values.filter(is_quantized).map(|id| graph.values[id].name).collect();
    Some(Layer {
        name: if proto.name.is_empty() {
            proto.output.first()?.clone()
        } else {
            proto.name.clone()
        },
        nodes: BTreeSet::from([node]),
        typed: (*values.last()?).to_owned(),
        values: values.into_iter().map(str::to_owned).collect(),
        is_weight: false,
    })
}

/// The quantized output of a node: its own, or that of the activation function that is fused into
/// it.
fn result(graph: &Graph<'_>, plan: &Plan, node: usize) -> Option<ValueId> {
    let mut output = graph.output(node, 0)?;
    loop {
        match &plan.values.get(output)?.decision {
            Decision::Quantize(_) => return Some(output),
            Decision::KeepFloat(KeepReason::FusedInto { .. }) => {
                let reader = graph.values[output].consumers.first()?;
                output = graph.output(reader.node, 0)?;
            }
            Decision::KeepFloat(_) => return None,
        }
    }
}

/// The quantized activations of each layer, by the name of the layer.
pub(crate) fn activations(
    graph: &Graph<'_>,
    plan: &Plan,
) -> Result<HashMap<String, BTreeSet<String>>, QuantizeError> {
    let order = graph.order()?;
    let is_activation = |name: &String| {
        let how = graph.value(name).and_then(|id| plan.values.get(id)).map(|found| &found.decision);
        let Some(Decision::Quantize(how)) = how else { return false };
        !matches!(how.source, Source::Weights | Source::Product { .. })
    };
    let of_layer = |layer: Layer| {
        let values = layer.values.into_iter().filter(is_activation).collect();
        (layer.name, values)
    };
    Ok(layers(graph, plan, &order).into_iter().map(of_layer).collect())
}

/// The plan restricted to some layers.
pub(super) fn with_only(plan: &Plan, layers: &[&Layer], ranges: Option<&Ranges>) -> Plan {
    let kept: HashSet<&String> = layers.iter().flat_map(|layer| &layer.values).collect();
    let nodes: BTreeSet<usize> =
        layers.iter().flat_map(|layer| layer.nodes.iter().copied()).collect();
    let mut only = plan.clone();
    only.on_integers.retain(|node| nodes.contains(node));
    only.integer_nodes.retain(|node| nodes.contains(&node.node));
    for value in &mut only.values {
        let Decision::Quantize(how) = &mut value.decision else { continue };
        if !kept.contains(&value.name) {
            let pattern = "all layers except the measured ones".to_owned();
            value.decision = Decision::KeepFloat(KeepReason::Excluded { pattern });
            continue;
        }
        // The value whose range it shares may not belong to these layers: then it gets a range of
        // its own.
        if let Some(source) = followed(plan, &how.source, ranges) {
            how.source = source;
        }
    }
    only
}

/// The range of the value that it shares its range with, as its own; `None` if it shares none.
fn followed(plan: &Plan, source: &Source, ranges: Option<&Ranges>) -> Option<Source> {
    let Source::SameAs(mut name) = source.clone() else { return None };
    // The number of steps is bounded: a plan has no cycles, but one read from a file may.
    for _ in 0..plan.values.len() {
        match &plan.quantized().find(|(value, _)| value.name == name)?.1.source {
            Source::SameAs(next) => name.clone_from(next),
            Source::Fixed(range) => return Some(Source::Fixed(*range)),
            Source::Observed => {
                return ranges?.values.get(&name).map(|range| Source::Fixed(*range));
            }
            Source::Weights | Source::Product { .. } => return None,
        }
    }
    None
}
