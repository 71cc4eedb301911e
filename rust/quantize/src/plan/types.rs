//! Of what type each activation is: of the one that somebody asked for it, for the operator that
//! makes it or for one that reads it; else of the type of all.

use std::cmp::Reverse;

use quantize_rs_math::{Granularity, QSpec, QType};

use super::activations::Planner;
use super::select::Selection;
use super::{Because, Draft, float32};
use crate::graph::ops::{IntegerSupport, OpRule};
use crate::graph::{Graph, Producer, ValueId};

/// A wish for the type of a value; of several, the least is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    /// How broadly it was put.
    breadth: usize,
    /// How far it was meant from the value.
    distance: usize,
    /// Of two readers, the one that wants more is served.
    bits: Reverse<u32>,
    qtype: QType,
    /// Its position among all wishes.
    wish: usize,
}

/// A wish for those who read a value is farther from it than any for those who make it.
const READER: usize = usize::MAX;

/// What was asked for each value.
pub(super) struct Types {
    /// How each value is quantized, if it is.
    pub(super) specs: Vec<QSpec>,
    /// The wish that this follows from.
    wishes: Vec<Option<usize>>,
}

/// What is needed to find out.
pub(super) struct Finder<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) rules: &'a [Option<(&'static OpRule, IntegerSupport)>],
    pub(super) selection: &'a Selection,
}

impl Finder<'_, '_> {
    /// The types of all values; those of whom nobody asked anything are of the type of `all`.
    pub(super) fn types(&self, order: &[usize], all: QSpec) -> Types {
        let count = self.graph.values.len();
        let mut types = Types { specs: vec![all; count], wishes: vec![None; count] };
        if !self.selection.asks_activations() {
            return types;
        }
        for (id, asked) in self.asked(order).into_iter().enumerate() {
            if let Some(asked) = asked {
                types.specs[id] = QSpec::new(asked.qtype, all.symmetric, Granularity::PerTensor);
                types.wishes[id] = Some(asked.wish);
            }
        }
        for node in order.iter().copied() {
            let Some(first) = self.first(node) else { continue };
            // What is moved is of the type it had, and constants are of the type of what they meet.
            let follow: Vec<ValueId> = match self.integer(node) {
                Some(IntegerSupport::SameAsInput { .. }) => {
                    float32::outputs(self.graph, node).collect()
                }
                _ => self.flowing(node).filter(|id| self.is_constant(*id)).collect(),
            };
            for id in follow {
                types.specs[id] = types.specs[first];
            }
        }
        types
    }

    /// What was asked for each value, by whoever it concerns.
    fn asked(&self, order: &[usize]) -> Vec<Option<Asked>> {
        let graph = self.graph;
        let mut asked = vec![None; graph.values.len()];
        // Readers first, since what they pass on has readers of its own.
        for node in order.iter().rev().copied() {
            for output in float32::outputs(graph, node) {
                asked[output] = self.of_makers(output).min_some(self.of_readers(output, &asked));
            }
        }
        for (id, value) in graph.values.iter().enumerate() {
            if !matches!(value.producer, Producer::Node { .. }) {
                asked[id] = self.of_makers(id).min_some(self.of_readers(id, &asked));
            }
        }
        asked
    }

    /// What was asked for a value or the node that makes it, or for one whose result it holds after
    /// an activation function or the addition of a bias.
    fn of_makers(&self, value: ValueId) -> Option<Asked> {
        let mut best = None;
        let (mut value, mut distance) = (Some(value), 0);
        while let Some(id) = value.filter(|_| distance < READER) {
            let found = &self.graph.values[id];
            best = best.min_some(self.wish(found.name, None, distance));
            value = None;
            if let Producer::Node { node, .. } = found.producer {
                best = best.min_some(self.wish("", Some(node), distance + 1));
                value = self.first(node).filter(|_| self.belongs_to_what_it_reads(node));
            }
            distance += 2;
        }
        best
    }

