//! The rules of planning, in order, and the fold that turns them into decisions.

use std::collections::{BTreeMap, BTreeSet};

use super::activations::{self, ActivationContext};
use super::decisions::{Decisions, Outcome};
use super::placement::{all_ops, cpu, op_inputs};
use super::select::Selection;
use super::{IntegerNode, biases, consumers, fallback, formats, integer_ops};
use super::{ort_int8_workarounds, routers, slowdown_warnings};
use super::{small_weights, unused_options, weights};
use crate::Config;
use crate::graph::uses::Constant;
use crate::graph::{Graph, ValueId};
use crate::options::target::Placement;

/// The rules, in the order in which they decide.
///
/// A rule is a function from the context and the decisions of the rules above it to an [`Outcome`].
/// The proposal of a rule for a value is combined with the decisions of the rules above it as
/// follows:
///
/// - `Outcome::keep`: the value stays in float, unless a rule above has decided about it.
/// - `Outcome::quantize`: the value is quantized, unless a rule above quantizes it.
/// - `Outcome::revise`: this decision replaces the one above.
const RULES: &[Rule] = &[
    // Quantizes each weight as the options say, or gives the reason why it keeps its type.
    Rule::new("weights", Scope::Constant(weights::decide)),
    // Leaves the weights that choose experts in float.
    Rule::new("routers", Scope::Graph(routers::keep)),
    // Leaves the smallest weights of a network of convolutions in float.
    Rule::new("small weights", Scope::Graph(small_weights::keep)),
    // Replaces LSTMs with quantized weights by `DynamicQuantizeLSTM`, if it supports them.
    Rule::new("dynamic LSTM", Scope::Graph(formats::decide_lstms)),
    // Keeps a weight of experts float if `QMoE` cannot read the other one.
    Rule::new("experts", Scope::Graph(formats::keep_single_experts)),
    // Gives the reason why an `Attention` of the format `dynamic` computes in float.
    Rule::new("float attention", Scope::Graph(formats::keep_attentions)),
    Rule::new("warn: a byte for 4 bits", Scope::Graph(weights::warn_widened)),
    // Finds the nodes that can multiply on integers. For others, the reason is recorded at their
    // input.
    Rule::new("integer ops", Scope::Activations(integer_ops::find)),
    // Leaves the first convolutions of a large network in float.
    Rule::new("float stem", Scope::Activations(cpu::leave_stem_float)).only_for(INTERIOR),
    // Finds the nodes between integer ops that can compute on integers too.
    Rule::new("flow", Scope::Activations(cpu::find_flow)).only_for(CPU),
    // Quantizes the inputs of integer ops, and the outputs that kernels require to be quantized.
    Rule::new("CPU ops", Scope::Activations(cpu::quantize_integer_ops)).only_for(CPU),
    // Quantizes the inputs and outputs of the nodes between them.
    Rule::new("interior ops", Scope::Activations(cpu::quantize_interior_ops)).only_for(CPU),
    // Quantizes the outputs of activation functions that are not fused into the preceding node.
    Rule::new("functions", Scope::Activations(cpu::quantize_functions)).only_for(CPU),
    // Quantizes the input of a node that only moves data if its output is quantized.
    Rule::new("before moves", Scope::NodeBackwards(cpu::quantize_before_moves)).only_for(CPU),
    // Gives the output of a node that only moves data the scale of its input.
    Rule::new("moves", Scope::Node(cpu::pass_on_moved)).only_for(CPU),
    // Quantizes the inputs of integer ops, wherever they come from.
    Rule::new("op inputs", Scope::Activations(op_inputs::quantize_inputs)).only_for(NOT_CPU),
    // Quantizes the other input of an addition to the output of a convolution.
    Rule::new("added inputs", Scope::Activations(op_inputs::quantize_added)).only_for(OP_INPUTS),
    // Quantizes the inputs and outputs of every operator that has a rule.
    Rule::new("all ops", Scope::Node(all_ops::quantize_node)).only_for(ALL_OPS),
    // Gives the input of an activation function the scale of its output.
    Rule::new("shared scales", Scope::NodeBackwards(all_ops::share_scale)).only_for(FUNCTIONS),
    // Quantizes biases of integer nodes to int32, with the scale of input times weight.
    Rule::new("biases", Scope::IntegerNode(biases::decide)),
    // Reduces weights by one bit for targets on which sums of pairs saturate.
    Rule::new("reduced range", Scope::Activations(biases::reduce_range)),
    Rule::new("warn: float kernels", Scope::Activations(cpu::warn_float)).only_for(INTERIOR),
    Rule::new("warn: float8", Scope::Activations(activations::warn_float8)).only_for(WEIGHTED),
    Rule::new("warn: unused types", Scope::Activations(activations::warn_unused_types)),
    // Decides which nodes read the dequantized value and which read the float value.
    Rule::new("consumers", Scope::Activations(consumers::decide)),
    // Quantizes the outputs of nodes that move int8, if ONNX Runtime would do so incorrectly.
    Rule::new("moved int8", Scope::Node(ort_int8_workarounds::quantize_moved)),
    Rule::new("warn: no activations", Scope::Activations(activations::warn_none)),
    // Gives tables of int8 a zero point of 0, if ONNX Runtime would move them incorrectly.
    Rule::new("int8 tables", Scope::Graph(ort_int8_workarounds::make_tables_symmetric)),
    Rule::new("warn: symmetric", Scope::Graph(weights::warn_symmetric)),
    Rule::new("warn: unused options", Scope::Graph(unused_options::warn)),
    Rule::new("warn: slower", Scope::Graph(slowdown_warnings::than_float)),
    Rule::new("warn: not searched", Scope::Graph(fallback::warn_not_searched)),
    // Gives the reason why each remaining value keeps its type.
    Rule::new("fallback", Scope::Graph(fallback::keep_others)),
];

