//! Placement on a CPU: operators with weights lead, and others join where that keeps data in
//! integers.

use std::collections::BTreeSet;

use quantize_rs_math::QType;

use crate::graph::ops::IntegerSupport;
use crate::graph::{Producer, ValueId};
use crate::options::target::Placement;
use crate::plan::activations::Planner;
use crate::plan::integer_ops::Lead;
use crate::plan::{Because, Decision, Draft, Kept, Source};

/// A filter with fewer multiplications for each output than this fills no integer kernel.
const FEW_TAPS: usize = 32;

/// Of so many convolutions and matrix products, one may stay float for its speed.
const FLOAT_SHARE: usize = 20;

/// Where integers come from and where they lead to.
struct Flow {
    /// Values that come out of integer kernels, or are moved from there.
    native: Vec<bool>,
    /// Nodes without weights that join in.
    joined: BTreeSet<usize>,
}

impl Planner<'_, '_> {
    /// Nodes with weights lead. Others join where everything that flows into them comes as integers
    /// and something that comes after them wants integers.
    ///
    /// So sums, pools and functions between the convolutions of a picture network join, and the sums
    /// and norms of a transformer do not, whose matrix products give floats: squeezing those into
    /// 8 bits costs much and wins nothing.
    pub(crate) fn between(&self, draft: &mut Draft, mut leads: Vec<Lead>) {
        self.leave_stem(draft, &mut leads);
        let (wanted, flow) = self.flow(&leads);
        for lead in &leads {
            self.observe_inputs(draft, lead.node, &lead.inputs);
            if self.gives_integers(lead) {
                self.observe_output(draft, lead.last);
            }
            Planner::record(draft, lead);
        }
        for node in &flow.joined {
            self.observe_inputs(draft, *node, &self.flowing(*node));
            self.observe_output(draft, *node);
        }
        // An activation function that no node before it could take in.
        for node in &self.order {
            if let (Some(IntegerSupport::Fused), Some(input), Some(output)) =
                (self.integer(*node), self.graph.input(*node, 0), self.graph.output(*node, 0))
                && flow.native[input]
                && wanted[output]
            {
                self.quantize(
                    draft,
                    output,
                    Source::Observed,
                    Because::OutputOf(self.label(*node)),
                );
                draft.made_on_integers.insert(output);
            }
        }
        self.ask_movers(draft);
        for node in &self.order {
            let moves = matches!(self.integer(*node), Some(IntegerSupport::SameAsInput { .. }));
            if moves
                && self.moves_integers(*node)
                && self.outputs(*node).any(|output| wanted[output])
            {
                self.pass_on(draft, *node);
            }
        }
    }

    /// Whether what a node that leads makes comes out of an integer kernel.
    fn gives_integers(&self, lead: &Lead) -> bool {
        let made = self.result(lead.last);
        lead.quantized_output && self.has_kernels(&[&lead.inputs[..], &made[..]].concat())
    }

    /// What flows into a node, and what is quantized of what it makes.
    fn read_and_made(&self, node: usize) -> Vec<ValueId> {
        let mut values = self.flowing(node);
        values.extend(self.result(node));
        values
    }

    /// What comes out of a node, or of the activation function that is folded into it.
    pub(crate) fn result(&self, node: usize) -> Vec<ValueId> {
        let after = |output| self.function_after(output).map_or(output, |(_, after)| after);
        self.outputs(node).map(after).collect()
    }

