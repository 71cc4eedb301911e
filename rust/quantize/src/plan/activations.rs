//! Which nodes run on integers, and which values must be quantized for it.

use std::collections::{BTreeSet, HashMap};

use quantize_rs_math::{Granularity, QSpec};
use quantize_rs_onnx::{DataType, topological};

use super::select::Selection;
use super::types::{Finder, Types};
use super::weights::weight_readers;
use super::{Because, Decision, Draft, Kept, Readers, Source, ValuePlan};
use super::{biases, float32, quantizable_constants};
use crate::graph::ops;
use crate::graph::ops::{IntegerSupport, OpRule};
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, ValueId};
use crate::options::target::{Placement, Profile};
use crate::transform::WIDEN_FLOATS;
use crate::{Config, Format, QuantizeError};

pub(super) fn plan(
    graph: &Graph<'_>,
    constants: &[Constant<'_>],
    config: &Config,
    selection: &Selection,
    draft: &mut Draft,
) -> Result<(), QuantizeError> {
    let Some(qtype) = config.activations else { return Ok(()) };
    let profile = config.profile();
    let symmetric = config.activation_symmetric || profile.symmetric.0;
    let order = topological(&graph.model.graph().node)?;
    let rules = rules(graph, selection);
    let all = QSpec::new(qtype, symmetric, Granularity::PerTensor);
    let planner = Planner {
        graph,
        constants: constants.iter().map(|constant| (constant.anchor, constant)).collect(),
        selection,
        profile,
        types: Finder { graph, rules: &rules, selection }.types(&order, all),
        rules,
        already: already(graph, &order),
        fit: quantizable_constants::of(graph, constants, selection),
        weighted: constants
            .iter()
            .flat_map(|constant| weight_readers(constant).map(|node| (node, constant.anchor)))
            .collect(),
        float32: float32::of(graph, &order),
        order,
    };
    let leads = planner.leads(draft);
    let float = planner.computes_in_float(&leads, qtype);
    match profile.placement {
        Placement::Weighted | Placement::Between => planner.between(draft, leads),
        Placement::Inputs => planner.inputs(draft, &leads),
        Placement::Everything => planner.everything(draft, &leads),
    }
    if config.output_format == Format::FakeQuant {
        draft.integer_nodes.iter_mut().for_each(|node| node.bias = None);
        for decision in draft.decisions.values_mut() {
            if let Decision::Quantize(plan) = decision
                && plan.source == Source::Weights
            {
                plan.format = Format::FakeQuant;
            }
        }
    }
    biases::plan(graph, draft);
    biases::narrow_weights(profile, draft);
    draft.warnings.extend(float);
    if profile.placement == Placement::Weighted && qtype.is_float() {
        draft.warnings.push(format!(
            "ONNX Runtime has no kernels for {qtype} on a CPU, and its optimizations overlook that: \
             run the model there with graph_optimization_level ORT_ENABLE_BASIC"
        ));
    }
    let unmet = planner.unmet(draft);
    draft.warnings.extend(unmet.into_iter().map(|text| {
        format!("activation_types names `{text}`, which decides over nothing that is quantized")
    }));
    planner.settle_readers(draft);
    planner.carry_on(draft);
    draft.warnings.extend(idle(graph, config, draft));
    Ok(())
}

/// What the caller should know who asks for activations and gets none quantized.
fn idle(graph: &Graph<'_>, config: &Config, draft: &Draft) -> Option<String> {
    let observed = |decision: &Decision| match decision {
        Decision::Quantize(plan) => plan.source == Source::Observed,
        Decision::Keep(_) => false,
    };
    if draft.decisions.values().any(observed) {
        return None;
    }
    let weights = config.weights;
    let other = |(id, decision): (&ValueId, &Decision)| match decision {
        Decision::Quantize(plan) if plan.source == Source::Weights => {
            graph.dtype(*id).filter(|dtype| *dtype != DataType::Float)
        }
        _ => None,
    };
    let left_out =
        config.passes.as_ref().is_some_and(|names| names.iter().all(|name| name != WIDEN_FLOATS));
    let mend = |dtype: DataType| match dtype {
        DataType::Double => Some("export it so, it becomes as small".to_owned()),
        _ => left_out.then(|| format!("the pass {WIDEN_FLOATS} makes it so")),
    };
    let dtype = draft.decisions.iter().find_map(other);
    let why = if let Some((dtype, mend)) = dtype.and_then(|dtype| Some((dtype, mend(dtype)?))) {
        format!(
            "the model computes in {dtype}, and operators run on integers where it is float32: {mend}"
        )
    } else if weights.bits() == 8 {
        "no operator of the model can run on integers as it is".to_owned()
    } else {
        format!("products are computed in integers with weights of 8 bits, not of {weights}")
    };
    Some(format!("no activation is quantized: {why}"))
}

/// What the steps of the plan have in common.
pub(super) struct Planner<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) constants: HashMap<ValueId, &'a Constant<'m>>,
    pub(super) selection: &'a Selection,
    pub(super) profile: &'static Profile,
    /// Of what type each value is, if it is quantized.
    pub(super) types: Types,
    /// The rule for each node that may be quantized, and how it runs on integers.
    pub(super) rules: Vec<Option<(&'static OpRule, IntegerSupport)>>,
    /// Nodes in an order in which every value is made before it is read.
    pub(super) order: Vec<usize>,
    /// Whether constants that are no weights can be quantized like activations, or why not.
    pub(super) fit: HashMap<ValueId, Result<(), &'static str>>,
    /// Values that the model itself brings back from integers, and moves from there.
    pub(super) already: BTreeSet<ValueId>,
    /// Nodes that multiply by a constant, however it comes to them, and one such constant.
    pub(super) weighted: HashMap<usize, ValueId>,
    /// Whether each value is known to be float32.
    pub(super) float32: Vec<bool>,
}

