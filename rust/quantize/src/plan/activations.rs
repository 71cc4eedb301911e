//! The context that the rules about activations share, how one activation is quantized, and
//! warnings about activations.

use std::collections::{BTreeSet, HashMap};

use quantize_rs_math::{Granularity, QSpec, QType};
use quantize_rs_onnx::DataType;

use super::decisions::{Decisions, Outcome};
use super::select::Selection;
use super::types::{Finder, Types};
use super::weights::weight_readers;
use super::{Consumers, Decision, IntegerNode, KeepReason, QuantizeReason, Source, ValuePlan};
use super::{before_logarithms, float32, quantizable_constants, sizes};
use crate::graph::ops;
use crate::graph::ops::{IntegerSupport, OpRule};
use crate::graph::quantized_ops::quantized_op;
use crate::graph::uses::Constant;
use crate::graph::{Consumer, Graph, ValueId};
use crate::options::target::Profile;
use crate::transform::WIDEN_FLOATS;
use crate::{Config, Format, QuantizeError};

/// Warns that ONNX Runtime has no CPU kernels for 8-bit floats.
pub(super) fn warn_float8(context: &ActivationContext<'_, '_>, _: &Decisions) -> Outcome {
    let qtype = context.qtype;
    Outcome::warn(qtype.is_float().then(|| {
        format!(
            "ONNX Runtime has no kernels for {qtype} on a CPU, and its optimizations overlook \
             that: run the model there with graph_optimization_level ORT_ENABLE_BASIC"
        )
    }))
}

/// Warns about entries of `activation_types` that apply to no quantized value.
pub(super) fn warn_unused_types(
    context: &ActivationContext<'_, '_>,
    decisions: &Decisions,
) -> Outcome {
    let unused = context.unused_types(decisions);
    let unused = unused.into_iter();
    Outcome::warn(unused.map(|(text, why)| format!("activation_types names `{text}`, {why}")))
}

/// Warns if quantized activations are requested and none is quantized.
pub(super) fn warn_none(context: &ActivationContext<'_, '_>, decisions: &Decisions) -> Outcome {
    let (graph, config) = (context.graph, context.config);
    let is_observed = |plan: &ValuePlan| plan.source == Source::Observed;
    if decisions.all_quantized().any(|(_, plan)| is_observed(plan)) {
        return Outcome::default();
    }
    let weights = config.weights;
    let other = |(id, plan): (ValueId, &ValuePlan)| {
        let dtype = graph.dtype(id).filter(|_| plan.source == Source::Weights);
        dtype.filter(|dtype| *dtype != DataType::Float)
    };
    let left_out =
        config.passes.as_ref().is_some_and(|names| names.iter().all(|name| name != WIDEN_FLOATS));
    let remedy = |dtype: DataType| match dtype {
        DataType::Double => Some("export it as float32, the result is as small".to_owned()),
        _ => left_out.then(|| format!("the pass {WIDEN_FLOATS} converts it")),
    };
    let dtype = decisions.all_quantized().find_map(other);
    let why = if let Some((dtype, remedy)) = dtype.and_then(|it| Some((it, remedy(it)?))) {
        format!(
            "the model computes in {dtype}, and operators run on integers where it is float32: \
             {remedy}"
        )
    } else if let Some(other) = context.selection.unmet_op_types(graph) {
        other
    } else if graph.nodes.iter().any(|node| quantized_op(node).is_some()) {
        "the model is quantized already: quantize the float model that it was made from".to_owned()
    } else if weights.bits() == 8 {
        "no operator of the model can run on integers as it is".to_owned()
    } else {
        format!("operators multiply integers with weights of 8 bits, not of {weights}")
    };
    Outcome::warn([format!("no activation is quantized: {why}")])
}

/// The context of the rules about activations, in addition to the decisions.
pub(super) struct ActivationContext<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) config: &'a Config,
    /// The default type of activations.
    pub(super) qtype: QType,
    pub(super) constants: HashMap<ValueId, &'a Constant<'m>>,
    pub(super) selection: &'a Selection,
    pub(super) profile: &'static Profile,
    /// The type of each value, if it is quantized.
    pub(super) types: Types,
    /// The rule for each node that may be quantized, and how it runs on integers.
    pub(super) rules: Vec<Option<(&'static OpRule, IntegerSupport)>>,
    /// Nodes in topological order.
    pub(super) order: Vec<usize>,
    /// Whether constants that are not weights can be quantized like activations, or the reason why
    /// not.
    pub(super) fit: HashMap<ValueId, Result<(), &'static str>>,
    /// Values that the original model dequantizes, and values that are moved from these.
    pub(super) already: BTreeSet<ValueId>,
    /// Nodes that multiply by a constant, directly or behind reshapes and transposes, and one such
    /// constant.
    pub(super) weighted: HashMap<usize, ValueId>,
    /// Whether each value is known to be float32.
    pub(super) float32: Vec<bool>,
}

