//! The decisions of the rules so far, and how the outcome of one more rule is added.

use std::collections::{BTreeMap, BTreeSet};

use super::integer_ops::IntegerOp;
use super::placement::cpu::Flow;
use super::{Decision, IntegerNode, KeepReason, ValuePlan};
use crate::graph::ValueId;

/// The decisions of all previous rules. Rules read them and never change them.
#[derive(Default)]
pub(super) struct Decisions {
    pub(super) values: BTreeMap<ValueId, Decision>,
    /// Nodes that can compute on integers.
    integer_ops: Vec<IntegerOp>,
    /// Nodes among `integer_ops` that a later rule left in float.
    float_ops: BTreeSet<usize>,
    /// The values that are integers between the nodes that compute on integers.
    pub(super) flow: Flow,
    /// Nodes whose input, weight and bias are integers.
    pub(super) integer_nodes: Vec<IntegerNode>,
    /// Nodes that read dequantized values.
    pub(super) on_integers: BTreeSet<usize>,
    /// Values that integer kernels produce, or that are moved from such a value.
    pub(super) made_on_integers: BTreeSet<ValueId>,
    /// Warnings for the caller, in the order of the rules.
    pub(super) warnings: Vec<String>,
}

impl Decisions {
    /// The decision about a value, if a rule has made one.
    pub(super) fn get(&self, value: ValueId) -> Option<&Decision> {
        self.values.get(&value)
    }

    /// The plan of a value, if it is quantized.
    pub(super) fn quantized(&self, value: ValueId) -> Option<&ValuePlan> {
        as_quantized(self.get(value))
    }

    /// All quantized values, each with its plan.
    pub(super) fn all_quantized(&self) -> impl Iterator<Item = (ValueId, &ValuePlan)> {
        self.values.iter().filter_map(|(id, decision)| Some((*id, as_quantized(Some(decision))?)))
    }

    /// The plan of a value after `outcome` is added, if it is quantized.
    pub(super) fn quantized_after<'a>(
        &'a self,
        outcome: &'a Outcome,
        value: ValueId,
    ) -> Option<&'a ValuePlan> {
        let of_value = outcome.proposals.iter().filter(|proposal| proposal.value == value);
        as_quantized(of_value.fold(self.get(value), |earlier, proposal| {
            if proposal.precedence.replaces(earlier) { Some(&proposal.decision) } else { earlier }
        }))
    }

    /// Nodes that can compute on integers, whether or not a later rule left them in float.
    pub(super) fn possible_integer_ops(&self) -> &[IntegerOp] {
        &self.integer_ops
    }

    /// Nodes that compute on integers.
    pub(super) fn integer_ops(&self) -> impl Iterator<Item = &IntegerOp> {
        self.integer_ops.iter().filter(|op| !self.float_ops.contains(&op.node))
    }

    /// These decisions and the outcome of one more rule.
    ///
    /// Proposals are taken one after the other; [`Precedence`] says which of them replace an
    /// earlier decision. Everything else in an outcome is added.
    pub(super) fn with(mut self, outcome: Outcome) -> Decisions {
        for Proposal { value, decision, precedence } in outcome.proposals {
            if precedence.replaces(self.get(value)) {
                self.values.insert(value, decision);
            }
        }
        self.integer_ops.extend(outcome.integer_ops);
        self.float_ops.extend(outcome.float_ops);
        self.flow = outcome.flow.unwrap_or(self.flow);
        self.integer_nodes.extend(outcome.integer_nodes);
        self.on_integers.extend(outcome.on_integers);
        self.made_on_integers.extend(outcome.made_on_integers);
        self.warnings.extend(outcome.warnings);
        self
    }

    /// These decisions and the outcome for each of `items`, each of which sees the outcomes before
    /// it.
    pub(super) fn with_each<T>(
        self,
        items: impl IntoIterator<Item = T>,
        decide: impl Fn(&Decisions, T) -> Outcome,
    ) -> Decisions {
        items.into_iter().fold(self, |before, item| {
            let outcome = decide(&before, item);
            before.with(outcome)
        })
    }
}

fn as_quantized(decision: Option<&Decision>) -> Option<&ValuePlan> {
    match decision {
        Some(Decision::Quantize(plan)) => Some(plan),
        _ => None,
    }
}

