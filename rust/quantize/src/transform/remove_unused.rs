//! Removes unused nodes, unused constants, and value infos of missing values.

use std::collections::HashSet;

use quantize_rs_onnx::{Edit, reads};

use super::Changes;
use super::pass_edits::is_pure;
use crate::QuantizeError;
use crate::graph::{Graph, Producer};

#[allow(clippy::unnecessary_wraps)] // all passes have this signature
pub(super) fn run(graph: &Graph<'_>) -> Result<Changes, QuantizeError> {
    let mut changes = Changes::default();
    let proto = graph.model.graph();
    if proto.output.is_empty() {
        return Ok(changes);
    }
    let mut needed: HashSet<&str> = HashSet::new();
    let mut kept = vec![false; graph.nodes.len()];
    let mut waiting: Vec<&str> = proto.output.iter().map(|output| output.name.as_str()).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !is_pure(node) || node.output.iter().all(String::is_empty) {
            kept[index] = true;
            waiting.extend(reads(node));
        }
    }
    while let Some(name) = waiting.pop() {
        if !needed.insert(name) {
            continue;
        }
        if let Some(value) = graph.value(name)
            && let Producer::Node { node, .. } = graph.values[value].producer
            && !std::mem::replace(&mut kept[node], true)
        {
            waiting.extend(reads(graph.nodes[node]));
        }
    }
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| !kept[*index]) {
        changes.edits.push(Edit::RemoveNode(index));
        changes.did.push(format!("removed {}: its outputs are unused", node.label()));
    }
    for value in graph.values.iter().filter(|value| !needed.contains(value.name)) {
        // An unused default value still makes an input of the model optional.
        let gone = match value.producer {
            Producer::Initializer { overridable, .. } => !overridable,
            Producer::Sparse => true,
            _ => false,
        };
        if gone {
            changes.edits.push(Edit::RemoveInitializer(value.name.to_owned()));
            changes.did.push(format!("removed constant `{}`: it is unused", value.name));
        }
    }
    let mut removed = HashSet::new();
    for info in &proto.value_info {
        let there =
            graph.value(&info.name).is_some_and(|value| match graph.values[value].producer {
                Producer::Node { node, .. } => kept[node],
                Producer::Input => true,
                _ => needed.contains(&*info.name),
            });
        if !there && removed.insert(&info.name) {
            changes.edits.push(Edit::RemoveValueInfo(info.name.clone()));
            changes
                .did
                .push(format!("removed the value info of `{}`: there is no such value", info.name));
        }
    }
    Ok(changes)
}
