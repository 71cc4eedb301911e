//! The type of each activation: the type requested for it, for the operator that produces it or for
//! one that reads it; otherwise the default type of activations.

use std::cmp::Reverse;

use quantize_rs_math::{Granularity, QSpec, QType};

use super::activations::ActivationContext;
use super::decisions::Decisions;
use super::select::Selection;
use super::{QuantizeReason, float32};
use crate::graph::ops::{IntegerSupport, OpRule};
use crate::graph::{Graph, Producer, ValueId};

/// A request for the type of a value; of several requests, the smallest decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    /// The breadth of its selector.
    breadth: usize,
    /// The distance from the value to the value or node that the request names.
    distance: usize,
    /// Of two consumers, the one that requests more bits decides.
    bits: Reverse<u32>,
    qtype: QType,
    /// Its position among all requests.
    index: usize,
}

/// A request for a consumer of a value is farther from it than any for its producers.
const CONSUMER: usize = usize::MAX;

/// The type of each value, and the requests that determined it.
pub(super) struct Types {
    /// How each value is quantized if it is quantized.
    pub(super) specs: Vec<QSpec>,
    /// The requests that this follows from: more than one where they ask for the same type.
    requests: Vec<Vec<usize>>,
    /// The requests for a value that takes another type, that of another value.
    overruled: Vec<Overruled>,
}

/// A request without effect, since its value has the type of another value.
struct Overruled {
    request: usize,
    value: ValueId,
    follows: ValueId,
}

/// The inputs of the search for types.
pub(super) struct Finder<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) rules: &'a [Option<(&'static OpRule, IntegerSupport)>],
    pub(super) selection: &'a Selection,
}

impl Finder<'_, '_> {
    /// The types of all values; `all` is the default.
    pub(super) fn types(&self, order: &[usize], all: QSpec) -> Types {
        let count = self.graph.values.len();
        let (specs, requests) = (vec![all; count], vec![Vec::new(); count]);
        let mut types = Types { specs, requests, overruled: Vec::new() };
        if !self.selection.asks_activations() {
            return types;
        }
        for (id, request) in self.requests(order).into_iter().enumerate() {
            if let Some(request) = request {
                types.specs[id] = QSpec::new(request.qtype, all.symmetric, Granularity::PerTensor);
                types.requests[id] = vec![request.index];
            }
        }
        // The value that each value has its type from.
        let mut sources: Vec<ValueId> = (0..count).collect();
        for node in order.iter().copied() {
            let Some(first) = self.first(node) else { continue };
            // Moved data keeps its type, and constants take the type of the activation they meet.
            let follow: Vec<ValueId> = match self.integer(node) {
                Some(IntegerSupport::SameAsInput { .. }) => {
                    float32::outputs(self.graph, node).collect()
                }
                _ => self.flowing(node).filter(|id| self.is_constant(*id)).collect(),
            };
            for id in follow {
                sources[id] = sources[first];
                let mut requests = types.requests[first].clone();
                for request in std::mem::take(&mut types.requests[id]) {
                    if types.specs[id].qtype == types.specs[first].qtype {
                        requests.push(request);
                    } else {
                        let (value, follows) = (id, sources[first]);
                        types.overruled.push(Overruled { request, value, follows });
                    }
                }
                types.requests[id] = requests;
                types.specs[id] = types.specs[first];
            }
        }
        types
    }

    /// The request that decides about each value.
    fn requests(&self, order: &[usize]) -> Vec<Option<Request>> {
        let graph = self.graph;
        let mut found = vec![None; graph.values.len()];
        // Consumers first, since a moved value has consumers of its own.
        for node in order.iter().rev().copied() {
            for output in float32::outputs(graph, node) {
                found[output] =
                    self.of_producers(output).min_some(self.of_consumers(output, &found));
            }
        }
        for (id, value) in graph.values.iter().enumerate() {
            if !matches!(value.producer, Producer::Node { .. }) {
                found[id] = self.of_producers(id).min_some(self.of_consumers(id, &found));
            }
        }
        found
    }

