//! Folds constants in subgraphs, where results become `Constant` nodes.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher;

use quantize_rs_onnx::{
    AttributeProto, Edit, GraphProto, NodeProto, Raw, Tensor, TensorProto, reads, topological,
};

use super::budget::{self, Candidate, FREE_BYTES, Part, Source};
use super::{Evaluation, MAX_GROWTH_BYTES, growth, is_followed, total_growth};
use crate::graph::constants::{constant, fixed};
use crate::graph::ops;
use crate::graph::uses::{Read, Subgraphs};
use crate::graph::{Graph, Producer, with_subgraphs};
use crate::transform::Changes;
use crate::util::fnv::Fnv;

pub(super) fn run(graph: &Graph<'_>) -> Changes {
    let bodies = Subgraphs::of(graph);
    if bodies.all.is_empty() {
        return Changes::default();
    }
    let mut expressions = Expressions {
        graph,
        bodies: &bodies,
        evaluation: Evaluation::of(graph.model),
        known: HashMap::new(),
        computed: Vec::new(),
        candidates: Vec::new(),
        sources: Vec::new(),
        by_node: HashMap::new(),
    };
    for (index, body) in bodies.all.iter().enumerate() {
        expressions.constants_of(index);
        for node in topological(&body.graph.node).unwrap_or_default() {
            expressions.add(index, &body.graph.node[node]);
        }
    }
    expressions.changes()
}

/// A value by the subgraph that defines it, `None` for the main graph, and its name there.
type Key<'m> = (Option<usize>, &'m str);

struct Known {
    tensor: Tensor,
    part: Option<Part>,
}

/// The values of subgraphs that could be computed in advance.
struct Expressions<'g, 'm> {
    graph: &'g Graph<'m>,
    bodies: &'g Subgraphs<'m>,
    evaluation: Evaluation,
    known: HashMap<Key<'m>, Known>,
    /// The nodes, each with the candidate for the budget.
    computed: Vec<(Key<'m>, &'m NodeProto)>,
    candidates: Vec<Candidate>,
    /// The constants that they are computed from.
    sources: Vec<Key<'m>>,
    /// The candidates by the address of their node.
    by_node: HashMap<*const NodeProto, usize>,
}

