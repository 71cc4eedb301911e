//! Which nodes run on integers, and which values must be quantized for it.

use std::collections::HashMap;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::{Because, Decision, Draft, IntegerNode, Kept, Source, ValuePlan};
use crate::Config;
use crate::graph::{Graph, Maker, ValueId};
use crate::ops::{self, Integer, OpRule};
use crate::uses::{Constant, Use};

pub(super) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    draft: &mut Draft,
) {
    let Some(qtype) = config.activations else { return };
    let spec = QSpec::new(qtype, config.activation_symmetric, Granularity::PerTensor);
    let constants = constants.iter().map(|constant| (constant.anchor, constant)).collect();
    for node in 0..graph.nodes.len() {
        let Some(rule) = ops::rule(graph.nodes[node]) else { continue };
        match integer(graph, &constants, draft, node, rule) {
            Ok(None) => {}
            Ok(Some(found)) => {
                observe(
                    graph,
                    draft,
                    found.input,
                    spec,
                    Because::InputOf(graph.nodes[node].label()),
                );
                if rule.integer == Integer::QuantizedOutput {
                    observe_output(graph, draft, node, spec);
                }
                draft.integer_nodes.push(found);
            }
            Err(why) => {
                if let Some(input) = graph.input(node, 0) {
                    let node = graph.nodes[node].label();
                    draft.keep(input, Kept::FloatNode { node, why });
                }
            }
        }
    }
    ask_movers(graph, draft, spec);
    pass_on(graph, draft, spec);
    plan_biases(graph, draft);
}

/// How a node runs on integers; `None` when it has no business with them, else why it does not.
fn integer(
    graph: &Graph<'_>,
    constants: &HashMap<ValueId, &Constant<'_>>,
    draft: &Draft,
    node: usize,
    rule: &OpRule,
) -> Result<Option<IntegerNode>, &'static str> {
    if !matches!(rule.integer, Integer::FloatOutput | Integer::QuantizedOutput) {
        return Ok(None);
    }
    let (Some(input), Some(weight)) = (graph.input(node, 0), graph.input(node, 1)) else {
        return Ok(None);
    };
    if graph.constant(input).is_some() {
        return Err("its first input is constant");
    }
    let Some(plan) = draft.quantized(weight) else {
        return Err("its weight is not a quantized constant");
    };
    if plan.spec.qtype != QType::Int8 && plan.spec.qtype != QType::UInt8 {
        return Err("no integer kernel takes such weights");
    }
    if !(rule.allows)(graph.nodes[node]) {
        return Err("runtimes fuse it only with alpha = beta = 1");
    }
    let bias = match graph.nodes[node].input.get(2).filter(|name| !name.is_empty()) {
        None => None,
        Some(name) => {
            let bias = graph.value(name).ok_or("its bias is not a value of the graph")?;
            let vector = graph.constant(bias).is_some_and(|tensor| {
                tensor.dtype() == Some(DataType::Float) && tensor.dims.len() == 1
            });
            let overridable =
                matches!(graph.values[bias].maker, Maker::Initializer { overridable: true, .. });
            if !vector || overridable || !matches_channels(graph, constants, bias, weight, node) {
                return Err("its bias is not a constant vector of one value a channel");
            }
            Some(bias)
        }
    };
    Ok(Some(IntegerNode { node, input, weight, bias }))
}

/// Whether the bias has one value for each output channel of the weight.
fn matches_channels(
    graph: &Graph<'_>,
    constants: &HashMap<ValueId, &Constant<'_>>,
    bias: ValueId,
    weight: ValueId,
    node: usize,
) -> bool {
    let channels = constants.get(&weight).and_then(|constant| {
        let axis = constant.uses.iter().find_map(|usage| match usage {
            Use::Weight { node: reader, axis, .. } if *reader == node => *axis,
            _ => None,
        })?;
        constant.shape.get(axis).copied()
    });
    graph.shape(bias) == channels.map(|channels| vec![Some(channels)])
}