/// The rule for each node that is not excluded.
fn rules(
    graph: &Graph<'_>,
    selection: &Selection,
) -> Vec<Option<(&'static OpRule, IntegerSupport)>> {
    let rule = |node: usize| {
        let rule = ops::rule(graph.nodes[node])?;
        let integer = (rule.integer)(graph, node);
        let asked_for = if integer.computes() {
            selection.asks_for(graph, node)
        } else {
            !selection.excludes_node(graph, node)
        };
        asked_for.then_some((rule, integer))
    };
    (0..graph.nodes.len()).map(rule).collect()
}

/// What comes out of the `DequantizeLinear` nodes that a model has before anything is done to it,
/// whatever moves it.
fn already(graph: &Graph<'_>, order: &[usize]) -> BTreeSet<ValueId> {
    let mut already = BTreeSet::new();
    for node in order.iter().copied() {
        let moves = || {
            let rule = ops::rule(graph.nodes[node]);
            rule.is_some_and(|rule| {
                matches!((rule.integer)(graph, node), IntegerSupport::SameAsInput { .. })
            })
        };
        let comes = graph.input(node, 0).is_some_and(|input| already.contains(&input));
        if graph.nodes[node].op_type == "DequantizeLinear" || comes && moves() {
            already.extend(float32::outputs(graph, node));
        }
    }
    already
}

impl Planner<'_, '_> {
    pub(super) fn rule(&self, node: usize) -> Option<(&'static OpRule, IntegerSupport)> {
        self.rules[node]
    }

    pub(super) fn integer(&self, node: usize) -> Option<IntegerSupport> {
        self.rules[node].map(|(_, integer)| integer)
    }

    pub(super) fn label(&self, node: usize) -> String {
        self.graph.nodes[node].label()
    }

    /// What flows out of a node.
    pub(super) fn outputs(&self, node: usize) -> impl Iterator<Item = ValueId> {
        float32::outputs(self.graph, node)
    }

    /// What flows into a node, constants included.
    pub(super) fn flowing(&self, node: usize) -> Vec<ValueId> {
        let Some((rule, _)) = self.rules[node] else { return Vec::new() };
        let inputs = 0..self.graph.nodes[node].input.len();
        let taken = inputs.filter(|input| rule.takes_activation(*input));
        taken.filter_map(|input| self.graph.input(node, input)).collect()
    }