impl<'m> Expressions<'_, 'm> {
    /// Adds the constants of a subgraph.
    fn constants_of(&mut self, body: usize) {
        let graph = self.graph;
        let proto = self.bodies.all[body].graph;
        let mut add = |name: &'m str, tensor: Option<Tensor>| {
            if let Some(tensor) = tensor {
                self.known.insert((Some(body), name), Known { tensor, part: None });
            }
        };
        for tensor in &proto.initializer {
            add(&tensor.name, graph.model.tensor(tensor).ok());
        }
        for node in &proto.node {
            if let Some(name) = node.output.first() {
                add(name, constant(graph.model, node));
            }
        }
        // Initializers that are also inputs can be overridden.
        for input in &proto.input {
            self.known.remove(&(Some(body), input.name.as_str()));
        }
    }

    /// Adds a node of a subgraph if its output is constant.
    fn add(&mut self, body: usize, node: &'m NodeProto) -> Option<()> {
        let [output] = &node.output[..] else { return None };
        let keys: Vec<Option<Key<'m>>> = node
            .input
            .iter()
            .map(|name| match name.as_str() {
                "" => Some(None),
                name => self.constant(body, name).map(Some),
            })
            .collect::<Option<_>>()?;
        let tensor = |key: &Option<Key<'m>>| Some(self.known.get(&(*key)?)?.tensor.clone());
        let inputs: Vec<Option<Tensor>> = keys.iter().map(tensor).collect();
        // The planner follows it to the constant of the main graph, whose name users know.
        let renamed = matches!(keys.first(), Some(Some((None, _)))) && is_followed(node);
        let small = |tensor: &Tensor| tensor.data.len() <= FREE_BYTES;
        if renamed && !inputs.iter().flatten().all(small) {
            return None;
        }
        let growth = growth(node, false);
        let tensor = self.evaluation.value(node, &inputs, growth)?;
        let inputs = keys.iter().flatten().filter_map(|key| self.part(*key)).collect();
        let bytes = tensor.data.len();
        let (key, index) = ((Some(body), output.as_str()), self.candidates.len());
        self.known.insert(key, Known { tensor, part: Some(Part::Candidate(index)) });
        self.by_node.insert(std::ptr::from_ref(node), index);
        self.computed.push((key, node));
        self.candidates.push(Candidate { inputs, bytes, growth, is_read: false, is_shared: false });
        Some(())
    }

    /// The constant that a name refers to inside a subgraph.
    fn constant(&mut self, body: usize, name: &'m str) -> Option<Key<'m>> {
        let key = (self.bodies.producer(body, name), name);
        if key.0.is_none() && !self.known.contains_key(&key) {
            let tensor = fixed(self.graph, self.graph.value(name)?)?;
            self.known.insert(key, Known { tensor, part: None });
        }
        self.known.contains_key(&key).then_some(key)
    }

    /// What computes a constant value.
    fn part(&mut self, key: Key<'m>) -> Option<Part> {
        let known = self.known.get_mut(&key)?;
        Some(*known.part.get_or_insert_with(|| {
            self.sources.push(key);
            Part::Source(self.sources.len() - 1)
        }))
    }

    /// Where subgraphs read a value.
    fn reads(&self, (body, name): Key<'m>) -> &[Read<'m>] {
        match body {
            Some(body) => self.bodies.reads(body, name),
            None => self.bodies.captured(name),
        }
    }

    /// Whether something that is no candidate reads a value.
    fn is_read(&self, key: Key<'m>) -> bool {
        let in_main_graph = || {
            let value = self.graph.value(key.1).map(|value| &self.graph.values[value]);
            value.is_none_or(|value| value.is_output || !value.consumers.is_empty())
        };
        let by_candidate = |read: &Read<'m>| {
            read.by.is_some_and(|(node, _)| self.by_node.contains_key(&std::ptr::from_ref(node)))
        };
        key.0.is_none() && in_main_graph() || !self.reads(key).iter().all(by_candidate)
    }

    /// Whether only operators that multiply by a value read it, or candidates. Lifting such weights
    /// stores equal ones once.
    fn is_weight(&self, key: Key<'m>) -> bool {
        self.reads(key).iter().filter_map(|read| read.by).all(|(node, input)| {
            self.by_node.contains_key(&std::ptr::from_ref(node))
                || ops::rule(node).is_some_and(|rule| rule.takes_weight(input))
        })
    }

    /// Marks the large weights that equal an earlier one.
    fn share(&mut self) {
        let mut firsts: HashMap<u64, Vec<&Tensor>> = HashMap::new();
        for (index, (key, _)) in self.computed.iter().enumerate() {
            let tensor = &self.known[key].tensor;
            if tensor.data.len() <= MAX_GROWTH_BYTES || !self.is_weight(*key) {
                continue;
            }
            let mut hash = Fnv::default();
            hash.write(&tensor.data);
            let alike = firsts.entry(hash.finish()).or_default();
            let same = |other: &&Tensor| {
                (other.dtype, &other.shape) == (tensor.dtype, &tensor.shape)
                    && other.data == tensor.data
            };
            self.candidates[index].is_shared = alike.iter().any(same);
            alike.push(tensor);
        }
    }

    fn changes(mut self) -> Changes {
        self.share();
        for index in 0..self.candidates.len() {
            self.candidates[index].is_read = self.is_read(self.computed[index].0);
        }
        let source = |key: &Key<'m>| Source {
            bytes: self.known[key].tensor.data.len(),
            stays: self.is_read(*key),
        };
        let sources: Vec<Source> = self.sources.iter().map(source).collect();
        let graph = self.graph;
        let chosen = budget::chosen(&self.candidates, &sources, total_growth(graph.model));
        let mut changes = Changes::default();
        let mut folded: Folded<'_> = HashMap::new();
        for ((key, node), _) in self.computed.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
            folded.insert(std::ptr::from_ref(*node), &self.known[key].tensor);
            let body = key.0.and_then(|body| self.bodies.all[body].graph.name.as_deref());
            let (label, name) = (node.label(), body.unwrap_or_default());
            changes
                .did
                .push(format!("replaced {label}, in subgraph `{name}`, with its constant value"));
        }
        for (node, proto) in graph.nodes.iter().enumerate() {
            if let Some(with) = with_subgraphs(proto, |body| replaced(body, &folded)) {
                changes.edits.push(Edit::ReplaceNode { node, with });
            }
        }
        for (key, source) in self.sources.iter().zip(&sources).filter(|(key, _)| key.0.is_none()) {
            let read = |read: &Read<'m>| {
                read.by.is_none_or(|(node, _)| !folded.contains_key(&std::ptr::from_ref(node)))
            };
            if !source.stays && !self.bodies.captured(key.1).iter().any(read) {
                changes.edits.extend(self.without(key.1));
            }
        }
        changes
    }

    /// Removes a constant of the main graph.
    fn without(&self, name: &str) -> Option<Edit> {
        match self.graph.values[self.graph.value(name)?].producer {
            Producer::Initializer { .. } => Some(Edit::RemoveInitializer(name.to_owned())),
            Producer::Node { node, .. } => Some(Edit::RemoveNode(node)),
            _ => None,
        }
    }
}

