//! Who reads what in the graphs inside nodes: the bodies of `If`, `Loop` and `Scan`.

use std::collections::HashMap;

use quantize_rs_onnx::{GraphProto, NodeProto, TensorProto};

use crate::graph::{Graph, ValueId, constant_of};

/// The graphs inside nodes, those inside their nodes included.
#[derive(Debug, Default)]
pub(crate) struct Bodies<'m> {
    pub(crate) all: Vec<Body<'m>>,
    /// Reads of what is made in the main graph, by name.
    captured: HashMap<&'m str, Vec<Read<'m>>>,
}

/// One graph inside a node.
#[derive(Debug)]
pub(crate) struct Body<'m> {
    /// The graph.
    pub(crate) graph: &'m GraphProto,
    /// The body around it.
    parent: Option<usize>,
    /// What is made in it, and the constant behind it.
    pub(super) own: HashMap<&'m str, Option<&'m TensorProto>>,
    /// Reads of what is made in it, by name, those in graphs inside it included.
    reads: HashMap<&'m str, Vec<Read<'m>>>,
}

/// A place in a body where a value is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read<'m> {
    /// The body.
    pub(crate) body: usize,
    /// The node and the position among its inputs; `None` for an output of the body.
    pub(crate) by: Option<(&'m NodeProto, usize)>,
}

impl<'m> Bodies<'m> {
    /// Looks into the graphs inside the nodes of a graph.
    pub(crate) fn of(graph: &Graph<'m>) -> Bodies<'m> {
        let mut bodies = Bodies::default();
        // What stands outside is numbered before what stands inside it.
        let mut waiting: Vec<(&'m GraphProto, Option<usize>)> = Vec::new();
        let outermost = graph.nodes.iter().flat_map(|node| node.subgraphs());
        waiting.extend(outermost.map(|body| (body, None)));
        waiting.reverse();
        while let Some((body, parent)) = waiting.pop() {
            let index = bodies.all.len();
            let (own, reads) = (own(body), HashMap::new());
            bodies.all.push(Body { graph: body, parent, own, reads });
            let inside = body.node.iter().flat_map(|node| node.subgraphs());
            waiting.extend(inside.map(|body| (body, Some(index))));
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

    /// What is made in bodies, body by body.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'m str> {
        self.all.iter().flat_map(|body| body.own.keys().copied())
    }

    /// The nodes of bodies, and in which body each stands.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (usize, &'m NodeProto)> {
        let numbered = self.all.iter().enumerate();
        numbered.flat_map(|(body, found)| found.graph.node.iter().map(move |node| (body, &**node)))
    }

    /// The value of the main graph that a body knows by a name.
    pub(crate) fn outer(&self, graph: &Graph<'m>, body: usize, name: &str) -> Option<ValueId> {
        if self.maker(body, name).is_some() { None } else { graph.value(name) }
    }

    /// Who reads a value of the main graph.
    pub(super) fn captured(&self, name: &str) -> &[Read<'m>] {
        self.captured.get(name).map_or(&[], |reads| reads)
    }

    /// Who reads a value of a body.
    pub(super) fn reads(&self, body: usize, name: &str) -> &[Read<'m>] {
        self.all[body].reads.get(name).map_or(&[], |reads| reads)
    }

    /// The constant that a body knows by a name.
    pub(crate) fn constant(
        &self,
        graph: &Graph<'m>,
        body: usize,
        name: &str,
    ) -> Option<&'m TensorProto> {
        match self.maker(body, name) {
            Some(body) => self.all[body].own.get(name).copied().flatten(),
            None => graph.constant(graph.value(name)?),
        }
    }

    /// The body that makes what `body` knows by a name; `None` for the main graph.
    fn maker(&self, body: usize, name: &str) -> Option<usize> {
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
        match self.maker(read.body, name) {
            Some(body) => self.all[body].reads.entry(name).or_default().push(read),
            None => self.captured.entry(name).or_default().push(read),
        }
    }
}

/// The names of what a body makes.
pub(crate) fn made(body: &GraphProto) -> impl Iterator<Item = &str> {
    own(body).into_keys()
}

/// What a body makes: its inputs, its constants, and what its nodes make.
fn own(body: &GraphProto) -> HashMap<&str, Option<&TensorProto>> {
    let mut own: HashMap<&str, Option<&TensorProto>> = HashMap::new();
    own.extend(body.sparse_initializer.iter().filter_map(|sparse| Some((sparse.name()?, None))));
    own.extend(body.initializer.iter().map(|tensor| (tensor.name.as_str(), Some(&**tensor))));
    // What is an input too may be replaced.
    own.extend(body.input.iter().map(|input| (input.name.as_str(), None)));
    for node in &body.node {
        let constant = constant_of(node);
        let made = node.output.iter().filter(|name| !name.is_empty());
        own.extend(made.map(|name| (name.as_str(), constant)));
    }
    own
}
