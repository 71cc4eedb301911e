//! Decides for each node whether it computes in 16 bits.

use std::collections::{BTreeMap, HashMap, HashSet};

use quantize_rs_onnx::{DataType, GraphProto, NodeProto};

use super::KeptReason;
use super::constants::{Magnitudes, held};
use super::control::{Control, given_to};
use super::fits::Samples;
use super::numbers::Numbers;
use super::operators as ops;
use super::reasons::{Candidate, left_out};
use super::scope::Scope;
use crate::QuantizeError;
use crate::options::HalfType;

/// The most rounds in which nodes between others in float32 join them.
const MAX_ROUNDS: usize = 8;

/// The type in which a float is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Half,
    Float,
}

/// What is done with a node.
#[derive(Clone, Debug)]
pub(super) enum Choice {
    /// It reads and computes no float32.
    Untouched,
    /// It computes in 16 bits.
    Half,
    /// It stays float32.
    Float(KeptReason),
    /// It has no float32 inputs, and computes what its consumers read: a `Cast`, a constant.
    Source,
    /// It runs bodies.
    Control(Control),
}

/// What decisions depend on.
pub(super) struct Settings<'a> {
    pub(super) half: HalfType,
    pub(super) opset: i64,
    /// Whether the model computes in 16 bits already: what is float32 was left so on purpose.
    pub(super) mixed: bool,
    /// The largest magnitude of each float of the main graph on samples.
    pub(super) magnitudes: Option<&'a BTreeMap<String, f32>>,
    /// Why the caller leaves a node in float32, if it does.
    pub(super) excluded: &'a dyn Fn(&NodeProto) -> Option<KeptReason>,
}

/// What is known of a graph before its nodes are looked at.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// The types of the floats among the inputs.
    pub(super) inputs: HashMap<String, Kind>,
    /// The types that the outputs must have.
    pub(super) outputs: HashMap<String, Kind>,
    /// Outputs that are passed on to the next iteration.
    pub(super) carried: HashSet<String>,
    /// Whether all nodes stay float32.
    pub(super) all_float: bool,
}

/// The decisions of a graph.
#[derive(Debug)]
pub(super) struct Decisions {
    pub(super) given: Given,
    pub(super) choices: Vec<Choice>,
    /// The types of the floats that are computed here or given to the graph.
    pub(super) kinds: HashMap<String, Kind>,
    /// The decisions of the bodies of nodes, by their address.
    bodies: HashMap<*const GraphProto, Decisions>,
}

impl Decisions {
    /// The decisions of a body of a node of this graph.
    pub(super) fn body(&self, graph: &GraphProto) -> Option<&Decisions> {
        self.bodies.get(&std::ptr::from_ref(graph))
    }

    /// Whether a float has 16 bits.
    pub(super) fn is_half(&self, name: &str) -> bool {
        self.kinds.get(name) == Some(&Kind::Half)
    }

    /// The type in which a node reads a float; `None` if any will do.
    pub(super) fn wants(&self, scope: &Scope<'_>, node: usize, input: usize) -> Option<Kind> {
        let proto = &*scope.graph.node[node];
        match &self.choices[node] {
            Choice::Untouched | Choice::Source => None,
            Choice::Half if ops::is_float32_input(proto, input) => Some(Kind::Float),
            Choice::Half => Some(Kind::Half),
            Choice::Float(_) => Some(Kind::Float),
            Choice::Control(control) => control.input(input),
        }
    }
}