impl<'a, 'm> ActivationContext<'a, 'm> {
    /// The context for a graph; `None` if only weights are quantized.
    pub(super) fn of(
        graph: &'a Graph<'m>,
        constants: &'a [Constant<'m>],
        config: &'a Config,
        selection: &'a Selection,
    ) -> Result<Option<ActivationContext<'a, 'm>>, QuantizeError> {
        let Some(qtype) = config.activations else { return Ok(None) };
        let profile = config.profile();
        let symmetric = config.activation_symmetric || profile.symmetric.0;
        let order = graph.order()?;
        let rules = rules(graph, &order, config, selection);
        let all = QSpec::new(qtype, symmetric, Granularity::PerTensor);
        Ok(Some(ActivationContext {
            graph,
            config,
            qtype,
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
        }))
    }
}

/// Why an `Attention` that `QAttention` could replace computes in float.
const NO_QATTENTION: &str = "ONNX Runtime has integers for it only as QAttention, which \
                             output_format qoperator with uint8 activations and dynamic write";

/// The rule for each node that is not excluded.
fn rules(
    graph: &Graph<'_>,
    order: &[usize],
    config: &Config,
    selection: &Selection,
) -> Vec<Option<(&'static OpRule, IntegerSupport)>> {
    let (float, sizes) = (before_logarithms::of(graph), sizes::of(graph, order));
    let rule = |node: usize| {
        let rule = ops::rule(graph.nodes[node])?;
        let integer = if float.contains(&node) {
            IntegerSupport::No(before_logarithms::WHY)
        } else if sizes.contains(&node) {
            IntegerSupport::No(sizes::WHY)
        } else {
            match (rule.integer)(graph, node) {
                IntegerSupport::OperatorAlone if !config.writes_qattention() => {
                    IntegerSupport::No(NO_QATTENTION)
                }
                integer => integer,
            }
        };
        let is_selected = if integer.computes() {
            selection.asks_for(graph, node)
        } else {
            !selection.excludes_node(graph, node)
        };
        is_selected.then_some((rule, integer))
    };
    (0..graph.nodes.len()).map(rule).collect()
}

/// Outputs of the `DequantizeLinear` nodes of the original model, and values that are moved from
/// these.
fn already(graph: &Graph<'_>, order: &[usize]) -> BTreeSet<ValueId> {
    let mut already = BTreeSet::new();
    for node in order.iter().copied() {
        let comes = graph.input(node, 0).is_some_and(|input| already.contains(&input));
        if graph.nodes[node].op_type == "DequantizeLinear"
            || comes && ops::moves_elements(graph, node)
        {
            already.extend(float32::outputs(graph, node));
        }
    }
    already
}

impl ActivationContext<'_, '_> {
    pub(super) fn rule(&self, node: usize) -> Option<(&'static OpRule, IntegerSupport)> {
        self.rules[node]
    }

    pub(super) fn integer(&self, node: usize) -> Option<IntegerSupport> {
        self.rules[node].map(|(_, integer)| integer)
    }

    pub(super) fn label(&self, node: usize) -> String {
        self.graph.nodes[node].label()
    }

    /// The outputs of a node that hold data.
    pub(super) fn outputs(&self, node: usize) -> impl Iterator<Item = ValueId> {
        float32::outputs(self.graph, node)
    }

    /// The inputs of a node at which it takes activations; some may be constants.
    pub(super) fn flowing(&self, node: usize) -> Vec<ValueId> {
        let Some((rule, _)) = self.rules[node] else { return Vec::new() };
        let inputs = 0..self.graph.nodes[node].input.len();
        let taken = inputs.filter(|input| rule.takes_activation(*input));
        taken.filter_map(|input| self.graph.input(node, input)).collect()
    }