const WEIGHTED: &[Placement] = &[Placement::WeightedOps];
const INTERIOR: &[Placement] = &[Placement::WeightedAndInterior];
const CPU: &[Placement] = &[Placement::WeightedOps, Placement::WeightedAndInterior];
const OP_INPUTS: &[Placement] = &[Placement::OpInputs];
const ALL_OPS: &[Placement] = &[Placement::AllOps];
const FUNCTIONS: &[Placement] =
    &[Placement::WeightedOps, Placement::WeightedAndInterior, Placement::AllOps];
const NOT_CPU: &[Placement] = &[Placement::OpInputs, Placement::AllOps];

/// Folds all rules over the graph.
pub(super) fn decide(context: &Context<'_, '_>) -> Decisions {
    fold(RULES, context)
}

/// Adds the outcome of each rule that applies to the decisions of those before it.
fn fold(rules: &[Rule], context: &Context<'_, '_>) -> Decisions {
    let applies = |rule: &&Rule| rule.placements.is_none_or(|it| it.contains(&context.placement()));
    rules.iter().filter(applies).fold(Decisions::default(), |before, rule| {
        let after = rule.decide(context, before);
        debug_assert!(
            after.values.keys().all(|value| *value < context.graph.values.len()),
            "rule `{}` decides about a value that the graph does not have",
            rule.name
        );
        after
    })
}

/// One step of planning.
#[derive(Clone, Copy)]
struct Rule {
    name: &'static str,
    scope: Scope,
    /// The placements for which it decides; `None` for all.
    placements: Option<&'static [Placement]>,
}

/// The granularity of a rule, and its function.
///
/// A rule about one constant or node sees its decisions about the previous ones.
#[derive(Clone, Copy)]
enum Scope {
    /// The whole graph.
    Graph(fn(&Context<'_, '_>, &Decisions) -> Outcome),
    /// One constant.
    Constant(fn(&Context<'_, '_>, &Decisions, &Constant<'_>) -> Outcome),
    /// The whole graph. This and all below apply only if activations are quantized.
    Activations(fn(&ActivationContext<'_, '_>, &Decisions) -> Outcome),
    /// One node, after the nodes whose outputs it reads.
    Node(fn(&ActivationContext<'_, '_>, &Decisions, usize) -> Outcome),
    /// One node, after the nodes that read its outputs.
    NodeBackwards(fn(&ActivationContext<'_, '_>, &Decisions, usize) -> Outcome),
    /// One node whose input and weight are integers.
    IntegerNode(fn(&ActivationContext<'_, '_>, &Decisions, IntegerNode) -> Outcome),
}

impl Rule {
    const fn new(name: &'static str, scope: Scope) -> Rule {
        Rule { name, scope, placements: None }
    }

    /// The same rule, for targets of these placements alone.
    const fn only_for(self, placements: &'static [Placement]) -> Rule {
        Rule { name: self.name, scope: self.scope, placements: Some(placements) }
    }

    /// The decisions before this rule and its own.
    fn decide(&self, context: &Context<'_, '_>, before: Decisions) -> Decisions {
        let activations = context.activations.as_ref();
        match (&self.scope, activations) {
            (Scope::Graph(decide), _) => {
                let outcome = decide(context, &before);
                before.with(outcome)
            }
            (Scope::Constant(decide), _) => {
                before.with_each(context.constants, |before, it| decide(context, before, it))
            }
            (_, None) => before,
            (Scope::Activations(decide), Some(context)) => {
                let outcome = decide(context, &before);
                before.with(outcome)
            }
            (Scope::Node(decide), Some(context)) => {
                before.with_each(&context.order, |before, node| decide(context, before, *node))
            }
            (Scope::NodeBackwards(decide), Some(context)) => {
                let nodes = context.order.iter().rev();
                before.with_each(nodes, |before, node| decide(context, before, *node))
            }
            (Scope::IntegerNode(decide), Some(context)) => {
                let nodes = before.integer_nodes.clone();
                before.with_each(&nodes, |before, node| decide(context, before, *node))
            }
        }
    }
}

/// The input of every rule.
pub(super) struct Context<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) constants: &'a [Constant<'m>],
    pub(super) config: &'a Config,
    pub(super) selection: &'a Selection,
    /// Weights that the output format leaves to float operators.
    pub(super) float_weights: BTreeSet<ValueId>,
    /// The weights that get 8 bits where others get fewer.
    pub(super) wider_weights: BTreeMap<ValueId, &'static str>,
    /// The additional input of rules about activations; `None` if only weights are quantized.
    pub(super) activations: Option<ActivationContext<'a, 'm>>,
}

