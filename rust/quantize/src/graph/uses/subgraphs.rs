//! Which nodes use which values in subgraphs: the bodies of `If`, `Loop` and `Scan`.

use std::collections::HashMap;

use quantize_rs_onnx::{GraphProto, NodeProto, Raw, TensorProto};

use super::rearranges;
use crate::graph::{Graph, ValueId, constant_of};

/// All subgraphs of a graph, including nested ones.
#[derive(Debug, Default)]
pub(crate) struct Subgraphs<'m> {
    pub(crate) all: Vec<Subgraph<'m>>,
    /// Reads of values that are defined in the main graph, by name.
    captured: HashMap<&'m str, Vec<Read<'m>>>,
}

/// One subgraph.
#[derive(Debug)]
pub(crate) struct Subgraph<'m> {
    /// The graph.
    pub(crate) graph: &'m GraphProto,
    /// The enclosing subgraph; `None` if that is the main graph.
    parent: Option<usize>,
    /// The node that it belongs to.
    owner: &'m NodeProto,
    /// The values that are defined in the subgraph, each with the constant behind it.
    pub(super) own: HashMap<&'m str, Option<&'m TensorProto>>,
    /// Reads of values that are defined in the subgraph, by name, including reads in nested
    /// subgraphs.
    reads: HashMap<&'m str, Vec<Read<'m>>>,
}

/// One read of a value in a subgraph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read<'m> {
    /// The index of the subgraph.
    pub(crate) body: usize,
    /// The node and the index of its input; `None` for an output of the subgraph.
    pub(crate) by: Option<(&'m NodeProto, usize)>,
}

impl<'m> Subgraphs<'m> {
    /// Collects the subgraphs of the nodes of a graph.
    pub(crate) fn of(graph: &Graph<'m>) -> Subgraphs<'m> {
        let mut bodies = Subgraphs::default();
        // An enclosing subgraph gets a smaller index than the subgraphs in it.
        let mut waiting: Vec<(&'m GraphProto, &'m NodeProto, Option<usize>)> = Vec::new();
        for owner in &graph.nodes {
            waiting.extend(owner.subgraphs().map(|body| (body, *owner, None)));
        }
        waiting.reverse();
        while let Some((body, owner, parent)) = waiting.pop() {
            let index = bodies.all.len();
            let (own, reads) = (own(body), HashMap::new());
            bodies.all.push(Subgraph { graph: body, parent, owner, own, reads });
            for owner in &body.node {
                waiting.extend(owner.subgraphs().map(|body| (body, &**owner, Some(index))));
            }
        }
        for body in 0..bodies.all.len() {
            let graph = bodies.all[body].graph;
            for node in &graph.node {
                for (input, name) in node.input.iter().enumerate() {
                    bodies.add(name, Read { body, by: Some((&**node, input)) });
                }
            }
            for output in &graph.output {
                bodies.add(&output.name, Read { body, by: None });
            }
        }
        bodies
    }

    /// The names that are defined in subgraphs, one subgraph after the other.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'m str> {
        self.all.iter().flat_map(|body| body.own.keys().copied())
    }

    /// The nodes of all subgraphs, each with the index of its subgraph.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (usize, &'m NodeProto)> {
        let numbered = self.all.iter().enumerate();
        numbered.flat_map(|(body, found)| found.graph.node.iter().map(move |node| (body, &**node)))
    }

    /// The nodes that a subgraph belongs to, the innermost first.
    pub(crate) fn owners(&self, body: usize) -> impl Iterator<Item = &'m NodeProto> {
        let outwards = std::iter::successors(Some(body), |body| self.all[*body].parent);
        outwards.map(|body| self.all[body].owner)
    }

    /// The value of the main graph that a name refers to inside a subgraph.
    pub(crate) fn outer(&self, graph: &Graph<'m>, body: usize, name: &str) -> Option<ValueId> {
        if self.producer(body, name).is_some() { None } else { graph.value(name) }
    }

    /// The reads of a value of the main graph.
    pub(crate) fn captured(&self, name: &str) -> &[Read<'m>] {
        self.captured.get(name).map_or(&[], |reads| reads)
    }

    /// The reads of a value of a subgraph.
    pub(crate) fn reads(&self, body: usize, name: &str) -> &[Read<'m>] {
        self.all[body].reads.get(name).map_or(&[], |reads| reads)
    }

    /// The constant that a name refers to inside a subgraph.
    pub(crate) fn constant(
        &self,
        graph: &Graph<'m>,
        body: usize,
        name: &str,
    ) -> Option<&'m TensorProto> {
        match self.producer(body, name) {
            Some(body) => self.all[body].own.get(name).copied().flatten(),
            None => graph.constant(graph.value(name)?),
        }
    }

    /// The nodes of subgraphs that rearrange a value of the main graph before it has this name in
    /// `body`, the last one first.
    pub(crate) fn rearranging(&self, mut body: usize, mut name: &'m str) -> Vec<&'m NodeProto> {
        let mut found = Vec::new();
        while let Some(node) = self.producer_node(body, name).filter(|node| rearranges(node))
            && let (Some(scope), Some(input)) = (self.producer(body, name), node.input.first())
        {
            found.push(node);
            (body, name) = (scope, input);
        }
        found
    }

    /// The node of a subgraph that computes what this name refers to in `body`.
    pub(crate) fn producer_node(&self, body: usize, name: &str) -> Option<&'m NodeProto> {
        let mut nodes = self.all[self.producer(body, name)?].graph.node.iter();
        let makes = |node: &&Raw<NodeProto>| node.output.iter().any(|output| output == name);
        nodes.find(makes).map(|node| &**node)
    }

    /// The only node that reads a value of a subgraph.
    pub(crate) fn only_reader(&self, body: usize, name: &str) -> Option<&'m NodeProto> {
        match self.reads(body, name) {
            [Read { by: Some((node, _)), .. }] => Some(node),
            _ => None,
        }
    }

    /// The subgraph that defines a name that is visible in `body`; `None` for the main graph.
    pub(crate) fn producer(&self, body: usize, name: &str) -> Option<usize> {
        let mut scope = Some(body);
        while let Some(body) = scope {
            if self.all[body].own.contains_key(name) {
                return Some(body);
            }
            scope = self.all[body].parent;
        }
        None
    }

    fn add(&mut self, name: &'m str, read: Read<'m>) {
        if name.is_empty() {
            return;
        }
        match self.producer(read.body, name) {
            Some(body) => self.all[body].reads.entry(name).or_default().push(read),
            None => self.captured.entry(name).or_default().push(read),
        }
    }
}

/// The names that a subgraph defines.
pub(crate) fn made(body: &GraphProto) -> impl Iterator<Item = &str> {
    own(body).into_keys()
}

/// What a subgraph defines: its inputs, its constants, and the outputs of its nodes.
fn own(body: &GraphProto) -> HashMap<&str, Option<&TensorProto>> {
    let mut own: HashMap<&str, Option<&TensorProto>> = HashMap::new();
    own.extend(body.sparse_initializer.iter().filter_map(|sparse| Some((sparse.name()?, None))));
    own.extend(body.initializer.iter().map(|tensor| (tensor.name.as_str(), Some(&**tensor))));
    // An initializer that is also an input can be overridden, so it is not constant.
    own.extend(body.input.iter().map(|input| (input.name.as_str(), None)));
    for node in &body.node {
        let constant = constant_of(node);
        let made = node.output.iter().filter(|name| !name.is_empty());
        own.extend(made.map(|name| (name.as_str(), constant)));
    }
    own
}
