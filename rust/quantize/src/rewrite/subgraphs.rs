//! Replaces nodes in subgraphs.

use std::collections::HashMap;

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Raw};

use super::writer::Writer;
use crate::graph::with_subgraphs;

/// The replacements of nodes in subgraphs, by the address of the node.
pub(super) type Replacements = HashMap<*const NodeProto, Vec<NodeProto>>;

impl Writer<'_, '_> {
    /// Replaces nodes in subgraphs.
    pub(super) fn replace_inside(&mut self, replacements: &Replacements) {
        if replacements.is_empty() {
            return;
        }
        let nodes = self.graph.nodes.iter().enumerate();
        let replaced = nodes.filter_map(|(node, proto)| {
            let with = with_subgraphs(proto, |body| changed(body, replacements))?;
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
        let mut with = body.clone();
        with.node = nodes;
        with
    })
}