    /// The request for a value, for the node that produces it, or for one before that of which it
    /// is the result after an activation function or the addition of a bias.
    fn of_producers(&self, value: ValueId) -> Option<Request> {
        let mut best = None;
        let (mut value, mut distance) = (Some(value), 0);
        while let Some(id) = value.filter(|_| distance < CONSUMER) {
            let found = &self.graph.values[id];
            best = best.min_some(self.request(found.name, None, distance));
            value = None;
            if let Producer::Node { node, .. } = found.producer {
                best = best.min_some(self.request("", Some(node), distance + 1));
                value = self.first(node).filter(|_| self.belongs_to_what_it_reads(node));
            }
            distance += 2;
        }
        best
    }

    fn of_consumers(&self, value: ValueId, found: &[Option<Request>]) -> Option<Request> {
        let mut best = None;
        for consumer in &self.graph.values[value].consumers {
            let Some((rule, integer)) = self.rules[consumer.node] else { continue };
            if !rule.takes_activation(consumer.input) {
                continue;
            }
            best = best.min_some(self.request("", Some(consumer.node), CONSUMER));
            if matches!(integer, IntegerSupport::SameAsInput { .. }) {
                for output in float32::outputs(self.graph, consumer.node) {
                    let far = |request| Request { distance: CONSUMER, ..request };
                    let passed = found[output].map(far);
                    best = best.min_some(passed);
                }
            }
        }
        best
    }

    /// The narrowest request for this value, or this node.
    fn request(&self, value: &str, node: Option<usize>, distance: usize) -> Option<Request> {
        let (index, breadth, qtype) = self.selection.activation(self.graph, value, node)?;
        Some(Request { breadth, distance, bits: Reverse(qtype.bits()), qtype, index })
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

    /// The first input of a node that is an activation.
    fn first(&self, node: usize) -> Option<ValueId> {
        self.flowing(node).find(|id| !self.is_constant(*id))
    }

    /// Whether a node completes the preceding node: it is its activation function, or adds its
    /// bias.
    fn belongs_to_what_it_reads(&self, node: usize) -> bool {
        let adds = || {
            self.graph.nodes[node].op_type == "Add"
                && self.flowing(node).any(|id| self.is_constant(id))
        };
        self.integer(node) == Some(IntegerSupport::Fused) || adds()
    }
}

/// The lesser of two optional values.
trait MinSome {
    fn min_some(self, other: Self) -> Self;
}

impl<T: Ord> MinSome for Option<T> {
    fn min_some(self, other: Option<T>) -> Option<T> {
        self.into_iter().chain(other).min()
    }
}

impl ActivationContext<'_, '_> {
    /// Whether the runtime computes on integers of these values: all of one type of 8 bits.
    pub(super) fn has_kernels(&self, values: &[ValueId]) -> bool {
        let qtypes = || values.iter().map(|id| self.types.specs[*id].qtype);
        let one = |qtype: QType| Some(qtype) == qtypes().next();
        qtypes().all(|qtype| qtype.bits() == 8 && !qtype.is_float() && one(qtype))
    }

    /// Whether the data that a node moves would be integers: not every such operator takes floats
    /// of 8 bits, `Gather` in no opset.
    pub(super) fn moves_integers(&self, node: usize) -> bool {
        let input = self.graph.input(node, 0);
        input.is_some_and(|input| !self.types.specs[input].qtype.is_float())
    }

    /// The requests that apply to no quantized value, each with the reason.
    pub(super) fn unused_types(&self, decisions: &Decisions) -> Vec<(&str, String)> {
        let follows = |id: &usize| {
            let how = decisions.quantized(*id);
            how.is_some_and(|how| {
                !matches!(
                    how.because,
                    QuantizeReason::WeightOf(_)
                        | QuantizeReason::SmallWeightOf(_)
                        | QuantizeReason::BiasOf(_)
                )
            })
        };
        let values = (0..self.types.requests.len()).filter(follows);
        let met: Vec<usize> = values.flat_map(|id| self.types.requests[id].clone()).collect();
        let name = |id: ValueId| self.graph.values[id].name;
        let why = |index: usize| {
            let of = |lost: &&Overruled| lost.request == index && follows(&lost.value);
            // The last one is the value that is named: those before it pass the request back.
            match self.types.overruled.iter().rfind(of) {
                Some(Overruled { value, follows, .. }) => format!(
                    "but `{}` always has the type of `{}`: give the type to `{1}`",
                    name(*value),
                    name(*follows),
                ),
                None => "which decides over nothing that is quantized".to_owned(),
            }
        };
        let unmet = self.selection.unmet(&met).into_iter();
        unmet.map(|(index, text)| (text, why(index))).collect()
    }
}
