//! Which nodes run on integers, and which values must be quantized for it.

use std::collections::HashMap;

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::{Because, Decision, Draft, IntegerNode, Kept, Source, ValuePlan};
use quantize_rs_onnx::topological;

use super::select::Selection;
use crate::graph::{Graph, Maker, ValueId};
use crate::ops::{self, Integer, OpRule};
use crate::uses::{Constant, Use};
use crate::{Config, QuantizeError};

pub(super) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
    draft: &mut Draft,
) -> Result<(), QuantizeError> {
    let Some(qtype) = config.activations else { return Ok(()) };
    let spec = QSpec::new(qtype, config.activation_symmetric, Granularity::PerTensor);
    let order = topological(&graph.model.graph().node)?;
    let constants = constants.iter().map(|constant| (constant.anchor, constant)).collect();
    let planner = Planner { graph, constants, selection, spec, order };
    planner.run(draft);
    Ok(())
}

/// What the steps of the plan have in common.
struct Planner<'a, 'm> {
    graph: &'a Graph<'m>,
    constants: HashMap<ValueId, &'a Constant<'m>>,
    selection: &'a Selection,
    spec: QSpec,
    /// Nodes in an order in which every value is made before it is read.
    order: Vec<usize>,
}

impl Planner<'_, '_> {
    fn run(&self, draft: &mut Draft) {
        let graph = self.graph;
        for node in 0..graph.nodes.len() {
            let Some(rule) = self.rule(node) else { continue };
            match self.integer(draft, node, rule) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    self.observe(draft, found.input, Because::InputOf(graph.nodes[node].label()));
                    if rule.integer == Integer::QuantizedOutput {
                        self.observe_output(draft, node);
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
        self.ask_movers(draft);
        self.pass_on(draft);
        plan_biases(graph, draft);
    }

    /// The rule for a node that is not excluded.
    fn rule(&self, node: usize) -> Option<&'static OpRule> {
        ops::rule(self.graph.nodes[node])
            .filter(|_| !self.selection.excludes_node(self.graph, node))
            .filter(|rule| !rule.computes() || self.selection.allows(rule.op_type))
    }

    /// How a node runs on integers; `None` when it has no business with them, else why it does not.
    fn integer(
        &self,
        draft: &Draft,
        node: usize,
        rule: &OpRule,
    ) -> Result<Option<IntegerNode>, &'static str> {
        let graph = self.graph;
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
                let overridable = matches!(
                    graph.values[bias].maker,
                    Maker::Initializer { overridable: true, .. }
                );
                if !vector || overridable || !self.matches_channels(bias, weight, node) {
                    return Err("its bias is not a constant vector of one value a channel");
                }
                if self
                    .selection
                    .excluded(graph, graph.values[bias].name, std::iter::empty())
                    .is_some()
                {
                    return Err("its bias is excluded");
                }
                Some(bias)
            }
        };
        Ok(Some(IntegerNode { node, input, weight, bias }))
    }

    /// Whether the bias has one value for each output channel of the weight.
    fn matches_channels(&self, bias: ValueId, weight: ValueId, node: usize) -> bool {
        let channels = self.constants.get(&weight).and_then(|constant| {
            let axis = constant.uses.iter().find_map(|usage| match usage {
                Use::Weight { node: reader, axis, .. } if *reader == node => *axis,
                _ => None,
            })?;
            constant.shape.get(axis).copied()
        });
        self.graph.shape(bias) == channels.map(|channels| vec![Some(channels)])
    }

    /// The output of a node, or of the activation function that is fused into it.
    fn observe_output(&self, draft: &mut Draft, node: usize) {
        let graph = self.graph;
        let label = graph.nodes[node].label();
        let Some(mut output) = graph.output(node, 0) else { return };
        let value = &graph.values[output];
        if let [reader] = value.readers[..]
            && !value.is_output
            && !value.captured
            && reader.input == 0
            && self.rule(reader.node).is_some_and(|rule| rule.integer == Integer::Fused)
            && let Some(after) = graph.output(reader.node, 0)
        {
            draft.keep(output, Kept::FusedInto { node: graph.nodes[reader.node].label() });
            output = after;
        }
        self.observe(draft, output, Because::OutputOf(label));
    }

    fn observe(&self, draft: &mut Draft, value: ValueId, because: Because) {
        let spec = self.spec;
        if self.graph.constant(value).is_none() && draft.quantized(value).is_none() {
            let plan = ValuePlan { spec, stored: spec.qtype, source: Source::Observed, because };
            draft.decisions.insert(value, Decision::Quantize(plan));
        }
    }

    /// Quantizes what goes into nodes that only move data, when what comes out must be quantized:
    /// the node then moves bytes instead of floats.
    fn ask_movers(&self, draft: &mut Draft) {
        let graph = self.graph;
        for node in self.order.iter().rev().copied() {
            let moves = self
                .rule(node)
                .is_some_and(|rule| rule.integer == Integer::SameAsInput { same_range: true });
            let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
                continue;
            };
            if moves && draft.quantized(output).is_some() && !graph.values[input].is_output {
                self.observe(draft, input, Because::InputOf(graph.nodes[node].label()));
            }
        }
    }

    /// What moves quantized data gives it on with the same scale.
    fn pass_on(&self, draft: &mut Draft) {
        let graph = self.graph;
        for node in self.order.iter().copied() {
            let moves = self
                .rule(node)
                .is_some_and(|rule| matches!(rule.integer, Integer::SameAsInput { .. }));
            let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
                continue;
            };
            // The value that was observed, however many nodes have passed it on.
            let source = match draft.quantized(input).map(|plan| &plan.source) {
                Some(Source::SameAs(source)) => source.clone(),
                Some(Source::Observed) => graph.values[input].name.to_owned(),
                _ => continue,
            };
            if !moves {
                continue;
            }
            if graph.values[output].is_output && draft.quantized(output).is_none() {
                draft.keep(output, Kept::GraphOutput);
                continue;
            }
            let plan = ValuePlan {
                spec: self.spec,
                stored: self.spec.qtype,
                source: Source::SameAs(source),
                because: Because::PassedOnBy(graph.nodes[node].label()),
            };
            draft.decisions.insert(output, Decision::Quantize(plan));
        }
    }
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