/// The output of a node, or of the activation function that is fused into it.
fn observe_output(graph: &Graph<'_>, draft: &mut Draft, node: usize, spec: QSpec) {
    let label = graph.nodes[node].label();
    let Some(mut output) = graph.output(node, 0) else { return };
    let value = &graph.values[output];
    if let [reader] = value.readers[..]
        && !value.is_output
        && !value.captured
        && reader.input == 0
        && ops::rule(graph.nodes[reader.node]).is_some_and(|rule| rule.integer == Integer::Fused)
        && let Some(after) = graph.output(reader.node, 0)
    {
        draft.keep(output, Kept::FusedInto { node: graph.nodes[reader.node].label() });
        output = after;
    }
    observe(graph, draft, output, spec, Because::OutputOf(label));
}

fn observe(graph: &Graph<'_>, draft: &mut Draft, value: ValueId, spec: QSpec, because: Because) {
    if graph.constant(value).is_none() && draft.quantized(value).is_none() {
        let plan = ValuePlan { spec, stored: spec.qtype, source: Source::Observed, because };
        draft.decisions.insert(value, Decision::Quantize(plan));
    }
}

/// Quantizes what goes into nodes that only move data, when what comes out must be quantized:
/// the node then moves bytes instead of floats.
fn ask_movers(graph: &Graph<'_>, draft: &mut Draft, spec: QSpec) {
    for node in (0..graph.nodes.len()).rev() {
        let moves = ops::rule(graph.nodes[node])
            .is_some_and(|rule| rule.integer == Integer::SameAsInput { same_range: true });
        let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
            continue;
        };
        if moves && draft.quantized(output).is_some() && !graph.values[input].is_output {
            observe(graph, draft, input, spec, Because::InputOf(graph.nodes[node].label()));
        }
    }
}

/// What moves quantized data gives it on with the same scale. Nodes may stand in any order, so
/// this goes on until nothing changes.
fn pass_on(graph: &Graph<'_>, draft: &mut Draft, spec: QSpec) {
    let mut waiting: Vec<usize> = (0..graph.nodes.len()).collect();
    loop {
        let before = waiting.len();
        waiting.retain(|node| !pass_on_one(graph, draft, *node, spec));
        if waiting.len() == before {
            return;
        }
    }
}

fn pass_on_one(graph: &Graph<'_>, draft: &mut Draft, node: usize, spec: QSpec) -> bool {
    let moves = ops::rule(graph.nodes[node])
        .is_some_and(|rule| matches!(rule.integer, Integer::SameAsInput { .. }));
    let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
        return false;
    };
    if !moves || draft.quantized(input).is_none_or(|plan| plan.source == Source::Weights) {
        return false;
    }
    if graph.values[output].is_output && draft.quantized(output).is_none() {
        draft.keep(output, Kept::GraphOutput);
        return true;
    }
    let plan = ValuePlan {
        spec,
        stored: spec.qtype,
        source: Source::SameAs(graph.values[input].name.to_owned()),
        because: Because::PassedOnBy(graph.nodes[node].label()),
    };
    draft.decisions.insert(output, Decision::Quantize(plan));
    true
}

/// Biases of integer nodes become int32 in the scale of what they are added to.
fn plan_biases(graph: &Graph<'_>, draft: &mut Draft) {
    for IntegerNode { node, input, weight, bias } in draft.integer_nodes.clone() {
        let (Some(bias), Some(weights)) = (bias, draft.quantized(weight)) else { continue };
        let granularity = match weights.spec.granularity {
            Granularity::PerTensor => Granularity::PerTensor,
            _ => Granularity::PerAxis { axis: 0 },
        };
        let plan = ValuePlan {
            spec: QSpec::new(QType::Int32, true, granularity),
            stored: QType::Int32,
            source: Source::Product {
                input: graph.values[input].name.to_owned(),
                weight: graph.values[weight].name.to_owned(),
            },
            because: Because::BiasOf(graph.nodes[node].label()),
        };
        draft.decisions.insert(bias, Decision::Quantize(plan));
    }
}