    /// Says which of those that multiply do so in float, since their types have no kernels.
    pub(crate) fn computes_in_float(&self, leads: &[Lead], all: QType) -> Option<String> {
        let in_float = |lead: &&Lead| {
            let made = if lead.quantized_output { self.result(lead.last) } else { Vec::new() };
            !self.has_kernels(&[&lead.inputs[..], &made[..]].concat())
        };
        let in_float: Vec<&Lead> = leads.iter().filter(in_float).collect();
        let first = in_float.first().filter(|_| self.profile.placement == Placement::Between)?;
        if in_float.len() == leads.len() && !self.selection.asks_activations() {
            return Some(format!(
                "ONNX Runtime has no integer kernels for {all} activations: the model is smaller, \
                 and computes in float"
            ));
        }
        let others = match in_float.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!(
            "{}{others} computes in float: ONNX Runtime has integer kernels only where all that is \
             read and made is of one type of 8 bits",
            self.label(first.node)
        ))
    }

    /// Leaves the first convolutions of a large network in float, where they read few channels:
    /// integer kernels gain nothing there, and what is lost at the entry is lost for all.
    fn leave_stem(&self, draft: &mut Draft, leads: &mut Vec<Lead>) {
        if self.profile.placement != Placement::Between {
            return;
        }
        let counted =
            |lead: &&Lead| matches!(self.graph.nodes[lead.node].op_type.as_str(), "Conv" | "Gemm");
        let mut left = leads.iter().filter(counted).count() / FLOAT_SHARE;
        let mut float: BTreeSet<ValueId> =
            (0..self.graph.values.len()).filter(|id| self.is_input(*id)).collect();
        for node in &self.order {
            let passes = matches!(
                self.integer(*node),
                Some(IntegerSupport::Fused | IntegerSupport::SameAsInput { .. })
            );
            let stays = match leads.iter().position(|lead| lead.node == *node) {
                Some(index) if left > 0 && self.is_narrow(draft, &leads[index], &float) => {
                    let weight = leads.remove(index).weight;
                    let why = Kept::Stem { node: self.label(*node) };
                    if let Some(weight) = weight {
                        draft.decisions.insert(weight, Decision::Keep(why));
                    }
                    left -= 1;
                    true
                }
                _ => passes && self.graph.input(*node, 0).is_some_and(|id| float.contains(&id)),
            };
            if stays {
                float.extend(self.outputs(*node));
            }
        }
    }

    fn is_input(&self, value: ValueId) -> bool {
        matches!(self.graph.values[value].producer, Producer::Input)
    }

    /// Whether a node reads floats, through filters of few taps that nobody else needs and of which
    /// nobody asked anything.
    fn is_narrow(&self, draft: &Draft, lead: &Lead, float: &BTreeSet<ValueId>) -> bool {
        let Some(weight) = lead.weight else { return false };
        let taps = self.shape(weight).and_then(|shape| {
            shape.iter().skip(1).try_fold(1usize, |taps, length| taps.checked_mul(*length))
        });
        let value = &self.graph.values[weight];
        let consumer = std::iter::once(self.graph.nodes[lead.node]);
        let asked = self.selection.weight_type(&[value.name], consumer);
        self.gives_integers(lead)
            && draft.quantized(weight).is_some()
            && lead.inputs.iter().all(|input| float.contains(input))
            && taps.is_some_and(|taps| taps < FEW_TAPS)
            && value.consumers.len() == 1
            && asked.is_none()
            && self.has_one_reader(lead.node)
    }

    /// Whether what comes out of a node, or of the function after it, goes to one place: for several
    /// the change from floats to integers costs more than it gains.
    fn has_one_reader(&self, node: usize) -> bool {
        let output = self.graph.output(node, 0);
        let after = output.and_then(|output| self.function_after(output));
        let last = after.map(|(_, after)| after).or(output);
        last.is_some_and(|last| self.graph.values[last].consumers.len() == 1)
    }

    /// Which values are wanted as integers, and which come as integers.
    fn flow(&self, leads: &[Lead]) -> (Vec<bool>, Flow) {
        let joins = |integer| matches!(integer, Some(IntegerSupport::Computes { kernel: Some(_) }));
        // A sum that holds the bias of a product is a part of that.
        let last: BTreeSet<usize> = leads.iter().map(|lead| lead.last).collect();
        let mut joined: BTreeSet<usize> = self.order.iter().copied().collect();
        joined.retain(|node| {
            self.profile.placement == Placement::Between
                && !last.contains(node)
                && joins(self.integer(*node))
                && self.has_kernels(&self.read_and_made(*node))
        });
        // What does not join wants nothing, so that others may not join either: until all agree.
        loop {
            let wanted = self.wanted(leads, &joined);
            let flow = self.native(leads, &joined, &wanted);
            if flow.joined == joined {
                return (wanted, flow);
            }
            joined = flow.joined;
        }
    }

    /// Values that lead to a node that multiplies on integers.
    fn wanted(&self, leads: &[Lead], joined: &BTreeSet<usize>) -> Vec<bool> {
        let mut wanted = vec![false; self.graph.values.len()];
        leads.iter().flat_map(|lead| &lead.inputs).for_each(|input| wanted[*input] = true);
        for node in self.order.iter().rev() {
            let passes = match self.integer(*node) {
                Some(IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused) => true,
                _ => joined.contains(node),
            };
            if passes && self.outputs(*node).any(|output| wanted[output]) {
                self.flowing(*node).into_iter().for_each(|input| wanted[input] = true);
            }
        }
        wanted
    }

    /// Values that come as integers, when of `candidates` those join that can.
    fn native(&self, leads: &[Lead], candidates: &BTreeSet<usize>, wanted: &[bool]) -> Flow {
        let values = self.graph.values.len();
        let mut flow = Flow { native: vec![false; values], joined: BTreeSet::new() };
        let mut quantized = vec![false; values];
        let mut gives = BTreeSet::new();
        for lead in leads {
            lead.inputs.iter().for_each(|input| quantized[*input] = true);
            if self.gives_integers(lead) {
                gives.insert(lead.last);
            }
        }
        for node in self.order.iter().copied() {
            let comes = match self.integer(node) {
                Some(IntegerSupport::SameAsInput { .. } | IntegerSupport::Fused) => {
                    self.graph.input(node, 0).is_some_and(|input| flow.native[input])
                }
                _ if candidates.contains(&node) => {
                    let inputs = self.flowing(node);
                    let fits = |id: &ValueId| {
                        flow.native[*id] || quantized[*id] || self.fits_beside_integers(*id)
                    };
                    let joins = inputs.iter().any(|id| flow.native[*id])
                        && inputs.iter().all(fits)
                        && self.outputs(node).any(|output| wanted[output]);
                    if joins {
                        flow.joined.insert(node);
                    }
                    joins
                }
                _ => gives.contains(&node),
            };
            if comes {
                self.outputs(node).for_each(|output| flow.native[output] = true);
            }
        }
        flow
    }

    /// Whether a constant can be quantized like an activation.
    ///
    /// On x86 ONNX Runtime turns int8 activations into uint8, but not such constants.
    fn fits_beside_integers(&self, value: ValueId) -> bool {
        !self.types.specs[value].qtype.signed() && self.may_quantize(value).is_ok()
    }

    /// Quantizes what goes into nodes that only move data, when what comes out must be quantized:
    /// the node then moves bytes instead of floats.
    fn ask_movers(&self, draft: &mut Draft) {
        let graph = self.graph;
        for node in self.order.iter().rev().copied() {
            let moves =
                self.integer(node) == Some(IntegerSupport::SameAsInput { same_range: true });
            let (Some(input), Some(output)) = (graph.input(node, 0), graph.output(node, 0)) else {
                continue;
            };
            if moves
                && self.moves_integers(node)
                && draft.quantized(output).is_some()
                && graph.constant(input).is_none()
                && !graph.values[input].is_output
            {
                self.observe(draft, input, Because::InputOf(self.label(node)));
            }
        }
    }
}
