//! What of a model changes with some edits, and what does not: that need not be computed again.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{Edit, reads};

use crate::graph::{Graph, Producer};

/// What edits leave as it was.
pub(super) struct Unchanged {
    /// Values of the edited model that are what they were, by their name there, with the name of the
    /// value in the model before.
    pub(super) values: HashMap<String, String>,
    /// Where in the order the last node stands that reads or makes something under another name, or reads a constant
    /// that edits change.
    pub(super) last: usize,
}

impl Unchanged {
    /// Goes through the nodes of the model before, of which `order` is one of computation.
    pub(super) fn of(graph: &Graph<'_>, order: &[usize], edits: &[Edit]) -> Unchanged {
        let mut touched: HashSet<usize> = HashSet::new();
        let mut renamed: HashMap<(usize, usize), &str> = HashMap::new();
        let mut changed: HashSet<&str> = HashSet::new();
        for edit in edits {
            match edit {
                Edit::SetInput { node, .. }
                | Edit::ReplaceNode { node, .. }
                | Edit::RemoveNode(node) => {
                    touched.insert(*node);
                }
                Edit::RenameOutput { node, output, value } => {
                    renamed.insert((*node, *output), value);
                }
                Edit::AddNode(node) => changed.extend(node.output.iter().map(String::as_str)),
                Edit::AddInitializer(tensor) | Edit::ReplaceInitializer(tensor) => {
                    changed.insert(&tensor.name);
                }
                Edit::RemoveInitializer(name) => {
                    changed.insert(name);
                }
                _ => {}
            }
        }
        // A value that nodes make is handed on under its name, whoever made it; a constant is not.
        let made = |name: &str| {
            graph.value(name).is_some_and(|id| {
                matches!(graph.values[id].producer, Producer::Node { .. })
                    && graph.constant(id).is_none()
            })
        };
        let own: HashSet<&str> = changed.iter().copied().filter(|name| !made(name)).collect();
        let (mut values, mut last) = (HashMap::new(), 0);
        for (rank, index) in order.iter().copied().enumerate() {
            let node = graph.nodes[index];
            let reads = reads(node);
            let is_new =
                touched.contains(&index) || reads.iter().any(|name| changed.contains(name));
            let has_new_name =
                (0..node.output.len()).any(|output| renamed.contains_key(&(index, output)));
            if has_new_name
                || touched.contains(&index)
                || reads.iter().any(|name| own.contains(name))
            {
                last = rank;
            }
            for (output, name) in node.output.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
                let now = renamed.get(&(index, output)).copied().unwrap_or(name);
                if is_new {
                    changed.insert(now);
                } else {
                    values.insert(now.to_owned(), name.clone());
                }
            }
        }
        Unchanged { values, last }
    }
}
