//! Replaces nodes in subgraphs.

use std::collections::HashMap;

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Raw, topological};

use super::writer::Writer;
use crate::graph::uses::{Multiplier, Subgraphs};
use crate::graph::with_subgraphs;

/// The subgraphs of a model, and the replacements of nodes in them.
#[derive(Default)]
pub(super) struct Inside<'m> {
    bodies: Option<Subgraphs<'m>>,
    replacements: Replacements,
}

/// The replacements of nodes in subgraphs, by the address of the node. A node that is replaced by
/// none is removed.
type Replacements = HashMap<*const NodeProto, Vec<NodeProto>>;

impl<'m> Writer<'_, 'm> {
    /// Replaces a node of a subgraph by the one that `write` returns and those that it adds.
    /// Removes the nodes that rearrange its constant, which nothing else reads.
    pub(super) fn replace_inside(
        &mut self,
        reader: &Multiplier<'m>,
        write: impl FnOnce(&mut Self) -> NodeProto,
    ) {
        let Some(body) = reader.body else { return };
        let before = self.edits.len();
        let mut nodes = vec![write(self)];
        for edit in self.edits.split_off(before) {
            match edit {
                Edit::AddNode(node) => nodes.push(node),
                other => self.edits.push(other),
            }
        }
        let graph = self.graph;
        let Inside { bodies, replacements } = &mut self.inside;
        replacements.insert(std::ptr::from_ref(reader.node), nodes);
        let bodies = bodies.get_or_insert_with(|| Subgraphs::of(graph));
        for node in bodies.rearranging(body, &reader.node.input[reader.input]) {
            replacements.insert(std::ptr::from_ref(node), Vec::new());
        }
    }

    /// Replaces an input of a node of a subgraph.
    pub(super) fn set_input_inside(&mut self, reader: &Multiplier<'m>, value: &str) {
        let replacements = &mut self.inside.replacements;
        let nodes = replacements.entry(std::ptr::from_ref(reader.node));
        let nodes = nodes.or_insert_with(|| vec![reader.node.clone()]);
        if let Some(input) = nodes.first_mut().and_then(|node| node.input.get_mut(reader.input)) {
            value.clone_into(input);
        }
    }

    /// Writes the subgraphs with the replaced nodes.
    pub(super) fn write_inside(&mut self) {
        let replacements = std::mem::take(&mut self.inside.replacements);
        if replacements.is_empty() {
            return;
        }
        let nodes = self.graph.nodes.iter().enumerate();
        let replaced = nodes.filter_map(|(node, proto)| {
            let with = with_subgraphs(proto, |body| changed(body, &replacements))?;
            Some(Edit::ReplaceNode { node, with })
        });
        // These edits come first: later edits set inputs of the new nodes.
        self.edits.splice(..0, replaced.collect::<Vec<_>>());
    }
}

/// A copy of a graph with replaced nodes, or `None` if no node of it is replaced. The recursion is
/// as deep as graphs are nested, which the model loader limits.
fn changed(body: &GraphProto, replacements: &Replacements) -> Option<GraphProto> {
    let mut nodes = Vec::with_capacity(body.node.len());
    let mut any = false;
    for node in &body.node {
        if let Some(others) = replacements.get(&std::ptr::from_ref(&**node)) {
            nodes.extend(others.iter().cloned().map(Raw::new));
            any = true;
        } else if let Some(with) = with_subgraphs(node, |inner| changed(inner, replacements)) {
            nodes.push(Raw::new(with));
            any = true;
        } else {
            nodes.push(node.clone());
        }
    }
    any.then(|| {
        // A value that is quantized for one product may have been read by an earlier one.
        if let Ok(order) = topological(&nodes) {
            nodes = order.into_iter().map(|index| nodes[index].clone()).collect();
        }
        let mut with = body.clone();
        with.node = nodes;
        with
    })
}