    fn of_readers(&self, value: ValueId, asked: &[Option<Asked>]) -> Option<Asked> {
        let mut best = None;
        for consumer in &self.graph.values[value].consumers {
            let Some((rule, integer)) = self.rules[consumer.node] else { continue };
            if !rule.takes_activation(consumer.input) {
                continue;
            }
            best = best.min_some(self.wish("", Some(consumer.node), READER));
            if matches!(integer, IntegerSupport::SameAsInput { .. }) {
                for output in float32::outputs(self.graph, consumer.node) {
                    let passed = asked[output].map(|asked| Asked { distance: READER, ..asked });
                    best = best.min_some(passed);
                }
            }
        }
        best
    }

    /// The narrowest wish that means this value, or this node.
    fn wish(&self, value: &str, node: Option<usize>, distance: usize) -> Option<Asked> {
        let (wish, breadth, qtype) = self.selection.activation(self.graph, value, node)?;
        Some(Asked { breadth, distance, bits: Reverse(qtype.bits()), qtype, wish })
    }

    fn integer(&self, node: usize) -> Option<IntegerSupport> {
        self.rules[node].map(|(_, integer)| integer)
    }

    fn is_constant(&self, value: ValueId) -> bool {
        self.graph.constant(value).is_some()
    }

    fn flowing(&self, node: usize) -> impl Iterator<Item = ValueId> {
        let inputs = 0..self.graph.nodes[node].input.len();
        let rule = self.rules[node].map(|(rule, _)| rule);
        let taken = inputs.filter(move |input| rule.is_some_and(|r| r.takes_activation(*input)));
        taken.filter_map(move |input| self.graph.input(node, input))
    }

    /// What flows into a node first, constants left out.
    fn first(&self, node: usize) -> Option<ValueId> {
        self.flowing(node).find(|id| !self.is_constant(*id))
    }

    /// Whether a node is the last part of the one before it: its activation function, or the
    /// constant that it adds.
    fn belongs_to_what_it_reads(&self, node: usize) -> bool {
        let adds = || {
            self.graph.nodes[node].op_type == "Add"
                && self.flowing(node).any(|id| self.is_constant(id))
        };
        self.integer(node) == Some(IntegerSupport::Fused) || adds()
    }
}

/// The lesser of two things that may not be there.
trait MinSome {
    fn min_some(self, other: Self) -> Self;
}

impl<T: Ord> MinSome for Option<T> {
    fn min_some(self, other: Option<T>) -> Option<T> {
        self.into_iter().chain(other).min()
    }
}

impl Planner<'_, '_> {
    /// Whether the runtime computes on integers of these values: all of one type of 8 bits.
    pub(super) fn has_kernels(&self, values: &[ValueId]) -> bool {
        let qtypes = || values.iter().map(|id| self.types.specs[*id].qtype);
        let one = |qtype: QType| Some(qtype) == qtypes().next();
        qtypes().all(|qtype| qtype.bits() == 8 && !qtype.is_float() && one(qtype))
    }

    /// Whether what a node moves would be integers: not all that only moves data takes floats of 8
    /// bits, `Gather` in no operator set.
    pub(super) fn moves_integers(&self, node: usize) -> bool {
        let input = self.graph.input(node, 0);
        input.is_some_and(|input| !self.types.specs[input].qtype.is_float())
    }

    /// The wishes that nothing which is quantized follows.
    pub(super) fn unmet(&self, draft: &Draft) -> Vec<&str> {
        let follows = |id: &usize| {
            let how = draft.quantized(*id);
            how.is_some_and(|how| !matches!(how.because, Because::WeightOf(_) | Because::BiasOf(_)))
        };
        let values = (0..self.types.wishes.len()).filter(follows);
        let met: Vec<usize> = values.filter_map(|id| self.types.wishes[id]).collect();
        self.selection.unmet(&met)
    }
}