/// Decides on the nodes of a graph and of their bodies. `outer` is the type of a float of a graph
/// around this one.
pub(super) fn decide(
    scope: &Scope<'_>,
    settings: &Settings<'_>,
    given: Given,
    outer: &dyn Fn(&str) -> Option<Kind>,
) -> Result<Decisions, QuantizeError> {
    let mut decider = Decider {
        scope,
        settings,
        outer,
        samples: Samples {
            half: settings.half,
            magnitudes: settings.magnitudes.filter(|_| scope.outer.is_none()),
        },
        found: Decisions {
            choices: vec![Choice::Untouched; scope.graph.node.len()],
            kinds: given.inputs.clone(),
            given,
            bodies: HashMap::new(),
        },
        numbers: Numbers::of(scope),
    };
    for index in &scope.order {
        decider.node(*index);
    }
    for _ in 0..MAX_ROUNDS {
        if !decider.join() {
            break;
        }
    }
    decider.sources();
    decider.found.bodies = decider.bodies()?;
    Ok(decider.found)
}

/// The state of the decisions of a graph.
struct Decider<'d, 's> {
    scope: &'d Scope<'s>,
    settings: &'d Settings<'d>,
    outer: &'d dyn Fn(&str) -> Option<Kind>,
    samples: Samples<'d>,
    found: Decisions,
    numbers: Numbers<'s>,
}

