//! Graphs inside nodes, some of whose nodes become others.

use std::collections::HashMap;

use quantize_rs_onnx::{Edit, GraphProto, NodeProto, Raw};

use super::writer::Writer;
use crate::graph::with_subgraphs;

/// What nodes in graphs inside nodes become, by their address.
pub(super) type Replacements = HashMap<*const NodeProto, Vec<NodeProto>>;

impl Writer<'_, '_> {
    /// Puts what nodes in graphs inside nodes become in their place.
    pub(super) fn replace_inside(&mut self, became: &Replacements) {
        if became.is_empty() {
            return;
        }
        let nodes = self.graph.nodes.iter().enumerate();
        let replaced = nodes.filter_map(|(node, proto)| {
            let with = with_subgraphs(proto, |body| changed(body, became))?;
            Some(Edit::ReplaceNode { node, with })
        });
        // Before their inputs are set.
        self.edits.splice(..0, replaced.collect::<Vec<_>>());
    }
}

/// A graph with other nodes in it, where any of them become others. As deep as graphs are nested,
/// which the reader of the file limits.
fn changed(body: &GraphProto, became: &Replacements) -> Option<GraphProto> {
    let mut nodes = Vec::with_capacity(body.node.len());
    let mut any = false;
    for node in &body.node {
        if let Some(others) = became.get(&std::ptr::from_ref(&**node)) {
            nodes.extend(others.iter().cloned().map(Raw::new));
            any = true;
        } else if let Some(with) = with_subgraphs(node, |inner| changed(inner, became)) {
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
