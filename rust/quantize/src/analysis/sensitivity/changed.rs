//! Finds the values of a model that edits do not change, which need not be computed again.

use std::collections::{HashMap, HashSet};

use quantize_rs_onnx::{Edit, reads};

use crate::graph::{Graph, Producer};

/// The values that edits do not change.
pub(super) struct Unchanged {
    /// Unchanged values by their name in the edited model, with their name in the original model.
    pub(super) values: HashMap<String, String>,
    /// The position in the order of the last node that reads or produces a value under another
    /// name, or reads a constant that edits change.
    pub(super) last: usize,
}

impl Unchanged {
    /// Goes through the nodes of the original model in `order`, a topological order.
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
        // The value of a node keeps its name whichever node produces it; that of a constant does
        // not.
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