impl Context<'_, '_> {
    fn placement(&self) -> Placement {
        self.config.profile().placement
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use quantize_rs_math::{Granularity, QSpec, QType};

    use super::*;
    use crate::graph::uses;
    use crate::options::target::Target;
    use crate::plan::{Consumers, Decision, KeepReason, QuantizeReason, Source, ValuePlan};
    use crate::{Format, Model};

    /// The decisions of `rules` about a fixture.
    fn decisions(fixture: &str, config: &Config, rules: &[Rule]) -> Decisions {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let model = Model::open(folder.join(format!("{fixture}.onnx"))).unwrap();
        let graph = Graph::of(&model).unwrap();
        let constants = uses::constants(&graph);
        let selection = Selection::of(&graph, &constants, config).unwrap();
        let activations = ActivationContext::of(&graph, &constants, config, &selection).unwrap();
        let (graph, constants, selection) = (&graph, &constants[..], &selection);
        let float_weights = BTreeSet::new();
        let wider_weights = BTreeMap::new();
        let context = Context {
            graph,
            constants,
            config,
            selection,
            float_weights,
            wider_weights,
            activations,
        };
        fold(rules, &context)
    }

    fn decision(rules: &[Rule]) -> Decision {
        decisions("conv2d_relu", &Config::for_target(Target::X86), rules).values[&0].clone()
    }

    const fn graph(decide: fn(&Context<'_, '_>, &Decisions) -> Outcome) -> Rule {
        Rule::new("of a test", Scope::Graph(decide))
    }

    const EMPTY: Rule = graph(|_, _| Outcome::keep(0, KeepReason::Empty));
    const OUTPUT: Rule = graph(|_, _| Outcome::keep(0, KeepReason::GraphOutput));
    const INT8: Rule = graph(|_, _| quantize(QType::Int8));
    const UINT8: Rule = graph(|_, _| quantize(QType::UInt8));
    const REVISED: Rule = graph(|_, _| Outcome::revise(0, Decision::KeepFloat(KeepReason::Bias)));

    fn quantize(qtype: QType) -> Outcome {
        Outcome::quantize(0, plan(qtype))
    }

    #[test]
    fn an_earlier_decision_stands_unless_a_later_rule_takes_precedence() {
        let keep = Decision::KeepFloat;
        let int8 = || Decision::Quantize(plan(QType::Int8));
        let uint8 = || Decision::Quantize(plan(QType::UInt8));
        let cases: [(&[Rule], Decision); 9] = [
            (&[EMPTY, OUTPUT], keep(KeepReason::Empty)),
            (&[OUTPUT, EMPTY], keep(KeepReason::GraphOutput)),
            (&[INT8, UINT8], int8()),
            (&[UINT8, INT8], uint8()),
            (&[EMPTY, INT8], int8()),
            (&[INT8, EMPTY], int8()),
            (&[INT8, REVISED], keep(KeepReason::Bias)),
            (&[EMPTY, REVISED, OUTPUT], keep(KeepReason::Bias)),
            (&[REVISED, UINT8], uint8()),
        ];
        for (index, (rules, expected)) in cases.into_iter().enumerate() {
            assert_eq!(decision(rules), expected, "case {index}");
        }
    }

    #[test]
    fn proposals_of_one_rule_meet_each_other_as_those_of_several_do() {
        const BOTH: Rule = graph(|_, _| quantize(QType::Int8).and(quantize(QType::UInt8)));
        assert_eq!(decision(&[BOTH]), Decision::Quantize(plan(QType::Int8)));
        let outcome = Outcome::keep(0, KeepReason::Empty).and(quantize(QType::UInt8));
        let after = Decisions::default();
        assert_eq!(after.quantized_after(&outcome, 0), Some(&plan(QType::UInt8)));
    }

    #[test]
    fn a_rule_about_nodes_sees_its_decisions_about_the_nodes_before() {
        // Each outcome keeps the output of a node, with the number of previous nodes as its element
        // count.
        fn count(context: &ActivationContext<'_, '_>, before: &Decisions, node: usize) -> Outcome {
            let output = context.graph.output(node, 0).unwrap();
            let kept = KeepReason::TooSmall { elements: before.values.len(), min_elements: 0 };
            Outcome::keep(output, kept)
        }
        let config = Config::for_target(Target::X86);
        let counts = |scope| {
            let decisions = decisions("mlp_relu", &config, &[Rule::new("count", scope)]);
            let counts = decisions.values.into_values().map(|decision| match decision {
                Decision::KeepFloat(KeepReason::TooSmall { elements, .. }) => elements,
                other => panic!("{other:?}"),
            });
            counts.collect::<Vec<_>>()
        };
        let forwards = counts(Scope::Node(count));
        assert_eq!(forwards, (0..forwards.len()).collect::<Vec<_>>());
        assert!(forwards.len() > 1);
        let backwards = counts(Scope::NodeBackwards(count));
        assert_eq!(backwards, (0..forwards.len()).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_rule_decides_only_for_its_placements_and_where_activations_are_quantized() {
        let all = Rule::new("all", Scope::Activations(|_, _| Outcome::keep(0, KeepReason::Empty)));
        let rules = [all.only_for(OP_INPUTS)];
        let decided = |config: &Config, rules: &[Rule]| {
            !decisions("conv2d_relu", config, rules).values.is_empty()
        };
        assert!(decided(&Config::for_target(Target::TensorRt), &rules));
        assert!(!decided(&Config::for_target(Target::X86), &rules));
        assert!(!decided(&Config::default(), &[all]));
    }

    #[test]
    fn every_value_is_decided_about() {
        for fixture in ["conv2d_relu", "if_subgraph", "lstm", "no_weights"] {
            for config in [Config::default(), Config::for_target(Target::X86)] {
                let values = decisions(fixture, &config, RULES).values;
                assert!(values.keys().copied().eq(0..values.len()), "{fixture}");
                assert!(!values.is_empty());
            }
        }
    }

    /// Pairs of rules, of which the second needs the decisions of the first, and a target to test
    /// them.
    const NEEDS: &[(&str, &str, Target)] = &[
        ("weights", "integer ops", Target::X86),
        ("weights", "fallback", Target::X86),
        ("integer ops", "CPU ops", Target::X86),
        ("integer ops", "flow", Target::X86),
        ("flow", "interior ops", Target::X86),
        ("CPU ops", "before moves", Target::X86),
        ("CPU ops", "moves", Target::X86),
        ("CPU ops", "biases", Target::X86),
        ("CPU ops", "reduced range", Target::X86Avx2),
        ("op inputs", "all ops", Target::Qnn),
        ("op inputs", "biases", Target::Qnn),
        ("all ops", "shared scales", Target::Qnn),
    ];

    /// Networks of convolutions and a transformer: at least one fails if a rule comes too early.
    const FIXTURES: [&str; 6] = [
        "conv2d_relu",
        "residual_add",
        "maxpool_flatten_gemm",
        "transformer_block",
        "conv_sigmoid",
        "mlp_relu",
    ];

    #[test]
    fn rules_come_after_those_whose_decisions_they_need() {
        let position = |name: &str| RULES.iter().position(|rule| rule.name == name).unwrap();
        let makes_no_difference = |(first, second, target): &&(&str, &str, Target)| {
            let (first, second) = (position(first), position(second));
            assert!(first < second, "{}", RULES[second].name);
            let mut early = RULES.to_vec();
            let moved = early.remove(second);
            early.insert(first, moved);
            let config = Config { per_channel: Some(true), ..Config::for_target(*target) };
            let decided = |fixture, rules: &[Rule]| decisions(fixture, &config, rules).values;
            FIXTURES.iter().all(|fixture| decided(fixture, RULES) == decided(fixture, &early))
        };
        let found: Vec<_> = NEEDS.iter().filter(makes_no_difference).collect();
        assert!(found.is_empty(), "the order makes no difference: {found:?}");
    }

    #[test]
    fn names_of_rules_differ() {
        let names: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len());
    }

    fn plan(qtype: QType) -> ValuePlan {
        ValuePlan {
            spec: QSpec::new(qtype, true, Granularity::PerTensor),
            stored: qtype,
            matrix: None,
            format: Format::Qdq,
            source: Source::Observed,
            consumers: Consumers::All,
            because: QuantizeReason::InputOf("node".to_owned()),
        }
    }
}