/// The values of replaced nodes, by the address of the node.
type Folded<'t> = HashMap<*const NodeProto, &'t Tensor>;

/// A subgraph with replaced nodes; `None` if nothing changes. The recursion depth is the nesting
/// depth of subgraphs, which the model reader limits.
fn replaced(body: &GraphProto, folded: &Folded<'_>) -> Option<GraphProto> {
    let mut changed = false;
    let mut nodes: Vec<Raw<NodeProto>> = Vec::with_capacity(body.node.len());
    for node in &body.node {
        if let Some(tensor) = folded.get(&std::ptr::from_ref(&**node)) {
            let value = AttributeProto::tensor("value", TensorProto::new("", tensor));
            let (name, output) = (node.name.clone(), node.output.clone());
            let value = vec![Raw::new(value)];
            nodes.push(Raw::new(NodeProto::new(name, "Constant", Vec::new(), output, value)));
            changed = true;
            continue;
        }
        match with_subgraphs(node, |body| replaced(body, folded)) {
            Some(with) => {
                nodes.push(Raw::new(with));
                changed = true;
            }
            None => nodes.push(node.clone()),
        }
    }
    if !changed {
        return None;
    }
    let (before, left) = (read(&body.node, body), read(&nodes, body));
    let unneeded: HashSet<&str> = before.difference(&left).copied().collect();
    let mut with = body.clone();
    let gone = |node: &NodeProto| {
        node.op_type == "Constant"
            && node.output.iter().all(|name| unneeded.contains(name.as_str()))
    };
    with.node = nodes.iter().filter(|node| !gone(node)).cloned().collect();
    with.initializer.retain(|tensor| !unneeded.contains(tensor.name.as_str()));
    with.value_info.retain(|info| !unneeded.contains(info.name.as_str()));
    Some(with)
}

/// The values that are read: by nodes, by nodes in their subgraphs, or as an output.
fn read<'n>(nodes: &'n [Raw<NodeProto>], body: &'n GraphProto) -> HashSet<&'n str> {
    let read = nodes.iter().flat_map(|node| reads(node));
    read.chain(body.output.iter().map(|output| output.name.as_str())).collect()
}