    /// Whether a constant that is no weight can be quantized like an activation, or why not.
    pub(super) fn may_quantize(&self, constant: ValueId) -> Result<(), &'static str> {
        let unknown = Err("a constant that it reads stays float");
        self.fit.get(&constant).copied().unwrap_or(unknown)
    }

    /// The activation function that alone reads `value`, and what comes out of it.
    pub(super) fn function_after(&self, value: ValueId) -> Option<(usize, ValueId)> {
        let found = &self.graph.values[value];
        let [consumer] = found.consumers[..] else { return None };
        let only = !found.is_output
            && !found.used_in_subgraph
            && consumer.input == 0
            && self.integer(consumer.node) == Some(IntegerSupport::Fused);
        let after = self.graph.output(consumer.node, 0).filter(|_| only)?;
        Some((consumer.node, after))
    }

    /// Quantizes what goes into the node.
    pub(super) fn observe_inputs(&self, draft: &mut Draft, node: usize, inputs: &[ValueId]) {
        for input in inputs {
            self.observe(draft, *input, Because::InputOf(self.label(node)));
        }
        draft.on_integers.insert(node);
    }

    /// Quantizes what comes out of the node, or of the activation function that is folded into it.
    pub(super) fn observe_output(&self, draft: &mut Draft, node: usize) {
        let Some(mut output) = self.graph.output(node, 0) else { return };
        // With the zero point in the middle, runtimes fold nothing: what is folded must be what the
        // grid cuts off.
        if let Some((function, after)) = self.function_after(output)
            && !self.types.specs[after].symmetric
        {
            draft.keep(output, Kept::FusedInto { node: self.label(function) });
            output = after;
        }
        self.observe(draft, output, Because::OutputOf(self.label(node)));
        draft.made_on_integers.insert(output);
    }

    pub(super) fn observe(&self, draft: &mut Draft, value: ValueId, because: Because) {
        self.quantize(draft, value, self.source(value), because);
    }

    /// Where the numbers of a value come from that follows no other.
    fn source(&self, value: ValueId) -> Source {
        match self.graph.constant(value) {
            Some(_) => Source::Weights,
            None => Source::Observed,
        }
    }

    /// Quantizes an activation, unless the model does so itself, or it is already.
    pub(super) fn quantize(
        &self,
        draft: &mut Draft,
        value: ValueId,
        source: Source,
        because: Because,
    ) {
        let reads = |consumer: &Consumer| &self.graph.nodes[consumer.node].op_type;
        let anew = self.graph.values[value].consumers.iter().all(|r| reads(r) != "QuantizeLinear");
        if anew && draft.quantized(value).is_none() && !self.already.contains(&value) {
            let spec = self.types.specs[value];
            let consumers = Readers::All;
            let (stored, matrix, format) = (spec.qtype, None, Format::Qdq);
            let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
            draft.decisions.insert(value, Decision::Quantize(plan));
        }
    }

    /// Gives what a node moves the scale of what it was moved from.
    pub(super) fn pass_on(&self, draft: &mut Draft, node: usize) {
        let Some(input) = self.graph.input(node, 0) else { return };
        // The value that was observed, however many nodes have passed it on.
        let Some(ValuePlan { spec, source, .. }) = draft.quantized(input) else { return };
        let (spec, source) = match source {
            Source::SameAs(source) => (*spec, source.clone()),
            Source::Observed | Source::Fixed(_) => {
                (*spec, self.graph.values[input].name.to_owned())
            }
            Source::Weights | Source::Product { .. } => return,
        };
        for output in self.outputs(node) {
            let plan = ValuePlan {
                spec,
                stored: spec.qtype,
                format: Format::Qdq,
                source: Source::SameAs(source.clone()),
                matrix: None,
                consumers: Readers::All,
                because: Because::PassedOnBy(self.label(node)),
            };
            draft.decisions.insert(output, Decision::Quantize(plan));
            draft.made_on_integers.insert(output);
        }
        draft.on_integers.insert(node);
    }
}