impl<'s> Decider<'_, 's> {
    fn proto(&self, index: usize) -> &'s NodeProto {
        &self.scope.graph.node[index]
    }

    /// The floats that a node computes.
    fn made(&self, index: usize) -> Vec<&'s str> {
        let outputs = self.proto(index).output.iter().map(String::as_str);
        outputs.filter(|name| self.scope.is_float(name)).collect()
    }

    /// The floats that a node reads, with the position of each.
    fn read(&self, index: usize) -> Vec<(usize, &'s str)> {
        let inputs = self.proto(index).input.iter().map(String::as_str).enumerate();
        inputs.filter(|(_, name)| self.scope.is_float(name)).collect()
    }

    /// The floats that a node reads and that are not constant.
    fn computed(&self, index: usize) -> Vec<(usize, &'s str)> {
        let mut read = self.read(index);
        read.retain(|(_, name)| !self.scope.is_constant(name));
        read
    }

    fn node(&mut self, index: usize) {
        let node = self.proto(index);
        self.numbers.learn_bound(self.scope, node);
        let choice = self.choice(index);
        for (output, name) in node.output.iter().enumerate() {
            if !self.scope.is_float(name) {
                continue;
            }
            let kind = match &choice {
                Choice::Half if ops::is_float32_output(node, output) => Kind::Float,
                Choice::Half | Choice::Source => Kind::Half,
                Choice::Untouched | Choice::Float(_) => Kind::Float,
                Choice::Control(_) if self.samples.is_large(name) => Kind::Float,
                Choice::Control(control) => control.output(output),
            };
            self.found.kinds.insert(name.clone(), kind);
        }
        let made = self.made(index);
        self.numbers.learn(self.scope, node, &choice, &made, self.samples.exist());
        self.found.choices[index] = choice;
    }

    fn choice(&self, index: usize) -> Choice {
        let node = self.proto(index);
        if let Some(control) = Control::of(node) {
            let control = if self.found.given.all_float { Control::Other } else { control };
            return Choice::Control(control);
        }
        let (read, made) = (self.read(index), self.made(index));
        let unknown = |name: &&String| !name.is_empty() && self.scope.dtype(name).is_none();
        let unknown = node.input.iter().chain(&node.output).find(unknown);
        if read.is_empty() && made.is_empty() && unknown.is_none() {
            return Choice::Untouched;
        }
        if ops::takes_any(node) && made.is_empty() {
            return Choice::Untouched;
        }
        if self.is_source(node, &made) {
            let defined = ops::is_defined(node, self.settings.half, self.settings.opset);
            let left_out = left_out(node, self.settings, &self.found.given);
            let reason = left_out.or((!defined).then_some(KeptReason::Operator));
            return reason.map_or(Choice::Source, Choice::Float);
        }
        let candidate = Candidate {
            scope: self.scope,
            settings: self.settings,
            given: &self.found.given,
            samples: self.samples,
            numbers: &self.numbers,
            kind: &|name| self.kind(name),
            node,
            unknown: unknown.map(String::as_str),
            read,
            made,
        };
        candidate.reason().map_or(Choice::Half, Choice::Float)
    }

    /// Whether the consumers of a node decide in which type it computes.
    fn is_source(&self, node: &NodeProto, made: &[&str]) -> bool {
        if !node.is_onnx() || made.is_empty() {
            return false;
        }
        if node.op_type == "DequantizeLinear" {
            return false;
        }
        held(self.scope, node).is_some()
            || ops::type_attribute(&node.op_type).is_some_and(|(name, by_default)| {
                match node.attribute(name).and_then(|attribute| attribute.i) {
                    Some(number) => number == i64::from(DataType::Float.number()),
                    None => by_default,
                }
            })
    }

    /// The type of a float here or around this graph.
    fn kind(&self, name: &str) -> Option<Kind> {
        self.found.kinds.get(name).copied().or_else(|| (self.outer)(name))
    }

    /// Lets nodes between others in float32 join them, where casts would cost more. Whether any
    /// did.
    fn join(&mut self) -> bool {
        let mut joined = false;
        for at in 0..self.scope.order.len() {
            let index = self.scope.order[at];
            let node = self.proto(index);
            let half = matches!(self.found.choices[index], Choice::Half);
            if !half || !(ops::is_elementwise(node) || ops::moves(node)) {
                continue;
            }
            let made = self.made(index);
            let computed = self.computed(index);
            let kept = |name: &str| {
                let producer = self.scope.producer(name);
                producer.is_some_and(|node| matches!(self.found.choices[node], Choice::Float(_)))
            };
            let before = !computed.is_empty() && computed.iter().all(|(_, name)| kept(name));
            let wanted = |name: &&str| {
                let consumers = self.scope.consumers(name);
                let float = |(node, input): &(usize, usize)| {
                    self.found.wants(self.scope, *node, *input) == Some(Kind::Float)
                };
                !consumers.is_empty() && consumers.iter().all(float)
            };
            if before && !made.is_empty() && made.iter().all(wanted) {
                self.found.kinds.extend(made.iter().map(|name| ((*name).to_owned(), Kind::Float)));
                self.found.choices[index] = Choice::Float(KeptReason::Between);
                joined = true;
            }
        }
        joined
    }

    /// Sources compute in 16 bits unless something reads them in float32.
    fn sources(&mut self) {
        for index in 0..self.found.choices.len() {
            if !matches!(self.found.choices[index], Choice::Source) {
                continue;
            }
            let node = self.proto(index);
            let too_large = held(self.scope, node)
                .and_then(|tensor| Magnitudes::of(&tensor))
                .is_some_and(|found| found.largest > self.settings.half.largest());
            for name in self.made(index) {
                let float = |(node, input): &(usize, usize)| {
                    self.found.wants(self.scope, *node, *input) == Some(Kind::Float)
                };
                let read = self.scope.consumers(name).iter().any(float);
                let given = self.found.given.outputs.get(name) == Some(&Kind::Float);
                let float = read || given || too_large || self.samples.is_large(name);
                let kind = if float { Kind::Float } else { Kind::Half };
                self.found.kinds.insert(name.to_owned(), kind);
            }
        }
    }

    /// Decides on the bodies of nodes, which read values of this graph.
    fn bodies(&self) -> Result<HashMap<*const GraphProto, Decisions>, QuantizeError> {
        let mut bodies = HashMap::new();
        for (index, choice) in self.found.choices.iter().enumerate() {
            let Choice::Control(control) = choice else { continue };
            let node = self.proto(index);
            for graph in node.subgraphs() {
                let body = self.scope.body(graph)?;
                let outer = |name: &str| self.kind(name);
                let given = given_to(&body, node, *control, &outer);
                let found = decide(&body, self.settings, given, &outer)?;
                bodies.insert(std::ptr::from_ref(graph), found);
            }
        }
        Ok(bodies)
    }
}