/// Which earlier decisions a proposal replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precedence {
    /// None: the first reason to keep a value in float is kept.
    Fallback,
    /// A reason to keep the value in float: of two rules that quantize a value, the first decides.
    Quantize,
    /// Any: the rule has read the earlier decision and changes it.
    Revision,
}

impl Precedence {
    fn replaces(self, earlier: Option<&Decision>) -> bool {
        match (self, earlier) {
            (_, None)
            | (Precedence::Quantize, Some(Decision::KeepFloat(_)))
            | (Precedence::Revision, Some(_)) => true,
            (Precedence::Quantize, Some(Decision::Quantize(_)))
            | (Precedence::Fallback, Some(_)) => false,
        }
    }
}

/// A proposed decision about one value.
struct Proposal {
    value: ValueId,
    decision: Decision,
    precedence: Precedence,
}

/// What one rule adds to the previous decisions.
///
/// A rule builds an outcome from the constructors below, joined with [`Outcome::and`] or `collect`.
#[derive(Default)]
pub(super) struct Outcome {
    proposals: Vec<Proposal>,
    integer_ops: Vec<IntegerOp>,
    float_ops: Vec<usize>,
    flow: Option<Flow>,
    integer_nodes: Vec<IntegerNode>,
    on_integers: Vec<usize>,
    made_on_integers: Vec<ValueId>,
    warnings: Vec<String>,
}

impl Outcome {
    /// The value stays in float for this reason, unless an earlier rule has decided.
    pub(super) fn keep(value: ValueId, reason: KeepReason) -> Outcome {
        Outcome::proposal(value, Decision::KeepFloat(reason), Precedence::Fallback)
    }

    /// The value is quantized, unless an earlier rule has quantized it.
    pub(super) fn quantize(value: ValueId, plan: ValuePlan) -> Outcome {
        Outcome::proposal(value, Decision::Quantize(plan), Precedence::Quantize)
    }

    /// The decision replaces any earlier one.
    pub(super) fn revise(value: ValueId, decision: Decision) -> Outcome {
        Outcome::proposal(value, decision, Precedence::Revision)
    }

    fn proposal(value: ValueId, decision: Decision, precedence: Precedence) -> Outcome {
        Outcome { proposals: vec![Proposal { value, decision, precedence }], ..Outcome::default() }
    }

    /// A node can compute on integers.
    pub(super) fn integer_op(op: IntegerOp) -> Outcome {
        Outcome { integer_ops: vec![op], ..Outcome::default() }
    }

    /// A node that can compute on integers computes in float.
    pub(super) fn float_op(node: usize) -> Outcome {
        Outcome { float_ops: vec![node], ..Outcome::default() }
    }

    /// The values that are integers between integer ops.
    pub(super) fn flow(flow: Flow) -> Outcome {
        Outcome { flow: Some(flow), ..Outcome::default() }
    }

    /// The input, weight and bias of a node are integers.
    pub(super) fn integer_node(node: IntegerNode) -> Outcome {
        Outcome { integer_nodes: vec![node], ..Outcome::default() }
    }

    /// A node reads dequantized values.
    pub(super) fn on_integers(node: usize) -> Outcome {
        Outcome { on_integers: vec![node], ..Outcome::default() }
    }

    /// An integer kernel produces the value.
    pub(super) fn made_on_integers(value: ValueId) -> Outcome {
        Outcome { made_on_integers: vec![value], ..Outcome::default() }
    }

    /// A warning for the caller.
    pub(super) fn warn(warnings: impl IntoIterator<Item = String>) -> Outcome {
        Outcome { warnings: warnings.into_iter().collect(), ..Outcome::default() }
    }

    /// This outcome, followed by `other`.
    pub(super) fn and(mut self, other: Outcome) -> Outcome {
        self.proposals.extend(other.proposals);
        self.integer_ops.extend(other.integer_ops);
        self.float_ops.extend(other.float_ops);
        self.flow = other.flow.or(self.flow);
        self.integer_nodes.extend(other.integer_nodes);
        self.on_integers.extend(other.on_integers);
        self.made_on_integers.extend(other.made_on_integers);
        self.warnings.extend(other.warnings);
        self
    }
}

impl FromIterator<Outcome> for Outcome {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Outcome {
        outcomes.into_iter().fold(Outcome::default(), Outcome::and)
    }
}