    /// Whether a constant that is not a weight can be quantized like an activation, or the reason
    /// why not.
    pub(super) fn may_quantize(&self, constant: ValueId) -> Result<(), &'static str> {
        let unknown = Err("a constant that it reads stays float");
        self.fit.get(&constant).copied().unwrap_or(unknown)
    }

    /// The activation function that is the only consumer of `value`, and its output.
    pub(super) fn function_after(&self, value: ValueId) -> Option<(usize, ValueId)> {
        let consumer = self.graph.only_consumer(value).filter(|consumer| consumer.input == 0)?;
        let is_function = self.integer(consumer.node) == Some(IntegerSupport::Fused);
        let after = self.graph.output(consumer.node, 0).filter(|_| is_function)?;
        Some((consumer.node, after))
    }

    /// Quantizes these inputs of a node.
    pub(super) fn observe_inputs(&self, node: usize, inputs: &[ValueId]) -> Outcome {
        let because = || QuantizeReason::InputOf(self.label(node));
        let inputs: Outcome = inputs.iter().map(|it| self.observe(*it, because())).collect();
        inputs.and(Outcome::on_integers(node))
    }

    /// Quantizes the output of a node, or of the activation function that is fused into it.
    pub(super) fn observe_output(&self, node: usize) -> Outcome {
        let Some(output) = self.graph.output(node, 0) else { return Outcome::default() };
        let because = QuantizeReason::OutputOf(self.label(node));
        let observe = |value| self.observe(value, because).and(Outcome::made_on_integers(value));
        // With a zero point at the midpoint, runtimes do not fuse the function: they fuse it if the
        // quantized range clips the same values.
        match self.function_after(output) {
            Some((function, after)) if !self.types.specs[after].symmetric => {
                let fused = KeepReason::FusedInto { node: self.label(function) };
                Outcome::keep(output, fused).and(observe(after))
            }
            _ => observe(output),
        }
    }

    /// Quantizes a value with its own scale.
    pub(super) fn observe(&self, value: ValueId, because: QuantizeReason) -> Outcome {
        let source = match self.graph.constant(value) {
            Some(_) => Source::Weights,
            None => Source::Observed,
        };
        self.quantize(value, source, because)
    }

    /// Quantizes a value, unless the original model does so.
    pub(super) fn quantize(
        &self,
        value: ValueId,
        source: Source,
        because: QuantizeReason,
    ) -> Outcome {
        let reads = |reader: &Consumer| &self.graph.nodes[reader.node].op_type;
        let anew = self.graph.values[value].consumers.iter().all(|r| reads(r) != "QuantizeLinear");
        if !anew || self.already.contains(&value) {
            return Outcome::default();
        }
        let name = self.graph.values[value].name;
        if self.graph.constant(value).is_none() && self.selection.excludes_value(name) {
            return Outcome::keep(value, KeepReason::Excluded { pattern: name.to_owned() });
        }
        let looks_for_nan = |reader: &&Consumer| matches!(&**reads(reader), "IsInf" | "IsNaN");
        if let Some(reader) = self.graph.values[value].consumers.iter().find(looks_for_nan) {
            let why = "it looks for NaN or infinity, which integers do not have";
            let node = self.label(reader.node);
            return Outcome::keep(value, KeepReason::FloatNode { node, why });
        }
        let (spec, consumers) = (self.types.specs[value], Consumers::All);
        let (stored, matrix, format) = (spec.qtype, None, self.format(&source));
        let plan = ValuePlan { spec, stored, matrix, format, source, consumers, because };
        Outcome::quantize(value, plan)
    }

    /// The format of a value that takes part in integer operators.
    pub(super) fn format(&self, source: &Source) -> Format {
        match (source, self.config.output_format) {
            (Source::Weights, Format::FakeQuant) => Format::FakeQuant,
            _ => Format::Qdq,
        }
    }

    /// Gives the outputs of a node that only moves data the scale of its input, if that is `plan`.
    pub(super) fn pass_on(&self, node: usize, plan: Option<&ValuePlan>) -> Outcome {
        let (Some(input), Some(ValuePlan { spec, source, .. })) = (self.graph.input(node, 0), plan)
        else {
            return Outcome::default();
        };
        // The observed value at the start of a chain of nodes that pass it on.
        let source = match source {
            Source::SameAs(source) => source.clone(),
            Source::Observed | Source::Fixed(_) => self.graph.values[input].name.to_owned(),
            Source::Weights | Source::Product { .. } => return Outcome::default(),
        };
        let outputs = self.outputs(node).map(|output| {
            let plan = ValuePlan {
                spec: *spec,
                stored: spec.qtype,
                format: Format::Qdq,
                source: Source::SameAs(source.clone()),
                matrix: None,
                consumers: Consumers::All,
                because: QuantizeReason::PassedOnBy(self.label(node)),
            };
            let revised = Outcome::revise(output, Decision::Quantize(plan));
            revised.and(Outcome::made_on_integers(output))
        });
        outputs.collect::<Outcome>().and(Outcome::on_integers(node))
    }

    /// Records a node whose input and weight are integers, and its bias if it becomes int32.
    pub(super) fn record(&self, node: IntegerNode) -> Outcome {
        // Training updates biases in float.
        let bias = node.bias.filter(|_| self.config.output_format != Format::FakeQuant);
        Outcome::integer_node(IntegerNode { bias, ..node })
    }
}
